// The bias operand in the backward kernel for up to 128 dims: one thread brings the tile of each step by TMA, and S begins at it instead of
// at 0. The tile lies as dS does, rows by keys in a panel for each warpgroup, so that ldmatrix reads what stmatrix would write: a warp's
// tile of dS from its accumulators. One stage is enough: it is read before the wgmma of S, and filled again while the step runs.
#pragma once
#include "cuda/sm90/backward/range.h"

namespace fa {
namespace gpu {

template <class Traits>
FA_DEVICE void bias_tile_producer(const typename Traits::Params& params, const KeyBlockInfo& key_block) {
    if constexpr (Traits::kBias) {
        typename Traits::Barriers& barrier = Traits::shared().barrier;
        const uint32_t full = Traits::smem_addr(&barrier.bias_full), empty = Traits::smem_addr(&barrier.bias_empty);
        const int sequence = key_block.batch % params.bias.sequences;
        uint32_t phase = 1;
        for (int g = 0; g < int(params.x.group); g++) {
            const int head = key_block.kv_head * int(params.x.group) + g, bias_head = head % params.bias.heads;
            const float factor = params.bias.scale ? params.bias.scale[head] : 1.f;
            for (int m_block = key_block.m_block_min; m_block < key_block.m_block_max; m_block++, phase ^= 1) {
                rt::mbarrier_wait(empty, phase);
                barrier.bias_factor = factor;
                rt::mbarrier_expect_tx(full, Traits::kBiasBytes);
                FA_UNROLL_FOR (int panel = 0; panel < Traits::kBlockN / 64; panel++)
                    rt::tma_load(Traits::bias_tile() + panel * Traits::kBlockM * 128, &params.bias_map, full, key_block.key0 + 64 * panel,
                                 params.bias.one_row ? 0 : m_block * Traits::kBlockM, bias_head, sequence, params.bias.keep);
            }
        }
    }
}

// The accumulators of S begin at bias · factor / scale. tile: the row of it that this lane addresses in ldmatrix. −∞ removes a key whatever
// the factor is; only factors that are no usual numbers take the way that asks for it.
template <class T, int BlockM>
FA_DEVICE void start_at_bias(float (&acc_s)[BlockM / 2], uint32_t tile, float factor, float inverse_scale) {
    const auto for_each = [&](auto value_of) {
        FA_UNROLL_FOR (int i = 0; i < BlockM / 16; i++) {
            uint32_t word[4];
            rt::ldmatrix_x4_trans(tile + i * 2048, word);
            FA_UNROLL_FOR (int e = 0; e < 8; e++) acc_s[8 * i + e] = value_of(half_of<T>(word[e / 2], e % 2));
        }
    };
    if (factor > 0x1p-60f && factor < 0x1p+60f) {
        const float in_scores = factor * inverse_scale;
        for_each([&](float bias) { return bias * in_scores; });
    } else {
        for_each([&](float bias) { return bias == kNegInf ? kNegInf : factor * bias * inverse_scale; });
    }
}

}  // namespace gpu
}  // namespace fa
