// The forward kernel on matrix cores: f16, bf16 and f32, head dimensions up to 256, every option but 8-bit storage.
//
// A block takes `rows` group-major query rows (the heads that share a kv head share a tile) and passes over the keys, `Keys` at a time.
// Its warps form a grid: a row warp owns 16 · RowTiles rows, a key warp its share of each tile of keys, with sums of its own that are
// folded at the end. Prefill has row warps only, decode key warps only. k and v tiles follow each other through one ring of `Slots`
// slots, filled by asynchronous copies that run Slots − 1 tiles ahead: with two slots, v arrives during q·k and the next k during p·v.
// Rows whose pieces of 16 bytes are not aligned are copied in smaller ones; what lies beyond a head dimension or a length is 0.
#pragma once
#include "gpu/finish.h"

namespace fa {
namespace gpu {

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Slots, int Resident>
struct Matrix {
    using Policy = Mma;
    using Element = typename Mma::Element;
    using Sum = typename Mma::Sum;
    static constexpr int row_warps = RowWarps, row_tiles = RowTiles, key_warps = KeyWarps, columns = D, keys = Keys, slots = Slots;
    static constexpr int threads = 32 * RowWarps * KeyWarps, rows = 16 * RowTiles * RowWarps;
    static constexpr int resident = Resident;  // blocks that a multiprocessor should hold at once
    static constexpr int kRowBytes = D * int(sizeof(Element)), kPieces = kRowBytes / 16, kRowsAtOnce = threads / kPieces;
    static constexpr int kKeyTiles = Keys / 16 / KeyWarps, kSteps = D / 16;
    static constexpr int kPlaces = Slots / 2 + 1;  // key tiles whose places are kept: from being looked up to being masked
    static constexpr int kAhead = 2;               // fragments that are read before their use
    static constexpr bool kHoldQ = !Mma::kPieces && RowTiles * D <= 128;  // q stays in registers
    static_assert(Slots % 2 == 0 && Keys % (16 * KeyWarps) == 0 && threads % kPieces == 0 && Keys % kRowsAtOnce == 0 && threads >= Keys, "");

    using PerRow = float[RowTiles][Sum::kRows];

    struct Row {
        int32_t position, head, begin, end;  // its band of keys
    };
    struct Source {
        const char* base;    // of the sequence's first key, or, with pages, of the tensor
        int64_t outer, row;  // bytes between pages, and between rows
        int32_t bytes;       // of a row
        int32_t width;       // 16: rows are whole, aligned pieces of 16 bytes; 4: of words; else those of an element
    };
    struct Tile {
        Sequence seq;
        MaskRule rule;
        Dropout dropout;
        Source k, v;
        int64_t batch, kv_head;
        int32_t first, valid;  // first group-major row; how many exist
    };
    struct Shared {
        Tile tile;
        Row row[rows];
        RowState state[KeyWarps][rows];
        float factor[KeyWarps][rows];
        int64_t output[rows];          // where a row's output begins
        int64_t place[kPlaces][Keys];  // page · 2^32 + row in it; −1: not there
        int32_t hole[kPlaces];         // the tile in which a key is not there
    };
    static constexpr int kHeader = (int(sizeof(Shared)) + kTileAlign - 1) / kTileAlign * kTileAlign;
    static constexpr int kQBytes = rows * kRowBytes, kSlotBytes = Keys * kRowBytes, kOutputBytes = KeyWarps * rows * D * 4;
    static constexpr int kSharedBytes = kHeader + (kQBytes + Slots * kSlotBytes > kOutputBytes ? kQBytes + Slots * kSlotBytes : kOutputBytes);

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory()); }
    FA_MEMBER static char* q_tile() { return rt::shared_memory() + kHeader; }
    FA_MEMBER static char* slot(int i) { return q_tile() + kQBytes + i * kSlotBytes; }

    // ---- loading

    // The rows of a tile whose pieces of 16 bytes are not aligned, or not whole, in copies of 4 bytes or element by element: `row(r)` is
    // the address of row r, NULL if it is not there; it has `bytes` bytes.
    template <int count, class RowAt>
    FA_MEMBER static void load_narrow(char* to, int bytes, int width, RowAt row) {
        if (width == 4) {
            narrow_units<count, 4>([&](int r, int at) {
                const char* from = row(r);
                const int copied = from ? int(clamp(bytes - at, 0, 4)) : 0;
                rt::copy4(to + piece_offset<kRowBytes>(r, at / 16) + at % 16, from + at, copied);
            });
        } else {
            narrow_units<count, int(sizeof(Element))>([&](int r, int at) {
                const char* from = row(r);
                Element e{};
                if (from && at < bytes) e = *reinterpret_cast<const Element*>(from + at);
                *reinterpret_cast<Element*>(to + piece_offset<kRowBytes>(r, at / 16) + at % 16) = e;
            });
        }
    }
    // copy(row, byte) for all units of `size` bytes in `count` rows: a thread keeps its column while it can.
    template <int count, int size, class Copy>
    FA_MEMBER static void narrow_units(Copy copy) {
        constexpr int units = kRowBytes / size, across = units < threads ? units : threads, down = threads / across;
        const int column = rt::thread() % across, first = rt::thread() / across;
        for (int c = column; c < units; c += across)
            FA_UNROLL_BY(8)
            for (int r = first; r < count; r += down) copy(r, c * size);
    }

