#include "cp/partition.h"
#include "cp/cp.h"

namespace fa {
namespace cp {

// Where part p of n begins. Blocks are dealt so that parts differ by one at most.
static int64_t part_begin(int64_t length, int64_t block, int64_t p, int64_t n) {
    const int64_t blocks = (length + block - 1) / block, begin = p * blocks / n * block;
    return begin < length ? begin : length;
}

static void add(Ranges* ranges, int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (ranges->count > 0 && ranges->at[0].begin + ranges->at[0].rows == begin)
        ranges->at[0].rows += end - begin;  // the middle's two parts
    else ranges->at[ranges->count++] = {begin, end - begin};
}

Ranges ranges_of(const Partition& partition, int64_t length, int32_t rank) {
    Ranges r{};
    const int64_t n = partition.layout == FA_CP_LAYOUT_ZIGZAG ? int64_t(2) * partition.ranks : partition.ranks;
    add(&r, part_begin(length, partition.block, rank, n), part_begin(length, partition.block, rank + 1, n));
    if (partition.layout == FA_CP_LAYOUT_ZIGZAG)
        add(&r, part_begin(length, partition.block, n - 1 - rank, n), part_begin(length, partition.block, n - rank, n));
    return r;
}

fa_status_t read_spread(const fa_cp_desc_t* user, fa_cp_desc_t* desc, Message* message) {
    FA_TRY(import_struct(desc, user, message));
    FA_TRY(known_bits(message, "spread.flags", desc->flags, 0));
    if (desc->shard == 0)
        return fail(message, FA_INVALID_ARGUMENT, "spread.shard is not set: expected FA_CP_SHARD_ROWS or FA_CP_SHARD_KEYS");
    FA_TRY(known_value(message, "spread.shard", desc->shard, FA_CP_SHARD_KEYS));
    FA_TRY(known_value(message, "spread.layout", desc->layout, FA_CP_LAYOUT_ZIGZAG));
    FA_TRY(known_value(message, "spread.method", desc->method, FA_CP_METHOD_MERGE));
    FA_TRY(in_range(message, "spread.block", desc->block, 0, kMaxSize));
    FA_TRY(in_range(message, "spread.head_chunk", desc->head_chunk, 0, kMaxSize));
    if (desc->block == 0) desc->block = 1;
    return FA_OK;
}

static fa_status_t check_lengths(const int32_t* cu_seqlens, int64_t batch, int64_t seqlen, Message* message) {
    FA_TRY(in_range(message, "batch", batch, 0, kMaxSize));
    FA_TRY(in_range(message, "seqlen", seqlen, 0, kMaxSize));
    if (!cu_seqlens) return FA_OK;
    if (seqlen != 0) return fail(message, FA_INVALID_ARGUMENT, "seqlen is %lld: expected 0 with cu_seqlens", ll(seqlen));
    for (int64_t b = 0; b <= batch; b++)
        FA_TRY(entry_in_range(message, "cu_seqlens", b, cu_seqlens[b],
                              {b > 0 ? cu_seqlens[b - 1] : 0, kMaxSize, "the largest row", kMaxSize}));
    return FA_OK;
}

static fa_status_t partition(const fa_cp_desc_t* user, int32_t rank, int32_t ranks, const int32_t* cu_seqlens, int64_t batch,
                             int64_t seqlen, fa_cp_range_t* ranges, int64_t capacity, int64_t* count) {
    Message* m = thread_message();
    fa_cp_desc_t spread;
    if (!count) return fail(m, FA_INVALID_ARGUMENT, "count is NULL: expected where to write it");
    *count = 0;
    FA_TRY(read_spread(user, &spread, m));
    if (spread.shard != FA_CP_SHARD_ROWS)
        return fail(m, FA_INVALID_ARGUMENT, "spread.shard is FA_CP_SHARD_KEYS: expected FA_CP_SHARD_ROWS, since every rank has all rows");
    FA_TRY(in_range(m, "ranks", ranks, 1, kMaxSize));
    FA_TRY(in_range(m, "rank", rank, 0, ranks - 1));
    FA_TRY(check_lengths(cu_seqlens, batch, seqlen, m));
    FA_TRY(in_range(m, "capacity", capacity, 0, INT64_MAX));
    if (!ranges && capacity > 0) return fail(m, FA_INVALID_ARGUMENT, "ranges is NULL: expected an array of %lld", ll(capacity));
    const Partition p{spread.layout, ranks, spread.block};
    int64_t n = 0, packed = 0;
    const Ranges each = ranges_of(p, seqlen, rank);
    // Sequences that are all the same are counted without a look at each, but for those that there is room for.
    for (int64_t b = 0; b < batch && (cu_seqlens || (each.count > 0 && n < capacity)); b++) {
        const Ranges r = cu_seqlens ? ranges_of(p, cu_seqlens[b + 1] - cu_seqlens[b], rank) : each;
        int64_t local = cu_seqlens ? packed : 0;
        for (int32_t i = 0; i < r.count; i++, n++) {
            if (n < capacity) ranges[n] = {b, r.at[i].begin, r.at[i].rows, local};
            local += r.at[i].rows;
        }
        packed += r.rows();
    }
    if (!cu_seqlens) n = batch * each.count;
    *count = n;
    if (ranges && n > capacity) return fail(m, FA_INVALID_ARGUMENT, "capacity is %lld: expected %lld or more", ll(capacity), ll(n));
    return FA_OK;
}

}  // namespace cp
}  // namespace fa

fa_status_t fa_cp_partition(const fa_cp_desc_t* spread, int32_t rank, int32_t ranks, const int32_t* cu_seqlens, int64_t batch,
                            int64_t seqlen, fa_cp_range_t* ranges, int64_t capacity, int64_t* count) {
    return fa::cp::partition(spread, rank, ranks, cu_seqlens, batch, seqlen, ranges, capacity, count);
}
