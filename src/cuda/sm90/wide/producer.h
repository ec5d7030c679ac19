// Loads of the kernel of wide heads, by one thread for q and k and one for v: blocks of 64 keys from right to left, of k as panels of 64
// columns, of v as halves of 256. The CTAs of a pair load every second panel each, and multicast it to both.
#pragma once
#include "cuda/sm90/common/pages.h"
#include "cuda/sm90/wide/params.h"

namespace fa {
namespace gpu {

template <class Traits>
FA_DEVICE void load_wide_panel(uint32_t to, const CUtensorMap* map, uint32_t full, int panel, const KeyBlock& block, int kv_head) {
    if (!Traits::kPair) rt::tma_load(to, map, full, 64 * panel, block.row, kv_head, block.outer, rt::kEvictLast);
    else if (panel % 2 == rt::cluster_rank())
        rt::tma_load_multicast(to, map, full, 64 * panel, block.row, kv_head, block.outer, rt::kEvictLast);
}

template <class Traits>
FA_DEVICE void wide_q_and_k_producer(const WideParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    const int4 source = shared.source, range = shared.range;
    const WideTile tile = shared.tile;
    rt::mbarrier_expect_tx(smem_addr(shared.q_full), Traits::kMatrixBytes);
    for (int i = 0; i < Traits::kPanels; i++)
        rt::tma_load(Traits::q_tile() + i * Traits::kPanelBytes, &params.q, smem_addr(shared.q_full), 64 * i, tile.head0,
                     shared.q_begin + tile.row0, params.x.sequences.q.packed() ? 0 : tile.batch, rt::kEvictFirst);
    FA_UNROLL_BY(1)
    for (int t = 0; t < range.z; t++) {
        const KeyBlock block = find_key_block(params, source, range.y, range.w - 64 * t);
        FA_UNROLL_BY(1)
        for (int i = 0; i < Traits::kPanels; i++) {
            if (i % 4 == 0) rt::mbarrier_wait(smem_addr(shared.k_empty[i / 4]), (t & 1) ^ 1);
            if (i == 0) shared.k_keys[t & 1] = block.keys;  // read behind k_full
            const uint32_t full = smem_addr(shared.k_full[t & 1][i]);
            rt::mbarrier_expect_tx(full, Traits::kPanelBytes);
            load_wide_panel<Traits>(Traits::k_tile() + i * Traits::kPanelBytes, &params.k, full, i, block, source.z);
        }
    }
}

template <class Traits>
FA_DEVICE void wide_v_producer(const WideParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    const int4 source = shared.source, range = shared.range;
    FA_UNROLL_BY(1)
    for (int t = 0; t < range.z; t++) {
        const KeyBlock block = find_key_block(params, source, range.y, range.w - 64 * t);
        FA_UNROLL_BY(1)
        for (int half = 0; half < 2; half++) {
            const uint32_t full = smem_addr(shared.v_full[half]);
            rt::mbarrier_wait(smem_addr(shared.v_empty[half]), (t & 1) ^ 1);
            shared.v_keys[half] = block.keys;  // read behind v_full
            rt::mbarrier_expect_tx(full, 4 * Traits::kPanelBytes);
            FA_UNROLL_BY(1)
            for (int i = 4 * half; i < 4 * half + 4; i++)
                load_wide_panel<Traits>(Traits::v_tile() + i * Traits::kPanelBytes, &params.v, full, i, block, source.z);
        }
    }
}

}  // namespace gpu
}  // namespace fa
