// What the latent kernel is called with, and how a CTA's shared memory is laid out. latent/kernel.h begins the tour.
#pragma once
#include "backend/row_keys.h"
#include "cuda/sm90/common/divisor.h"
#include "cuda/sm90/split_o/consumer.h"

namespace fa {
namespace gpu {

// What the kernel reads of a call, beside q and k.
struct LatentCall : RowParams, SplitParams {
    float scale;
    bool causal;
    Pages pages;
};

// Where keys come from: by boxes of the copy engine; row by row, each from an address of its own (latent/row_producer.h); so of 8 bits; and
// these for few rows, by a kernel of another form (latent/tokens/kernel.h).
enum class LatentSource { boxes, rows, bytes, tokens };

// Where rows of k lie, for the kernels that find the address of each. Steps are from one sequence or page to the next, and from row to row.
struct LatentRows {
    const char *k, *tail, *factor;  // tail: the last 64 dims, where k has 8 bits; factor: NULL: none
    const char* q;
    int64_t q_step[2];                 // from one sequence to the next, and from (row, head) pair to pair, in units of 16 bytes
    uint32_t k_step[2], tail_step[2];  // in units of 16 bytes
    uint32_t factor_step[2];           // of 4 bytes
    int factor_shift;                  // log₂ of the dims that share a factor: 6 or 7
    bool factor_e8m0;                  // or f32
    ListTable list;                    // entries NULL: keys are those of a sequence; else the slots that a block of query rows has
    Divisor page_size;                 // of a list's slots
    int slots;
};

// What an item has of q and of o: a tile of a sequence's rows, and which split of its keys; rank: in a pair of CTAs.
struct LatentPlace {
    int tile, split, batch, rank;
};
struct LatentParams {
    CUtensorMap q, k;
    LatentCall x;
    LatentRows rows;
    int rows_of_list, tiles_of_list;  // that share a list of slots; 0: no lists
    int tile_rows;                    // of a tile: 64, or fewer of tokens
    int tiles;                        // of a sequence
    int splits;                       // of a tile
    int ctas_of_tile;                 // 2: a pair, with one item each, shares its keys and merges itself (latent/cluster.h)
    int items;                        // all of them, each CTA's first being that of its number
    // Tiles come from the last to the first: under a causal mask later ones see more keys.
    FA_MEMBER LatentPlace place_of(int index) const {
        const int of_sequence = tiles * splits * ctas_of_tile, batch = index / of_sequence, rest = index - batch * of_sequence;
        const int share = rest / ctas_of_tile, split = share / tiles;
        return {tiles - 1 - (share - split * tiles), split, batch, rest - share * ctas_of_tile};
    }
    // A tile's first row, and the one behind its last.
    FA_MEMBER int2 rows_of(int tile) const {
        const int all = int(x.rows);
        if (tiles_of_list == 0) return make_int2(tile_rows * tile, min(tile_rows * (tile + 1), all));
        const int list = tile / tiles_of_list, first = list * rows_of_list + (tile - list * tiles_of_list) * tile_rows;
        return make_int2(first, min(min(first + tile_rows, (list + 1) * rows_of_list), all));
    }
};

constexpr int kPairKeys = 2 * 64;       // of a pair of blocks
constexpr int kNoItem = -1;             // in place of an item's pairs: there is no further one
constexpr int kMaxLatentCtas = 5 * 32;  // that the scheduler knows of

// Without pairs it is a split that the sequence has not, or one CTA of a pair has all keys.
struct LatentItem : LatentPlace {
    int row, row_end;       // of the tile
    int begin, end, pairs;  // keys of the split; pairs of blocks, of which some row sees one
    int k_begin, kv_index;  // where the sequence's keys lie
    int diagonal, off;      // of the tile's first row; of row 0
};
struct LatentItemSlot {
    LatentItem item;
    uint64_t ready, consumed;
};

// What the scheduler keeps between two items: the next one to be given, and what each CTA has taken.
struct alignas(16) LatentSchedulerState {
    uint32_t taken[kMaxLatentCtas / 32][32];  // pairs of blocks, and in the lowest byte the CTA's number, which is the place's, too
    int next;
};

template <class T, int HeadDim, LatentSource kSource = LatentSource::boxes>
struct LatentTraits {
    static constexpr bool f16 = kIsF16<T>;
    // Rows come by address; of 8 bits, but for the last 64 dims, which v has where it has all.
    static constexpr bool kByAddress = kSource != LatentSource::boxes, kBytes = kSource == LatentSource::bytes;
    static constexpr int kBytePanels = HeadDim / 64 - 1;
    // By address 128 threads load; their copies of 16 bits arrive by themselves, and a thread of each warp beside them for what it has
    // written.
    static constexpr int kFullArrivals = !kByAddress ? 1 : kBytes ? 128 : 128 + 4;
    static constexpr int kItemSlots = kByAddress ? 4 : 2;  // by address a warp that loads publishes items, and must not wait for room
    static constexpr int kHeadDim = HeadDim, kHeadDimV = 512, kBlock = 64, kThreads = 3 * 128;
    static constexpr int kPanels = HeadDim / 64, kPanelBytes = 64 * 128;
    // Panel 8 of a block of keys holds dims that are no part of v, or none: P crosses there.
    static constexpr int kProbPanel = kHeadDimV / 64, kMatrixBytes = (kProbPanel + 1) * kPanelBytes;
    static constexpr int kProducerRegisters = kByAddress ? 72 : 40, kConsumerRegisters = kByAddress ? 216 : 232;
    // See Sm90ForwardTraits.
    static constexpr float kPScaleLog2 = f16 ? 10.f : -24.f, kPUnscale = f16 ? 0x1p-10f : 0x1p+24f,
                           kRescaleThreshold = f16 ? 0x1.f8p+15f : 0x1p-12f;

