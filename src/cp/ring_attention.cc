// Ring attention: each rank's keys and values pass from rank to rank, as far as somebody needs them, while rows are computed with
// those that are here. Partial results are merged in f32.
#include <math.h>
#include <string.h>
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {
namespace {

// A rank's keys and values in a message: [sequence][key][heads][dim] each, or packed.
struct Shard {
    View k, v;
    int64_t bytes;
};
Shard shard_of(const Job& job, int32_t rank, char* data) {
    const int64_t keys = job.keys_on(rank), batch = job.packed_k ? 1 : job.d.batch;
    Shares shares(data);
    Shard shard{dense(job.k, nullptr, keys), dense(job.v, nullptr, keys), 0};
    shard.k.data = shares.take(bytes_of(shard.k, batch, keys));
    shard.v.data = shares.take(bytes_of(shard.v, batch, keys));
    shard.bytes = keys > 0 ? shares.used() : 0;
    return shard;
}

// Which keys of `keys` the rows see.
Range seen(const Job& job, const Segment& s, const Range& rows, const Range& keys) {
    const Range band = job.band(s, rows);
    const int64_t begin = band.begin > keys.begin ? band.begin : keys.begin;
    const int64_t band_end = band.begin + band.rows, keys_end = keys.begin + keys.rows,
                  end = band_end < keys_end ? band_end : keys_end;
    return begin < end ? Range{begin, end - begin} : Range{0, 0};
}

bool needs(const Job& job, int32_t rank, int32_t owner) {
    for (Segments s(job); s.next();) {
        const Ranges rows = ranges_of(job.partition, s->rows, rank), keys = ranges_of(job.partition, s->keys, owner);
        for (int32_t i = 0; i < rows.count; i++)
            for (int32_t k = 0; k < keys.count; k++)
                if (seen(job, *s, rows.at[i], keys.at[k]).rows > 0) return true;
    }
    return false;
}

// Does the owner's shard go `steps` ranks far, because that one or a later one needs it?
bool travels(const Job& job, int32_t owner, int32_t steps) {
    for (int32_t far = job.ranks - 1; far >= steps; far--)
        if (needs(job, int32_t((int64_t(owner) + far) % job.ranks), owner)) return true;
    return false;
}

int32_t owner_at(const Job& job, int32_t step) { return int32_t((int64_t(job.rank) - step + job.ranks) % job.ranks); }

struct Partials {
    View o, part;  // f32; of all local rows, and room for one piece
    LseView lse, part_lse;
    uint8_t* begun;
};
Partials lay_out(const Job& job, Shares* all, Shares* one) {
    Partials p{};
    const int64_t batch = job.packed_q ? 1 : job.d.batch, rows = job.local_rows, heads = job.d.heads_q;
    View o = job.o;
    o.unit = sizeof(float);
    o.head_bytes = job.d.dim_v * int64_t(sizeof(float));
    p.o = dense(o, nullptr, rows);
    p.part = p.o;
    p.o.data = all->take(bytes_of(p.o, batch, rows));
    p.lse = {reinterpret_cast<float*>(all->take(batch * heads * rows * int64_t(sizeof(float)))), heads * rows, rows, 1};
    p.begun = reinterpret_cast<uint8_t*>(all->take(2 * job.segments()));
    p.part.data = one->take(bytes_of(p.o, batch, rows));
    p.part_lse = p.lse;
    p.part_lse.data = reinterpret_cast<float*>(one->take(batch * heads * rows * int64_t(sizeof(float))));
    return p;
}

fa_status_t check(const Job& job, Message* m) {
    if (job.d.chunk == 0) return FA_OK;
    return fail(m, FA_UNSUPPORTED, "chunk is %lld: expected 0 for FA_CP_METHOD_RING, whose pieces of keys begin anywhere",
                ll(job.d.chunk));
}

fa_status_t prepare(Job* job) {
    int64_t largest = 0;
    for (int32_t r = 0; r < job->ranks; r++) {
        const int64_t bytes = shard_of(*job, r, nullptr).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    Shares all(nullptr), one(nullptr);
    lay_out(*job, &all, &one);
    if (!grow(job->cp, kSend, uint64_t(largest)) || !grow(job->cp, kReceive, uint64_t(largest)) ||
        !grow(job->cp, kLocal, uint64_t(all.used())) || !grow(job->cp, kPartial, uint64_t(one.used())))
        return FA_OUT_OF_MEMORY;
    return FA_OK;
}

// One range of rows against what it sees of one range of keys.
void compute_pair(Job* job, const Segment& s, int32_t index, int64_t local_row, const Range& keys, View k, View v,
                  const Partials& p, uint8_t* begun) {
    const Range rows = s.own_rows.at[index];
    Piece piece{};
    piece.segment = &s;
    piece.rows = rows;
    piece.keys = keys;
    piece.local_row = local_row;
    piece.heads = job->d.heads_q;
    piece.q = job->rows_of(job->q, s).at(0, local_row, 0);
    piece.k = k;
    piece.v = v;
    piece.partial = true;
    Merging m{
        s.count, rows.rows, p.part, p.part_lse, job->rows_of(p.o, s).at(0, local_row, 0), job->lse_of(p.lse, s).at(0, 0, local_row),
        true};
    m.part.batch = rows.rows * m.part.row;
    m.part_lse.head = rows.rows;
    m.part_lse.batch = rows.rows * job->d.heads_q;
    piece.o = *begun ? m.part : m.into;
    piece.lse = *begun ? m.part_lse : m.into_lse;
    attend(job, piece);
    if (*begun) merge(job, m);
    *begun = 1;
}

void compute(Job* job, int32_t owner, const Shard& shard, const Partials& p) {
    int64_t base = 0;  // the owner's first packed key of the segment
    for (Segments s(*job); s.next();) {
        const Ranges keys = ranges_of(job->partition, s->keys, owner);
        int64_t local_key = base;
        for (int32_t k = 0; k < keys.count; local_key += keys.at[k++].rows) {
            int64_t local_row = 0;
            for (int32_t i = 0; i < s->own_rows.count; local_row += s->own_rows.at[i++].rows) {
                const Range here = seen(*job, *s, s->own_rows.at[i], keys.at[k]);
                if (here.rows == 0) continue;
                const int64_t first = local_key + here.begin - keys.at[k].begin, batch = job->packed_k ? 0 : s->first;
                compute_pair(job, *s, i, local_row, here, shard.k.at(batch, first, 0), shard.v.at(batch, first, 0), p,
                             p.begun + 2 * s.index() + i);
            }
        }
        if (job->packed_k) base += keys.rows();
    }
}

// Rows that saw no key yet have o = 0 and LSE = −inf; all are rounded to o's type.
void finish(Job* job, const Partials& p) {
    for (Segments s(*job); s.next();) {
        int64_t local = 0;
        for (int32_t i = 0; i < s->own_rows.count; local += s->own_rows.at[i++].rows) {
            const int64_t rows = s->own_rows.at[i].rows;
            const View from = job->rows_of(p.o, *s).at(0, local, 0);
            const LseView from_lse = job->lse_of(p.lse, *s).at(0, 0, local);
            for (int64_t b = 0; b < s->count && !p.begun[2 * s.index() + i]; b++) {
                memset(from.at(b, 0, 0).data, 0, size_t(rows * from.row));
                for (int64_t h = 0; h < job->d.heads_q; h++)
                    for (int64_t r = 0; r < rows; r++) *from_lse.at(b, h, r).data = -INFINITY;
            }
            merge(job, {s->count, rows, from, from_lse, job->rows_of(job->o, *s).at(0, local, 0),
                        job->lse_of(job->lse, *s).at(0, 0, local), false});
        }
    }
}

fa_status_t run(Job* job) {
    Slab* slab = job->cp->slab;
    Shares all(slab[kLocal].data), one(slab[kPartial].data);
    const Partials p = lay_out(*job, &all, &one);
    if (job->segments() > 0) memset(p.begun, 0, size_t(2 * job->segments()));
    char *here = slab[kSend].data, *coming = slab[kReceive].data;
    const Shard own = shard_of(*job, job->rank, here);
    const int64_t batch = job->packed_k ? 1 : job->d.batch;
    if (job->local_keys > 0) {
        pack(job->k, batch, 0, job->local_keys, own.k.data);
        pack(job->v, batch, 0, job->local_keys, own.v.data);
    }
    const int32_t next = (job->rank + 1) % job->ranks, previous = (job->rank + job->ranks - 1) % job->ranks;
    for (int32_t step = 0; step < job->ranks; step++) {
        const int32_t owner = owner_at(*job, step), after = owner_at(*job, step + 1);
        const bool more = step + 1 < job->ranks;
        Group group(job->cp);
        if (more && travels(*job, owner, step + 1)) group.send(next, here, uint64_t(shard_of(*job, owner, nullptr).bytes));
        if (more && travels(*job, after, step + 1)) group.receive(previous, coming, uint64_t(shard_of(*job, after, nullptr).bytes));
        FA_TRY(group.start());
        compute(job, owner, shard_of(*job, owner, here), p);
        FA_TRY(group.wait("keys and values of the rank before"));
        char* const sent = here;
        here = coming;
        coming = sent;
    }
    finish(job, p);
    return FA_OK;
}

int64_t bytes(const Job& job) {
    int64_t sum = 0;
    for (int32_t step = 0; step + 1 < job.ranks; step++) {
        const int32_t owner = owner_at(job, step);
        if (travels(job, owner, step + 1)) sum += shard_of(job, owner, nullptr).bytes;
    }
    return sum;
}

// Without what aligns keys and values in a message.
int64_t minimum(const Job& job) {
    int64_t sum = 0;
    for (int32_t step = 0; step + 1 < job.ranks; step++) {
        const int32_t owner = owner_at(job, step);
        if (travels(job, owner, step + 1))
            sum += (job.packed_k ? 1 : job.d.batch) * job.keys_on(owner) * (job.k.row_bytes() + job.v.row_bytes());
    }
    return sum;
}

}  // namespace

extern const Method kRingAttention{FA_CP_METHOD_RING, "ring", check, prepare, run, bytes, minimum};

}  // namespace cp
}  // namespace fa
