// The producer threads of k and of v: each loads the blocks of all tiles of its CTA by TMA, through a ring of stages. paged_kv.h
// has their counterparts for k and v in pages.
#pragma once
#include "cuda/sm90/forward/tile_scheduler.h"

namespace fa {
namespace gpu {

enum class KvOperand { k, v };

// One block of k or v to one stage. In pairs each CTA loads its half, and multicasts it to both.
template <class Traits, bool pair, int panels>
FA_DEVICE void load_kv_block(uint32_t to, const CUtensorMap* map, uint32_t full, int rank, int row, int head, int kv_batch) {
    rt::mbarrier_expect_tx(full, panels * Traits::kPanelBytes);
    if constexpr (pair && panels == 1) {
        const int half = rank * Traits::kBlockN / 2;
        rt::tma_load_multicast(to + half * 128, map, full, 0, row + half, head, kv_batch, rt::kEvictLast);
    } else {
        FA_UNROLL_FOR (int i = 0; i < panels; i++) {
            if (!pair) rt::tma_load(to + i * Traits::kPanelBytes, map, full, 64 * i, row, head, kv_batch, rt::kEvictLast);
            else if (i % 2 == rank)
                rt::tma_load_multicast(to + i * Traits::kPanelBytes, map, full, 64 * i, row, head, kv_batch, rt::kEvictLast);
        }
    }
}

template <class Traits, bool pair, KvOperand operand, int Stages>
FA_DEVICE void kv_producer(const Sm90ForwardParams& params) {
    constexpr bool is_k = operand == KvOperand::k;
    typename Traits::Shared& shared = Traits::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    const auto& full = is_k ? shared.barrier.k_full : shared.barrier.v_full;
    const auto& empty = is_k ? shared.barrier.k_empty : shared.barrier.v_empty;
    PipelineState<Stages> stage;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        const int head = tile.kv_head, kv_batch = tile.kv_batch, blocks = tile.n_block_max + tile.peer_only_blocks - tile.n_block_min + 1;
        for (int left = blocks, n_block = tile.first_n_block();; left--, n_block = tile.next_n_block(n_block)) {
            if (is_k && params.tile_counter && left == min(blocks, Traits::kPrefetchBlocks))
                rt::mbarrier_arrive(smem_addr(shared.barrier.prefetch_next));
            rt::mbarrier_wait(smem_addr(empty[stage.index]), stage.phase ^ 1);
            load_kv_block<Traits, pair, is_k ? Traits::kQPanels : Traits::kVPanels>(
                is_k ? Traits::k_tile(stage.index) : Traits::v_tile(stage.index), is_k ? &params.k : &params.v,
                smem_addr(full[stage.index]), rank, tile.k_begin + n_block * Traits::kBlockN, head, kv_batch);
            stage.advance();
            if (left == 1) break;  // the scheduler may overwrite the tile's description from here on
        }
    }
}

}  // namespace gpu
}  // namespace fa
