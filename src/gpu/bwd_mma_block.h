// A block of the backward's matrix kernels, but for its arithmetic: its shape, what it keeps in shared memory, how tiles come there, and
// how gradients leave. bwd_mma.h tells the whole.
//
// A block owns a tile of keys, and rows pass by; or it owns a tile of rows, and keys pass by (ByRows). Of keys there are k and v, of rows q
// and dout: operand 0 and 1 of either. Plain: a call without work on scores, all of whose rows are whole aligned pieces of 16 bytes.
#pragma once
#include "gpu/bwd.h"
#include "gpu/mma_sync.h"

namespace fa {
namespace gpu {

// A warp owns so many tiles of 16, which share what passes by.
constexpr int kOwnTiles = 2;

template <class Mma, int D, int OwnWarps, int ColumnWarps, int Passing, int Slots, int Resident, bool ByRows, bool Plain>
struct GradientBlock {
    using Policy = Mma;
    using Element = typename Mma::Element;
    using Sum = typename Mma::Sum;
    static constexpr int threads = 32 * OwnWarps * ColumnWarps, warps = OwnWarps * ColumnWarps;
    static constexpr int own = 16 * kOwnTiles * OwnWarps, passing = Passing, slots = Slots, resident = Resident, columns = D;
    static constexpr bool by_rows = ByRows, plain = Plain;
    // A warp's part of the weights is its own rows times a share of those that pass; of the owned gradients, its rows and a share of the columns.
    static constexpr int kSteps = D / 16, kShare = Passing / ColumnWarps, kShareTiles = kShare / 16, kColumnSteps = kSteps / ColumnWarps;
    // Of the passing rows' dq: 32 rows and a share of the columns.
    static constexpr int kSumWarps = Passing / 32, kSumSteps = kSteps / (warps / kSumWarps);
    static constexpr int kRowBytes = D * int(sizeof(Element)), kPieces = kRowBytes / 16, kRowsAtOnce = threads / kPieces;
    static constexpr int kWeightBytes = Passing * int(sizeof(Element));
    static constexpr int kOwnBytes = own * kRowBytes, kPassBytes = Passing * kRowBytes, kWeightsBytes = own * kWeightBytes;
    static constexpr int kRows = ByRows ? own : Passing, kRowSlots = ByRows ? 1 : Slots;  // rows whose numbers are there at once
    static_assert(kShareTiles * Sum::kElements <= 32, "a bit for each score of 16 rows");
    static_assert(threads % kPieces == 0 && own % kRowsAtOnce == 0 && Passing % kRowsAtOnce == 0 && warps % kSumWarps == 0, "");

    struct Source {
        const char* base;    // of the first row or key, for passing rows those of the first head
        int64_t head, row;   // bytes between heads, and between rows
        int32_t bytes;       // of a row
        int32_t width;       // 16: rows are whole, aligned pieces of 16 bytes; 4: of words; else those of an element
    };
    struct Tile {
        Sequence seq;
        MaskRule rule;
        Dropout dropout;
        Source owned[2], passer[2];
        int64_t batch, kv_head;
        int64_t row0;              // in delta and lse2, of the first head
        int32_t first, valid;      // first owned row or key; how many exist
        int32_t count;             // of what passes by
        int32_t begin, end;        // tiles of it that have to do with the block,
        int32_t whole_begin, whole_end;  // and those without a pair that a mask or a length removes
        int32_t head0, heads;      // query heads that pass by
        uint32_t work;
    };
    struct Band {
        int32_t begin, end;
    };
    struct Shared {
        alignas(16) float lse[kRowSlots][kRows];
        alignas(16) float delta[kRowSlots][kRows];
        Band band[kRows];
        Tile tile;
        float top[warps];
        float unit, of_unit;  // of gradients of scores, see bwd_mma.h, and its reciprocal
        bool unit_found;
        int32_t grown[2];  // does the tile, or the one before, have a gradient that its units do not hold?
    };
    static constexpr int kHeader = (int(sizeof(Shared)) + kTileAlign - 1) / kTileAlign * kTileAlign;
    static constexpr int kSharedBytes = kHeader + 2 * kOwnBytes + Slots * 2 * kPassBytes + (ByRows ? 1 : 2) * kWeightsBytes;

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory()); }
    FA_MEMBER static char* owned(int i) { return rt::shared_memory() + kHeader + i * kOwnBytes; }
    FA_MEMBER static char* passer(int slot, int i) { return owned(2) + (2 * slot + i) * kPassBytes; }
    FA_MEMBER static char* gradients() { return passer(Slots, 0); }
    FA_MEMBER static char* weights() { return gradients() + kWeightsBytes; }

