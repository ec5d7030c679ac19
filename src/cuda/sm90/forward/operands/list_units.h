// The kernels that make the table of units (key_units.h) from lists of blocks of keys and ranges of keys, before the forward kernel runs:
// each unit once, in ascending order, without those that lengths and masks leave out. So neither the order of a list nor what it says twice
// shows.
#pragma once
#include "backend/row_keys.h"
#include "cuda/sm90/forward/tile_scheduler.h"

namespace fa {
namespace gpu {

constexpr int kUnitThreads = KeyUnitTable::kTileRows;
constexpr int64_t kMostUnits = int64_t(1) << 16;  // of a sequence, for which there is shared memory

// The mask operand as it came, of bytes or of bits.
struct MaskOperand {
    const uint8_t* data;  // NULL: none
    int64_t period[2], stride[4], keys;
    bool bits;
    bool whole;  // are 16 of a row's keys that begin with a multiple of 16 a vector of as many bytes?
    // Of a row, bits of the keys from `key` on, of which `valid` exist, that it keeps.
    FA_MEMBER uint64_t of_unit(int batch, int head, int row, int key, int valid, int k_len) const {
        const uint8_t* const begin = data + pair_row(period, stride, batch, head, row);
        uint64_t kept = 0;
        if (whole && valid == KeyUnitTable::kKeys) {
            FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                const uint4 vec = reinterpret_cast<const uint4*>(begin + key)[i];
                const uint32_t word[] = {vec.x, vec.y, vec.z, vec.w};
                FA_UNROLL_FOR (int j = 0; j < 4; j++)  // a bit of each byte to the highest four
                    kept |= uint64_t(__vsetne4(word[j], 0) * 0x01020408u >> 24 & 15) << (16 * i + 4 * j);
            }
            return kept;
        }
        const int64_t first = key - first_masked_key(keys, k_len);
        for (int j = 0; j < valid; j++) kept |= uint64_t(mask_keeps(begin, stride[3], bits, first + j)) << j;
        return kept;
    }
};

struct KeyUnitParams {
    KeyUnitTable to;
    int per_block;  // units of a block of keys
    ListTable lists;
    int list_rows, list_units, list_blocks,
        heads_of_list;  // 0: no lists; units of a block of theirs, and blocks; query heads that share one
    KeyRanges ranges;
    MaskOperand mask;
    Window window;
    SequenceTable sequences;
    Pages pages;
    int words;          // of 32 units of a sequence
    int* tile_counter;  // of the forward kernel, to become 0; NULL: it has none
};

// Where the entries that are kept go, of which each lane has one: behind the `count` before, which then counts them, too.
FA_DEVICE int place_of_kept(bool kept, int& count) {
    const uint32_t lanes = __ballot_sync(~0u, kept);
    const int place = count + __popc(lanes & ((1u << threadIdx.x % 32) - 1));
    count += __popc(lanes);
    return place;
}
// Behind a tile's last unit, up to the end of a block of keys. A warp.
FA_DEVICE void end_units(const KeyUnitParams& params, int tile, int count) {
    const int blocks = max((count + params.per_block - 1) / params.per_block, 1), lane = int(threadIdx.x) % 32;
    if (count + lane < blocks * params.per_block) params.to.units[tile * params.to.most + count + lane] = KeyUnitTable::kNoUnit << 4;
    if (lane == 0) params.to.blocks[tile] = blocks;
}

// A warp for each tile.
constexpr int kUnitWarps = 4;
FA_KERNEL void FA_BOUNDS(32 * kUnitWarps, 8) list_key_units(FA_PARAM KeyUnitParams params) {
    rt::release_successor();
    rt::fetch_parameters(params);
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, tile = int(blockIdx.x) * kUnitWarps + warp;
    uint32_t* const bits = reinterpret_cast<uint32_t*>(rt::shared_memory()) +
                           warp * 4 * params.words;  // of each half of the rows: key_list's, and full_list's
    for (int i = lane; i < 4 * params.words; i += 32) bits[i] = 0;
    __syncwarp();
    rt::wait_for_predecessor();
    if (blockIdx.x == 0 && threadIdx.x < 2 && params.tile_counter) params.tile_counter[threadIdx.x] = 0;
    if (tile >= params.to.tiles()) return;
    const KeyUnitTable::Place of_tile = params.to.place_of(tile);
    const int batch = of_tile.batch, head = of_tile.head, row0 = of_tile.row0;
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const int k_len = int(seq.k_len), off = int(clamp(seq.off, -(1 << 30), 1 << 30));

    KeyRange some[2], all[2];  // keys that some row of a half sees, and keys that all its rows see
    int of_list[2];            // the half whose bits another half has
    FA_UNROLL_FOR (int half = 0; half < 2; half++) {
        const int first_row = row0 + half * KeyUnitTable::kRows;
        some[half] = {INT32_MAX, 0}, all[half] = {0, INT32_MAX};
        for (int row = first_row + lane; row < min(first_row + KeyUnitTable::kRows, int(seq.q_len)); row += 32) {
            KeyRange own = key_range_of<MaskKind::list>(params.window, row, off, k_len);
            if (params.ranges.pairs) {
                const KeyBand hull = range_hull(params.ranges, query_index(params.ranges.rows, seq, batch, row, head), k_len);
                own = intersection(own, {int(hull.begin), int(hull.end)});
            }
            const bool any = own.begin < own.end;
            if (any) some[half] = {min(some[half].begin, own.begin), max(some[half].end, own.end)};
            all[half] = intersection(all[half], any && !params.to.bits ? own : KeyRange{INT32_MAX, 0});
        }
        some[half] = {__reduce_min_sync(~0u, some[half].begin), __reduce_max_sync(~0u, some[half].end)};
        all[half] = {__reduce_max_sync(~0u, all[half].begin), __reduce_min_sync(~0u, all[half].end)};
        const auto block_of = [&](int h) { return (seq.q_begin + row0 + h * KeyUnitTable::kRows) / max(params.list_rows, 1); };
        of_list[half] = block_of(half) == block_of(0) ? 0 : half;
        if (params.list_rows == 0 || of_list[half] != half || first_row >= seq.q_len) continue;
        for (int full = 0; full < 2; full++) {
            const ListSource from =
                list_source(params.lists, params.sequences.q.packed() ? 0 : batch, head / params.heads_of_list, block_of(half), full);
            const int length = int(from.length());
            for (int e = lane; e < length; e += 32) {
                const int block = from.entries[e * from.step];
                if (block < 0 || block >= params.list_blocks) continue;
                for (int unit = block * params.list_units; unit < min((block + 1) * params.list_units, 32 * params.words); unit++)
                    atomicOr(&bits[(2 * half + full) * params.words + unit / 32], 1u << unit % 32);
            }
        }
    }
    __syncwarp();

    int count = 0;
    int32_t* const units = params.to.units + tile * params.to.most;
    for (int first = 0; first * KeyUnitTable::kKeys < k_len; first += 32) {
        const int unit = first + lane, key = unit * KeyUnitTable::kKeys, end = key + KeyUnitTable::kKeys;
        int codes = 0;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            if (key >= k_len || row0 + half * KeyUnitTable::kRows >= seq.q_len) continue;
            const auto has = [&](int full) { return (bits[(2 * of_list[half] + full) * params.words + unit / 32] >> unit % 32 & 1) != 0; };
            SeenKeys seen = SeenKeys::none;
            if (params.list_rows > 0 && has(1)) seen = end <= k_len ? SeenKeys::all : SeenKeys::to_end;
            else if ((params.list_rows == 0 || has(0)) && key < some[half].end && end > some[half].begin)
                seen = key >= all[half].begin && end <= all[half].end ? SeenKeys::all : SeenKeys::masked;
            codes |= int(seen) << 2 * half;
        }
        if (params.pages.table && codes != 0 && !locate_key(params.pages, seq, key).valid) codes = 0;
        const int place = place_of_kept(codes != 0, count);
        if (codes != 0) units[place] = unit << 4 | codes;
    }
    end_units(params, tile, count);
}

