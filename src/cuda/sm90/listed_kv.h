// The producer threads of k and v that take the place of kv_producer where a block of keys is made of units that a table lists (key_units.h).
#pragma once
#include "cuda/sm90/pages.h"
#include "cuda/sm90/producer.h"

namespace fa {
namespace gpu {

template <class Traits, KvOperand operand, int Stages>
FA_DEVICE void listed_kv_producer(const Sm90ForwardParams& a) {
    constexpr bool is_k = operand == KvOperand::k;
    constexpr int panels = is_k ? Traits::kQPanels : Traits::kVPanels;
    using Units = typename Traits::Units;
    typename Traits::Shared& s = Traits::shared();
    const auto& full = is_k ? s.barrier.k_full : s.barrier.v_full;
    const auto& empty = is_k ? s.barrier.k_empty : s.barrier.v_empty;
    PipelineState<Stages> stage;
    for (PipelineState<Traits::kTileStages> tile;; tile.advance()) {
        const WorkTileInfo& t = s.tile[tile.index];
        rt::mbarrier_wait(smem_addr(t.tile_ready), tile.phase);
        if (t.n_block_max < 0) return;
        const Units* const units = reinterpret_cast<const Units*>(a.units.units + a.units.tile_of(t.batch, t.head, t.row0) * a.units.most);
        const int head = t.kv_head, kv_batch = t.kv_batch, k_begin = t.k_begin, blocks = t.n_block_max + 1;
        Units next = units[blocks - 1];
        for (int n_block = blocks - 1;; n_block--) {
            const Units block = next;
            if (n_block > 0) next = units[n_block - 1];
            PagedRow at[Traits::kUnits];  // the table has no units in pages that do not exist
            FA_UNROLL for (int i = 0; i < Traits::kUnits; i++) {
                const bool paged = a.x.pages.table && block.entry[i] >> 4 != KeyUnitTable::kNoUnit;
                at[i] = paged ? find_paged_row(a, kv_batch, block.first_key(i)) : PagedRow{a.x.pages.table ? 0 : kv_batch, k_begin + block.first_key(i)};
            }
            if (is_k && a.tile_counter && n_block + 1 == min(blocks, Traits::kPrefetchBlocks))
                rt::mbarrier_arrive(smem_addr(s.barrier.prefetch_next));
            rt::mbarrier_wait(smem_addr(empty[stage.index]), stage.phase ^ 1);
            if (is_k) s.units[stage.index] = block;
            const uint32_t barrier = smem_addr(full[stage.index]), to = is_k ? Traits::k_tile(stage.index) : Traits::v_tile(stage.index);
            rt::mbarrier_expect_tx(barrier, panels * Traits::kPanelBytes);
            FA_UNROLL for (int i = 0; i < Traits::kUnits; i++)
                FA_UNROLL for (int panel = 0; panel < panels; panel++)
                    rt::tma_load(to + panel * Traits::kPanelBytes + i * KeyUnitTable::kKeys * 128, is_k ? &a.k : &a.v, barrier, 64 * panel,
                                 at[i].row, head, at[i].page, rt::kEvictLast);
            stage.advance();
            if (n_block == 0) break;  // the scheduler may overwrite the tile's description from here on
        }
    }
}

}  // namespace gpu
}  // namespace fa
