#include "cp/ring.h"

namespace fa {
namespace cp {

Shard shard_of(const Job& job, int32_t rank, char* data) {
    const int64_t keys = travelling_keys(job, rank);
    Shares shares(data);
    Shard shard{dense(job.k, nullptr, 0), dense(job.v, nullptr, 0), 0};
    shard.k.data = shares.take(bytes_of(shard.k, 1, keys));
    shard.v.data = shares.take(bytes_of(shard.v, 1, keys));
    shard.bytes = keys > 0 ? shares.used() : 0;
    return shard;
}

int64_t largest_shard(const Job& job) {
    int64_t largest = 0;
    for (int32_t r = 0; r < job.ranks; r++) {
        const int64_t bytes = shard_of(job, r, nullptr).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

void pack_own(Job* job, const Shard& own) {
    Moves moves(job);
    each_travelling(*job, [&](const Segment& segment, const Range& keys, int64_t local, const Place& place) {
        moves.copy(job->keys_of(job->k, segment), local, place.in(own.k), 0, segment.count, keys.rows, false);
        moves.copy(job->keys_of(job->v, segment), local, place.in(own.v), 0, segment.count, keys.rows, false);
    });
    moves.flush();
}

Range seen(const Job& job, const Segment& segment, const Range& rows, const Range& keys) {
    const Range band = job.band(segment, rows);
    const int64_t begin = band.begin > keys.begin ? band.begin : keys.begin;
    const int64_t band_end = band.begin + band.rows, keys_end = keys.begin + keys.rows, end = band_end < keys_end ? band_end : keys_end;
    return begin < end ? Range{begin, end - begin} : Range{0, 0};
}

Ranges travelling_keys(const Job& job, const Segment& segment, int32_t owner) {
    Ranges keys = ranges_of(job.partition, segment.keys, owner);
    for (int32_t k = 0; k < keys.count; k++) {
        int64_t begin = keys.at[k].begin + keys.at[k].rows, end = begin;
        bool any = false;
        for (int32_t rank = 0; rank < job.ranks; rank++) {
            const Ranges rows = ranges_of(job.partition, segment.rows, rank);
            for (int32_t i = 0; i < rows.count && rank != owner; i++) {
                const Range here = seen(job, segment, rows.at[i], keys.at[k]);
                if (here.rows == 0) continue;
                if (here.begin < begin) begin = here.begin;
                if (!any || here.begin + here.rows > end) end = here.begin + here.rows;
                any = true;
            }
        }
        keys.at[k] = {begin, end - begin};
    }
    return keys;
}

int64_t travelling_keys(const Job& job, int32_t owner) {
    int64_t keys = 0;
    for (Segments s(job); s.next();) keys += s->count * travelling_keys(job, *s, owner).rows();
    return keys;
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
static bool travels(const Job& job, int32_t owner, int32_t steps) {
    for (int32_t far = job.ranks - 1; far >= steps; far--)
        if (needs(job, int32_t((int64_t(owner) + far) % job.ranks), owner)) return true;
    return false;
}

void pass_on(const Job& job, int32_t step, char* here, char* coming, Group* group) {
    if (step + 1 >= job.ranks) return;
    const int32_t next = (job.rank + 1) % job.ranks, previous = (job.rank + job.ranks - 1) % job.ranks;
    const int32_t owner = owner_at(job, step), after = owner_at(job, step + 1);
    if (travels(job, owner, step + 1)) group->send(next, here, uint64_t(shard_of(job, owner, nullptr).bytes));
    if (travels(job, after, step + 1)) group->receive(previous, coming, uint64_t(shard_of(job, after, nullptr).bytes));
}

int64_t ring_bytes(const Job& job) {
    int64_t sum = 0;
    for (int32_t step = 0; step + 1 < job.ranks; step++) {
        const int32_t owner = owner_at(job, step);
        if (travels(job, owner, step + 1)) sum += shard_of(job, owner, nullptr).bytes;
    }
    return sum;
}

// Without what aligns keys and values in a message.
int64_t ring_minimum(const Job& job) {
    int64_t sum = 0;
    for (int32_t step = 0; step + 1 < job.ranks; step++) {
        const int32_t owner = owner_at(job, step);
        if (travels(job, owner, step + 1)) sum += travelling_keys(job, owner) * (job.k.row_bytes() + job.v.row_bytes());
    }
    return sum;
}

}  // namespace cp
}  // namespace fa
