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
    typename Traits::Shared& s = Traits::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    const auto& full = is_k ? s.barrier.k_full : s.barrier.v_full;
    const auto& empty = is_k ? s.barrier.k_empty : s.barrier.v_empty;
    PipelineState<Stages> stage;
    for (PipelineState<Traits::kTileStages> tile;; tile.advance()) {
        const WorkTileInfo& t = s.tile[tile.index];
        rt::mbarrier_wait(smem_addr(t.tile_ready), tile.phase);
        if (t.n_block_max < 0) return;
        const int head = t.kv_head, kv_batch = t.kv_batch, blocks = t.n_block_max + t.peer_only_blocks - t.n_block_min + 1;
        for (int left = blocks, n_block = t.first_n_block();; left--, n_block = t.next_n_block(n_block)) {
            if (is_k && params.tile_counter && left == min(blocks, Traits::kPrefetchBlocks))
                rt::mbarrier_arrive(smem_addr(s.barrier.prefetch_next));
            rt::mbarrier_wait(smem_addr(empty[stage.index]), stage.phase ^ 1);
            load_kv_block<Traits, pair, is_k ? Traits::kQPanels : Traits::kVPanels>(
                is_k ? Traits::k_tile(stage.index) : Traits::v_tile(stage.index), is_k ? &params.k : &params.v,
                smem_addr(full[stage.index]), rank, t.k_begin + n_block * Traits::kBlockN, head, kv_batch);
            stage.advance();
            if (left == 1) break;  // the scheduler may overwrite the tile's description from here on
        }
    }
}

}  // namespace gpu
}  // namespace fa
