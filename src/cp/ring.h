// The way of keys and values around the ring: each rank's pass from rank to rank, as far as somebody needs them.
#pragma once
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {

// What of a rank's keys of a segment others see: each of its ranges, cut down to that.
Ranges travelling_keys(const Job& job, const Segment& segment, int32_t owner);
// Of all sequences.
int64_t travelling_keys(const Job& job, int32_t owner);

// A rank's keys and values in a message: what travels of each segment in turn, [sequence][key][heads][dim] each, values behind all keys.
struct Shard {
    View k, v;
    int64_t bytes;
};
Shard shard_of(const Job& job, int32_t rank, char* data);
int64_t largest_shard(const Job& job);
void pack_own(Job* job, const Shard& own);

// Does a row of `rank` see a key of `owner`?
bool needs(const Job& job, int32_t rank, int32_t owner);

// Whose keys a rank has at a step.
inline int32_t owner_at(const Job& job, int32_t step) { return int32_t((int64_t(job.rank) - step + job.ranks) % job.ranks); }

// The messages of a step: the shard that is here to the next rank, and the one of the rank before.
void pass_on(const Job& job, int32_t step, char* here, char* coming, Group* group);
int64_t ring_bytes(const Job& job);
int64_t ring_minimum(const Job& job);

// Which keys of `keys` the rows see.
Range seen(const Job& job, const Segment& segment, const Range& rows, const Range& keys);

// Calls use(segment, range of keys, its first local row, its place in the rank's shard) for what travels of this rank's keys.
template <class Use>
void each_travelling(const Job& job, const Use& use) {
    int64_t base = 0;
    for (Segments s(job); s.next();) {
        const Ranges keys = travelling_keys(job, *s, job.rank);
        int64_t local = 0, at = base;
        for (int32_t k = 0; k < keys.count; at += keys.at[k].rows, local += s->own_keys.at[k++].rows)
            use(*s, keys.at[k], local + keys.at[k].begin - s->own_keys.at[k].begin, Place{at, keys.rows()});
        base += s->count * keys.rows();
    }
}

// Calls use(piece, segment's index, range's index, in) for each range of rows with what it sees of the owner's keys. in(own, shard): the
// piece's part of a tensor of the rank's own keys, or of one that lies as the owner's shard does.
template <class Use>
void each_ring_piece(Job* job, int32_t owner, const Shard& shard, const Use& use) {
    const bool own = owner == job->rank;
    int64_t base = 0;
    for (Segments s(*job); s.next();) {
        const Ranges keys = own ? s->own_keys : travelling_keys(*job, *s, owner);
        int64_t local_key = 0;
        for (int32_t k = 0; k < keys.count; local_key += keys.at[k++].rows) {
            int64_t local_row = 0;
            for (int32_t i = 0; i < s->own_rows.count; local_row += s->own_rows.at[i++].rows) {
                const Range here = seen(*job, *s, s->own_rows.at[i], keys.at[k]);
                if (here.rows == 0) continue;
                const int64_t key = local_key + here.begin - keys.at[k].begin;
                const auto in = [&](const View& of_own, const View& of_shard) {
                    return own ? job->keys_of(of_own, *s).at(0, key, 0) : Place{base + key, keys.rows()}.in(of_shard);
                };
                Piece p{};
                p.segment = &*s;
                p.rows = s->own_rows.at[i];
                p.keys = here;
                p.local_row = local_row;
                p.heads = job->d.heads_q;
                p.q = job->rows_of(job->q, *s).at(0, local_row, 0);
                p.k = in(job->k, shard.k);
                p.v = in(job->v, shard.v);
                use(p, s.index(), i, in);
            }
        }
        base += s->count * keys.rows();
    }
}

}  // namespace cp
}  // namespace fa
