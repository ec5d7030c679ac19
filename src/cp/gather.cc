#include "cp/gather.h"

namespace fa {
namespace cp {

constexpr int64_t kChunkBytes = int64_t(64) << 20;

static int64_t divisor(int64_t a, int64_t b) { return b == 0 ? a : divisor(b, a % b); }

// Where a range of keys may begin: chunks, and splits of a fixed size, are counted from its first key.
static int64_t aligned_begin(const Job& job, int64_t begin, int64_t keys) {
    const int64_t chunk = job.d.chunk > 0 ? job.d.chunk : 1, split = job.d.split_size > 0 ? job.d.split_size : 1;
    if (chunk >= keys || split >= keys) return chunk > 1 || split > 1 ? 0 : begin;
    const int64_t step = chunk / divisor(chunk, split) * split;  // both are below 2^31
    return begin / step * step;
}

Ranges needed_keys(const Job& job, const Segment& segment, int32_t rank) {
    const Ranges rows = ranges_of(job.partition, segment.rows, rank);
    Ranges needed{};
    for (int32_t i = 0; i < rows.count; i++) {
        Range band = job.band(segment, rows.at[i]);
        if (band.rows == 0) continue;
        band = {aligned_begin(job, band.begin, segment.keys), band.begin + band.rows - aligned_begin(job, band.begin, segment.keys)};
        Range& last = needed.at[needed.count > 0 ? needed.count - 1 : 0];
        if (needed.count == 0 || band.begin > last.begin + last.rows) {
            needed.at[needed.count++] = band;
        } else {  // bands only ever move right, but for chunks of explicit offsets
            const int64_t begin = band.begin < last.begin ? band.begin : last.begin;
            const int64_t end = band.begin + band.rows > last.begin + last.rows ? band.begin + band.rows : last.begin + last.rows;
            last = {begin, end - begin};
        }
    }
    return needed;
}

Range overlap_of(const Range& a, const Range& b) {
    const int64_t begin = a.begin > b.begin ? a.begin : b.begin;
    const int64_t a_end = a.begin + a.rows, b_end = b.begin + b.rows, end = a_end < b_end ? a_end : b_end;
    return begin < end ? Range{begin, end - begin} : Range{0, 0};
}

int64_t shared_keys(const Job& job, int32_t owner, int32_t receiver) {
    int64_t n = 0;
    each_shared(job, owner, receiver,
                [&](const Segment& segment, const Range& keys, int64_t, int64_t, const Range&) { n += segment.count * keys.rows; });
    return n;
}

static int64_t buffer_keys(const Job& job) {
    int64_t n = 0;
    for (Segments s(job); s.next();) n += s->count * needed_keys(job, *s, job.rank).rows();
    return n;
}

Chunks chunks_of(const Job& job) {
    const fa_attention_desc_t& d = job.d;
    const int64_t groups = divisor(d.heads_k, d.heads_v), group_k = d.heads_k / groups;
    int64_t wanted = job.spread.head_chunk / group_k;
    if (wanted == 0) {
        // Ranks choose alike: by the whole problem, not by their own keys.
        const int64_t keys = job.packed_k ? d.total_k : d.batch * d.seqlen_k;
        const int64_t bytes = keys * (job.k.row_bytes() + job.v.row_bytes()) / groups;
        wanted = bytes > 0 ? kChunkBytes / bytes : groups;
        if (wanted < 1) wanted = 1;
        if (wanted > groups) wanted = groups;
        while (groups % wanted != 0) wanted--;
    }
    return {groups / wanted, d.heads_q / groups * wanted, group_k * wanted, d.heads_v / groups * wanted};
}

fa_status_t check_chunks(const Job& job, Message* message) {
    const fa_attention_desc_t& d = job.d;
    const int64_t step = d.heads_k / divisor(d.heads_k, d.heads_v), chunk = job.spread.head_chunk;
    if (chunk == 0 || (chunk % step == 0 && d.heads_k % chunk == 0)) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "spread.head_chunk is %lld: expected a multiple of %lld that divides heads_k, %lld",
                ll(chunk), ll(step), ll(d.heads_k));
}

Gathered lay_out_gathered(const Job& job, const Chunks& chunks, Shares* shares) {
    const int64_t keys = buffer_keys(job);
    Gathered g{job.k, job.v, keys};
    g.k.heads = chunks.k;
    g.v.heads = chunks.v;
    g.k = dense(g.k, nullptr, 0);
    g.v = dense(g.v, nullptr, 0);
    g.k.data = shares->take(keys * g.k.row_bytes());
    g.v.data = shares->take(keys * g.v.row_bytes());
    return g;
}

static int64_t row_bytes(const Job& job, const Chunks& chunks) { return chunks.k * job.k.head_bytes + chunks.v * job.v.head_bytes; }

fa_status_t prepare_gather(Job* job) {
    const Chunks c = chunks_of(*job);
    int64_t out = 0, in = 0;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        out += shared_keys(*job, job->rank, peer);
        in += shared_keys(*job, peer, job->rank);
    }
    Shares shares(nullptr);
    lay_out_gathered(*job, c, &shares);
    FA_TRY(grow(job->cp, kSend, uint64_t(out * row_bytes(*job, c))));
    FA_TRY(grow(job->cp, kReceive, uint64_t(in * row_bytes(*job, c))));
    return grow(job->cp, kKeys, uint64_t(shares.used()));
}