    FA_MEMBER static const char* q_row(const ForwardParams& x, int r) {
        const Tile& t = shared().tile;
        const Row row = shared().row[r];
        return static_cast<const char*>(x.a.q) + query_index(x.p, x.p.d.q_stride, t.seq, t.batch, row.position, row.head) * int64_t(sizeof(Element));
    }
    FA_COLD_MEMBER static void load_q_narrow(const ForwardParams& x) {
        load_narrow<rows>(q_tile(), int(x.p.d.dim_qk) * int(sizeof(Element)), x.q_width,
                          [&](int r) { return r < shared().tile.valid ? q_row(x, r) : nullptr; });
    }
    FA_MEMBER static void load_q(const ForwardParams& x) {
        if (x.q_width != 16) return load_q_narrow(x);
        const int piece = rt::thread() % kPieces;
        const bool whole = 16 * piece < x.p.d.dim_qk * int64_t(sizeof(Element));
        for (int r = rt::thread() / kPieces; r < rows; r += kRowsAtOnce)
            rt::copy16(rt::shared_address(q_tile()) + uint32_t(piece_offset<kRowBytes>(r, piece)), q_row(x, r) + 16 * piece,
                       whole && r < shared().tile.valid);
    }

    // Where the keys of tile j lie. Thread i answers for key i: the first half asks, the second half writes down what came back.
    FA_MEMBER static int64_t find_place(const ForwardParams& x, int key, int end) {
        if (rt::thread() >= Keys || key + rt::thread() >= end) return -1;
        const Slot found = find_slot(x.p, x.a, shared().tile.seq, key + rt::thread());
        return found.valid ? found.outer << 32 | found.row : -1;
    }
    FA_MEMBER static void keep_place(int64_t place, int j, int key, int end) {
        Shared& s = shared();
        if (rt::thread() < Keys) s.place[j % kPlaces][rt::thread()] = place;
        if (rt::thread() < Keys && place < 0 && key + rt::thread() < end) s.hole[j % kPlaces] = j;
    }

    // Tile j of k or v, `count` keys from `key` on, into its slot.
    FA_MEMBER static const char* place_row(const Source& from, int64_t place) {
        return from.base + (place >> 32) * from.outer + uint32_t(place) * from.row;
    }
    FA_COLD_MEMBER static void load_keys_narrow(const ForwardParams& x, const Source& from, int j, int key, int count, char* to) {
        load_narrow<Keys>(to, from.bytes, from.width, [&](int r) -> const char* {
            if (r >= count) return nullptr;
            if (!x.p.paged()) return from.base + int64_t(key + r) * from.row;
            const int64_t place = shared().place[j % kPlaces][r];
            return place < 0 ? nullptr : place_row(from, place);
        });
    }
    FA_MEMBER static void load_keys(const ForwardParams& x, const Source& source, int j, int key, int count, char* to) {
        const Source from = source;
        if (from.width != 16) return load_keys_narrow(x, source, j, key, count, to);
        const int piece = rt::thread() % kPieces, first = rt::thread() / kPieces;
        const bool whole = 16 * piece < from.bytes;
        const uint32_t at = rt::shared_address(to);
        const int64_t* place = shared().place[j % kPlaces] + first;
        FA_UNROLL for (int n = 0; n < Keys / kRowsAtOnce; n++) {
            const int64_t p = x.p.paged() ? place[n * kRowsAtOnce] : first + n * kRowsAtOnce < count ? key + first + n * kRowsAtOnce : -1;
            rt::copy16(at + uint32_t(piece_offset<kRowBytes>(first + n * kRowsAtOnce, piece)), place_row(from, p) + 16 * piece, whole && p >= 0);
        }
    }

    // Tile j of k or v into slot i of the ring: always a group of copies, were it empty.
    FA_MEMBER static void issue(const ForwardParams& x, const Source& from, int j, int i, int begin, int end) {
        const int key = begin + j * Keys;
        if (key < end) load_keys(x, from, j, key, end - key, slot(i));
        rt::commit_copies();
    }

