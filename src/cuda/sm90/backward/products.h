// What a step of the backward mainloop (backward/mainloop.h) computes on the accumulators of a warpgroup: its wgmma, masking, P from S,
// and dS from P and dP. S and dP are keys by rows; a thread has two keys, 8 apart, and of every 8 rows two. `from`: the first row
// of the tile that is computed.
#pragma once
#include "cuda/sm90/backward/bias_tile.h"

namespace fa {
namespace gpu {

// Rows of a tile that do not belong to the sequence may hold anything, and 0 · NaN is NaN. By both consumer warpgroups.
template <class Traits, int TileRows>
FA_DEVICE void zero_rows_outside(uint32_t tile, int begin, int end) {
    FA_UNROLL_FOR (int i = 0; i < TileRows / 32; i++) {
        const int row = 32 * i + (int(threadIdx.x) - 128) / 8;
        if (row < begin || row >= end)
            FA_UNROLL_FOR (int panel = 0; panel < Traits::kPanels; panel++)
                rt::st_shared_zero_v4(tile + (panel * TileRows + row) * 128 + threadIdx.x % 8 * 16);
    }
    rt::fence_proxy_async_shared();
    rt::named_barrier_sync(1, 256);
}

// Sᵀ = K Qᵀ, to which a bias has been put before, and dPᵀ −= V dOᵀ: 64 keys, from address k or v on, by the rows of a tile of q or dout.
template <class Traits, int HeadDim, int from, int n>
FA_DEVICE void issue_s(float (&acc_s)[n], uint32_t k, uint32_t q_tile) {
    constexpr int kBlockM = Traits::kBlockM;
    float (&part)[(kBlockM - from) / 2] = reinterpret_cast<float (&)[(kBlockM - from) / 2]>(acc_s[from / 2]);
    const uint64_t keys = rt::smem_desc(rt::rematerialize(k), 16), rows = rt::smem_desc(q_tile + from * 128, 16);
    FA_UNROLL_FOR (int i = 0; i < HeadDim / 16; i++)
        Traits::Wgmma::mma(part, keys + i / 4 * (Traits::kBlockN * 8) + i % 4 * 2, rows + i / 4 * (kBlockM * 8) + i % 4 * 2,
                           Traits::kBias || i > 0);
    rt::wgmma_commit();
}
template <class Traits, int HeadDim, int from, int n>
FA_DEVICE void issue_dp(float (&acc_dp)[n], uint32_t v, uint32_t do_tile) {
    constexpr int kBlockM = Traits::kBlockM;
    float (&part)[(kBlockM - from) / 2] = reinterpret_cast<float (&)[(kBlockM - from) / 2]>(acc_dp[from / 2]);
    const uint64_t keys = rt::smem_desc(rt::rematerialize(v), 16), rows = rt::smem_desc(do_tile + from * 128, 16);
    FA_UNROLL_FOR (int i = 0; i < HeadDim / 16; i++)
        Traits::Wgmma::mma_negated(part, keys + i / 4 * (Traits::kBlockN * 8) + i % 4 * 2, rows + i / 4 * (kBlockM * 8) + i % 4 * 2);
    rt::wgmma_commit();
}
// dV += Pᵀ dO, or dK += dSᵀ Q, with P or dS in registers.
template <class Traits, int HeadDim, int BlockM>
FA_DEVICE void issue_rs(float (&acc)[HeadDim / 2], const uint32_t (&p)[BlockM / 4], uint32_t tile, int from) {
    const uint64_t rows = rt::smem_desc(tile, BlockM * 128);
    FA_UNROLL_FOR (int i = from / 16; i < BlockM / 16; i++) Traits::Wgmma::mma(acc, p + 4 * i, rows + i * 128);
    rt::wgmma_commit();
}
// dQᵀ = Kᵀ dSᵀ over all keys: a warpgroup has 64 dims of all rows, or, with one panel, all dims of half of the rows.
template <class Traits>
FA_DEVICE void issue_dq(float (&acc_dq)[32], uint32_t k_tile, uint32_t ds_tile, int warpgroup) {
    const uint64_t dims = rt::smem_desc(k_tile + (Traits::kPanels > 1 ? warpgroup * Traits::kBlockN * 128 : 0), Traits::kBlockN * 128);
    const uint64_t rows = rt::smem_desc(ds_tile + (Traits::kPanels > 1 ? 0 : warpgroup * Traits::kDqRows * 128), 16);
    FA_UNROLL_FOR (int i = 0; i < Traits::kBlockN / 16; i++)
        Traits::Wgmma::mma_a_mn_major(acc_dq, dims + i * 128, rows + i / 4 * (Traits::kBlockM * 8) + i % 4 * 2, i > 0);
    rt::wgmma_commit();
}

// The rows that see a key of the block.
template <class Traits>
FA_DEVICE int2 row_range_of(int key) {
    if constexpr (Traits::kBias) {
        const KeyBlockInfo& key_block = Traits::shared().block[0];
        return rows_seeing(key_block.rule, key_block.key0 + key, key < key_block.valid_keys, key_block.q_len);
    } else {
        return Traits::shared().of_keys.row_range[key];
    }
}

template <class Traits, int n>
FA_DEVICE void apply_mask(float (&acc_s)[n], int own_key, int m_block, int c, int from) {
    constexpr int kBlockM = Traits::kBlockM;
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int2 range = row_range_of<Traits>(own_key + 8 * r);
        const int begin = range.x - m_block * kBlockM - 2 * c, end = range.y - m_block * kBlockM - 2 * c;
        FA_UNROLL_FOR (int i = from / 2; i < kBlockM / 2; i++)
            if (i / 2 % 2 == r && (8 * (i / 4) + i % 2 < begin || 8 * (i / 4) + i % 2 >= end)) acc_s[i] = kNegInf;
    }
}

// P = exp2(S · scale − LSE), in the accumulators, and in 16 bits for wgmma.
template <class T, int BlockM>
FA_DEVICE void exp2_to_p(float (&acc_s)[BlockM / 2], uint32_t (&p)[BlockM / 4], uint32_t lse_log2, float scale, int from) {
    FA_UNROLL_FOR (int i = from / 8; i < BlockM / 8; i++) {
        const float2 l = rt::ld_shared_v2(lse_log2 + 32 * i);
        FA_UNROLL_FOR (int e = 0; e < 4; e++) acc_s[4 * i + e] = rt::exp2_fast(fmaf(acc_s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
        FA_UNROLL_FOR (int e = 0; e < 2; e++) p[2 * i + e] = pack<T>(acc_s[4 * i + 2 * e], acc_s[4 * i + 2 * e + 1]);
    }
}

// The accumulators of delta − dP begin at delta.
template <int BlockM>
FA_DEVICE void load_delta(float (&acc_dp)[BlockM / 2], uint32_t delta, int from) {
    FA_UNROLL_FOR (int i = from / 8; i < BlockM / 8; i++) {
        const float2 d = rt::ld_shared_v2(delta + 32 * i);
        acc_dp[4 * i] = acc_dp[4 * i + 2] = d.x;
        acc_dp[4 * i + 1] = acc_dp[4 * i + 3] = d.y;
    }
}

// −dS = P · (delta − dP), in 16 bits; 0 in the rows that were not computed. f16: times the unit of the block of keys `t`, while P is
// kept too large.
template <class T, int BlockM>
FA_DEVICE void scores_to_ds(const float (&p)[BlockM / 2], const float (&acc_dp)[BlockM / 2], uint32_t (&ds)[BlockM / 4], int from,
                            const KeyBlockInfo& key_block) {
    const float factor = ds_factor<T>(key_block);
    FA_UNROLL_FOR (int i = 0; i < from / 4; i++) ds[i] = 0;
    FA_UNROLL_FOR (int i = from / 4; i < BlockM / 4; i++)
        ds[i] = pack_ds<T>(p[2 * i] * acc_dp[2 * i], p[2 * i + 1] * acc_dp[2 * i + 1], factor);
}

}  // namespace gpu
}  // namespace fa
