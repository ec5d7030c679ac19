// The producer threads of k and v, or of both, that take the place of kv_producer where a block of keys is made of units that a table lists
// (key_units.h).
#pragma once
#include "cuda/sm90/common/pages.h"
#include "cuda/sm90/forward/producer.h"

namespace fa {
namespace gpu {

template <class Traits, int Stages, bool of_k, bool of_v>
FA_DEVICE void listed_kv_producer(const Sm90ForwardParams& params) {
    using Units = typename Traits::Units;
    typename Traits::Shared& shared = Traits::shared();
    PipelineState<Stages> stage;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        const Units* const units = reinterpret_cast<const Units*>(params.units.units + tile.table_tile * params.units.most);
        const int blocks = tile.n_block_max + 1;
        Units next = units[blocks - 1];
        for (int n_block = blocks - 1;; n_block--) {
            const Units block = next;
            if (n_block > 0) next = units[n_block - 1];
            PagedRow at[Traits::kUnits];  // the table has no units in pages that do not exist
            FA_UNROLL_FOR (int i = 0; i < Traits::kUnits; i++) {
                const bool paged = params.x.pages.table && block.entry[i] >> 4 != KeyUnitTable::kNoUnit;
                at[i] = paged ? find_paged_row(params, tile.kv_batch, block.first_key(i))
                              : PagedRow{params.x.pages.table ? 0 : tile.kv_batch, tile.k_begin + block.first_key(i)};
            }
            if (of_k && params.tile_counter && n_block + 1 == min(blocks, Traits::kPrefetchBlocks))
                rt::mbarrier_arrive(smem_addr(shared.barrier.prefetch_next));
            const auto load = [&](int panels, const CUtensorMap* from, const uint64_t& full, uint32_t to) {
                rt::mbarrier_expect_tx(smem_addr(full), panels * Traits::kPanelBytes);
                FA_UNROLL_FOR (int i = 0; i < Traits::kUnits; i++) {
                    FA_UNROLL_FOR (int panel = 0; panel < panels; panel++)
                        rt::tma_load(to + panel * Traits::kPanelBytes + i * KeyUnitTable::kKeys * 128, from, smem_addr(full), 64 * panel,
                                     at[i].row, tile.kv_head, at[i].page, rt::kEvictLast);
                }
            };
            if constexpr (of_k) {
                rt::mbarrier_wait(smem_addr(shared.barrier.k_empty[stage.index]), stage.phase ^ 1);
                shared.units[stage.index] = block;
                load(Traits::kQPanels, &params.k, shared.barrier.k_full[stage.index], Traits::k_tile(stage.index));
            }
            if constexpr (of_v) {
                rt::mbarrier_wait(smem_addr(shared.barrier.v_empty[stage.index]), stage.phase ^ 1);
                load(Traits::kVPanels, &params.v, shared.barrier.v_full[stage.index], Traits::v_tile(stage.index));
            }
            stage.advance();
            if (n_block == 0) break;  // the scheduler may overwrite the tile's description from here on
        }
    }
}

}  // namespace gpu
}  // namespace fa