    // The same for plain calls: keys follow each other, `row` bytes apart, in whole pieces. `base` is the thread's piece of its first row,
    // `to` where it goes in the first slot.
    struct Stream {
        const char* base;
        int row;
        uint32_t to;
        FA_MEMBER explicit Stream(const Source& from) {
            const int first = rt::thread() / kPieces, piece = rt::thread() % kPieces;
            row = rt::uniform(int(from.row));
            base = from.base + first * from.row + 16 * piece;
            to = rt::shared_address(slot(0)) + uint32_t(piece_offset<kRowBytes>(first, piece));
        }
    };
    FA_MEMBER static void issue_plain(const Stream& s, int i, int key, int end) {
        if (key < end) {
            const char* from = s.base + int64_t(key) * s.row;
            const uint32_t to = s.to + uint32_t(i * kSlotBytes);
            const int left = end - key - rt::thread() / kPieces;
            FA_UNROLL for (int n = 0; n < Keys / kRowsAtOnce; n++) {
                const int r = n * kRowsAtOnce;
                const char* at = from + int64_t(r) * s.row;
                const uint32_t there = (to ^ uint32_t(r % 8 * 16)) + uint32_t(r * kRowBytes);  // the order of pieces in these rows
                rt::copy16(there, at, r < left);
            }
        }
        rt::commit_copies();
    }

    // ---- scores

    FA_MEMBER static void multiply_qk(const typename Mma::Left (&held)[RowTiles][kHoldQ ? kSteps : 1], const char* k, int row0, int key0,
                                      Sum score[RowTiles][kKeyTiles]) {
        FA_UNROLL for (int m = 0; m < RowTiles; m++)
            FA_UNROLL for (int n = 0; n < kKeyTiles; n++)
                FA_UNROLL for (int e = 0; e < Sum::kElements; e++) score[m][n].x[e] = 0.f;
        const auto q_lines = Mma::template q_lines<kRowBytes>(q_tile(), row0);
        const auto k_lines = Mma::template k_lines<kRowBytes>(k, key0);
        if constexpr (Mma::kPieces) {
            constexpr int chain = 2;  // of steps of 16
            for (int step = 0; step < kSteps; step += chain) {
                typename Mma::Left q[RowTiles][chain];
                FA_UNROLL for (int m = 0; m < RowTiles; m++)
                    FA_UNROLL for (int c = 0; c < chain; c++) Mma::load_q(q[m][c], q_lines, 16 * m * kRowBytes, step + c);
                FA_UNROLL for (int n = 0; n < kKeyTiles; n++) {
                    typename Mma::Right right[chain];
                    FA_UNROLL for (int c = 0; c < chain; c++) Mma::template load_k<kRowBytes>(right[c], k_lines, 16 * n * kRowBytes, step + c);
                    FA_UNROLL for (int m = 0; m < RowTiles; m++) Mma::accumulate(score[m][n], q[m], right);
                }
            }
        } else {
            // Fragments are read kAhead products before their use.
            constexpr int all = kSteps * kKeyTiles;
            typename Mma::Left q[2][RowTiles];
            typename Mma::Right right[kAhead + 1];
            const auto load_step = [&](int step) {
                FA_UNROLL for (int m = 0; m < RowTiles; m++) Mma::load_q(q[step % 2][m], q_lines, 16 * m * kRowBytes, step);
            };
            const auto load = [&](int i) {
                Mma::template load_k<kRowBytes>(right[i % (kAhead + 1)], k_lines, 16 * (i % kKeyTiles) * kRowBytes, i / kKeyTiles);
            };
            if constexpr (!kHoldQ) load_step(0);
            FA_UNROLL for (int i = 0; i < kAhead && i < all; i++) load(i);
            FA_UNROLL for (int i = 0; i < all; i++) {
                const int step = i / kKeyTiles, n = i % kKeyTiles;
                if constexpr (!kHoldQ)
                    if (n == 0 && step + 1 < kSteps) load_step(step + 1);
                if (i + kAhead < all) load(i + kAhead);
                FA_UNROLL for (int m = 0; m < RowTiles; m++)
                    Mma::multiply(score[m][n], kHoldQ ? held[m][step % (kHoldQ ? kSteps : 1)] : q[step % 2][m], right[i % (kAhead + 1)]);
            }
        }
    }

