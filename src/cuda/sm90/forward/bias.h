// The bias operand on its way to scores: a producer thread brings the tiles of 64 rows and a block of keys of each warpgroup to shared
// memory by TMA, and consumers read them as they have their accumulators (score_mod.h), of 16 bits by ldmatrix. A bias that TMA cannot walk
// through, of another 16-bit type, or one row of which serves all, is copied before the forward runs.
//
// Of f32, of which a thread reads pairs, rows 0 … 3 and 4 … 7 of each eight lie in turns, or rows that are read together would meet in
// banks: TMA swizzles 16 bytes of 128 by the row, so that neighbours swap the halves of a pair of pieces, which both read.
#pragma once
#include "cuda/sm90/forward/tile_scheduler.h"

namespace fa {
namespace gpu {

template <class Traits>
FA_DEVICE void bias_producer(const Sm90ForwardParams& params) {
    if constexpr (Traits::kBiasSize > 0) {
        typename Traits::Shared& shared = Traits::shared();
        PipelineState<Traits::kBiasStages> stage;
        for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
            const WorkTileInfo& tile = shared.tile[tile_stage.index];
            rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
            if (tile.n_block_max < 0) return;
            const int row0 = params.bias.one_row ? 0 : tile.row0, rows = params.bias.one_row ? 0 : 64;
            const int head = tile.head % params.bias.heads, sequence = tile.batch % params.bias.sequences;
            for (int n_block = tile.n_block_max;; n_block--) {
                FA_UNROLL_BY(1)
                for (int wg = 0; wg < Traits::kWarpgroups; wg++) {
                    const uint32_t full = smem_addr(shared.barrier.bias_full[wg][stage.index]), to = Traits::bias_tile(wg, stage.index);
                    rt::mbarrier_wait(smem_addr(shared.barrier.bias_empty[wg][stage.index]), stage.phase ^ 1);
                    rt::mbarrier_expect_tx(full, Traits::kBiasBytes);
                    FA_UNROLL_FOR (int panel = 0; panel < Traits::kBiasPanels; panel++) {
                        const int column = 64 * (n_block * Traits::kBiasPanels + panel), row = row0 + wg * rows;
                        if (Traits::kBiasSize == 2)
                            rt::tma_load(to + panel * 8192, &params.bias_map, full, column, row, head, sequence, params.bias.keep);
                        else
                            rt::tma_load_5d(to + panel * 8192, &params.bias_map, full,
                                            {column, 0, 0, row / 8, sequence * params.bias.heads + head}, params.bias.keep);
                    }
                }
                stage.advance();
                if (n_block == tile.n_block_min) break;  // the scheduler may overwrite the tile's description from here on
            }
        }
    }
}

}  // namespace gpu
}  // namespace fa
