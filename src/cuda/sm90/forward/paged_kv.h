// Keys and values in pages: the producer warps of k and v that take the place of kv_producer, and what they leave to softmax.
//
// A block of keys comes in chunks, none of which reaches over a page's end; each lane of a warp looks up the page of one chunk and
// loads it by a TMA of its own. A page that does not exist removes its keys: k_missing fills them with NaN, a NaN row sum sends the
// block through exact_softmax, and that looks the pages up again and masks their scores. So the steady mainloop knows nothing of
// pages.
#pragma once
#include "cuda/sm90/common/pages.h"
#include "cuda/sm90/forward/producer.h"

namespace fa {
namespace gpu {

FA_DEVICE PagedRow find_paged_row(const Sm90ForwardParams& params, const WorkTileInfo& tile, int key) {
    return find_paged_row(params, tile.kv_batch, key);
}

// May pages be missing, as the scores tell? `step`: 8 before any key is masked, 1 afterwards.
template <int step = 8, int n>
FA_DEVICE bool may_miss_pages(const float (&acc_s)[n]) {
    bool nan = false;
    FA_UNROLL_FOR (int i = 0; i < n; i += step) nan |= acc_s[i] != acc_s[i];
    return nan;
}
// Masks the scores of block n_block's keys whose page does not exist.
template <int BlockN>
FA_DEVICE void mask_missing_pages(const Sm90ForwardParams& params, const WorkTileInfo& tile, int n_block, float (&acc_s)[BlockN / 2]) {
    uint32_t missing = 0;
    FA_UNROLL_BY(1)
    for (int j = 0; j < min(BlockN, tile.k_len - n_block * BlockN); j += 16)
        missing |= uint32_t(!find_paged_row(params, tile, n_block * BlockN + j).exists(params)) << j / 16;
    FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++)
        if (missing >> (i / 8) & 1) acc_s[i] = kNegInf;
}

// The producer of k or of v, as a whole warp. Each lane looks up its page a block ahead of its use.
template <class Traits, KvOperand operand, int Stages>
FA_DEVICE void paged_kv_producer(const Sm90ForwardParams& params) {
    constexpr bool is_k = operand == KvOperand::k;
    constexpr int panels = is_k ? Traits::kQPanels : Traits::kVPanels;
    typename Traits::Shared& shared = Traits::shared();
    const auto& full = is_k ? shared.barrier.k_full : shared.barrier.v_full;
    const auto& empty = is_k ? shared.barrier.k_empty : shared.barrier.v_empty;
    const int lane = int(threadIdx.x) % 32, panel = lane % panels, first = lane / panels * params.page_chunk;
    PipelineState<Stages> stage;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        // Nothing is looked up beyond the sequence's end. Of page −1 comes 0.
        const auto find = [&](int key) { return key < tile.k_len ? find_paged_row(params, tile, key) : PagedRow{-1, 0}; };
        const int blocks = tile.n_block_max - tile.n_block_min + 1;
        int n_block = tile.first_n_block();
        PagedRow source = find(n_block * Traits::kBlockN + first);
        FA_UNROLL_BY(1)
        for (int left = blocks; left > 0; left--) {
            if (is_k && params.tile_counter && left == min(blocks, Traits::kPrefetchBlocks) && lane == 0)
                rt::mbarrier_arrive(smem_addr(shared.barrier.prefetch_next));
            const int next_n_block = tile.next_n_block(n_block);
            const PagedRow next_source = left > 1 ? find(next_n_block * Traits::kBlockN + first) : source;
            rt::mbarrier_wait(smem_addr(empty[stage.index]), stage.phase ^ 1);
            const uint32_t barrier = smem_addr(full[stage.index]), to = is_k ? Traits::k_tile(stage.index) : Traits::v_tile(stage.index);
            if (lane == 0) rt::mbarrier_expect_tx(barrier, panels * Traits::kPanelBytes);
            const bool missing = is_k && n_block * Traits::kBlockN + first < tile.k_len && !source.exists(params);
            const CUtensorMap* const map = !is_k ? &params.v : missing ? &params.k_missing : &params.k;
            if (first < Traits::kBlockN)
                rt::tma_load(to + panel * Traits::kPanelBytes + first * 128, map, barrier, 64 * panel, source.row, tile.kv_head,
                             source.page, rt::kEvictLast);
            n_block = next_n_block;
            source = next_source;
            stage.advance();
        }
    }
}

}  // namespace gpu
}  // namespace fa
