// A block of the backward's mma kernels, but for its arithmetic: its shape, what it keeps in shared memory, how tiles come there,
// and how gradients leave. backward/mma.h describes the algorithm.
//
// A block owns a tile of keys, and rows are streamed past it; or it owns a tile of rows, and keys are streamed (ByRows). Of keys
// there are k and v, of rows q and dout: operands 0 and 1 of either. Plain: a call without a score mod, all of whose rows are
// aligned 16-byte vectors.
#pragma once
#include "gpu/common/backward_params.h"
#include "gpu/mma/common.h"

namespace fa {
namespace gpu {

// OwnTiles: tiles of rows that a warp owns; each streamed fragment is used for all of them.
template <class Mma, int D, int OwnWarps, int ColumnWarps, int StreamRows, int Stages, int Resident, bool ByRows, bool Plain,
          int OwnTiles = 2>
struct MmaBackwardBlock {
    using Policy = Mma;
    using Element = typename Mma::Element;
    using Acc = typename Mma::Acc;
    static constexpr int kTile = Mma::kTile, kOwnTiles = OwnTiles, threads = Mma::kLanes * OwnWarps * ColumnWarps,
                         warps = OwnWarps * ColumnWarps;
    static constexpr int own = kTile * kOwnTiles * OwnWarps, stream_rows = StreamRows, stages = Stages, resident = Resident, columns = D;
    static constexpr bool by_rows = ByRows, plain = Plain;
    // A warp's part of the probabilities is its own rows times a share of the streamed ones; of the owned gradients, its rows and a
    // share of the columns. Where a streamed tile has fewer tiles than warps, several compute the same share, which takes them no
    // longer, and one writes it.
    static constexpr int kShareWarps = StreamRows / kTile < ColumnWarps ? StreamRows / kTile : ColumnWarps,
                         kShare = StreamRows / kShareWarps, kShareTiles = kShare / kTile, kSteps = D / kTile,
                         kColumnSteps = kSteps / ColumnWarps;
    // Of the streamed rows' dq: as many tiles of rows and a share of the columns, in passes of those that registers have room for.
    static constexpr int kDqRows = kTile * kOwnTiles, kDqWarps = StreamRows / kDqRows, kDqSteps = kSteps / (warps / kDqWarps),
                         kDqPassSteps = kDqSteps < 8 ? kDqSteps : 8;
    static constexpr int kRowBytes = D * int(sizeof(Element)), kRowVecs = kRowBytes / 16, kRowsAtOnce = threads / kRowVecs;
    static constexpr int kProbRowBytes = StreamRows * int(sizeof(Element));
    static constexpr int kOwnedBytes = own * kRowBytes, kStreamBytes = StreamRows * kRowBytes, kProbTileBytes = own * kProbRowBytes;
    // dq is added to one tile late, by half of the warps before their part of a tile and by half behind it: while some wait for
    // exponentials, others multiply, and only warps that own the same keys meet in between. In units of its own a tile is not
    // finished so early.
    static constexpr bool kLate = !ByRows && Stages == 2 && !Mma::kNarrow;
    static constexpr int kVec4Rows = threads / (D / 4);  // rows of a gradient that leave at once, four columns a thread
    static constexpr int kRows = ByRows ? own : StreamRows, kRowStages = ByRows ? 1 : Stages;  // rows whose numbers are there at once
    static_assert(kShareTiles * Acc::kElements <= 32, "a bit for each score of a tile of rows");
    static_assert(threads % (D / 4) == 0 && own % kVec4Rows == 0, "");
    static_assert(threads % kRowVecs == 0 && own % kRowsAtOnce == 0 && StreamRows % kRowsAtOnce == 0 && warps % kDqWarps == 0 &&
                      kDqSteps % kDqPassSteps == 0,
                  "");

