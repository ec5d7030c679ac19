// What the forward kernel for sm_90a is called with, what its threads tell each other of a tile, and how it is laid out in shared
// memory. The traits are those of one compiled kernel: CUTLASS would call them its TileShape, SharedStorage and register budget.
// kernel.h begins the tour.
//
// Terms: a tile is kBlockM query rows of one head; it goes through blocks of kBlockN keys, numbered n_block. A pair is a cluster of
// two CTAs that share k and v: each loads one half and multicasts it to both. A panel is 64 columns (128 bytes, the TMA box) of a
// matrix in shared memory.
#pragma once
#include "backend/row_keys.h"
#include "cuda/sm90/common/bias_params.h"
#include "cuda/sm90/forward/operands/block_factors.h"
#include "cuda/sm90/forward/operands/key_units.h"
#include "cuda/sm90/forward/operands/packed_mask.h"
#include "cuda/sm90/common/pipeline.h"
#include "cuda/sm90/common/ptx.h"
#include "gpu/common/epilogue.h"
#include "gpu/mma/mma_sync.h"

namespace fa {
namespace gpu {

// Which keys a row sees: all; those up to its diagonal; those of a band (windows, chunks, and any mask without a kernel of its
// own); those of lists of blocks and of ranges, within bands (key_units.h).
enum class MaskKind { none, causal, band, list };
// What changes scores between the product q · kᵀ and softmax.
enum class ScoreMod { none, softcap, alibi, mask, bias, bias_f32, factors };
// Can a tile have few rows of several query heads that share k and v? Kernels of bands alone, or every kernel would carry it.
constexpr bool packs_heads(MaskKind mask, ScoreMod score_mod, bool pair, bool descale) {
    return mask == MaskKind::band && score_mod == ScoreMod::none && !pair && !descale;
}
constexpr int bias_size_of(ScoreMod m) { return m == ScoreMod::bias ? 2 : m == ScoreMod::bias_f32 ? 4 : 0; }
// A 16-bit type of q, k and v whose k and v have factors: they were 8-bit ones, which widen_kv.h has copied.
template <class T>
struct Descaled {
    T x;
};
template <class T>
constexpr bool kIsDescaled = false;
template <class T>
constexpr bool kIsDescaled<Descaled<T>> = true;
template <class T>
constexpr bool kIsF16<Descaled<T>> = kIsF16<T>;

// How P · v is computed: from 16 bits each, v of 8 bits being widened to f16 (widen_v.h); or from 8 bits each (transpose_v.h), with row
// sums of P as it was before it was rounded, too, where the call wants an LSE, or for calls of so few keys that nothing is promoted.
enum class PvProduct { wide, p8, p8_lse, p8_short };
constexpr int kUnpromotedKeys = 1536;  // at most, wherever P is of 8 bits

// Of a band: how many keys a row sees on either side of the diagonal, −1: all; and the length of the chunks that confine it, 0:
// none.
struct Window {
    int left, right, chunk;
};
inline Window window_of(const Problem& problem) {
    const auto narrow = [](int64_t n) { return int(min_of(n, INT32_MAX)); };
    const MaskRule rule = mask_rule(problem);
    return {narrow(rule.left), narrow(rule.right), narrow(rule.chunk)};
}

// What the kernel reads of a call, beside the tensors that TMA loads.
struct Sm90Call : RowParams {
    float scale, softcap;
    const float* alibi_slopes;
    int64_t alibi_batch_stride;
    bool uniform_lengths;  // do all sequences have the same lengths? Then these are the first one's.
    Sequence uniform_seq;
    Pages pages;
    Descale q_descale, k_descale, v_descale;
    const float* o_scale;  // of an 8-bit o; NULL: 1
};

struct Sm90ForwardParams {
    CUtensorMap q, k, v;
    CUtensorMap k_missing;  // with pages: like k, but what lies outside the tensor comes as NaN
    Sm90Call x;
    Window window;
    int o_columns;  // of a 16-bit o; 0: o is f32, or, of an 8-bit q, e4m3
    bool o_e4m3;
    bool o_f16;      // of an 8-bit q: is a 16-bit o f16?
    int page_chunk;  // rows of k and v that one TMA load brings, a part of a page; 0: no pages
    PackedMask mask;
    int* tile_counter;   // tiles taken so far, and CTAs or pairs that have ended; 0 at the start and at the end. NULL: the static schedule
    bool pair_by_heads;  // do the CTAs of a pair take two query heads that share k and v, instead of two tiles of one head?
    int m_blocks;        // tiles of a head, or of a pair's
    int num_tiles;
    int section;  // heads whose tiles are taken longest first, before those of the next ones (their k and v fit in L2); 0: head after head
    int tile_heads;      // of a sequence that have tiles of their own
    int head_rows_log2;  // where heads are packed: rows of each in a tile, the tile's row r being row r modulo that of head r / that
    CUtensorMap bias_map;
    Sm90Bias bias;
    BlockFactors factors;
    KeyUnitTable units;
    KeyRanges ranges;
};

// A tile, as the scheduler describes it to producers and consumers. Its blocks of keys are [n_block_min, n_block_max], both
// included; those from n_block_min_causal_local_mask on lie beyond some row's last key, those before n_block_min_before_local_mask
// before some row's first.
struct alignas(16) WorkTileInfo {
    int n_block_max, n_block_min_causal_local_mask, n_block_min, n_block_min_before_local_mask;  // read together
    int peer_only_blocks;  // further blocks above n_block_max, which only the other CTA of the pair needs
    // Blocks are taken from n_block_right − 1 down to n_block_min, then from n_block_right up to n_block_max. Only with ALiBi are
    // there such.
    union {
        int n_block_right;
        int table_tile;  // of lists: the tile's in the table of units
    };
    int head, kv_head, batch, row0;
    int q_begin, q_len, o_rows;          // o_rows: rows of o that belong to the sequence
    int k_len, off, k_begin, kv_batch;   // off: within ±2^30; k_begin, kv_batch: where key 0 lies
    float scale, v_descale;              // where there are factors: of scores, with those of q and k; and v's
    uint64_t tile_ready, tile_consumed;  // mbarriers: the scheduler has written this; the consumers have written o
    FA_MEMBER int first_n_block() const { return n_block_right > n_block_min ? n_block_right - 1 : n_block_min; }
    FA_MEMBER int next_n_block(int n_block) const {
        return n_block >= n_block_right ? n_block + 1 : n_block > n_block_min ? n_block - 1 : n_block_right;
    }
    FA_MEMBER int last_row(int first, int rows) const {
        return max(min(first + rows, q_len) - 1, first);
    }  // of `rows` rows the last that exists
};

// Does each warpgroup begin at its own diagonal, for its 64 rows? Then they do not zero the tail of v together, so all sequences
// must have the same lengths, as pairs need them to.
constexpr bool warpgroup_diagonals(MaskKind mask, int block_n, int block_m) {
    return mask == MaskKind::causal && block_n == 64 && block_m == 4 * block_n;
}

// Tiles that a CTA computes at once, each by warpgroups, stages and producers of its own: of lists with four warpgroups two, so that one
// computes while the other begins, or has nothing to load.
constexpr int tiles_at_once(MaskKind mask, int warpgroups) { return mask == MaskKind::list && warpgroups == 4 ? 2 : 1; }

FA_DEVICE uint32_t smem_addr(const uint64_t& barrier) { return rt::smem_addr(&barrier); }

template <class T, int HeadDim, int HeadDimV, int BlockN, int AllWarpgroups, bool pair, int Stages, int QStages, PvProduct pv,
          ScoreMod score_mod, int Tiles = 1>
struct Sm90ForwardTraits {
    static constexpr int Warpgroups = AllWarpgroups / Tiles;
    // 8-bit q and k are multiplied as they are. 8-bit v is widened to f16, exactly, on its way through shared memory (widen_v.h), so that
    // P and v are f16 as if v had been, or transposed (transpose_v.h).
    static constexpr bool k8Bit = sizeof(T) == 1;
    static constexpr bool kDescale = k8Bit || kIsDescaled<T>;  // have q, k and v factors of a sequence and head?
    using Element = Select<k8Bit, F16, T>;                     // of a 16-bit o, whose type an 8-bit q leaves open
    static constexpr bool f16 = k8Bit || kIsF16<T>, kPair = pair;
    static constexpr int kHeadDim = HeadDim, kHeadDimV = HeadDimV, kWarpgroups = Warpgroups, kStages = Stages, kQStages = QStages;
    template <MaskKind mask>
    static constexpr bool kPacksHeads = packs_heads(mask, score_mod, pair, kDescale);
    static constexpr int kBlockM = 64 * Warpgroups, kBlockN = BlockN, kThreads = 128 * (AllWarpgroups + 1), kTiles = Tiles, kPlace = 0,
                         kClusterSize = pair ? 2 : 1;
    static constexpr int kQPanels = (HeadDim * int(sizeof(T)) + 127) / 128, kVPanels = (HeadDimV + 63) / 64, kPanelBytes = BlockN * 128;
    // v transposed: rows of 128 bytes of keys, or panels of rows of 32, which leave nothing unused where there are fewer.
    static constexpr bool kKeyPanels = pv != PvProduct::wide && BlockN < 128;
    static constexpr int kVRows = HeadDimV + (HeadDimV <= 128 ? 8 : 0), kKeyPanelBytes = kVRows * 32;
    static constexpr int kQBytes = kBlockM * kQPanels * 128, kKBytes = kQPanels * kPanelBytes,
                         kVBytes = pv == PvProduct::wide ? kVPanels * kPanelBytes
                                                         : (kKeyPanels ? (kVRows * BlockN + 1023) / 1024 * 1024 : kVRows * 128);
    static constexpr int kQkSteps = HeadDim * int(sizeof(T)) / 32;  // wgmmas of a product q · kᵀ
    // Of v as it comes, in 8 bits, which has as many stages of its own.
    static constexpr int kRawPanels = (HeadDimV + 127) / 128, kRawBytes = k8Bit ? kRawPanels * kPanelBytes : 0;
    // Of P and v in 8 bits. Behind v's columns are eight of ones, whose product is P's row sum, where wgmma is wide enough. Every
    // kPromoteBlocks blocks O goes to f16 averages in shared memory, or f32 sums, since wgmma's accumulators of 8-bit products keep few
    // bits.
    static constexpr bool kP8 = pv != PvProduct::wide, kRowSumByWgmma = kP8 && HeadDimV <= 128,
                          kLseSum = pv == PvProduct::p8_lse && kRowSumByWgmma;
    static constexpr bool kPromotes = kP8 && pv != PvProduct::p8_short, kExp2ByFma = kP8 && HeadDim <= 64;
    static constexpr bool kPromotesToF32 = kPromotes && Warpgroups == 4;
    static constexpr int kOColumns = HeadDimV + (kRowSumByWgmma ? 8 : 0);  // of the accumulators of O
    static constexpr int kPromoteBlocks = kUnpromotedKeys / BlockN,
                         kAverageBytes = kPromotes ? kBlockM * HeadDimV * (kPromotesToF32 ? 4 : 2) : 0,
                         kAverageSumBytes = kPromotes && Warpgroups >= 3 ? Warpgroups * 1024 : 0;  // see kScarceRegisters
    static constexpr int kRawStages = kPromotes && HeadDimV > 128 ? 1 : Stages;
    static_assert(!kP8 || (k8Bit && BlockN % 32 == 0 && BlockN <= 128), "keys of a transposed row are 128 bytes, swizzled");
    static_assert(!k8Bit || kRawPanels == kQPanels, "k and v of 8 bits are loaded together, by one warp");
    static constexpr int kWideningWarps = k8Bit ? 2 : 1;
    static constexpr int kUnitsOfAWarp = HeadDimV / 16 / kWideningWarps;  // of 16 columns that a warp transposes
    static_assert(!kP8 || kUnitsOfAWarp == 2 || kUnitsOfAWarp == 4 || kUnitsOfAWarp == 8, "a warp's units lie in one panel");
    static constexpr bool kScarceRegisters = kP8 && Warpgroups >= 3;  // what can be computed again is not kept
    // Registers of a thread after setmaxnreg, of the producer warpgroup and of the consumers.
    static constexpr bool kSmallAccumulators = Warpgroups == 3 && BlockN / 2 + kOColumns / 2 + BlockN / (kP8 ? 8 : 4) <= 112;
    static constexpr int kProducerRegisters = k8Bit                ? (kSmallAccumulators || Warpgroups == 2 ? 56 : 32)
                                              : AllWarpgroups == 2 ? 40
                                              : kSmallAccumulators ? 56
                                                                   : 32;
    static constexpr int kConsumerRegisters = AllWarpgroups == 4   ? 112
                                              : kSmallAccumulators ? 152
                                              : Warpgroups == 3    ? 160
                                                                   : (k8Bit ? 224 : 232);
    // May k and v lie in pages? Not in pairs, which load halves of blocks; and paged_kv_producer needs 40 registers.
    static constexpr bool kPagedKv = !pair && kProducerRegisters >= 40;
    // Of lists: units of a block of keys.
    static constexpr int kUnits = (BlockN + KeyUnitTable::kKeys - 1) / KeyUnitTable::kKeys;
    using Units = KeyUnits<kUnits>;
    static constexpr int kTileStages = 3;      // the tile whose o is being written, the one being computed and the next
    static constexpr int kPrefetchBlocks = 3;  // blocks of a tile that are not loaded yet when the next tile is taken
    // The bias of a warpgroup's 64 rows and a block's keys, which each warpgroup takes at its own pace. One stage is enough where there is
    // no room for two: it is filled while the warpgroup waits for its turn and for the next scores.
    static constexpr int kBiasSize = bias_size_of(score_mod), kBiasPanels = BlockN * kBiasSize / 128, kBiasBytes = kBiasPanels * 8192;
    static constexpr int kBiasStages = kBiasSize == 0                                                                                  ? 0
                                       : QStages * kQBytes + Stages * (kKBytes + kVBytes) + 2 * Warpgroups * kBiasBytes <= (224 << 10) ? 2
                                                                                                                                       : 1;
    static_assert(kBiasSize == 0 || !k8Bit, "bias tiles lie behind k and v");
    struct RawBarriers {
        uint64_t raw_full[kRawStages], raw_empty[kRawStages];
    };
    struct BiasBarriers {
        uint64_t bias_full[Warpgroups][kBiasStages + 1], bias_empty[Warpgroups][kBiasStages + 1];
    };
    struct NoBarriers {};
    struct NoBiasBarriers {};
    struct Barriers : Select<k8Bit, RawBarriers, NoBarriers>, Select<(kBiasSize > 0), BiasBarriers, NoBiasBarriers> {
        uint64_t q_full[QStages], q_empty[QStages], k_full[Stages], k_empty[Stages], v_full[Stages], v_empty[Stages],
            next_tile_full[kTileStages],
            prefetch_next;  // few blocks of the tile are left to load: the scheduler may take the next one
    };
    struct Shared {
        Barriers barrier;
        WorkTileInfo tile[kTileStages];  // n_block_max < 0: there are no more
        int next_tile[kTileStages];      // the tiles that the first CTA of a pair has taken for both
        Units units[Stages];             // of a list, in k's stages
    };
    static constexpr int kTensorBytes = QStages * kQBytes + Stages * (kKBytes + kVBytes) + kRawStages * kRawBytes + kAverageBytes +
                                        kAverageSumBytes + Warpgroups * kBiasStages * kBiasBytes;
    static constexpr int kTileBytes = (kTensorBytes + int(sizeof(Shared)) + 1023) / 1024 * 1024;  // of tiles that are computed at once
    static constexpr int kSharedBytes = Tiles == 1 ? kTensorBytes + int(sizeof(Shared)) : Tiles * kTileBytes;
    static_assert(kSharedBytes <= 232448, "what a CTA may have");
    // Rows of a TMA load of k and v: in pairs each CTA loads half of the rows where there is one panel, else every second panel.
    static constexpr int kKBoxRows = pair && kQPanels == 1 ? BlockN / 2 : BlockN,
                         kVBoxRows = pair && (k8Bit ? kRawPanels : kVPanels) == 1 ? BlockN / 2 : BlockN;