fa_status_t start_gather(Job* job, const Chunks& chunks, int64_t chunk, Group* group) {
    Moves moves(job);
    char *out = job->cp->slab[kSend].data, *in = job->cp->slab[kReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        char* const begin = out;
        each_shared(*job, job->rank, peer, [&](const Segment& segment, const Range& keys, int64_t local, int64_t, const Range&) {
            // The segment of this rank, whose base its own iteration knows.
            out = moves.pack(job->keys_of(job->k, segment).of_heads(chunk * chunks.k, chunks.k), segment.count, local, keys.rows, out);
            out = moves.pack(job->keys_of(job->v, segment).of_heads(chunk * chunks.v, chunks.v), segment.count, local, keys.rows, out);
        });
        const int64_t bytes = shared_keys(*job, peer, job->rank) * row_bytes(*job, chunks);
        group->send(peer, begin, uint64_t(out - begin));
        group->receive(peer, in, uint64_t(bytes));
        in += bytes;
    }
    moves.flush();
    return group->start();
}

void place_gathered(Job* job, const Chunks& chunks, int64_t chunk, const Gathered& gathered) {
    Moves moves(job);
    char* in = job->cp->slab[kReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        each_shared(*job, peer, job->rank,
                    [&](const Segment& segment, const Range& keys, int64_t local, int64_t first, const Range& needed) {
                        const Place place{first, needed.rows};
                        const View k = place.in(gathered.k), v = place.in(gathered.v);
                        if (peer == job->rank) {
                            moves.copy(job->keys_of(job->k, segment).of_heads(chunk * chunks.k, chunks.k), local, k, 0, segment.count,
                                       keys.rows, false);
                            moves.copy(job->keys_of(job->v, segment).of_heads(chunk * chunks.v, chunks.v), local, v, 0, segment.count,
                                       keys.rows, false);
                        } else {
                            in = moves.unpack(k, segment.count, 0, keys.rows, in);
                            in = moves.unpack(v, segment.count, 0, keys.rows, in);
                        }
                    });
    }
    moves.flush();
}

int64_t gather_bytes(const Job& job) {
    int64_t keys = 0;
    for (int32_t peer = 0; peer < job.ranks; peer++)
        if (peer != job.rank) keys += shared_keys(job, job.rank, peer);
    return keys * (job.k.row_bytes() + job.v.row_bytes());
}

}  // namespace cp
}  // namespace fa
