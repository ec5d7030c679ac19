#include "cp/ring.h"

namespace fa {
namespace cp {

Shard shard_of(const Job& job, int32_t rank, char* data) {
    const int64_t keys = job.keys_on(rank), batch = job.packed_k ? 1 : job.d.batch;
    Shares shares(data);
    Shard shard{dense(job.k, nullptr, keys), dense(job.v, nullptr, keys), 0};
    shard.k.data = shares.take(bytes_of(shard.k, batch, keys));
    shard.v.data = shares.take(bytes_of(shard.v, batch, keys));
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

void pack_own(const Job& job, const Shard& own) {
    if (job.local_keys == 0) return;
    pack(job.k, job.key_batch(), 0, job.local_keys, own.k.data);
    pack(job.v, job.key_batch(), 0, job.local_keys, own.v.data);
}

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
        if (travels(job, owner, step + 1))
            sum += (job.packed_k ? 1 : job.d.batch) * job.keys_on(owner) * (job.k.row_bytes() + job.v.row_bytes());
    }
    return sum;
}

}  // namespace cp
}  // namespace fa