    // −inf for keys outside their row's band, or that are not there.
    FA_MEMBER static void mask_scores(int row0, int key, const int64_t* place, Sum score[RowTiles][kKeyTiles]) {
        const Shared& s = shared();
        FA_UNROLL for (int m = 0; m < RowTiles; m++)
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) {
                const Row row = s.row[row0 + 16 * m + Sum::row(r)];
                const int begin = row.begin - key, end = row.end - key;
                FA_UNROLL for (int n = 0; n < kKeyTiles; n++)
                    FA_UNROLL for (int e = 0; e < Sum::kElements; e++) {
                        if (Sum::slot(e) != r) continue;
                        const int j = 16 * n + Sum::column(e);
                        if (j < begin || j >= end || (place && place[j] < 0)) score[m][n].x[e] = kNegInf;
                    }
            }
    }

    // Applies change(score, row, j) to the scores of 16 rows with the warp's j-th key of the tile.
    template <class Change>
    FA_MEMBER static void each(int row0, Sum score[kKeyTiles], Change change) {
        FA_UNROLL for (int r = 0; r < Sum::kRows; r++) {
            const Row row = shared().row[row0 + Sum::row(r)];
            FA_UNROLL for (int n = 0; n < kKeyTiles; n++)
                FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
                    if (Sum::slot(e) == r) change(score[n].x[e], row, 16 * n + Sum::column(e));
        }
    }
    template <class T>
    FA_MEMBER static void add_bias(const ForwardParams& x, int row0, int64_t key, Sum score[kKeyTiles]) {
        const Tile& t = shared().tile;
        const int64_t* stride = x.p.d.bias_stride;
        const T* bias = static_cast<const T*>(x.a.bias) + t.batch * stride[0] + key * stride[3];
        each(row0, score, [&](float& s, const Row& row, int j) {
            if (key + j >= t.seq.k_len) return;
            const float b = to_f32(bias[row.head * stride[1] + row.position * stride[2] + j * stride[3]]);
            s = b == kNegInf ? kNegInf : s + b;
        });
    }
    // From products to final scores in log2 units, for options that need them in natural units on the way.
    FA_MEMBER static void finish_scores(const ForwardParams& x, int row0, int64_t key, Sum score[kKeyTiles]) {
        const Tile& t = shared().tile;
        const fa_attention_desc_t& d = x.p.d;
        each(row0, score, [&](float& s, const Row&, int) { s *= x.q_factor * Mma::kScoreUnit; });
        if (d.softcap > 0) each(row0, score, [&](float& s, const Row&, int) { s = d.softcap * Mma::tanh(s / d.softcap); });
        if (x.p.has(FA_OPERAND_BIAS)) {
            if (d.bias_dtype == FA_F32) add_bias<F32>(x, row0, key, score);
            else if (d.bias_dtype == FA_F16) add_bias<F16>(x, row0, key, score);
            else add_bias<Bf16>(x, row0, key, score);
        }
        if (x.p.has(FA_OPERAND_ALIBI)) {
            const float* slopes = x.a.alibi_slopes + t.batch * d.alibi_batch_stride;
            each(row0, score, [&](float& s, const Row& row, int j) {
                s -= slopes[row.head] * fabsf(float(row.position + t.rule.off - key) - float(j));
            });
        }
        each(row0, score, [&](float& s, const Row&, int) { s *= kLog2e; });
        if (x.p.has(FA_OPERAND_MASK)) {
            const uint8_t* mask = x.a.mask + t.batch * d.mask_stride[0] + key * d.mask_stride[3];
            each(row0, score, [&](float& s, const Row& row, int j) {
                if (key + j >= t.seq.k_len) return;
                if (!mask[row.head * d.mask_stride[1] + row.position * d.mask_stride[2] + j * d.mask_stride[3]]) s = kNegInf;
            });
        }
    }

    // Folds the maxima of the scores into m, and gives what the sums so far are to be multiplied by and what is to be added to the scores
    // before their exponential. m is in the units of the scores, which `unit` takes to log2. A fused multiplication's exact product may
    // exceed the rounded reference by that one's rounding: where this is not small, scores are rounded alike first.
    // Loops run over rows innermost: chains of maxima, and below of sums, that do not wait for each other.
    FA_MEMBER static void fold_maxima(float& unit, Sum score[RowTiles][kKeyTiles], PerRow& m, PerRow& factor, PerRow& shift) {
        constexpr float kLarge = 0x1p+16f;
        PerRow top;
        FA_UNROLL for (int i = 0; i < RowTiles; i++)
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) top[i][r] = m[i][r];
        FA_UNROLL for (int n = 0; n < kKeyTiles; n++)
            FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
                FA_UNROLL for (int i = 0; i < RowTiles; i++) {
                    float& t = top[i][Sum::slot(e)];
                    t = max_fn(t, score[i][n].x[e]);
                }
        FA_UNROLL for (int i = 0; i < RowTiles; i++)
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) top[i][r] = row_max(top[i][r]);
        bool large = false;
        FA_UNROLL for (int i = 0; i < RowTiles; i++)
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) {
                const float reference = origin(top[i][r]) * unit;
                large |= fabsf(reference) > kLarge;
                const float moved = rt::exp2_fast(m[i][r] * unit - reference);
                factor[i][r] = m[i][r] == kNegInf ? 1.f : moved;
                m[i][r] = top[i][r];
                shift[i][r] = Mma::kExponent - reference;
            }
        if (rt::any_lane(large)) {
            FA_UNROLL for (int i = 0; i < RowTiles; i++)
                FA_UNROLL for (int n = 0; n < kKeyTiles; n++)
                    FA_UNROLL for (int e = 0; e < Sum::kElements; e++) score[i][n].x[e] *= unit;
            unit = 1.f;
        }
    }

    // Scores of key tile n to weights, whose sums go to `sum`: each lane has its own part of a row's.
    FA_MEMBER static void exponentials(int n, float unit, const PerRow& shift, Sum score[RowTiles][kKeyTiles], PerRow& sum) {
        FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
            FA_UNROLL for (int i = 0; i < RowTiles; i++) {
                float& p = score[i][n].x[e];
                p = rt::exp2_fast(fmaf(p, unit, shift[i][Sum::slot(e)]));
                sum[i][Sum::slot(e)] += p;
            }
    }
    FA_COLD_MEMBER static bool dropped(const ForwardParams& x, int row, int64_t key) {
        const Tile& t = shared().tile;
        return !dropout_keeps(t.dropout, t.batch * x.p.d.heads_q + shared().row[row].head, shared().row[row].position, key);
    }

    // Folds one tile's scores into (m, l, o), with `v` its values. The products of one tile of 16 keys run beside the exponentials of the
    // next.
    template <bool drop>
    FA_MEMBER static void fold_tile(const ForwardParams& x, int row0, int key, float unit, Sum score[RowTiles][kKeyTiles], const char* v, int key0,
                               PerRow& m, PerRow& l, Sum o[RowTiles][kSteps]) {
        PerRow factor, shift;
        fold_maxima(unit, score, m, factor, shift);
        FA_UNROLL for (int i = 0; i < RowTiles; i++) {
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) l[i][r] *= factor[i][r];
            FA_UNROLL for (int c = 0; c < kSteps; c++)
                FA_UNROLL for (int e = 0; e < Sum::kElements; e++) o[i][c].x[e] *= factor[i][Sum::slot(e)];
        }
        const auto weights = [&](int n) {
            exponentials(n, unit, shift, score, l);
            if constexpr (drop)
                FA_UNROLL for (int i = 0; i < RowTiles; i++)
                    FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
                        if (dropped(x, row0 + 16 * i + Sum::row(Sum::slot(e)), key + 16 * n + Sum::column(e))) score[i][n].x[e] = 0.f;
        };
        const auto lines = Mma::template v_lines<kRowBytes>(v, key0);
        if constexpr (Mma::kPieces) {
            typename Mma::Left left[RowTiles][kKeyTiles];
            FA_UNROLL for (int n = 0; n < kKeyTiles; n++) {
                weights(n);
                FA_UNROLL for (int i = 0; i < RowTiles; i++) Mma::round_weights(left[i][n], score[i][n]);
            }
            FA_UNROLL for (int c = 0; c < kSteps; c++) {
                typename Mma::Right right[kKeyTiles];
                FA_UNROLL for (int n = 0; n < kKeyTiles; n++) Mma::template load_v<kRowBytes>(right[n], lines, 16 * n * kRowBytes, c);
                FA_UNROLL for (int i = 0; i < RowTiles; i++) Mma::accumulate(o[i][c], left[i], right);
            }
        } else {
            constexpr int all = kSteps * kKeyTiles;
            typename Mma::Left left[RowTiles];
            typename Mma::Right right[kAhead + 1];
            const auto load = [&](int i) {
                Mma::template load_v<kRowBytes>(right[i % (kAhead + 1)], lines, 16 * (i / kSteps) * kRowBytes, i % kSteps);
            };
            FA_UNROLL for (int i = 0; i < kAhead && i < all; i++) load(i);
            weights(0);
            FA_UNROLL for (int j = 0; j < all; j++) {
                const int n = j / kSteps, c = j % kSteps;
                if (c == 0) {
                    FA_UNROLL for (int i = 0; i < RowTiles; i++) Mma::round_weights(left[i], score[i][n]);
                    if (n + 1 < kKeyTiles) weights(n + 1);
                }
                if (j + kAhead < all) load(j + kAhead);
                FA_UNROLL for (int i = 0; i < RowTiles; i++) Mma::multiply(o[i][c], left[i], right[j % (kAhead + 1)]);
            }
        }
    }

    // ---- a block's beginning and end

    FA_COLD_MEMBER static void place_block(const ForwardParams& x, int64_t kv_head, int64_t batch, int block) {
        Tile& t = shared().tile;
        const fa_attention_desc_t& d = x.p.d;
        t.kv_head = kv_head;
        t.batch = batch;
        t.seq = bounded_sequence(x.p, x.a, batch);
        t.rule = mask_rule(x.p, t.seq);
        if (d.dropout_p > 0) t.dropout = dropout_of(x);
        t.first = block * rows;
        t.valid = int(min_of(t.seq.q_len * x.p.group - t.first, rows));
        const auto source = [&](const void* base, const int64_t stride[4], int64_t dim, int width) {
            constexpr int64_t bytes = sizeof(Element);
            const int64_t outer = x.p.packed_k() ? 0 : t.seq.kv_index * stride[0];
            const int64_t at = (x.p.paged() ? 0 : outer + t.seq.k_begin * stride[1]) + kv_head * stride[2];
            return Source{static_cast<const char*>(base) + at * bytes, stride[0] * bytes, stride[1] * bytes, int(dim * bytes), width};
        };
        t.k = source(x.a.k, d.k_stride, d.dim_qk, x.k_width);
        t.v = source(x.a.v, d.v_stride, d.dim_v, x.v_width);
        for (int i = 0; i < kPlaces; i++) shared().hole[i] = -1;
    }
    // Rows and their bands, within the keys [begin, end) of the split.
    FA_COLD_MEMBER static void place_rows(const ForwardParams& x, int64_t begin, int64_t end) {
        Shared& s = shared();
        const Tile& t = s.tile;
        const int group = int(x.p.group);
        for (int r = rt::thread(); r < rows; r += threads) {
            const int row = t.first + int(min_of(r, t.valid - 1)), position = row / group;
            const KeyBand band = key_band(t.rule, position, t.seq.k_len);
            s.row[r] = {position, int(t.kv_head) * group + row % group, int(clamp(band.begin, begin, end)),
                        int(clamp(band.end, begin, end))};
        }
    }

    // Four columns of a row stay together, and those of neighbouring rows lie in different banks.
    FA_MEMBER static float* output_at(int key_warp, int row, int column) {
        return reinterpret_cast<float*>(q_tile()) + (key_warp * rows + row) * D + (column ^ (row & 3) << 3);
    }
    FA_MEMBER static void stage_output(int row0, int key_warp, float unit, const float m[RowTiles][Sum::kRows],
                                       const float l[RowTiles][Sum::kRows], const Sum o[RowTiles][kSteps]) {
        FA_UNROLL for (int i = 0; i < RowTiles; i++) {
            FA_UNROLL for (int r = 0; r < Sum::kRows; r++) {
                const float sum = row_sum(l[i][r]) * Mma::kSumUnit;
                if (Sum::first_of_row())
                    shared().state[key_warp][row0 + 16 * i + Sum::row(r)] = {m[i][r] == kNegInf ? kNegInf : m[i][r] * unit, sum};
            }
            FA_UNROLL for (int c = 0; c < kSteps; c++)
                FA_UNROLL for (int e = 0; e < Sum::kElements; e++)
                    *output_at(key_warp, row0 + 16 * i + Sum::row(Sum::slot(e)), 16 * c + Sum::column(e)) = o[i][c].x[e] * Mma::kOutputUnit;
        }
    }
    // A row's state over all key warps, LSE, and what its sums are to be multiplied by.
    FA_COLD_MEMBER static void finish_rows(const ForwardParams& x, int64_t split, int64_t index0, int64_t all) {
        Shared& s = shared();
        const Tile& t = s.tile;
        for (int r = rt::thread(); r < t.valid; r += threads) {
            RowState state = s.state[0][r];
            s.factor[0][r] = 1.f;
            for (int w = 1; w < KeyWarps; w++) {
                const Fold f = fa::fold(state, s.state[w][r]);
                for (int before = 0; before < w; before++) s.factor[before][r] *= f.scale_a;
                s.factor[w][r] = f.scale_b;
                state = f.state;
            }
            if (x.partial_o) {
                x.state[split * all + index0 + r] = state;
                s.output[r] = (split * all + index0 + r) * x.p.d.dim_v;
                continue;
            }
            s.output[r] = query_index(x.p, x.p.d.o_stride, t.seq, t.batch, s.row[r].position, s.row[r].head);
            const Finish f = finish_row(x, t.seq, t.batch, s.row[r].head, s.row[r].position, state, true);
            if (x.state) x.state[index0 + r] = f.state;
            s.state[0][r].l = f.factor;
        }
    }
    FA_MEMBER static void sum_key_warps(int r, int column, float sum[4]) {
        rt::load4(output_at(0, r, column), sum);
        if constexpr (KeyWarps > 1) {
            FA_UNROLL for (int e = 0; e < 4; e++) sum[e] *= shared().factor[0][r];
            FA_UNROLL for (int w = 1; w < KeyWarps; w++) {
                float part[4];
                rt::load4(output_at(w, r, column), part);
                FA_UNROLL for (int e = 0; e < 4; e++) sum[e] = fmaf(part[e], shared().factor[w][r], sum[e]);
            }
        }
    }
    FA_MEMBER static void write_rows(const ForwardParams& x) {
        const Shared& s = shared();
        const int dim = int(x.p.d.dim_v), items = s.tile.valid * (D / 4);
        if (x.o_plain && !x.partial_o) {  // what most calls write: nothing to decide for each element
            FA_UNROLL_BY(4)
            for (int i = rt::thread(); i < items; i += threads) {
                const int r = i / (D / 4), column = i % (D / 4) * 4;
                float sum[4];
                sum_key_warps(r, column, sum);
                FA_UNROLL for (int e = 0; e < 4; e++) sum[e] = average_of(sum[e], s.state[0][r].l);
                if (column < dim) Mma::store4(static_cast<Element*>(x.a.o) + s.output[r] + column, sum);
            }
            return;
        }
        for (int i = rt::thread(); i < items; i += threads) {
            const int r = i / (D / 4), column = i % (D / 4) * 4;
            const int64_t at = s.output[r] + column;
            float sum[4];
            if (column >= dim) continue;
            sum_key_warps(r, column, sum);
            if (x.partial_o && dim % 4 == 0) rt::store4(x.partial_o + at, sum);
            else
                for (int e = 0; e < 4 && column + e < dim; e++) {
                    if (x.partial_o) x.partial_o[at + e] = sum[e];
                    else store_output(x, at + e, sum[e], s.state[0][r].l);
                }
        }
    }
};