// Of a row, bits of a unit's keys that the mask operand and several ranges leave it.
FA_DEVICE uint64_t bits_of_unit(const KeyUnitParams& params, const Sequence& seq, int batch, int head, int row, int key) {
    const int k_len = int(seq.k_len);
    uint64_t kept = ~uint64_t(0);
    if (params.ranges.pairs && params.ranges.max > 1)
        kept = range_bits(params.ranges, query_index(params.ranges.rows, seq, batch, row, head), key);
    if (params.mask.data) kept &= params.mask.of_unit(batch, head, row, key, min(k_len - key, KeyUnitTable::kKeys), k_len);
    return kept;
}
// These of units where masks act, in the order of a thread's accumulators; and halves of a tile that have no key of a unit do not see it. A
// block for some of a tile's entries, each thread reads a row of them.
constexpr int kMaskBlocks = 8;  // for a tile
FA_KERNEL void FA_BOUNDS(kUnitThreads, 1) list_mask_bits(FA_PARAM KeyUnitParams params) {
    rt::release_successor();
    rt::fetch_parameters(params);
    __shared__ uint64_t of_row[kUnitThreads];
    const int tile = int(blockIdx.x) / kMaskBlocks, thread = int(threadIdx.x);
    const KeyUnitTable::Place of_tile = params.to.place_of(tile);
    const int batch = of_tile.batch, head = of_tile.head, row = of_tile.row0 + thread;
    rt::wait_for_predecessor();
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const int entries = params.to.blocks[tile] * params.per_block;
    for (int e = int(blockIdx.x) % kMaskBlocks; e < entries; e += kMaskBlocks) {
        int32_t& entry = params.to.units[tile * params.to.most + e];
        const KeyUnits<1> unit{{entry}};
        if (unit.seen(0, 0) != SeenKeys::masked && unit.seen(0, 1) != SeenKeys::masked) continue;
        const int key = unit.first_key(0);
        of_row[thread] = row < seq.q_len ? bits_of_unit(params, seq, batch, head, row, key) : 0;
        int unseen = 0;
        for (int half = 0; half < 2; half++) {
            const bool any = __syncthreads_or(of_row[thread] != 0 && thread / KeyUnitTable::kRows == half);
            if (!any && unit.seen(0, half) == SeenKeys::masked) unseen |= 3 << 2 * half;
        }
        if (thread == 0) entry &= ~unseen;
        FA_UNROLL_FOR (int half = 0; half < KeyUnitTable::kBits / kUnitThreads; half++) {
            const int place = half * kUnitThreads + thread, lane = place % 32, first = place / 32 * 16 + lane / 4;
            uint32_t word = 0;
            FA_UNROLL_FOR (int i = 0; i < 16; i++) {  // two keys of every eight, of two rows in turns
                const uint64_t keys = of_row[first + i % 2 * 8] >> (i / 2 * 8 + lane % 4 * 2);
                word |= uint32_t(keys & 3) << 2 * i;
            }
            params.to.bits[(tile * params.to.most + e) * KeyUnitTable::kBits + place] = word;
        }
        __syncthreads();
    }
}

