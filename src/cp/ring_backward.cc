// Ring attention, backward: keys and values pass as in the forward. What a rank's rows give to dk and dv goes straight back to the
// keys' owner in the next step, and the owner adds: its own, then those of the rank behind it, and so on.
#include "cp/ring.h"

namespace fa {
namespace cp {
namespace {

struct Pair {
    View dk, dv;  // f32; data is NULL where a gradient is not wanted
    int64_t bytes;
};
Pair lay_out_pair(const Job& job, int64_t sequences, int64_t keys, char* data) {
    Shares shares(data);
    Pair p{wide(job.k, nullptr, keys), wide(job.v, nullptr, keys), 0};
    if (job.g.dk) p.dk.data = shares.take(bytes_of(p.dk, sequences, keys));
    if (job.g.dv) p.dv.data = shares.take(bytes_of(p.dv, sequences, keys));
    p.bytes = keys > 0 ? shares.used() : 0;
    return p;
}
// Of what travels of a rank's keys, as its shard lies; and of this rank's own: [sequence][key][heads][dim] each, or packed.
Pair pair_of(const Job& job, int32_t rank, char* data) { return lay_out_pair(job, 1, travelling_keys(job, rank), data); }
Pair own_pair(const Job& job, char* data) { return lay_out_pair(job, job.key_batch(), job.local_keys, data); }

int64_t largest_pair(const Job& job) {
    int64_t largest = 0;
    for (int32_t r = 0; r < job.ranks; r++) {
        const int64_t bytes = pair_of(job, r, nullptr).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

struct Own {
    View dq;
    Pair keys;
};
Own lay_out(const Job& job, Shares* shares) {
    Own own{wide(job.q, nullptr, job.local_rows), {}};
    if (job.g.dq) own.dq.data = shares->take(bytes_of(own.dq, job.row_batch(), job.local_rows));
    char* const keys = shares->take(own_pair(job, nullptr).bytes);
    own.keys = own_pair(job, keys);
    return own;
}

fa_status_t prepare(Job* job) {
    const uint64_t shard = uint64_t(largest_shard(*job)), pair = uint64_t(largest_pair(*job));
    Shares own(nullptr);
    lay_out(*job, &own);
    FA_TRY(grow(job->cp, kSend, shard));
    FA_TRY(grow(job->cp, kReceive, shard));
    FA_TRY(grow(job->cp, kLocal, uint64_t(own.used())));
    FA_TRY(grow(job->cp, kPartial, pair));
    FA_TRY(grow(job->cp, kGradientSend, pair));
    return grow(job->cp, kGradientReceive, pair);
}

void clear(Moves* moves, const Pair& pair, int64_t sequences, int64_t keys) {
    moves->clear(pair.dk, sequences, keys);
    moves->clear(pair.dv, sequences, keys);
}

// totals: of the owner's keys, or of this rank's own.
void compute(Job* job, int32_t owner, const Shard& shard, const View& all_dq, const Pair& totals) {
    each_ring_piece(job, owner, shard, [&](Piece piece, int64_t, int32_t, const auto& in) {
        piece.o = job->rows_of(job->o, *piece.segment).at(0, piece.local_row, 0);
        piece.lse = job->lse_of(job->lse, *piece.segment).at(0, 0, piece.local_row);
        const View dq = job->rows_of(all_dq, *piece.segment).at(0, piece.local_row, 0);
        differentiate(job, piece, {dq, in(totals.dk, totals.dk), in(totals.dv, totals.dv), nullptr});
    });
}

// The totals of step `step` − 1, to the keys' owner; and those of the rank as far ahead, of this rank's keys.
struct Return {
    int32_t owner, from;
    bool sent, received;
};
Return return_at(const Job& job, int32_t step) {
    if (step < 2) return {0, 0, false, false};
    const int32_t owner = owner_at(job, step - 1), from = int32_t((int64_t(job.rank) + step - 1) % job.ranks);
    return {owner, from, needs(job, job.rank, owner), needs(job, from, job.rank)};
}

void add_received(Job* job, const Pair& received, const Pair& own) {
    Moves moves(job);
    each_travelling(*job, [&](const Segment& segment, const Range& keys, int64_t local, const Place& place) {
        if (own.dk.data) moves.copy(place.in(received.dk), 0, job->keys_of(own.dk, segment), local, segment.count, keys.rows, true);
        if (own.dv.data) moves.copy(place.in(received.dv), 0, job->keys_of(own.dv, segment), local, segment.count, keys.rows, true);
    });
    moves.flush();
}

void finish(Job* job, const Own& own) {
    const bool accumulates = job->accumulates();
    Moves moves(job);
    moves.put(own.dq, job->dq, job->d.q_dtype, accumulates, job->row_batch(), job->local_rows);
    moves.put(own.keys.dk, job->dk, job->d.k_dtype, accumulates, job->key_batch(), job->local_keys);
    moves.put(own.keys.dv, job->dv, job->d.v_dtype, accumulates, job->key_batch(), job->local_keys);
    moves.flush();
}

fa_status_t run(Job* job) {
    Slab* slab = job->cp->slab;
    Shares shares(slab[kLocal].data);
    const Own own = lay_out(*job, &shares);
    Moves moves(job);
    moves.clear(own.dq, job->row_batch(), job->local_rows);
    clear(&moves, own.keys, job->key_batch(), job->local_keys);
    moves.flush();
    differentiate_sinks(job);
    char *here = slab[kSend].data, *coming = slab[kReceive].data;
    char *now = slab[kPartial].data, *before = slab[kGradientSend].data;
    const Pair received = pair_of(*job, job->rank, slab[kGradientReceive].data);
    pack_own(job, shard_of(*job, job->rank, here));
    for (int32_t step = 0; step <= job->ranks; step++) {
        const int32_t owner = owner_at(*job, step);
        const Return back = return_at(*job, step);
        Group group(job->cp);
        pass_on(*job, step, here, coming, &group);
        if (back.sent) group.send(back.owner, before, uint64_t(pair_of(*job, back.owner, nullptr).bytes));
        if (back.received) group.receive(back.from, slab[kGradientReceive].data, uint64_t(received.bytes));
        FA_TRY(group.start());
        if (step < job->ranks) {
            const Pair totals = step == 0 ? own.keys : pair_of(*job, owner, now);
            if (step > 0) clear(&moves, totals, 1, travelling_keys(*job, owner));
            moves.flush();
            compute(job, owner, shard_of(*job, owner, here), own.dq, totals);
        }
        FA_TRY(group.wait("keys and values of the rank before, and gradients"));
        if (back.received) add_received(job, received, own.keys);
        char* const sent = here;
        here = coming;
        coming = sent;
        char* const done = now;
        now = before;
        before = done;
    }
    finish(job, own);
    return FA_OK;
}

int64_t returned(const Job& job, int64_t (*bytes_of_pair)(const Job&, int32_t)) {
    int64_t sum = 0;
    for (int32_t step = 2; step <= job.ranks; step++) {
        const Return back = return_at(job, step);
        if (back.sent) sum += bytes_of_pair(job, back.owner);
    }
    return sum;
}

int64_t bytes(const Job& job) {
    return ring_bytes(job) + returned(job, [](const Job& job, int32_t rank) { return pair_of(job, rank, nullptr).bytes; });
}
int64_t minimum(const Job& job) {
    return ring_minimum(job) + returned(job, [](const Job& job, int32_t rank) {
               const Pair p = pair_of(job, rank, nullptr);
               return travelling_keys(job, rank) * ((job.g.dk ? p.dk.row_bytes() : 0) + (job.g.dv ? p.dv.row_bytes() : 0));
           });
}

}  // namespace

extern const Work kRingBackward{prepare, run, bytes, minimum};

}  // namespace cp
}  // namespace fa
