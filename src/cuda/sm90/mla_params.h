// What the latent kernel is called with, and how a CTA's shared memory is laid out. mla_kernel.h begins the tour.
#pragma once
#include "cuda/sm90/split_o.h"

namespace fa {
namespace gpu {

// What the kernel reads of a call, beside q and k.
struct LatentCall : RowParams, SplitParams {
    float scale;
    bool causal;
    Pages pages;
};

struct LatentParams {
    CUtensorMap q, k;
    LatentCall x;
    int tiles;   // of 64 rows, of a sequence
    int splits;  // that a tile's CTAs take
    // What a CTA works on. Tiles come from the last to the first: under a causal mask later ones see more keys.
    FA_MEMBER int tile() const { return tiles - 1 - int(blockIdx.x) % tiles; }
    FA_MEMBER int split() const { return int(blockIdx.x) / tiles % splits; }
    FA_MEMBER int batch() const { return int(blockIdx.x) / (tiles * splits); }
};

template <class T, int HeadDim>
struct LatentTraits {
    static constexpr bool f16 = kIsF16<T>;
    static constexpr int kHeadDim = HeadDim, kHeadDimV = 512, kBlock = 64, kThreads = 3 * 128;
    static constexpr int kPanels = HeadDim / 64, kPanelBytes = 64 * 128;
    // Panel 8 of a block of keys holds dims that are no part of v, or none: P crosses there.
    static constexpr int kProbPanel = kHeadDimV / 64, kMatrixBytes = (kProbPanel + 1) * kPanelBytes;
    static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
    // See Sm90ForwardTraits.
    static constexpr float kPScaleLog2 = f16 ? 10.f : -24.f, kPUnscale = f16 ? 0x1p-10f : 0x1p+24f,
                           kRescaleThreshold = f16 ? 0x1.f8p+15f : 0x1p-12f;

    struct Shared {
        uint64_t q_full, k_full[2][kProbPanel + 1], k_empty[2][2], p_full[2];
        int4 source;  // of keys: k_begin, kv_index; the tile's first row's diagonal, off
        int4 range;   // first key of the split, one past its last, pairs of blocks, split
        int keys[2];  // of the two blocks, that there are
        SplitOExchange exchange;
    };
    static constexpr int kSharedBytes = 3 * kMatrixBytes + int(sizeof(Shared));
    static_assert(kSharedBytes <= 232448, "what a CTA may have");
    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + 3 * kMatrixBytes); }
    FA_MEMBER static uint32_t q_tile() { return rt::smem_addr(rt::shared_memory()); }
    FA_MEMBER static uint32_t k_tile(int w) { return q_tile() + (1 + w) * kMatrixBytes; }
    FA_MEMBER static void init_barriers() {
        Shared& s = shared();
        rt::mbarrier_init(smem_addr(s.q_full), 1);
        for (int w = 0; w < 2; w++) {
            for (const uint64_t& full : s.k_full[w]) rt::mbarrier_init(smem_addr(full), 1);
            for (const uint64_t& empty : s.k_empty[w]) rt::mbarrier_init(smem_addr(empty), 4);
            rt::mbarrier_init(smem_addr(s.p_full[w]), 128);
        }
        rt::fence_mbarrier_init();
    }
};

}  // namespace gpu
}  // namespace fa
