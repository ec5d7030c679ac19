// The shared memory of the backward kernel for heads of 136 to 256 dims: two CTAs, a pair, own 64 keys each, read the same rows and
// exchange dS. backward_wide/kernel.h gives the overview.
#pragma once
#include "cuda/sm90/backward/producer.h"

namespace fa {
namespace gpu {

template <class T>
struct Sm90WideBackwardTraits : Sm90BackwardTraits<T, 256, 64, BwdVariant::wide, 64> {
    using Base = Sm90BackwardTraits<T, 256, 64, BwdVariant::wide, 64>;
    using Base::smem_addr, Base::k_tile, Base::v_tile, Base::kBlockN;
    static constexpr int kHeadDim = 256, kBlockM = 64, kStages = 2;  // of q; dout has one
    static constexpr int kPanelBytes = 64 * 128, kKvBytes = Base::kKvBytes, kQBytes = Base::kQBytes;
    static constexpr int kWarpBytes = 16 * kBlockM * 4;  // of dq, or of P: a warp's accumulators
    struct Barriers {
        uint64_t k_full, v_full, q_full[kStages], q_empty[kStages], do_full, do_empty, p_full, p_empty, ds_full, ds_empty;
        uint64_t dq_full[2], dq_empty[2];  // deterministic: of the warpgroups' staging buffers of dq
    };
    struct Shared {
        float lse_log2[kStages][kBlockM], delta[kBlockM];
        int2 row_range[kBlockN];  // the rows that see each key
        KeyBlockInfo block;
        Barriers barrier;
    };
    // k, v, the peer CTA's k, q, dout, dS of this CTA and of its peer, P, dq
    static constexpr int kTensorBytes = 2 * kKvBytes + 2 * kPanelBytes + (kStages + 1) * kQBytes + 2 * kPanelBytes + 8 * kWarpBytes;
    static constexpr int kSharedBytes = kTensorBytes + int(sizeof(Shared));
    static_assert(kSharedBytes <= kMaxSharedBytes, "");

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kTensorBytes); }
    FA_MEMBER static uint32_t peer_k_tile() { return v_tile() + kKvBytes; }  // this CTA's half of the dims
    FA_MEMBER static uint32_t q_tile(int i) { return peer_k_tile() + 2 * kPanelBytes + i * kQBytes; }
    FA_MEMBER static uint32_t do_tile() { return q_tile(kStages); }
    FA_MEMBER static uint32_t ds_tile() { return do_tile() + kQBytes; }  // keys by rows, and behind it the peer's
    FA_MEMBER static uint32_t peer_ds_tile() { return ds_tile() + kPanelBytes; }
    FA_MEMBER static uint32_t p_tile() { return peer_ds_tile() + kPanelBytes; }
    FA_MEMBER static uint32_t dq_tile() { return p_tile() + 4 * kWarpBytes; }
    FA_MEMBER static uint32_t dq_staging(int warpgroup) { return warpgroup ? dq_tile() : p_tile(); }  // P has been read by then

    FA_MEMBER static void init_barriers() {
        Barriers& barrier = shared().barrier;
        rt::mbarrier_init(smem_addr(&barrier.k_full), 1 + 32), rt::mbarrier_init(smem_addr(&barrier.v_full), 1);
        // P, LSE and delta are accessed by the threads themselves, so every thread of a warpgroup (128) arrives; for wgmma one lane
        // of each warp does.
        for (int i = 0; i < kStages; i++)
            rt::mbarrier_init(smem_addr(barrier.q_full + i), 1), rt::mbarrier_init(smem_addr(barrier.q_empty + i), 8 + 128);
        rt::mbarrier_init(smem_addr(&barrier.do_full), 1), rt::mbarrier_init(smem_addr(&barrier.do_empty), 8 + 4 + 128);
        rt::mbarrier_init(smem_addr(&barrier.p_full), 128), rt::mbarrier_init(smem_addr(&barrier.p_empty), 128);
        rt::mbarrier_init(smem_addr(&barrier.ds_full), 4), rt::mbarrier_init(smem_addr(&barrier.ds_empty), 16);
        for (int i = 0; i < 2; i++)
            rt::mbarrier_init(smem_addr(barrier.dq_full + i), 4), rt::mbarrier_init(smem_addr(barrier.dq_empty + i), 1);
        rt::fence_mbarrier_init();
    }
    // Of the peer CTA's block: its first key, and how many keys exist.
    FA_MEMBER static int peer_key0(const KeyBlockInfo& key_block) { return key_block.key0 ^ 64; }
    FA_MEMBER static int peer_keys(const KeyBlockInfo& key_block) { return min(key_block.k_len - peer_key0(key_block), 64); }
};

}  // namespace gpu
}  // namespace fa