    // ---- loading

    // `count` rows into a tile, of which `valid` exist; the rest, and what lies beyond a row's bytes, becomes 0.
    template <int count>
    FA_MEMBER static void load_tile(const Source& from, int64_t head, int64_t row, int valid, char* to) {
        const char* base = from.base + head * from.head + row * from.row;
        if (!Plain && from.width != 16) return load_narrow<count>(from, base, valid, to);
        const int thread = rt::unknown(rt::thread()), piece = thread % kPieces, first = thread / kPieces;
        const bool whole = 16 * piece < from.bytes;
        const int64_t step = from.row;
        const char* at = base + first * step + 16 * piece;
        const uint32_t address = rt::shared_address(to);
        FA_UNROLL for (int n = 0; n < count / kRowsAtOnce; n++) {
            const int r = first + n * kRowsAtOnce;
            rt::copy16(address + uint32_t(piece_offset<kRowBytes>(r, piece)), at, whole && r < valid);
            at += kRowsAtOnce * step;
        }
    }
    template <int count>
    FA_COLD_MEMBER static void load_narrow(const Source& from, const char* base, int valid, char* to) {
        const auto offset = [](int r, int at) { return piece_offset<kRowBytes>(r, at / 16) + at % 16; };
        if (from.width == 4) {
            for (int i = rt::thread(); i < count * (kRowBytes / 4); i += threads) {
                const int r = i / (kRowBytes / 4), at = i % (kRowBytes / 4) * 4;
                rt::copy4(rt::shared_address(to) + uint32_t(offset(r, at)), base + r * from.row + at, r < valid && at < from.bytes);
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
    // LSE and Δ of `kRows` rows: those beyond a sequence's are there, and have no weight.
    FA_MEMBER static void load_rows(const BackwardParams& x, int64_t row, int slot) {
        Shared& s = shared();
        for (int i = rt::unknown(rt::thread()); i < kRows / 4; i += threads) {
            rt::copy16(rt::shared_address(s.lse[slot] + 4 * i), reinterpret_cast<const char*>(x.lse2 + row + 4 * i), true);
            rt::copy16(rt::shared_address(s.delta[slot] + 4 * i), reinterpret_cast<const char*>(x.delta + row + 4 * i), true);
        }
    }
    FA_COLD_MEMBER static void load_owned(const BackwardParams& x) {
        const Tile& t = shared().tile;
        load_tile<own>(t.owned[0], 0, 0, t.valid, owned(0));
        load_tile<own>(t.owned[1], 0, 0, t.valid, owned(1));
        if constexpr (ByRows) load_rows(x, t.row0 + t.first, 0);
    }
    // Tile `tile` of passing head `head`, counted from the first: always a group of copies.
    FA_MEMBER static void load_passing(const BackwardParams& x, int head, int tile, int slot) {
        const Tile& t = shared().tile;
        const int row = tile * Passing;
        load_tile<Passing>(t.passer[0], head, row, t.count - row, passer(slot, 0));
        load_tile<Passing>(t.passer[1], head, row, t.count - row, passer(slot, 1));
        if constexpr (!ByRows) load_rows(x, t.row0 + head * x.padded_rows + row, slot);
        rt::commit_copies();
    }
    // Rows without keys take no part, whatever their q and dout hold: 0 times that is not always 0.
    FA_MEMBER static bool clear_rows(int slot, char* q, char* dout) {
        const float* const lse = shared().lse[slot];
        bool none = false;
        FA_UNROLL for (int r = rt::unknown(rt::thread()) % 32; r < kRows; r += 32) none |= lse[r] == kPosInf;
        if (!rt::any_lane(none)) return false;
        const float zero[4] = {};
        for (int i = rt::unknown(rt::thread()); i < kRows * kPieces; i += threads) {
            const int r = i / kPieces, at = piece_offset<kRowBytes>(r, i % kPieces);
            if (lse[r] != kPosInf) continue;
            rt::store4(reinterpret_cast<float*>(q + at), zero);
            rt::store4(reinterpret_cast<float*>(dout + at), zero);
        }
        return true;
    }
    // The bands of rows [row, row + kRows).
    FA_MEMBER static void place_bands(int row) {
        Shared& s = shared();
        const Tile& t = s.tile;
        const int rows = ByRows ? t.first + t.valid : t.count;
        for (int r = rt::unknown(rt::thread()); r < kRows; r += threads) {
            const KeyBand b = row + r < rows ? key_band(t.rule, row + r, t.seq.k_len) : KeyBand{0, 0};
            s.band[r] = {int(b.begin), int(max_of(b.end, 0))};
        }
    }

    // ---- a block's beginning and end

    FA_MEMBER static Source query_source(const BackwardParams& x, const void* base, const int64_t stride[4], int64_t dim, int64_t head) {
        const Tile& t = shared().tile;
        const int64_t bytes = sizeof(Element), at = query_index(x.p, stride, t.seq, t.batch, 0, head) * bytes;
        return {static_cast<const char*>(base) + at, stride[2] * bytes, stride[1] * bytes, int(dim * bytes), copy_width(base, stride, dim, x.p.d.q_dtype)};
    }
    FA_MEMBER static Source key_source(const BackwardParams& x, const void* base, const int64_t stride[4], int64_t dim) {
        const Tile& t = shared().tile;
        const int64_t bytes = sizeof(Element), at = key_index(x.p, stride, {t.batch, t.seq.k_begin, true}, t.kv_head) * bytes;
        return {static_cast<const char*>(base) + at, 0, stride[1] * bytes, int(dim * bytes), copy_width(base, stride, dim, x.p.d.kv_dtype)};
    }
    // `head`: a kv head, or with ByRows a query head.
    FA_COLD_MEMBER static void place_block(const BackwardParams& x, int64_t batch, int64_t head, int first) {
        Tile& t = shared().tile;
        const fa_attention_desc_t& d = x.p.d;
        t.batch = batch;
        t.kv_head = ByRows ? head / x.p.group : head;
        t.head0 = int(ByRows ? head : head * x.p.group);
        t.heads = ByRows ? 1 : int(x.p.group);
        t.seq = bounded_sequence(x.p, x.f, batch);
        t.rule = mask_rule(x.p, t.seq);
        t.row0 = t.head0 * x.padded_rows + padded_row0(x.p, t.seq, batch);
        t.first = first;
        t.valid = int(min_of((ByRows ? t.seq.q_len : t.seq.k_len) - first, own));
        t.count = int(ByRows ? t.seq.k_len : t.seq.q_len);
        Source *const rows = ByRows ? t.owned : t.passer, *const keys = ByRows ? t.passer : t.owned;
        rows[0] = query_source(x, x.a.q, d.q_stride, d.dim_qk, t.head0);
        rows[1] = query_source(x, x.a.dout, x.a.dout_stride, d.dim_v, t.head0);
        keys[0] = key_source(x, x.a.k, d.k_stride, d.dim_qk);
        keys[1] = key_source(x, x.a.v, d.v_stride, d.dim_v);
        for (Source* s : {t.owned, t.owned + 1}) s->base += first * s->row;
        t.work = work_of(x.p, false, false);
        if (d.dropout_p > 0) {
            const bool state = x.p.has(FA_OPERAND_RNG_STATE);
            t.dropout = make_dropout(d.dropout_p, state ? x.a.rng_state[0] : x.a.seed, state ? x.a.rng_state[1] : x.a.offset);
        }
        Shared& s = shared();
        s.unit = s.of_unit = 1.f;
        s.unit_found = false;
        s.grown[0] = s.grown[1] = 0;
    }
    // The smallest of the tiles from which on a condition holds.
    template <class Condition>
    FA_MEMBER static int first_tile(int tiles, Condition holds) {
        int low = 0, high = tiles;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (holds(middle)) high = middle;
            else low = middle + 1;
        }
        return low;
    }
    // Which tiles pass by: bands only ever move right with their rows. Four threads look for one bound each.
    FA_COLD_MEMBER static void place_passing() {
        Tile& t = shared().tile;
        const auto band = [&](int row) { return key_band(t.rule, row, t.seq.k_len); };
        const int thread = rt::thread(), tiles = int(ceil_div(t.count, Passing));
        if (thread >= 4) return;
        int bound;
        if constexpr (ByRows) {
            const KeyBand top = band(t.first), last = band(t.first + t.valid - 1);
            bound = int(thread == 0   ? max_of(top.begin, 0) / Passing
                        : thread == 1 ? ceil_div(max_of(last.end, 0), Passing)
                        : thread == 2 ? ceil_div(max_of(last.begin, 0), Passing)
                        : t.valid < own ? 0  // rows that do not exist see nothing
                                        : max_of(top.end, 0) / Passing);
        } else {
            const int64_t key = t.first, after = t.first + own;
            const auto last = [&](int tile) { return int(min_of((tile + 1) * int64_t(Passing), t.count)) - 1; };
            bound = thread == 0   ? first_tile(tiles, [&](int i) { return band(last(i)).end > key; })
                    : thread == 1 ? first_tile(tiles, [&](int i) { return band(i * Passing).begin >= after; })
                    : thread == 2 ? first_tile(tiles, [&](int i) { return band(i * Passing).end >= after; })
                                  : first_tile(tiles, [&](int i) { return band(last(i)).begin > key || i >= t.count / Passing; });
        }
        (thread == 0 ? t.begin : thread == 1 ? t.end : thread == 2 ? t.whole_begin : t.whole_end) = bound;
    }

    // Sums of the owned rows to their gradient, by way of the memory that they themselves lay in: `at(row)` is the index of a row's first
    // element. Four columns of a row stay together, and those of neighbouring rows lie in different banks.
    FA_MEMBER static float* staged(int row, int column) { return reinterpret_cast<float*>(owned(0)) + row * D + (column ^ (row & 3) << 3); }
    template <class At>
    FA_MEMBER static void store_sums(const BackwardParams& x, void* base, const int64_t stride[4], int64_t dim, float factor, int own0, int column0,
                                     const Sum (&sum)[kOwnTiles][kColumnSteps], At at) {
        static_assert(own * D * 4 <= 2 * kOwnBytes, "sums fit");
        const Tile& t = shared().tile;
        rt::barrier();
        FA_UNROLL for (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL for (int c = 0; c < kColumnSteps; c++)
                FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
                    *staged(own0 + 16 * m + Sum::row(Sum::slot(e)), column0 + 16 * c + Mma::output_column(e)) = sum[m][c].x[e] * factor;
        rt::barrier();
        const bool quads = !accumulates(x) && dim % 4 == 0 && quads_aligned(base, stride, x.p.d.q_dtype);
        for (int i = rt::thread(); i < t.valid * (D / 4); i += threads) {
            const int row = i / (D / 4), column = i % (D / 4) * 4;
            if (column >= dim) continue;
            float value[4];
            rt::load4(staged(row, column), value);
            const int64_t index = at(t.first + row) + column;
            if (quads) Mma::store4(static_cast<Element*>(base) + index, value);
            else store_singly(x, base, index, int(min_of(dim - column, 4)), value[0], value[1], value[2], value[3]);
        }
    }
    FA_COLD_MEMBER static void store_singly(const BackwardParams& x, void* base, int64_t at, int count, float a, float b, float c, float d) {
        for (int e = 0; e < count; e++) store_gradient(x, base, at + e, x.p.d.q_dtype, e == 0 ? a : e == 1 ? b : e == 2 ? c : d);
    }
};

}  // namespace gpu
}  // namespace fa
