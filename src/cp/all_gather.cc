// All-gather: each rank gets the keys that its rows see, a chunk of heads at a time, while it computes the chunk before.
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {
namespace {

constexpr int64_t kChunkBytes = int64_t(64) << 20;

int64_t divisor(int64_t a, int64_t b) { return b == 0 ? a : divisor(b, a % b); }

// Where a range of keys may begin: chunks, and splits of a fixed size, are counted from its first key.
int64_t aligned_begin(const Job& job, int64_t begin, int64_t keys) {
    const int64_t chunk = job.d.chunk > 0 ? job.d.chunk : 1, split = job.d.split_size > 0 ? job.d.split_size : 1;
    if (chunk >= keys || split >= keys) return chunk > 1 || split > 1 ? 0 : begin;
    const int64_t step = chunk / divisor(chunk, split) * split;  // both are below 2^31
    return begin / step * step;
}

// Keys of one sequence that a rank needs: ascending ranges, apart from each other.
Ranges needed_keys(const Job& job, const Segment& s, int32_t rank) {
    const Ranges rows = ranges_of(job.partition, s.rows, rank);
    Ranges needed{};
    for (int32_t i = 0; i < rows.count; i++) {
        Range band = job.band(s, rows.at[i]);
        if (band.rows == 0) continue;
        band = {aligned_begin(job, band.begin, s.keys), band.begin + band.rows - aligned_begin(job, band.begin, s.keys)};
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

// Calls use(segment, range of keys, the owner's local row where it begins, rows of the receiver's buffer before it) for all that
// `owner` has and `receiver` needs, in one order on both.
template <class Use>
void each_shared(const Job& job, int32_t owner, int32_t receiver, const Use& use) {
    int64_t buffer = 0;
    for (Segments s(job); s.next();) {
        const Ranges keys = ranges_of(job.partition, s->keys, owner), needed = needed_keys(job, *s, receiver);
        for (int32_t n = 0; n < needed.count; n++) {
            int64_t local = 0;
            for (int32_t k = 0; k < keys.count; local += keys.at[k++].rows) {
                const Range shared = overlap_of(keys.at[k], needed.at[n]);
                if (shared.rows > 0)
                    use(*s, shared, local + shared.begin - keys.at[k].begin, buffer + shared.begin - needed.at[n].begin,
                        needed.at[n]);
            }
            buffer += s->count * needed.at[n].rows;
        }
    }
}

int64_t shared_keys(const Job& job, int32_t owner, int32_t receiver) {
    int64_t n = 0;
    each_shared(job, owner, receiver,
                [&](const Segment& s, const Range& keys, int64_t, int64_t, const Range&) { n += s.count * keys.rows; });
    return n;
}

int64_t buffer_keys(const Job& job) {
    int64_t n = 0;
    for (Segments s(job); s.next();) n += s->count * needed_keys(job, *s, job.rank).rows();
    return n;
}

// Heads are gathered in chunks of whole groups that share a k and a v head.
struct Chunks {
    int64_t count, q, k, v;  // heads of one
};
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

fa_status_t check(const Job& job, Message* m) {
    const fa_attention_desc_t& d = job.d;
    const int64_t step = d.heads_k / divisor(d.heads_k, d.heads_v), chunk = job.spread.head_chunk;
    if (chunk == 0 || (chunk % step == 0 && d.heads_k % chunk == 0)) return FA_OK;
    return fail(m, FA_INVALID_ARGUMENT, "spread.head_chunk is %lld: expected a multiple of %lld that divides heads_k, %lld",
                ll(chunk), ll(step), ll(d.heads_k));
}

// Keys are [sequence][key][heads of the chunk][dim] for each needed range in turn, values behind them.
struct Gathered {
    View k, v;
};
Gathered lay_out(const Job& job, const Chunks& c, Shares* shares) {
    const int64_t keys = buffer_keys(job);
    Gathered g{job.k, job.v};
    g.k.heads = c.k;
    g.v.heads = c.v;
    g.k = dense(g.k, nullptr, 0);
    g.v = dense(g.v, nullptr, 0);
    g.k.data = shares->take(keys * g.k.row_bytes());
    g.v.data = shares->take(keys * g.v.row_bytes());
    return g;
}

int64_t row_bytes(const Job& job, const Chunks& c) { return c.k * job.k.head_bytes + c.v * job.v.head_bytes; }

fa_status_t prepare(Job* job) {
    const Chunks c = chunks_of(*job);
    int64_t out = 0, in = 0;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        out += shared_keys(*job, job->rank, peer);
        in += shared_keys(*job, peer, job->rank);
    }
    Shares shares(nullptr);
    lay_out(*job, c, &shares);
    if (!grow(job->cp, kSend, uint64_t(out * row_bytes(*job, c))) || !grow(job->cp, kReceive, uint64_t(in * row_bytes(*job, c))) ||
        !grow(job->cp, kKeys, uint64_t(shares.used())))
        return FA_OUT_OF_MEMORY;
    return FA_OK;
}

fa_status_t start(Job* job, const Chunks& c, int64_t chunk, Group* group) {
    char *out = job->cp->slab[kSend].data, *in = job->cp->slab[kReceive].data;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) continue;
        char* const begin = out;
        each_shared(*job, job->rank, peer, [&](const Segment& s, const Range& keys, int64_t local, int64_t, const Range&) {
            // The segment of this rank, whose base its own iteration knows.
            out = pack(job->keys_of(job->k, s).of_heads(chunk * c.k, c.k), s.count, local, keys.rows, out);
            out = pack(job->keys_of(job->v, s).of_heads(chunk * c.v, c.v), s.count, local, keys.rows, out);
        });
        const int64_t bytes = shared_keys(*job, peer, job->rank) * row_bytes(*job, c);
        group->send(peer, begin, uint64_t(out - begin));
        group->receive(peer, in, uint64_t(bytes));
        in += bytes;
    }
    return group->start();
}

// What came, and this rank's own keys, to their places.
void place(Job* job, const Chunks& c, int64_t chunk, const Gathered& g) {
    const char* in = job->cp->slab[kReceive].data;
    char* own = job->cp->slab[kSend].data;  // which is free once its messages are sent
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        each_shared(*job, peer, job->rank,
                    [&](const Segment& s, const Range& keys, int64_t local, int64_t first, const Range& needed) {
                        View k = g.k.at(0, first, 0), v = g.v.at(0, first, 0);
                        k.batch = needed.rows * k.row;
                        v.batch = needed.rows * v.row;
                        const char* from = in;
                        if (peer == job->rank) {
                            char* at = pack(job->keys_of(job->k, s).of_heads(chunk * c.k, c.k), s.count, local, keys.rows, own);
                            pack(job->keys_of(job->v, s).of_heads(chunk * c.v, c.v), s.count, local, keys.rows, at);
                            from = own;
                        }
                        from = unpack(k, s.count, 0, keys.rows, from);
                        from = unpack(v, s.count, 0, keys.rows, from);
                        if (peer != job->rank) in = from;
                    });
    }
}