    struct Source {
        const char* base;   // of the first row or key, for streamed rows those of the first head
        int64_t head, row;  // bytes between heads, and between rows
        int32_t bytes;      // of a row
        int32_t width;      // 16: rows are whole, aligned 16-byte vectors; 4: of words; else those of an element
    };
    struct Tile {
        Sequence seq;
        MaskRule rule;
        SequenceDropout dropout;
        Source owned[2], streamed[2];
        int64_t batch, kv_head;
        int64_t row0;                  // in delta and lse_log2, of the first head
        int32_t first, valid;          // first owned row or key; how many exist
        int32_t count;                 // of streamed rows or keys
        int32_t begin, end;            // streamed tiles of which the block sees any pair,
        int32_t full_begin, full_end;  // and those without a pair that a mask or a length removes
        int32_t head0, heads;          // query heads that are streamed
        uint32_t features;
    };
    struct Band {
        int32_t begin, end;
    };
    struct Shared {
        alignas(16) float lse[kRowStages][kRows];
        alignas(16) float delta[kRowStages][kRows];
        Band band[kRowStages][kRows];
        Tile tile;
        float amax[warps];
        float unit, inv_unit;  // of gradients of scores, see backward/mma.h, and its reciprocal
        bool unit_set;
        int32_t overflowed[2];  // does the tile, or the one before, have a gradient that its units do not hold?
    };
    static constexpr int kHeader = (int(sizeof(Shared)) + kTileAlign - 1) / kTileAlign * kTileAlign;
    static constexpr int kProbTiles = Mma::kHoldsProbs ? 0 : ByRows ? 1 : kLate ? 3 : 2;
    static constexpr int kSharedBytes =
        kHeader + (Mma::kHoldsOwned ? 0 : 2 * kOwnedBytes) + Stages * 2 * kStreamBytes + kProbTiles * kProbTileBytes;

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory()); }
    FA_MEMBER static char* owned(int i) { return rt::shared_memory() + kHeader + i * kOwnedBytes; }
    FA_MEMBER static char* streamed(int stage, int i) { return owned(Mma::kHoldsOwned ? 0 : 2) + (2 * stage + i) * kStreamBytes; }
    FA_MEMBER static char* ds_tile(int buffer) {
        return streamed(Stages, 0) + (kLate ? buffer * kProbTileBytes : 0);
    }  // of even tiles, or odd ones
    FA_MEMBER static char* p_tile() { return ds_tile(1) + kProbTileBytes; }

    // ---- loading

