// The host's part of lists of blocks and of key ranges (key_units.h): which of them the forward kernels take, and the launch of what makes
// the table of units in the workspace.
#pragma once
#include "cuda/sm90/forward/operands/list_units.h"
#include "gpu/common/mma_params.h"

namespace fa {
namespace gpu {
namespace {

constexpr uint64_t kMostTableBytes = uint64_t(1) << 30;

// The table, and what makes it, without their pointers. Sequences and heads share units where lengths, lists and ranges are the same.
KeyUnitParams planned_units(const Problem& problem, int block_n, const Window& window) {
    const fa_attention_desc_t& d = problem.d;
    const bool lists = problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST), ranges = problem.has(FA_OPERAND_KEY_RANGES),
               masks = problem.has(FA_OPERAND_MASK);
    const auto differs = [&](int i) {
        return (lists && (d.list_stride[i] | d.list_count_stride[i]) != 0) || (ranges && d.key_range_stride[i] != 0) ||
               (masks && d.mask_stride[i] != 0);
    };
    KeyUnitParams params{};
    params.per_block = block_n / KeyUnitTable::kKeys;
    params.words = int(ceil_div(ceil_div(d.seqlen_k, KeyUnitTable::kKeys), 32));
    params.window = window;
    params.ranges = key_ranges(problem, fa_forward_args_t{});
    params.pages = pages_of(problem, nullptr);
    for (int i = 0; i < 2; i++) params.mask.period[i] = d.mask_period[i];
    for (int i = 0; i < 4; i++) params.mask.stride[i] = d.mask_stride[i];
    params.mask.keys = d.mask_keys;
    params.mask.bits = d.mask_dtype == FA_BIT;
    params.to.sequences = int(has_uniform_lengths(problem) && !differs(0) ? 1 : d.batch);
    params.to.heads = int(!differs(1)                                                                  ? 1
                          : (ranges && d.key_range_stride[1] != 0) || (masks && d.mask_stride[1] != 0) ? d.heads_q
                                                                                                       : d.list_heads);
    params.to.heads_together = int(d.heads_q) / params.to.heads;
    params.to.m_blocks = int(ceil_div(d.seqlen_q, KeyUnitTable::kTileRows));
    int64_t most = ceil_div(d.seqlen_k, KeyUnitTable::kKeys);
    if (lists) {
        params.list_rows = int(d.list_rows);
        params.list_units = int(d.list_keys / KeyUnitTable::kKeys);
        params.list_blocks = int(ceil_div(d.seqlen_k, d.list_keys));
        params.heads_of_list = int(d.heads_q / d.list_heads);
        const int64_t of_tile = (problem.has(FA_OPERAND_KEY_LIST) && problem.has(FA_OPERAND_FULL_LIST) ? 2 : 1) *
                                (d.list_rows % KeyUnitTable::kTileRows == 0 && !problem.packed_q() ? 1 : 2);
        most = min_of(most, of_tile * min_of(d.list_max, params.list_blocks) * params.list_units);
    }
    params.to.most = round_up(max_of(most, 1), params.per_block);
    return params;
}
uint64_t block_count_bytes(const KeyUnitTable& table) { return uint64_t(round_up(table.tiles() * int64_t(sizeof(int32_t)), 256)); }
uint64_t unit_bytes(const KeyUnitTable& table) { return uint64_t(round_up(table.tiles() * table.most * int64_t(sizeof(int32_t)), 256)); }
bool acts_by_bits(const Problem& problem) {
    return problem.has(FA_OPERAND_MASK) || (problem.has(FA_OPERAND_KEY_RANGES) && problem.d.key_range_max > 1);
}
uint64_t table_bytes(const Problem& problem, const KeyUnitTable& table) {
    const uint64_t bits = acts_by_bits(problem) ? uint64_t(table.tiles() * table.most) * KeyUnitTable::kBits * sizeof(uint32_t) : 0;
    return block_count_bytes(table) + unit_bytes(table) + bits;
}

// Lists whose blocks of rows and of keys are whole ones of the table's, as are pages; and of what no table becomes too large.
bool lists_fit(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    if (problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST) &&
        (d.list_rows % KeyUnitTable::kRows != 0 || d.list_keys % KeyUnitTable::kKeys != 0))
        return false;
    if (problem.paged() && d.page_size % KeyUnitTable::kKeys != 0) return false;
    return ceil_div(d.seqlen_k, KeyUnitTable::kKeys) <= kMostUnits &&
           table_bytes(problem, planned_units(problem, 2 * KeyUnitTable::kKeys, Window{}).to) <= kMostTableBytes;
}

// tile_counter: NULL, or to become 0.
rt::Status list_units(KeyUnitParams params, const Problem& problem, const fa_forward_args_t& args, char* memory, int* tile_counter,
                      rt::Stream stream, Sm90ForwardParams* forward) {
    params.to.blocks = reinterpret_cast<int32_t*>(memory);
    params.to.units = reinterpret_cast<int32_t*>(memory + block_count_bytes(params.to));
    params.tile_counter = tile_counter;
    params.lists = list_table(problem, args);
    params.ranges = key_ranges(problem, args);
    params.sequences = sequence_table(problem, args);
    params.pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    params.mask.data = operand(problem, FA_OPERAND_MASK, args.mask);
    const int64_t* const t = params.mask.stride;
    params.mask.whole = params.mask.data && !params.mask.bits && params.mask.keys == 0 && t[3] == 1 &&
                        (t[0] | t[1] | t[2] | int64_t(reinterpret_cast<uintptr_t>(params.mask.data))) % 16 == 0;
    const bool bits = acts_by_bits(problem);
    if (bits) params.to.bits = reinterpret_cast<uint32_t*>(memory + block_count_bytes(params.to) + unit_bytes(params.to));
    forward->units = params.to;
    if (!bits || params.ranges.max == 1) forward->ranges = params.ranges;
    rt::Status s = rt::launch_after(list_key_units, ceil_div(params.to.tiles(), kUnitWarps), 32 * kUnitWarps,
                                    uint64_t(kUnitWarps * 4 * params.words) * sizeof(uint32_t), stream, params);
    if (s == rt::kSuccess && bits) s = rt::launch_after(list_mask_bits, params.to.tiles() * kMaskBlocks, kUnitThreads, 0, stream, params);
    if (s == rt::kSuccess && bits) s = rt::launch_after(drop_unseen_units, params.to.tiles(), kUnitThreads, 0, stream, params);
    return s;
}

}  // namespace
}  // namespace gpu
}  // namespace fa