    // P is kept 2^kPScaleLog2 times its value: of f16 so that little is lost below its smallest number, of bf16 so that many P
    // times the largest v stay finite before they are normalised. row_ref moves when a thread's part of a block's row sum exceeds
    // kRescaleThreshold. P of 8 bits grows to 14 times its value at row_ref before it meets the type's limit, of normally distributed
    // scores once in a few hundred rows; of 2^5 the largest P are just below a power of two, where e4m3 is finest.
    static constexpr float kPScaleLog2 = kP8   ? 5.f
                                         : f16 ? 10.f
                                               : -24.f,
                           kPUnscale = kP8   ? 0x1p-5f
                                       : f16 ? 0x1p-10f
                                             : 0x1p+24f,
                           kRescaleThreshold = f16 ? 0x1.f8p+15f : 0x1p-12f;

    FA_MEMBER static char* memory(int place) { return rt::shared_memory() + (Tiles == 1 ? 0 : place * kTileBytes); }
    FA_MEMBER static Shared& shared(int place = 0) { return *reinterpret_cast<Shared*>(memory(place) + kTensorBytes); }
    FA_MEMBER static uint32_t q_tile(int stage, int place = 0) { return rt::smem_addr(memory(place)) + stage * kQBytes; }
    FA_MEMBER static uint32_t k_tile(int stage, int place = 0) { return q_tile(QStages, place) + stage * kKBytes; }
    FA_MEMBER static uint32_t v_tile(int stage, int place = 0) { return k_tile(Stages, place) + stage * kVBytes; }

