// The way of keys and values around the ring: each rank's pass from rank to rank, as far as somebody needs them.
#pragma once
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {

// A rank's keys and values in a message: [sequence][key][heads][dim] each, or packed.
struct Shard {
    View k, v;
    int64_t bytes;
};
Shard shard_of(const Job& job, int32_t rank, char* data);
int64_t largest_shard(const Job& job);
void pack_own(const Job& job, const Shard& own);

// Does a row of `rank` see a key of `owner`?
bool needs(const Job& job, int32_t rank, int32_t owner);

// Whose keys a rank has at a step.
inline int32_t owner_at(const Job& job, int32_t step) { return int32_t((int64_t(job.rank) - step + job.ranks) % job.ranks); }

// The messages of a step: the shard that is here to the next rank, and the one of the rank before.
void pass_on(const Job& job, int32_t step, char* here, char* coming, Group* group);
int64_t ring_bytes(const Job& job);
int64_t ring_minimum(const Job& job);

// Which keys of `keys` the rows see.
Range seen(const Job& job, const Segment& s, const Range& rows, const Range& keys);

// Calls use(piece, segment's index, range's index, batch, key) for each range of rows with what it sees of the owner's keys, which
// begin at `batch` and `key` of the shard.
template <class Use>
void each_ring_piece(Job* job, int32_t owner, const Shard& shard, const Use& use) {
    int64_t base = 0;  // the owner's first packed key of the segment
    for (Segments s(*job); s.next();) {
        const Ranges keys = ranges_of(job->partition, s->keys, owner);
        const int64_t batch = job->packed_k ? 0 : s->first;
        int64_t local_key = base;
        for (int32_t k = 0; k < keys.count; local_key += keys.at[k++].rows) {
            int64_t local_row = 0;
            for (int32_t i = 0; i < s->own_rows.count; local_row += s->own_rows.at[i++].rows) {
                const Range here = seen(*job, *s, s->own_rows.at[i], keys.at[k]);
                if (here.rows == 0) continue;
                const int64_t key = local_key + here.begin - keys.at[k].begin;
                Piece p{};
                p.segment = &*s;
                p.rows = s->own_rows.at[i];
                p.keys = here;
                p.local_row = local_row;
                p.heads = job->d.heads_q;
                p.q = job->rows_of(job->q, *s).at(0, local_row, 0);
                p.k = shard.k.at(batch, key, 0);
                p.v = shard.v.at(batch, key, 0);
                use(p, s.index(), i, batch, key);
            }
        }
        if (job->packed_k) base += keys.rows();
    }
}

}  // namespace cp
}  // namespace fa