// What a warp knows of its part of a tile: its rows, its keys, and the first keys of the tiles in which some of its scores are kept, and
// all of them.
template <class M>
struct WarpPart {
    int row0, key0, key_warp, some_begin, some_end, full_begin, full_end;
    FA_MEMBER WarpPart() {
        constexpr int wide = 16 * M::kKeyTiles;
        const typename M::Shared& s = M::shared();
        const int warp = rt::uniform(rt::thread() / 32);
        key_warp = warp / M::row_warps;
        row0 = warp % M::row_warps * 16 * M::row_tiles;
        key0 = key_warp * wide;
        const typename M::Row first = s.row[row0], last = s.row[row0 + 16 * M::row_tiles - 1];
        some_begin = rt::uniform(first.begin - key0 - wide + 1);
        some_end = rt::uniform(row0 < s.tile.valid ? last.end - key0 : 0);
        full_begin = rt::uniform(last.begin - key0);
        full_end = rt::uniform(first.end - key0 - wide + 1);
    }
};

// Passes over the keys [begin, end). `plain`: nothing but whole pieces to load and bands to mask.
template <class M, bool plain>
FA_DEVICE void pass_over_keys(const ForwardParams& x, const WarpPart<M>& w, int begin, int end, float unit, typename M::PerRow& m,
                              typename M::PerRow& l, typename M::Sum (&o)[M::row_tiles][M::kSteps]) {
    using Mma = typename M::Policy;
    const typename M::Shared& s = M::shared();
    const typename M::Stream k(s.tile.k), v(s.tile.v);
    const auto issue = [&](bool value, int j, int i) {
        if constexpr (plain) M::issue_plain(value ? v : k, i, begin + j * M::keys, end);
        else M::issue(x, value ? s.tile.v : s.tile.k, j, i, begin, end);
    };
    FA_UNROLL for (int i = 0; i < M::slots - 1; i++) {
        if (!plain && x.p.paged() && i % 2 == 0) {
            const int key = begin + i / 2 * M::keys;
            M::keep_place(M::find_place(x, key, end), i / 2, key, end);
            rt::barrier();
        }
        issue(i % 2, i / 2, i);
    }
    typename Mma::Left q[M::row_tiles][M::kHoldQ ? M::kSteps : 1];
    int slot = 0;  // of tile j of k; v's is the next
    for (int key = begin, j = 0; key < end; key += M::keys, j++) {
        rt::copies_left<M::slots - 2>();
        rt::barrier();
        issue(true, j + M::slots / 2 - 1, slot ? slot - 1 : M::slots - 1);
        const int ahead = key + M::slots / 2 * M::keys;
        const int64_t place = !plain && x.p.paged() ? M::find_place(x, ahead, end) : 0;
        if constexpr (M::kHoldQ)
            if (j == 0) {
                const auto lines = Mma::template q_lines<M::kRowBytes>(M::q_tile(), w.row0);
                FA_UNROLL for (int i = 0; i < M::row_tiles; i++)
                    FA_UNROLL for (int step = 0; step < M::kSteps; step++) Mma::load_q(q[i][step], lines, 16 * i * M::kRowBytes, step);
            }
        const bool work = key >= w.some_begin && key < w.some_end, full = key >= w.full_begin && key < w.full_end;
        typename M::Sum score[M::row_tiles][M::kKeyTiles];
        if (work) {
            M::multiply_qk(q, M::slot(slot), w.row0, w.key0, score);
            if (!plain && x.natural)
                FA_UNROLL for (int i = 0; i < M::row_tiles; i++) M::finish_scores(x, w.row0 + 16 * i, key + w.key0, score[i]);
            const bool holes = !plain && x.p.paged() && s.hole[j % M::kPlaces] == j;
            if (!full || holes) M::mask_scores(w.row0, key + w.key0, holes ? s.place[j % M::kPlaces] + w.key0 : nullptr, score);
        }
        if (!plain && x.p.paged()) M::keep_place(place, j + M::slots / 2, ahead, end);
        rt::copies_left<M::slots - 2>();
        rt::barrier();
        issue(false, j + M::slots / 2, slot);
        if (work) {
            if (!plain && x.p.d.dropout_p > 0)
                M::template fold_tile<true>(x, w.row0, key + w.key0, unit, score, M::slot(slot + 1), w.key0, m, l, o);
            else M::template fold_tile<false>(x, w.row0, key + w.key0, unit, score, M::slot(slot + 1), w.key0, m, l, o);
        }
        slot = slot + 2 == M::slots ? 0 : slot + 2;
    }
    rt::copies_left<0>();
}

