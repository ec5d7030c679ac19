// Loads of the latent kernel, all by one thread: q once, and pairs of blocks of keys from right to left, panel by panel in the
// order in which the consumers free them.
#pragma once
#include "cuda/sm90/mla_params.h"
#include "cuda/sm90/pages.h"

namespace fa {
namespace gpu {

template <class Traits>
FA_DEVICE void latent_producer(const LatentParams& a) {
    typename Traits::Shared& s = Traits::shared();
    const int tile = a.tile(), batch = a.batch();
    const int4 source = s.source, range = s.range;
    uint32_t phase = 0;
    KeyBlock next[2];
    const auto find = [&](int n) {
        FA_UNROLL for (int w = 0; w < 2; w++) next[w] = find_key_block(a, source, range.y, range.x + (2 * n + 1 - w) * 64);
    };
    find(range.z - 1);
    FA_UNROLL_BY(1)
    for (int n = range.z - 1; n >= 0; n--) {
        const KeyBlock block[2] = {next[0], next[1]};
        if (n > 0) find(n - 1);
        FA_UNROLL for (int w = 0; w < 2; w++) {
            const auto load = [&](int panel) {
                const uint32_t barrier = smem_addr(s.k_full[w][panel]);
                rt::mbarrier_expect_tx(barrier, Traits::kPanelBytes);
                rt::tma_load(Traits::k_tile(w) + panel * Traits::kPanelBytes, &a.k, barrier, 64 * panel, block[w].row, 0,
                             block[w].outer, rt::kEvictFirst);
            };
            rt::mbarrier_wait(smem_addr(s.k_empty[w][w]), phase ^ 1);
            s.keys[w] = block[w].keys;  // read behind k_full
            for (int i = 0; i < 4; i++) load(4 * w + i);
            if (w == 0 && n == range.z - 1) {
                rt::mbarrier_expect_tx(smem_addr(s.q_full), Traits::kPanels * Traits::kPanelBytes);
                for (int i = 0; i < Traits::kPanels; i++)
                    rt::tma_load(Traits::q_tile() + i * Traits::kPanelBytes, &a.q, smem_addr(s.q_full), 64 * i, 64 * tile, 0, batch,
                                 rt::kEvictFirst);
            }
            rt::mbarrier_wait(smem_addr(s.k_empty[w][1 - w]), phase ^ 1);
            for (int i = 0; i < 4; i++) load(4 - 4 * w + i);
            if (Traits::kPanels > Traits::kProbPanel) load(Traits::kProbPanel);
        }
        phase ^= 1;
    }
}

}  // namespace gpu
}  // namespace fa