    // `count` rows into a tile, of which `valid` exist; the rest, and what lies beyond a row's bytes, becomes 0.
    template <int count>
    FA_MEMBER static void load_tile(const Source& from, int64_t head, int64_t row, int valid, char* to) {
        const char* base = from.base + head * from.head + row * from.row;
        if (!Plain && from.width != 16) return load_narrow<count>(from, base, valid, to);
        const int thread = rt::opaque(rt::thread()), vec = thread % kRowVecs, first = thread / kRowVecs;
        const bool in_row = 16 * vec < from.bytes;
        const int64_t step = from.row;
        const char* at = base + first * step + 16 * vec;
        const uint32_t address = rt::smem_addr(to);
        FA_UNROLL_FOR (int n = 0; n < count / kRowsAtOnce; n++) {
            const int r = first + n * kRowsAtOnce;
            rt::cp_async16(address + uint32_t(swizzle_offset<kRowBytes>(r, vec)), at, in_row && r < valid);
            at += kRowsAtOnce * step;
        }
    }
    template <int count>
    FA_COLD_MEMBER static void load_narrow(const Source& from, const char* base, int valid, char* to) {
        const auto offset = [](int r, int at) { return swizzle_offset<kRowBytes>(r, at / 16) + at % 16; };
        if (from.width == 4) {
            for (int i = rt::thread(); i < count * (kRowBytes / 4); i += threads) {
                const int r = i / (kRowBytes / 4), at = i % (kRowBytes / 4) * 4;
                rt::cp_async4(rt::smem_addr(to) + uint32_t(offset(r, at)), base + r * from.row + at, r < valid && at < from.bytes);
            }
        } else {
            for (int i = rt::thread(); i < count * D; i += threads) {
                const int r = i / D, at = i % D * int(sizeof(Element));
                Element e{};
                if (r < valid && at < from.bytes) e = *reinterpret_cast<const Element*>(base + r * from.row + at);
                *reinterpret_cast<Element*>(to + offset(r, at)) = e;
            }
        }
    }
    // LSE and Δ of `kRows` rows: those beyond a sequence's are there, and have no probability.
    FA_MEMBER static void load_rows(const MmaBackwardParams& params, int64_t row, int stage) {
        Shared& shared = MmaBackwardBlock::shared();
        for (int i = rt::opaque(rt::thread()); i < kRows / 4; i += threads) {
            rt::cp_async16(rt::smem_addr(shared.lse[stage] + 4 * i), reinterpret_cast<const char*>(params.lse_log2 + row + 4 * i), true);
            rt::cp_async16(rt::smem_addr(shared.delta[stage] + 4 * i), reinterpret_cast<const char*>(params.delta + row + 4 * i), true);
        }
    }
    FA_COLD_MEMBER static void load_owned(const MmaBackwardParams& params) {
        const Tile& tile = shared().tile;
        load_tile<own>(tile.owned[0], 0, 0, tile.valid, owned(0));
        load_tile<own>(tile.owned[1], 0, 0, tile.valid, owned(1));
        if constexpr (ByRows) load_rows(params, tile.row0 + tile.first, 0);
    }
    // An operand of tile `tile_index` of streamed head `head`, counted from the first; with the first one what there is of rows.
    FA_MEMBER static void load_streamed(const MmaBackwardParams& params, int head, int tile_index, int stage, int operand) {
        const Tile& tile = shared().tile;
        const int row = tile_index * StreamRows;
        load_tile<StreamRows>(tile.streamed[operand], head, row, tile.count - row, streamed(stage, operand));
        if (!ByRows && operand == 0) load_rows(params, tile.row0 + head * params.padded_rows + row, stage);
        rt::cp_async_commit();
    }
    // Zeros q and dout of rows without keys, whatever they hold: 0 times an infinity or NaN is not 0.
    FA_MEMBER static bool zero_empty_rows(int stage, char* q, char* dout) {
        const float* const lse = shared().lse[stage];
        bool none = false;
        FA_UNROLL_FOR (int r = rt::opaque(rt::thread()) % Mma::kLanes; r < kRows; r += Mma::kLanes) none |= lse[r] == kPosInf;
        if (!rt::warp_any(none)) return false;
        const float zero[4] = {};
        for (int i = rt::opaque(rt::thread()); i < kRows * kRowVecs; i += threads) {
            const int r = i / kRowVecs, at = swizzle_offset<kRowBytes>(r, i % kRowVecs);
            if (lse[r] != kPosInf) continue;
            rt::store4(reinterpret_cast<float*>(q + at), zero);
            rt::store4(reinterpret_cast<float*>(dout + at), zero);
        }
        return true;
    }
    // The bands of rows [row, row + kRows).
    FA_MEMBER static void init_bands(int row, int stage) {
        Shared& shared = MmaBackwardBlock::shared();
        const Tile& tile = shared.tile;
        const int rows = ByRows ? tile.first + tile.valid : tile.count;
        for (int r = rt::opaque(rt::thread()); r < kRows; r += threads) {
            const KeyBand band = row + r < rows ? key_band(tile.rule, row + r, tile.seq.k_len) : KeyBand{0, 0};
            shared.band[stage][r] = {int(band.begin), int(max_of(band.end, 0))};
        }
    }

    // ---- a block's beginning and end