    FA_MEMBER static uint32_t raw_v_tile(int stage) { return v_tile(Stages) + stage * kRawBytes; }
    FA_MEMBER static uint32_t averages() { return raw_v_tile(kRawStages); }
    FA_MEMBER static uint32_t average_sum_base() { return averages() + kAverageBytes; }
    FA_MEMBER static uint32_t bias_tile(int warpgroup, int stage) {
        return v_tile(Stages) + (warpgroup * kBiasStages + stage) * kBiasBytes;
    }

    FA_MEMBER static void init_barriers(int place) {
        Barriers& barrier = shared(place).barrier;
        const auto init = [](const uint64_t& barrier, int arrivals) { rt::mbarrier_init(smem_addr(barrier), arrivals); };
        for (int i = 0; i < QStages; i++) init(barrier.q_full[i], 1), init(barrier.q_empty[i], 4 * Warpgroups);
        for (int i = 0; i < Stages; i++) {
            init(barrier.k_full[i], 1), init(barrier.k_empty[i], 4 * Warpgroups * kClusterSize);
            init(barrier.v_full[i], kWideningWarps), init(barrier.v_empty[i], 4 * Warpgroups * (k8Bit ? 1 : kClusterSize));
        }
        if constexpr (k8Bit)
            for (int i = 0; i < kRawStages; i++) init(barrier.raw_full[i], 1), init(barrier.raw_empty[i], kWideningWarps * kClusterSize);
        if constexpr (kBiasSize > 0)
            for (int wg = 0; wg < Warpgroups; wg++)
                for (int i = 0; i < kBiasStages; i++) init(barrier.bias_full[wg][i], 1), init(barrier.bias_empty[wg][i], 128);
        init(barrier.prefetch_next, 1);
        for (WorkTileInfo& tile : shared(place).tile)
            init(tile.tile_ready, 1), init(tile.tile_consumed, 128 * Warpgroups + (k8Bit ? 32 * kWideningWarps : 0));
        for (uint64_t& full : barrier.next_tile_full) init(full, 1);
        rt::fence_mbarrier_init();
    }
};

// The traits as producers know them that work for one of the tiles computed at once.
template <class Traits, int place>
struct OfTile : Traits {
    static constexpr int kPlace = place;
    FA_MEMBER static typename Traits::Shared& shared() { return Traits::shared(place); }
    FA_MEMBER static uint32_t q_tile(int stage) { return Traits::q_tile(stage, place); }
    FA_MEMBER static uint32_t k_tile(int stage) { return Traits::k_tile(stage, place); }
    FA_MEMBER static uint32_t v_tile(int stage) { return Traits::v_tile(stage, place); }
};

}  // namespace gpu
}  // namespace fa
