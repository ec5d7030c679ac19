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

// What an item has of q and of o: 64 rows of a sequence, and which split of its keys; rank: in a pair of CTAs.
struct LatentPlace {
    int tile, split, batch, rank;
};
struct LatentParams {
    CUtensorMap q, k;
    LatentCall x;
    int tiles;         // of 64 rows, of a sequence
    int splits;        // of a tile
    int ctas_of_tile;  // 2: a pair, with one item each, shares its keys and merges itself (mla_cluster.h)
    int items;         // all of them, each CTA's first being that of its number
    // Tiles come from the last to the first: under a causal mask later ones see more keys.
    FA_MEMBER LatentPlace place_of(int index) const {
        const int of_sequence = tiles * splits * ctas_of_tile, batch = index / of_sequence, rest = index - batch * of_sequence;
        const int share = rest / ctas_of_tile, split = share / tiles;
        return {tiles - 1 - (share - split * tiles), split, batch, rest - share * ctas_of_tile};
    }
};

constexpr int kPairKeys = 2 * 64;       // of a pair of blocks
constexpr int kNoItem = -1;             // in place of an item's pairs: there is no further one
constexpr int kMaxLatentCtas = 5 * 32;  // that the scheduler knows of

// Without pairs it is a split that the sequence has not, or one CTA of a pair has all keys.
struct LatentItem : LatentPlace {
    int begin, end, pairs;  // keys of the split; pairs of blocks, of which some row sees one
    int k_begin, kv_index;  // where the sequence's keys lie
    int diagonal, off;      // of the tile's first row; of row 0
};
struct LatentItemSlot {
    LatentItem item;
    uint64_t ready, consumed;
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
        uint64_t q_full, q_empty, k_full[2][kProbPanel + 1], k_empty[2][2], p_full[2];
        LatentItemSlot item[2];  // in turn
        RowState part[64];       // of a CTA's keys, for its pair
        int keys[2];             // of the two blocks, that there are
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
        rt::mbarrier_init(smem_addr(s.q_empty), 8);
        for (const LatentItemSlot& slot : s.item) rt::mbarrier_init(smem_addr(slot.ready), 1), rt::mbarrier_init(smem_addr(slot.consumed), 8);
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