    // Code that runs once costs its threads' latency: the host has computed what it can, and two warps share the rest. `head`: a kv
    // head, or with ByRows a query head.
    FA_MEMBER static bool initializes(int thread) { return thread == 0 || thread / 4 == 8; }
    FA_COLD_MEMBER static void init_block(const MmaBackwardParams& params, uint32_t batch, uint32_t head, int first) {
        const int thread = rt::thread();
        const uint32_t group = uint32_t(params.group), kv_head = ByRows ? head / group : head, head0 = ByRows ? head : head * group;
        const Sequence seq = params.uniform_lengths ? params.uniform_seq : bounded_sequence(params.sequences, batch);
        Tile& tile = shared().tile;
        if (thread != 0) {  // 32 to 35: q, dout, k and v
            const auto init = [&](int i) {
                const RowSource& from = params.source[i];
                const bool rows = i < 2;
                const int64_t row = (rows ? seq.q_begin : seq.k_begin) + (rows == ByRows ? first : 0);
                const int64_t at = batch * from.bytes.outer + row * from.bytes.row + (rows ? head0 : kv_head) * from.bytes.head;
                Source& to = rows == ByRows ? tile.owned[i % 2] : tile.streamed[i % 2];
                to = {static_cast<const char*>(from.base) + at, from.bytes.head, from.bytes.row, from.bytes.row_bytes, from.width};
            };
            if constexpr (rt::kIndexesParams) {
                init(thread % 4);
            } else {
                FA_UNROLL_FOR (int i = 0; i < 4; i++)
                    if (thread % 4 == i) init(i);
            }
            return;
        }
        tile.batch = batch;
        tile.kv_head = kv_head;
        tile.head0 = int(head0);
        tile.heads = ByRows ? 1 : int(group);
        tile.seq = seq;
        tile.rule = params.uniform_lengths ? params.rule : mask_rule(params.rule, seq);
        tile.row0 = head0 * params.padded_rows + padded_row0(params.sequences, seq, batch);
        tile.first = first;
        tile.valid = int(min_of((ByRows ? seq.q_len : seq.k_len) - first, own));
        tile.count = int(ByRows ? seq.k_len : seq.q_len);
        tile.features = params.features;
        if (!Plain && params.features & kDropout) tile.dropout = dropout_of(params, batch);
        if (tile.valid > 0) init_streamed_range();
        Shared& shared = MmaBackwardBlock::shared();
        shared.unit = shared.inv_unit = 1.f;
        shared.unit_set = false;
        shared.overflowed[0] = shared.overflowed[1] = 0;
    }
    // Which tiles are streamed: bands only ever move right with their rows.
    FA_MEMBER static void init_streamed_range() {
        Tile& tile = shared().tile;
        RowBand any, full;  // of rows or keys
        if constexpr (ByRows) {
            const KeyBand first = key_band(tile.rule, tile.first, tile.count),
                          last = key_band(tile.rule, tile.first + tile.valid - 1, tile.count);
            any = {first.begin, last.end};
            full = {last.begin, tile.valid < own ? 0 : first.end};  // rows that do not exist see nothing
        } else {
            any = row_band(tile.rule, tile.first, own, tile.count);
            full = full_row_band(tile.rule, tile.first, own, tile.valid < own ? 0 : tile.count);
        }
        const auto tile_at = [&](int64_t at, int64_t more) { return int((clamp(at, 0, tile.count) + more) / StreamRows); };
        tile.begin = tile_at(any.begin, 0);
        tile.end = tile_at(any.end, StreamRows - 1);
        tile.full_begin = tile_at(full.begin, StreamRows - 1);
        tile.full_end = tile_at(full.end, 0);
    }

    // Sums of the owned rows to a gradient, by way of shared memory that nothing else needs any more. Four columns of a row stay
    // together, and those of neighbouring rows lie in different banks.
    static_assert(Mma::kHoldsProbs || own * D * 4 <= kSharedBytes - kHeader, "sums of a gradient fit");
    FA_MEMBER static float* staged(int row, int column) { return reinterpret_cast<float*>(owned(0)) + row * D + (column ^ (row & 3) << 3); }
    FA_MEMBER static void stage_acc(float factor, int own0, int column0, const Acc (&acc)[kOwnTiles][kColumnSteps]) {
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int c = 0; c < kColumnSteps; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                    *staged(own0 + kTile * m + Acc::row(Acc::lane_row(e)), column0 + Mma::output_column(c, e)) = acc[m][c].x[e] * factor;
    }
    // first: the index of the first owned row's first element.
    FA_MEMBER static void store_acc(const MmaBackwardParams& params, void* base, const RowStrides& strides, int64_t dim, int64_t first) {
        if (params.accumulate || dim % 4 != 0 || !vec4_aligned(base, strides, params.q_dtype))
            return store_singly(params, base, first, strides.row, int(dim));
        const int own_row = rt::opaque(rt::thread()) / (D / 4), column = rt::opaque(rt::thread()) % (D / 4) * 4,
                  valid = shared().tile.valid;
        Element* const to = static_cast<Element*>(base) + first + column;
        if (column < dim) {
            FA_UNROLL_BY(4)
            for (int row = own_row; row < own; row += kVec4Rows) {
                float value[4];
                rt::load4(staged(row, column), value);
                if (row < valid) Mma::store4(to + row * strides.row, value);
            }
        }
    }
    FA_COLD_MEMBER static void store_singly(const MmaBackwardParams& params, void* base, int64_t first, int64_t step, int dim) {
        FA_UNROLL_BY(4)
        for (int i = rt::thread(); i < shared().tile.valid * D; i += threads) {
            const int row = i / D, column = i % D;
            if (column < dim) store_gradient(params, base, first + row * step + column, params.q_dtype, *staged(row, column));
        }
    }
};

}  // namespace gpu
}  // namespace fa