// Takes units that neither half of a tile sees any more from the table, with their bits, which those have that a half sees masked. A block
// for each tile; its warps agree on where units go.
FA_KERNEL void FA_BOUNDS(kUnitThreads, 1) drop_unseen_units(FA_PARAM KeyUnitParams params) {
    rt::release_successor();
    rt::fetch_parameters(params);
    constexpr int words = KeyUnitTable::kBits / kUnitThreads, moved_together = 4;
    __shared__ int from[32];  // where a unit's bits lie, −1: it has none
    const int tile = int(blockIdx.x), thread = int(threadIdx.x);
    int32_t* const units = params.to.units + tile * params.to.most;
    uint32_t* const bits = params.to.bits + tile * params.to.most * KeyUnitTable::kBits + thread;
    rt::wait_for_predecessor();
    const int entries = params.to.blocks[tile] * params.per_block;
    int count = 0;
    for (int first = 0; first < entries; first += 32) {
        const int e = first + thread % 32, before = count;
        const int32_t entry = e < entries ? units[e] : 0;
        const bool kept = (entry & 15) != 0;
        const KeyUnits<1> unit{{entry}};
        const bool has_bits = unit.seen(0, 0) == SeenKeys::masked || unit.seen(0, 1) == SeenKeys::masked;
        const int place = place_of_kept(kept, count);
        __syncthreads();
        if (kept && thread < 32) units[place] = entry, from[place - before] = has_bits ? e : -1;
        __syncthreads();
        // Each thread moves words of its own, none before it has read what lay there.
        for (int to = before; to < count; to += moved_together) {
            const int last = min(to + moved_together, count) - 1;
            if (from[last - before] == last) continue;
            int source[moved_together];
            uint32_t word[moved_together][words];
            FA_UNROLL_FOR (int i = 0; i < moved_together; i++) {
                source[i] = to + i <= last ? from[to + i - before] : -1;
                FA_UNROLL_FOR (int w = 0; w < words; w++)
                    word[i][w] = source[i] >= 0 ? bits[source[i] * KeyUnitTable::kBits + w * kUnitThreads] : 0;
            }
            FA_UNROLL_FOR (int i = 0; i < moved_together; i++) {
                FA_UNROLL_FOR (int w = 0; w < words; w++)
                    if (source[i] >= 0) bits[(to + i) * KeyUnitTable::kBits + w * kUnitThreads] = word[i][w];
            }
        }
    }
    if (thread < 32) end_units(params, tile, count);
}

}  // namespace gpu
}  // namespace fa