// One tile of rows, one split. Blocks are numbered so that with a causal mask the longest tiles of as many heads as the cache holds come
// first.
template <class M, bool plain>
FA_DEVICE void run_matrix(const ForwardParams& x) {
    using Sum = typename M::Sum;
    using Mma = typename M::Policy;
    const uint32_t splits = uint32_t(x.splits), blocks = uint32_t(x.blocks), heads = uint32_t(x.p.d.batch * x.p.d.heads_kv);
    uint32_t item = uint32_t(rt::block());
    const uint32_t split = item % splits;
    item /= splits;
    uint32_t block = item % blocks, head = item / blocks;
    if (x.section) {
        const uint32_t section = uint32_t(x.section), first = item / (section * blocks) * section;
        const uint32_t within = item - first * blocks, width = heads - first < section ? heads - first : section;
        block = blocks - 1 - within / width;
        head = first + within % width;
    }
    typename M::Shared& s = M::shared();
    if (rt::thread() == 0) M::place_block(x, head % uint32_t(x.p.d.heads_kv), head / uint32_t(x.p.d.heads_kv), int(block));
    rt::barrier();
    const typename M::Tile& t = s.tile;
    if (!x.partial_o || split == 0) write_padding(x, t.seq, t.batch, t.kv_head, t.first, M::rows, 0, x.p.d.dim_v);
    if (t.valid <= 0 || split >= split_count(t.seq.k_len, x.num_splits, x.split_size)) return;
    const int64_t size = split_keys(t.seq.k_len, x.num_splits, x.split_size), split_begin = split * size;
    M::place_rows(x, split_begin, min_of(split_begin + size, t.seq.k_len));
    rt::barrier();
    // Tiles start at fixed distances from the split's begin, whatever the band: a row's bits do not depend on its neighbours.
    const int begin = rt::uniform(int(split_begin) + (s.row[0].begin - int(split_begin)) / M::keys * M::keys);
    const int end = rt::uniform(s.row[t.valid - 1].end);
    const WarpPart<M> w;
    if (x.partial_o) rt::release_successor();
    M::load_q(x);

    typename M::PerRow m, l;
    Sum o[M::row_tiles][M::kSteps];
    FA_UNROLL for (int i = 0; i < M::row_tiles; i++) {
        FA_UNROLL for (int r = 0; r < Sum::kRows; r++) {
            m[i][r] = kNegInf;
            l[i][r] = 0.f;
        }
        FA_UNROLL for (int c = 0; c < M::kSteps; c++)
            FA_UNROLL for (int e = 0; e < Sum::kElements; e++) o[i][c].x[e] = 0.f;
    }
    const float unit = !plain && x.natural ? 1.f : x.q_factor * Mma::kScoreUnit;
    pass_over_keys<M, plain>(x, w, begin, end, unit, m, l, o);
    rt::barrier();
    M::stage_output(w.row0, w.key_warp, unit, m, l, o);
    rt::barrier();
    const int64_t all = int64_t(heads) * x.rows, index0 = int64_t(head) * x.rows + t.first;
    M::finish_rows(x, split, index0, all);
    rt::barrier();
    M::write_rows(x);
}

template <class M, bool plain>
FA_KERNEL void FA_BOUNDS(M::threads, M::resident) forward_mma(FA_PARAM ForwardParams x) {
    if constexpr (rt::kMatrixCode) run_matrix<M, plain>(x);
}

}  // namespace gpu
}  // namespace fa
