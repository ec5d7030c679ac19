// All-gather, backward: keys come as in the forward, and what each rank's rows give to dk and dv goes back to the keys' owner,
// which adds it to its own rows' in order of rank.
#include "cp/gather.h"

namespace fa {
namespace cp {
namespace {

// Totals in f32; data is NULL where a gradient is not wanted.
struct Totals {
    View dq;            // of this rank's rows
    View dk, dv;        // of this rank's keys, over all ranks
    Gathered gathered;  // of the keys in the buffer, over this rank's rows
    int64_t key_bytes;  // of a key in a message
};
Totals lay_out(const Job& job, const Chunks& chunks, Shares* own, Shares* others) {
    const auto take = [](const View& like, int64_t heads, const void* wanted, int64_t sequences, int64_t rows, Shares* from) {
        View v = wide(like.of_heads(0, heads), nullptr, rows);
        if (wanted) v.data = from->take(bytes_of(v, sequences, rows));
        return v;
    };
    Totals s{};
    Shares keys(nullptr);
    s.gathered.keys = lay_out_gathered(job, chunks, &keys).keys;
    s.dq = take(job.q, chunks.q, job.g.dq, job.row_batch(), job.local_rows, own);
    s.dk = take(job.k, chunks.k, job.g.dk, job.key_batch(), job.local_keys, own);
    s.dv = take(job.v, chunks.v, job.g.dv, job.key_batch(), job.local_keys, own);
    s.gathered.k = take(job.k, chunks.k, job.g.dk, 1, s.gathered.keys, others);
    s.gathered.v = take(job.v, chunks.v, job.g.dv, 1, s.gathered.keys, others);
    s.key_bytes = (job.g.dk ? s.dk.row_bytes() : 0) + (job.g.dv ? s.dv.row_bytes() : 0);
    return s;
}

fa_status_t prepare(Job* job) {
    FA_TRY(prepare_gather(job));
    Shares own(nullptr), others(nullptr);
    const Totals s = lay_out(*job, chunks_of(*job), &own, &others);
    int64_t out = 0, in = 0;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        out += shared_keys(*job, peer, job->rank);
        in += shared_keys(*job, job->rank, peer);
    }
    FA_TRY(grow(job->cp, kLocal, uint64_t(own.used())));
    FA_TRY(grow(job->cp, kPartial, uint64_t(others.used())));
    FA_TRY(grow(job->cp, kGradientSend, uint64_t(out * s.key_bytes)));
    return grow(job->cp, kGradientReceive, uint64_t(in * s.key_bytes));
}

void compute(Job* job, const Chunks& chunks, int64_t chunk, const Gathered& gathered, const Totals& totals) {
    Moves moves(job);
    moves.clear(totals.dq, job->row_batch(), job->local_rows);
    moves.clear(totals.gathered.k, 1, totals.gathered.keys);
    moves.clear(totals.gathered.v, 1, totals.gathered.keys);
    moves.flush();
    each_gathered_piece(job, chunks, chunk, gathered, [&](const Piece& piece, const Place& place) {
        if (piece.keys.rows == 0) return;
        const View dq = job->rows_of(totals.dq, *piece.segment).at(0, piece.local_row, 0);
        differentiate(job, piece, {dq, place.in(totals.gathered.k), place.in(totals.gathered.v), nullptr});
    });
    moves.put(totals.dq, job->dq.of_heads(chunk * chunks.q, chunks.q), job->d.q_dtype, job->accumulates(), job->row_batch(),
              job->local_rows);
    moves.flush();
}

// What this rank's rows give to its own keys: the totals begin with it. The buffer has it between those of the ranks around it.
void begin_totals(Job* job, const Totals& totals) {
    Moves moves(job);
    const int64_t local = job->key_batch() * job->local_keys;
    if (shared_keys(*job, job->rank, job->rank) < local) {  // some are seen by others alone
        moves.clear(totals.dk, job->key_batch(), job->local_keys);
        moves.clear(totals.dv, job->key_batch(), job->local_keys);
        moves.flush();
    }
    each_shared(*job, job->rank, job->rank,
                [&](const Segment& segment, const Range& keys, int64_t local_key, int64_t first, const Range& needed) {
                    const Place place{first, needed.rows};
                    const auto copy = [&](const View& from, const View& to) {
                        if (to.data) moves.copy(place.in(from), 0, job->keys_of(to, segment), local_key, segment.count, keys.rows, false);
                    };
                    copy(totals.gathered.k, totals.dk);
                    copy(totals.gathered.v, totals.dv);
                });
    moves.flush();
}

// dk and dv of the keys that this rank saw, to each owner.
fa_status_t start_return(Job* job, const Totals& totals, Group* group) {
    Moves moves(job);
    char *out = job->cp->slab[kGradientSend].data, *in = job->cp->slab[kGradientReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        char* const begin = out;
        each_shared(*job, peer, job->rank, [&](const Segment& segment, const Range& keys, int64_t, int64_t first, const Range& needed) {
            const Place place{first, needed.rows};
            if (totals.dk.data) out = moves.pack(place.in(totals.gathered.k), segment.count, 0, keys.rows, out);
            if (totals.dv.data) out = moves.pack(place.in(totals.gathered.v), segment.count, 0, keys.rows, out);
        });
        const int64_t bytes = shared_keys(*job, job->rank, peer) * totals.key_bytes;
        group->send(peer, begin, uint64_t(out - begin));
        group->receive(peer, in, uint64_t(bytes));
        in += bytes;
    }
    moves.flush();
    FA_TRY(group->start());
    begin_totals(job, totals);
    return FA_OK;
}

void finish(Job* job, const Chunks& chunks, int64_t chunk, const Totals& totals) {
    Moves moves(job);
    char* in = job->cp->slab[kGradientReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        moves.flush();  // ranks' shares are added one behind the other
        each_shared(*job, job->rank, peer, [&](const Segment& segment, const Range& keys, int64_t local, int64_t, const Range&) {
            if (totals.dk.data) in = moves.add(job->keys_of(totals.dk, segment), segment.count, local, keys.rows, in);
            if (totals.dv.data) in = moves.add(job->keys_of(totals.dv, segment), segment.count, local, keys.rows, in);
        });
    }
    moves.flush();
    moves.put(totals.dk, job->dk.of_heads(chunk * chunks.k, chunks.k), job->d.k_dtype, job->accumulates(), job->key_batch(),
              job->local_keys);
    moves.put(totals.dv, job->dv.of_heads(chunk * chunks.v, chunks.v), job->d.v_dtype, job->accumulates(), job->key_batch(),
              job->local_keys);
    moves.flush();
}

// A chunk's keys come while the one before is computed, and its gradients go while the one behind it is.
fa_status_t run(Job* job) {
    const Chunks c = chunks_of(*job);
    Slab* const slab = job->cp->slab;
    Shares buffer(slab[kKeys].data), own(slab[kLocal].data), others(slab[kPartial].data);
    const Gathered g = lay_out_gathered(*job, c, &buffer);
    const Totals s = lay_out(*job, c, &own, &others);
    differentiate_sinks(job);
    Group keys(job->cp), gradients(job->cp);
    FA_TRY(start_gather(job, c, 0, &keys));
    for (int64_t chunk = 0; chunk < c.count; chunk++) {
        FA_TRY(keys.wait("keys and values"));
        place_gathered(job, c, chunk, g);
        keys = Group(job->cp);
        if (chunk + 1 < c.count) FA_TRY(start_gather(job, c, chunk + 1, &keys));
        compute(job, c, chunk, g, s);
        FA_TRY(gradients.wait("gradients of keys and values"));
        if (chunk > 0) finish(job, c, chunk - 1, s);
        gradients = Group(job->cp);
        FA_TRY(start_return(job, s, &gradients));
    }
    FA_TRY(gradients.wait("gradients of keys and values"));
    finish(job, c, c.count - 1, s);
    return FA_OK;
}

int64_t bytes(const Job& job) {
    const Chunks c = chunks_of(job);
    Shares own(nullptr), others(nullptr);
    int64_t keys = 0;
    for (int32_t peer = 0; peer < job.ranks; peer++)
        if (peer != job.rank) keys += shared_keys(job, peer, job.rank);
    return gather_bytes(job) + keys * c.count * lay_out(job, c, &own, &others).key_bytes;
}

}  // namespace

extern const Work kAllGatherBackward{prepare, run, bytes, bytes};

}  // namespace cp
}  // namespace fa