void compute(Job* job, const Chunks& c, int64_t chunk, const Gathered& g) {
    int64_t buffer = 0;
    for (Segments s(*job); s.next();) {
        const Ranges needed = needed_keys(*job, *s, job->rank);
        int64_t local = 0;
        for (int32_t i = 0; i < s->own_rows.count; local += s->own_rows.at[i++].rows) {
            const Range band = job->band(*s, s->own_rows.at[i]);
            Piece p{};
            p.segment = &*s;
            p.rows = s->own_rows.at[i];
            p.local_row = local;
            p.head = chunk * c.q;
            p.heads = c.q;
            p.q = job->rows_of(job->q, *s).at(0, local, chunk * c.q);
            p.o = job->rows_of(job->o, *s).at(0, local, chunk * c.q);
            p.lse = job->lse_of(job->lse, *s).at(0, chunk * c.q, local);
            p.k = g.k;
            p.v = g.v;
            int64_t first = buffer;
            for (int32_t n = 0; n < needed.count && band.rows > 0; first += s->count * needed.at[n++].rows) {
                if (overlap_of(needed.at[n], band).rows == 0) continue;
                p.keys = {needed.at[n].begin, band.begin + band.rows - needed.at[n].begin};
                p.k = g.k.at(0, first, 0);
                p.v = g.v.at(0, first, 0);
                p.k.batch = needed.at[n].rows * p.k.row;
                p.v.batch = needed.at[n].rows * p.v.row;
                break;
            }
            attend(job, p);
        }
        buffer += s->count * needed.rows();
    }
}

fa_status_t run(Job* job) {
    const Chunks c = chunks_of(*job);
    Shares shares(job->cp->slab[kKeys].data);
    const Gathered g = lay_out(*job, c, &shares);
    Group first(job->cp);
    FA_TRY(start(job, c, 0, &first));
    Group* group = &first;
    Group next(job->cp);
    for (int64_t chunk = 0; chunk < c.count; chunk++) {
        FA_TRY(group->wait("keys and values"));
        place(job, c, chunk, g);
        next = Group(job->cp);
        if (chunk + 1 < c.count) FA_TRY(start(job, c, chunk + 1, &next));
        group = &next;
        compute(job, c, chunk, g);
    }
    return FA_OK;
}

int64_t bytes(const Job& job) {
    int64_t keys = 0;
    for (int32_t peer = 0; peer < job.ranks; peer++)
        if (peer != job.rank) keys += shared_keys(job, job.rank, peer);
    return keys * (job.k.row_bytes() + job.v.row_bytes());
}

}  // namespace

extern const Method kAllGather{FA_CP_METHOD_ALL_GATHER, "all-gather", check, prepare, run, bytes, bytes};

}  // namespace cp
}  // namespace fa
