// What the kernel of wide heads is called with, and how a CTA's shared memory is laid out. wide/kernel.h begins the tour.
#pragma once
#include "cuda/sm90/split_o/consumer.h"

namespace fa {
namespace gpu {

// What the kernel reads of a call, beside q, k and v.
struct WideCall : RowParams, SplitParams {
    float scale;
    Window window;
    Pages pages;
};

struct WideParams {
    CUtensorMap q, k, v;
    WideCall x;
    int tiles;       // of 64 rows, of a sequence and head group; of pairs of CTAs, pairs
    int splits;      // that a tile's CTAs take
    int head_group;  // query heads, of one kv head, that a tile has rows of: row r is head r % head_group of query row r / head_group
};

// A CTA's work. Tiles come from the last to the first: under a causal mask later ones see more keys.
struct WideTile {
    int row0, head0, split, batch;  // the first query row of the 64, and its first head
};
template <class Traits>
FA_DEVICE WideTile wide_tile(const WideParams& params) {
    const int pair = Traits::kPair ? int(blockIdx.x) / 2 : int(blockIdx.x), rank = Traits::kPair ? rt::cluster_rank() : 0;
    const int groups = int(params.x.heads_q) / params.head_group, outer = pair / params.tiles,
              tile = params.tiles - 1 - (pair - outer * params.tiles);
    const int split = outer % params.splits, sequence = outer / params.splits, batch = sequence / groups;
    return {(tile * Traits::kClusterSize + rank) * (64 / params.head_group), (sequence - batch * groups) * params.head_group, split, batch};
}

template <class T, bool pair>
struct WideTraits {
    static constexpr bool f16 = kIsF16<T>, kPair = pair;
    static constexpr int kClusterSize = pair ? 2 : 1, kBlock = 64, kThreads = 3 * 128;
    static constexpr int kPanels = 8, kPanelBytes = kBlock * 128, kMatrixBytes = kPanels * kPanelBytes;
    static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
    // See Sm90ForwardTraits.
    static constexpr float kPScaleLog2 = f16 ? 10.f : -24.f, kPUnscale = f16 ? 0x1p-10f : 0x1p+24f,
                           kRescaleThreshold = f16 ? 0x1.f8p+15f : 0x1p-12f;

    // k_full: of even blocks and of odd ones, for each panel. Halves: panels 0 … 3 and 4 … 7; of v each is one consumer's.
    struct Shared {
        uint64_t q_full, k_full[2][kPanels], k_empty[2], v_full[2], v_empty[2], p_full[2], p_empty[2], other_half;
        WideTile tile;
        int4 source;   // k_begin, kv_index, kv head, keys of the sequence
        int4 range;    // of keys: the split's first and one past its last; blocks, and the first key of the first one, the rightmost
        int2 all_see;  // keys that every row of the tile sees: from x to before y
        int q_begin, q_len, off;
        int k_keys[2], v_keys[2];  // of the block in place, that there are: of even blocks and of odd ones; of either half
        SplitOExchange exchange;
    };
    static constexpr int kTensorBytes = 3 * kMatrixBytes + 2 * kPanelBytes, kSharedBytes = kTensorBytes + int(sizeof(Shared));
    static_assert(kSharedBytes <= 232448, "what a CTA may have");
    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kTensorBytes); }
    FA_MEMBER static uint32_t q_tile() { return rt::smem_addr(rt::shared_memory()); }
    FA_MEMBER static uint32_t k_tile() { return q_tile() + kMatrixBytes; }
    FA_MEMBER static uint32_t v_tile() { return q_tile() + 2 * kMatrixBytes; }
    FA_MEMBER static uint32_t p_tile(int w) { return q_tile() + 3 * kMatrixBytes + w * kPanelBytes; }
    FA_MEMBER static void init_barriers() {
        Shared& shared = WideTraits::shared();
        rt::mbarrier_init(smem_addr(shared.q_full), 1);
        rt::mbarrier_init(smem_addr(shared.other_half), 256);
        for (int w = 0; w < 2; w++) {
            for (const uint64_t& full : shared.k_full[w]) rt::mbarrier_init(smem_addr(full), 1);
            rt::mbarrier_init(smem_addr(shared.v_full[w]), 1);
            rt::mbarrier_init(smem_addr(shared.k_empty[w]), 4 * kClusterSize);
            rt::mbarrier_init(smem_addr(shared.v_empty[w]), 4 * kClusterSize);
            rt::mbarrier_init(smem_addr(shared.p_full[w]), 128);
            rt::mbarrier_init(smem_addr(shared.p_empty[w]), 4);
        }
        rt::fence_mbarrier_init();
    }
};

}  // namespace gpu
}  // namespace fa