    struct Shared {
        uint64_t q_full, q_empty, k_full[2][kProbPanel + 1], k_empty[2][2], p_full[2];
        LatentItemSlot item[kItemSlots];  // in turn
        LatentSchedulerState schedule;
        alignas(16) RowState part[64];  // of a CTA's keys, for its pair
        int keys[2];                    // of the two blocks, that there are
        uint64_t present[2];            // the same by address: a bit for each
        SplitOExchange exchange;
        alignas(16) uint32_t factor[kBytes ? 2 : 1][kBytes ? 64 : 1]
                                   [8];  // of the two blocks' keys, as they are stored: four words for each half of the dims
    };
    static constexpr int kSharedBytes = 3 * kMatrixBytes + int(sizeof(Shared));
    static_assert(kSharedBytes <= 232448, "what a CTA may have");
    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + 3 * kMatrixBytes); }
    FA_MEMBER static uint32_t q_tile() { return rt::smem_addr(rt::shared_memory()); }
    FA_MEMBER static uint32_t k_tile(int w) { return q_tile() + (1 + w) * kMatrixBytes; }
    FA_MEMBER static void init_barriers() {
        Shared& shared = LatentTraits::shared();
        rt::mbarrier_init(smem_addr(shared.q_full), 1);
        rt::mbarrier_init(smem_addr(shared.q_empty), 8);
        for (const LatentItemSlot& slot : shared.item)
            rt::mbarrier_init(smem_addr(slot.ready), 1), rt::mbarrier_init(smem_addr(slot.consumed), kByAddress ? 8 + 4 : 8 + 1);
        for (int w = 0; w < 2; w++) {
            for (const uint64_t& full : shared.k_full[w]) rt::mbarrier_init(smem_addr(full), kFullArrivals);
            for (const uint64_t& empty : shared.k_empty[w]) rt::mbarrier_init(smem_addr(empty), 4);
            rt::mbarrier_init(smem_addr(shared.p_full[w]), 128);
        }
        rt::fence_mbarrier_init();
    }
};

}  // namespace gpu
}  // namespace fa
