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
KeyUnitParams planned_units(const Problem& p, int block_n, const Window& window) {
    const fa_attention_desc_t& d = p.d;
    const bool lists = p.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST), ranges = p.has(FA_OPERAND_KEY_RANGES),
               masks = p.has(FA_OPERAND_MASK);
    const auto differs = [&](int i) {
        return (lists && (d.list_stride[i] | d.list_count_stride[i]) != 0) || (ranges && d.key_range_stride[i] != 0) ||
               (masks && d.mask_stride[i] != 0);
    };
    KeyUnitParams x{};
    x.per_block = block_n / KeyUnitTable::kKeys;
    x.words = int(ceil_div(ceil_div(d.seqlen_k, KeyUnitTable::kKeys), 32));
    x.window = window;
    x.ranges = key_ranges(p, fa_forward_args_t{});
    x.pages = pages_of(p, nullptr);
    for (int i = 0; i < 2; i++) x.mask.period[i] = d.mask_period[i];
    for (int i = 0; i < 4; i++) x.mask.stride[i] = d.mask_stride[i];
    x.mask.keys = d.mask_keys;
    x.mask.bits = d.mask_dtype == FA_BIT;
    x.to.sequences = int(has_uniform_lengths(p) && !differs(0) ? 1 : d.batch);
    x.to.heads = int(!differs(1)                                                                  ? 1
                     : (ranges && d.key_range_stride[1] != 0) || (masks && d.mask_stride[1] != 0) ? d.heads_q
                                                                                                  : d.list_heads);
    x.to.heads_together = int(d.heads_q) / x.to.heads;
    x.to.m_blocks = int(ceil_div(d.seqlen_q, KeyUnitTable::kTileRows));
    int64_t most = ceil_div(d.seqlen_k, KeyUnitTable::kKeys);
    if (lists) {
        x.list_rows = int(d.list_rows);
        x.list_units = int(d.list_keys / KeyUnitTable::kKeys);
        x.list_blocks = int(ceil_div(d.seqlen_k, d.list_keys));
        x.heads_of_list = int(d.heads_q / d.list_heads);
        const int64_t of_tile = (p.has(FA_OPERAND_KEY_LIST) && p.has(FA_OPERAND_FULL_LIST) ? 2 : 1) *
                                (d.list_rows % KeyUnitTable::kTileRows == 0 && !p.packed_q() ? 1 : 2);
        most = min_of(most, of_tile * min_of(d.list_max, x.list_blocks) * x.list_units);
    }
    x.to.most = round_up(max_of(most, 1), x.per_block);
    return x;
}
uint64_t block_count_bytes(const KeyUnitTable& t) { return uint64_t(round_up(t.tiles() * int64_t(sizeof(int32_t)), 256)); }
uint64_t unit_bytes(const KeyUnitTable& t) { return uint64_t(round_up(t.tiles() * t.most * int64_t(sizeof(int32_t)), 256)); }
bool acts_by_bits(const Problem& p) { return p.has(FA_OPERAND_MASK) || (p.has(FA_OPERAND_KEY_RANGES) && p.d.key_range_max > 1); }
uint64_t table_bytes(const Problem& p, const KeyUnitTable& t) {
    const uint64_t bits = acts_by_bits(p) ? uint64_t(t.tiles() * t.most) * KeyUnitTable::kBits * sizeof(uint32_t) : 0;
    return block_count_bytes(t) + unit_bytes(t) + bits;
}

// Lists whose blocks of rows and of keys are whole ones of the table's, as are pages; and of what no table becomes too large.
bool lists_fit(const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    if (p.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST) &&
        (d.list_rows % KeyUnitTable::kRows != 0 || d.list_keys % KeyUnitTable::kKeys != 0))
        return false;
    if (p.paged() && d.page_size % KeyUnitTable::kKeys != 0) return false;
    return ceil_div(d.seqlen_k, KeyUnitTable::kKeys) <= kMostUnits &&
           table_bytes(p, planned_units(p, 2 * KeyUnitTable::kKeys, Window{}).to) <= kMostTableBytes;
}

// tile_counter: NULL, or to become 0.
rt::Status list_units(KeyUnitParams x, const Problem& p, const fa_forward_args_t& args, char* memory, int* tile_counter, rt::Stream stream,
                      Sm90ForwardParams* a) {
    x.to.blocks = reinterpret_cast<int32_t*>(memory);
    x.to.units = reinterpret_cast<int32_t*>(memory + block_count_bytes(x.to));
    x.tile_counter = tile_counter;
    x.lists = list_table(p, args);
    x.ranges = key_ranges(p, args);
    x.sequences = sequence_table(p, args);
    x.pages.table = operand(p, FA_OPERAND_PAGE_TABLE, args.page_table);
    x.mask.data = operand(p, FA_OPERAND_MASK, args.mask);
    const int64_t* const t = x.mask.stride;
    x.mask.whole = x.mask.data && !x.mask.bits && x.mask.keys == 0 && t[3] == 1 &&
                   (t[0] | t[1] | t[2] | int64_t(reinterpret_cast<uintptr_t>(x.mask.data))) % 16 == 0;
    const bool bits = acts_by_bits(p);
    if (bits) x.to.bits = reinterpret_cast<uint32_t*>(memory + block_count_bytes(x.to) + unit_bytes(x.to));
    a->units = x.to;
    if (!bits || x.ranges.max == 1) a->ranges = x.ranges;
    rt::Status s = rt::launch_after(list_key_units, ceil_div(x.to.tiles(), kUnitWarps), 32 * kUnitWarps,
                                    uint64_t(kUnitWarps * 4 * x.words) * sizeof(uint32_t), stream, x);
    if (s == rt::kSuccess && bits) s = rt::launch_after(list_mask_bits, x.to.tiles() * kMaskBlocks, kUnitThreads, 0, stream, x);
    if (s == rt::kSuccess && bits) s = rt::launch_after(drop_unseen_units, x.to.tiles(), kUnitThreads, 0, stream, x);
    return s;
}

}  // namespace
}  // namespace gpu
}  // namespace fa
