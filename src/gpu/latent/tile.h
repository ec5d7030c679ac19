// Of latent attention: a tile of keys that serves as k and as v, on its way to shared memory and as operands of products
// (latent/policies.h), and its factors. latent/forward.h and latent/forward_bytes.h have the mainloops.
#pragma once
#include "gpu/mma/forward.h"
#include "gpu/latent/policies.h"

namespace fa {
namespace gpu {

// Factors of a warp's dims, as powers of two and what is left: 2^e is the power of two of the largest so far, and o is a sum of P · f ·
// 2^(kPScaleLog2 − e). So products stay in bf16's range and sums in f32's, whatever factors are, and weights far below 2^-126 of the
// largest count. e is at least -kPScaleLog2, for 2^(kPScaleLog2 - e) to be a number.
struct LatentFactors {
    static constexpr int kPScaleLog2 = 60, kHeadroom = 32;  // the latter as kHeadroomUnit
    int exponent = -kPScaleLog2;
    FA_MEMBER static float power(int e) { return e < -126 ? 0.f : float_of(uint32_t(e + 127) << 23); }
    FA_MEMBER float p_scale() const { return power(kPScaleLog2 - exponent); }
    // Takes a larger factor in: what o so far is to be multiplied by.
    FA_MEMBER float raise(float largest) {
        const int before = exponent;
        exponent = max_of(exponent, int(bits_of(largest) >> 23) - 127);
        return power(before - exponent);
    }
    // `own`: of v with its value, as the tail has it, not of bytes in place.
    FA_MEMBER float output_unit(float sum, bool own) const {
        return sum * power(own ? -kPScaleLog2 - kHeadroom : -kHeadroom) * power(exponent);
    }
};

template <class M>
struct LatentTile {
    using Mma = typename M::Policy;
    using Acc = typename M::Acc;
    using PerRow = typename M::PerRow;
    using FragmentA = typename Mma::FragmentA;
    using FragmentB = typename Mma::FragmentB;
    using Source = typename M::Source;
    using TailMma = MmaSync<typename Mma::Element>;
    using Scores = Acc[M::row_tiles][M::kKeyTiles];
    static constexpr bool kBytes = Mma::kKv8bit, kMixed = kLatentParts<Mma> > 1;
    static constexpr int kWarps = M::column_warps, kKeyTiles = M::kKeyTiles, keys = M::keys, stages = M::stages, threads = M::threads,
                         copy_threads = threads - M::score_warps * Mma::kLanes;
    static constexpr int kRowBytes = kLatentDims * int(sizeof(typename Mma::Key)),
                         kTailRowBytes = kLatentTail * int(sizeof(typename Mma::Element)), kWarpBytes = kRowBytes / kWarps,
                         kWarpSteps = kLatentDims / kWarps / M::kTile;
    // Parts of a warp's dims, with factors of their own.
    static constexpr int kParts = kLatentParts<Mma>, kPartSteps = kWarpSteps / kParts;
    static_assert(kLatentTail == kWarps * M::kTile && kWarpSteps == M::kColumnSteps &&
                      (!kBytes || (keys % Mma::kLanes == 0 && M::row_tiles == 1)) && keys <= threads,
                  "");

    // Behind the stages: sums of the warps' dims, where tiles' rows lie, and factors of two tiles.
    struct Place {
        int64_t k, tail;  // bytes behind the bases; below 0: not there, but for an address that is as aligned
    };
    struct Exchange {
        Place place[M::kLocationTiles][keys];
        float sum[2][M::row_warps][kWarps][M::row_tiles][kKeyTiles][2][Mma::kLanes][4];
        float factor[3][M::row_warps][kWarps][kParts][kBytes ? keys : 1];
    };
    static_assert(M::score_warps > 0 || int(sizeof(Exchange)) <= M::kExchangeBytes, "");
    FA_MEMBER static Exchange& exchange() { return *reinterpret_cast<Exchange*>(M::stage_tile(stages)); }
    FA_MEMBER static const Source& tail_source() { return kBytes ? M::shared().tile.v : M::shared().tile.k; }
    // Where v has the tail, the last warp's second part is that.
    FA_MEMBER static bool is_tail(const WarpPart<M>& warp, int part) { return kMixed && part == 1 && warp.column_warp == kWarps - 1; }
    FA_MEMBER static int row_warp(const WarpPart<M>& warp) { return warp.row0 / (M::kTileRows * M::row_tiles); }

    // ---- q: a lane's elements, from where q lies

    // Dims `dim` and dim + 1 of row r of the tile.
    FA_MEMBER static uint32_t q_pair(const MmaForwardParams& params, const char* row, int64_t index, int dim, int end) {
        if (!row || dim >= end) return 0;
        if (params.q_width >= 4 && dim % 2 == 0) return *reinterpret_cast<const uint32_t*>(row + dim * int(sizeof(typename Mma::Element)));
        uint32_t pair = 0;
        FA_UNROLL_FOR (int e = 0; e < 2; e++) {
            if (dim + e >= end) continue;
            uint32_t bits;
            if (Mma::kRoundsQ && params.q_width == 0)
                bits = f32_to_bf16(clamp_to_bf16(load_element(params.q, index + dim + e, params.q_dtype)));
            else bits = reinterpret_cast<const uint16_t*>(row)[dim + e];
            pair |= bits << 16 * e;
        }
        return pair;
    }
    // q as a warp multiplies it: its own dims, then its 16 of the tail.
    struct Query {
        FragmentA r[M::row_tiles][kWarpSteps + 1];
        PerRow unit;  // beside bytes: takes products of own dims to their value
        bool f16;     // beside bytes: own dims are f16, as bytes then are
    };
    // The order of dims within 16 is that in which k's bytes widen.
    FA_MEMBER static void load_q(const MmaForwardParams& params, const WarpPart<M>& warp, Query& query) {
        FragmentA(&q)[M::row_tiles][kWarpSteps + 1] = query.r;
        const int t = rt::thread() % 4, dims = int(params.dim_qk),
                  own_end = kBytes ? min_of(params.k_dims, kLatentDims) : min_of(dims, kLatentDims),
                  own = warp.column_warp * (kLatentDims / kWarps), tail = own_end + warp.column_warp * M::kTile;
        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
            FA_UNROLL_FOR (int half = 0; half < 2; half++) {
                const int r = warp.row0 + M::kTileRows * m + Acc::row(half);
                const bool there = r < M::shared().tile.valid;
                const int64_t index = there ? M::q_index(params, r) : 0;
                const char* const row =
                    there ? static_cast<const char*>(params.q) + index * int64_t(sizeof(typename Mma::Element)) : nullptr;
                FA_UNROLL_FOR (int step = 0; step < kWarpSteps; step++)
                    FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                        const bool as_stored = !kBytes || is_tail(warp, step / kPartSteps);
                        q[m][step].r[half + 2 * i] =
                            q_pair(params, row, index, own + M::kTile * step + (as_stored ? 2 * t + 8 * i : 4 * t + 2 * i),
                                   is_tail(warp, step / kPartSteps) ? dims : own_end);
                    }
                FA_UNROLL_FOR (int i = 0; i < 2; i++)
                    q[m][kWarpSteps].r[half + 2 * i] = kMixed ? 0 : q_pair(params, row, index, tail + 2 * t + 8 * i, dims);
            }
        if constexpr (kBytes) query.f16 = narrow_rows(q[0], is_tail(warp, 1) ? kPartSteps : kWarpSteps, query.unit[0]);
    }
    // Rows of q as f16, times a power of two for each row, where none of a row's dims is 2^28 times smaller than its largest, so that f16
    // has each exactly: of bytes it makes two numbers at once, of bf16 it takes four times the instructions. The largest becomes 2^14;
    // `exponent`: its bits.
    static constexpr uint32_t kLeastExponent = 29;  // else the power were none of f32's
    FA_MEMBER static uint32_t largest_exponent(uint32_t pair) { return max_of(pair >> 7 & 0xff, pair >> 23 & 0xff); }
    FA_MEMBER static bool is_exact(uint32_t pair, uint32_t exponent) {
        bool exact = true;
        FA_UNROLL_FOR (int e = 0; e < 2; e++) {
            const uint32_t bits = pair >> 16 * e & 0x7fff;
            exact &= bits == 0 || bits >> 7 >= exponent - 28;
        }
        return exact;
    }
    FA_MEMBER static float narrow_power(uint32_t exponent) { return float_of((268 - exponent) << 23); }
    FA_MEMBER static float narrow_unit(uint32_t exponent) { return float_of((exponent - 14) << 23); }  // takes products to their value
    FA_MEMBER static uint32_t narrow(uint32_t pair, float power) {
        return rt::pack_f16(float_of(pair << 16) * power, float_of(pair & 0xffff0000u) * power);
    }
    // The first `used` steps of a lane's two rows, if all lanes' are exact.
    template <int steps>
    FA_MEMBER static bool narrow_rows(FragmentA (&q)[steps], int used, float (&unit)[2]) {
        uint32_t largest[2] = {};
        bool exact = true;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            FA_UNROLL_FOR (int i = 0; i < 2 * steps; i++)
                if (i / 2 < used) largest[half] = max_of(largest[half], largest_exponent(q[i / 2].r[half + i % 2 * 2]));
            FA_UNROLL_FOR (int mask = 1; mask <= 2; mask *= 2)
                largest[half] = max_of(largest[half], bits_of(rt::shuffle_xor16(float_of(largest[half]), mask)));
            largest[half] = max_of(largest[half], kLeastExponent);
            FA_UNROLL_FOR (int i = 0; i < 2 * steps; i++)
                if (i / 2 < used) exact &= is_exact(q[i / 2].r[half + i % 2 * 2], largest[half]);
        }
        const bool all = !rt::warp_any(!exact);
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            unit[half] = all ? narrow_unit(largest[half]) : 1.f;
            FA_UNROLL_FOR (int i = 0; i < 2 * steps; i++) {
                uint32_t& pair = q[i / 2].r[half + i % 2 * 2];
                if (all && i / 2 < used) pair = narrow(pair, narrow_power(largest[half]));
            }
        }
        return all;
    }

    // ---- tiles

    // Where key `first` + thread lies: page or sequence, and row there; -1: nowhere.
    FA_MEMBER static int64_t find(const MmaForwardParams& params, int first, int end) {
        const int key = first + rt::thread();
        if (rt::thread() >= keys || key >= end) return -1;
        const Sequence& seq = M::shared().tile.seq;
        const uint32_t slot = uint32_t(seq.k_begin) + uint32_t(key);
        if (!params.pages.table) return seq.kv_index << 32 | slot;
        const uint32_t size = uint32_t(min_of(params.pages.size, int64_t(0xffffffff)));
        const int64_t page = params.pages.table[seq.kv_index * params.pages.row_stride + slot / size];
        return page >= 0 && page < params.pages.count ? page << 32 | slot % size : -1;
    }
    FA_MEMBER static void store(const MmaForwardParams& params, int64_t location, int j, int first, int end) {
        if (rt::thread() >= keys) return;
        typename M::Shared& shared = M::shared();
        const int slot = j % M::kLocationTiles, key = first + rt::thread();
        const auto offset = [&](const Source& from) {
            return params.pages.table ? (location >> 32) * from.outer + uint32_t(location) * from.row : key * from.row;
        };
        exchange().place[slot][rt::thread()] = location < 0 ? Place{-16, -16} : Place{offset(shared.tile.k), offset(tail_source())};
        shared.location[slot][rt::thread()] = location;
        if (location < 0 && key < end) shared.missing[slot] = j;
    }

    // What a thread copies of a tile's rows: where its vectors of the first one lie, and whether rows reach so far.
    struct Reader {
        const char *k, *tail;
        bool aligned, k_in_row, tail_in_row;
        FA_MEMBER Reader() {
            const Source &from = M::shared().tile.k, &of_tail = tail_source();
            const int k_byte = rt::thread() % (kRowBytes / 16) * 16,
                      tail_byte = (kBytes ? 0 : kRowBytes) + rt::thread() % (kTailRowBytes / 16) * 16;
            k = from.base + k_byte;
            tail = of_tail.base + tail_byte;
            aligned = from.width == 16 && of_tail.width == 16;
            k_in_row = k_byte < from.bytes;
            tail_in_row = tail_byte < of_tail.bytes;
        }
    };
    // Tile j into stage i: a group of copies, were it empty.
    FA_MEMBER static void load(const Reader& from, int j, int i, int key, int end) {
        if (key < end) {
            const Place* const place = exchange().place[j % M::kLocationTiles];
            if (from.aligned) {
                copy_rows<kRowBytes>(M::stage_tile(i), [&](int r) { return place[r].k; }, from.k, from.k_in_row);
                copy_rows<kTailRowBytes>(
                    M::stage_tile(i) + keys * kRowBytes, [&](int r) { return place[r].tail; }, from.tail, from.tail_in_row);
            } else {
                load_elements(place, i);
            }
        }
        rt::cp_async_commit();
    }
    template <int row_bytes, class Offset>
    FA_MEMBER static void copy_rows(char* to, Offset offset, const char* from, bool in_row) {
        constexpr int across = row_bytes / 16, down = copy_threads / across,
                      at_once = M::score_warps ? 4 : 1;  // to wait once for where they lie
        static_assert(keys % down == 0 && (down >= 8 ? down % 8 == 0 : 8 % down == 0), "a row's swizzle is its first row's, changed");
        const int row = rt::thread() / across, vec = rt::thread() % across;
        const uint32_t at = rt::smem_addr(to) + uint32_t(swizzle_offset<row_bytes>(row, vec));
        FA_UNROLL_FOR (int first = 0; first < keys; first += down * at_once) {
            int64_t there[at_once];
            FA_UNROLL_FOR (int i = 0; i < at_once; i++) there[i] = offset(row + first + i * down);
            FA_UNROLL_FOR (int i = 0; i < at_once; i++) {
                const int r = first + i * down;
                rt::cp_async16((at ^ uint32_t(r % 8 * 16)) + uint32_t(r * row_bytes), from + there[i], in_row && there[i] >= 0);
            }
        }
    }
    FA_COLD_MEMBER static void load_elements(const Place* place, int i) {
        using Key = typename Mma::Key;
        using Element = typename Mma::Element;
        const Source &k = M::shared().tile.k, &tail = tail_source();
        char* const to = M::stage_tile(i);
        for (int n = rt::thread(); n < keys * kLatentDims; n += copy_threads) {
            const int r = n / kLatentDims, at = n % kLatentDims * int(sizeof(Key));
            Key value{};
            if (place[r].k >= 0 && at < k.bytes) value = *reinterpret_cast<const Key*>(k.base + place[r].k + at);
            *reinterpret_cast<Key*>(to + swizzle_offset<kRowBytes>(r, at / 16) + at % 16) = value;
        }
        for (int n = rt::thread(); n < keys * kLatentTail; n += copy_threads) {
            const int r = n / kLatentTail, at = n % kLatentTail * int(sizeof(Element)), from = at + (kBytes ? 0 : kRowBytes);
            Element value{};
            if (place[r].k >= 0 && from < tail.bytes) value = *reinterpret_cast<const Element*>(tail.base + place[r].tail + from);
            *reinterpret_cast<Element*>(to + keys * kRowBytes + swizzle_offset<kTailRowBytes>(r, at / 16) + at % 16) = value;
        }
    }

    // ---- factors: a lane has those of its keys, a tile ahead

    static constexpr int kLaneKeys = kBytes ? keys / Mma::kLanes : 1;
    // Index of the factor of a warp's part in row 0; -1: it has no bytes, or they have no factors.
    FA_MEMBER static int64_t factor_column(const MmaForwardParams& params, const WarpPart<M>& warp, int part) {
        const Factors& factors = params.k_factors;
        const int dim = (warp.column_warp * kParts + part) * (kLatentDims / kWarps / kParts);
        return factors.factor && dim < params.k_dims
                   ? M::shared().tile.kv_head * factors.stride[2] + dim / factors.block[1] * factors.stride[3]
                   : -1;
    }
    // The one at `at` as it is stored, so that nobody waits for it yet; and as f32, 1 where there are none.
    FA_MEMBER static uint32_t raw_factor(const Factors& factors, int64_t at) {
        return factors.dtype == FA_F32                                ? static_cast<const uint32_t*>(factors.factor)[at]
               : factors.dtype == FA_E8M0 || factors.dtype == FA_E4M3 ? static_cast<const uint8_t*>(factors.factor)[at]
                                                                      : static_cast<const uint16_t*>(factors.factor)[at];
    }
    FA_MEMBER static float factor_value(const Factors& factors, int64_t column, uint32_t raw) {
        return column < 0 ? 1.f : nan_if_infinite(factors.dtype == FA_F32 ? float_of(raw) : load_factor(&raw, 0, factors.dtype));
    }
    FA_MEMBER static void load_factors(const MmaForwardParams& params, const int64_t (&column)[kParts], int j,
                                       uint32_t (&raw)[kParts][kLaneKeys]) {
        const Factors& factors = params.k_factors;
        FA_UNROLL_FOR (int i = 0; i < kLaneKeys; i++) {
            const int64_t location = M::shared().location[j % M::kLocationTiles][rt::thread() % Mma::kLanes + Mma::kLanes * i];
            const int64_t row = uint32_t(location), block = factors.block[0] == 1 ? row : row / factors.block[0];
            const int64_t of_row = (location >> 32) * factors.stride[0] + block * factors.stride[1];
            FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
                const int64_t at = of_row + column[part];
                raw[part][i] = 0;
                if (location >= 0 && column[part] >= 0) raw[part][i] = raw_factor(factors, at);
            }
        }
    }
    // As f32, for tile j; returned is the largest.
    FA_MEMBER static float store_factors(const MmaForwardParams& params, const WarpPart<M>& warp, int64_t column, int part, int j,
                                         const uint32_t (&raw)[kLaneKeys]) {
        float largest = 0.f;
        FA_UNROLL_FOR (int i = 0; i < kLaneKeys; i++) {
            const float factor = factor_value(params.k_factors, column, raw[i]);
            exchange().factor[j % 3][row_warp(warp)][warp.column_warp][part][rt::thread() % Mma::kLanes + Mma::kLanes * i] = factor;
            const float size = fabsf(factor);
            if (size <= kMaxFloat) largest = max_fn(largest, size);
        }
        FA_UNROLL_FOR (int mask = 1; mask < Mma::kLanes; mask *= 2) largest = max_fn(largest, rt::shuffle_xor32(largest, mask));
        return largest;
    }
    // Of the four keys of key tile n whose scores and probabilities a lane has.
    FA_MEMBER static void read_factors(const WarpPart<M>& warp, int part, int j, int n, float (&factor)[4]) {
        const float* const from = exchange().factor[j % 3][row_warp(warp)][warp.column_warp][part] + M::kTile * n + rt::thread() % 4 * 2;
        FA_UNROLL_FOR (int i = 0; i < 4; i++) factor[i] = from[i / 2 * 8 + i % 2];
    }
    FA_MEMBER static constexpr int factor_of(int e) { return e / 4 * 2 + e % 2; }

    // ---- products

    // 32 dims or columns of bytes, 16 of others, of a warp's own.
    static constexpr int kPieceSteps = kBytes ? 2 : 1, kPieces = kPartSteps / kPieceSteps;  // of a part
    // Piece i of part `part` of key tile n, times q.
    template <bool f16>
    FA_MEMBER static void multiply_piece(const Query& q, const SwizzledPtr& ptr, int part, int i, int n,
                                         Acc (&sum)[M::row_tiles][kKeyTiles]) {
        FragmentB right[kPieceSteps];
        if constexpr (kBytes) {
            typename Mma::PackedB packed[1];
            Mma::template load_k<kRowBytes>(packed[0], ptr, M::kTile * n * kRowBytes, part * kPieces + i);
            if constexpr (f16) Mma::widen_to_f16(right, packed[0]);
            else Mma::template widen_k<1>(right, packed, E4m3{});
        } else {
            Mma::template load_k<kRowBytes>(right[0], ptr, M::kTile * n * kRowBytes, part * kPieces + i);
        }
        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
            FA_UNROLL_FOR (int c = 0; c < kPieceSteps; c++) {
                const FragmentA& left = q.r[m][part * kPartSteps + kPieceSteps * i + c];
                if constexpr (kBytes && f16) Mma::mma_f16(sum[m][n], left, right[c]);
                else Mma::mma(sum[m][n], left, right[c]);
            }
    }
    template <bool f16>
    FA_MEMBER static void multiply_part(const Query& q, const SwizzledPtr& ptr, int part, Acc (&sum)[M::row_tiles][kKeyTiles]) {
        FA_UNROLL_FOR (int i = 0; i < kPieces; i++)
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) multiply_piece<f16>(q, ptr, part, i, n, sum);
    }
    FA_MEMBER static void load_v(FragmentB (&b)[kPieceSteps], const SwizzledPtr& ptr, int n, int i) {
        if constexpr (kBytes) {
            typename Mma::PackedB packed[1];
            Mma::template load_v<kRowBytes, keys>(packed[0], ptr, n, i);
            Mma::widen_in_place(b, packed[0]);
        } else {
            Mma::template load_v<kRowBytes, keys>(b[0], ptr, n, i);
        }
    }
    FA_MEMBER static const char* tail_tile(const char* tile) { return tile + keys * kRowBytes; }
    // Key tile n of the tail's 16 dims that begin at `ptr`, 16 * i behind it.
    FA_MEMBER static void load_tail(FragmentB& b, const SwizzledPtr& ptr, int n, int i) {
        TailMma::template load_k<kTailRowBytes>(b, ptr, M::kTile * n * kTailRowBytes, i);
    }
    // Sums over a warp's dims, with their factors, to the other warps.
    FA_MEMBER static void multiply_own_dims(const WarpPart<M>& warp, const Query& q, const char* tile, int j) {
        Scores total{};
        const SwizzledPtr ptr = Mma::template k_ptr<kRowBytes>(tile + warp.column_warp * kWarpBytes, 0);
        const SwizzledPtr tail_ptr = TailMma::template k_ptr<kTailRowBytes>(tail_tile(tile), 0).advance(kMixed ? 0 : warp.column_warp);
        if constexpr (!kMixed) {
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                FragmentB right;
                load_tail(right, tail_ptr, n, 0);
                FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) Mma::mma(total[m][n], q.r[m][kWarpSteps], right);
            }
        }
        FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
            Scores sum{};
            if (is_tail(warp, part)) {
                FA_UNROLL_FOR (int step = 0; step < kPartSteps; step++)
                    FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                        FragmentB right;
                        load_tail(right, tail_ptr, n, step);
                        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) Mma::mma(sum[m][n], q.r[m][part * kPartSteps + step], right);
                    }
            } else if constexpr (kBytes) {
                if (q.f16) multiply_part<true>(q, ptr, part, sum);
                else multiply_part<false>(q, ptr, part, sum);
            } else {
                multiply_part<false>(q, ptr, part, total);
            }
            if constexpr (kBytes) {
                FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                    float factor[4];
                    read_factors(warp, part, j, n, factor);
                    FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                            const float value = is_tail(warp, part) ? sum[m][n].x[e] : sum[m][n].x[e] * q.unit[m][Acc::lane_row(e)];
                            total[m][n].x[e] = fmaf(value, factor[factor_of(e)], total[m][n].x[e]);
                        }
                }
            }
        }
        FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
            FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                FA_UNROLL_FOR (int half = 0; half < 2; half++)
                    rt::store4(exchange().sum[j % 2][row_warp(warp)][warp.column_warp][m][n][half][rt::thread() % Mma::kLanes],
                               total[m][n].x + 4 * half);
    }
    // The scores, of all dims: in one order, so that the warps that share them have the same.
    FA_MEMBER static void add_up(const WarpPart<M>& warp, int j, Scores score) {
        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
                FA_UNROLL_FOR (int half = 0; half < 2; half++) {
                    float part[kWarps][4];
                    FA_UNROLL_FOR (int i = 0; i < kWarps; i++)
                        rt::load4(exchange().sum[j % 2][row_warp(warp)][i][m][n][half][rt::thread() % Mma::kLanes], part[i]);
                    FA_UNROLL_FOR (int e = 0; e < 4; e++)
                        score[m][n].x[4 * half + e] = (part[0][e] + part[1][e]) + (part[2][e] + part[3][e]);
                }
    }
    // Probabilities of key tile n, times the factors of a part, as they are multiplied with it.
    FA_MEMBER static void round_probs(const WarpPart<M>& warp, int part, int j, int n, float p_scale, const Scores score,
                                      FragmentA (&left)[M::row_tiles]) {
        if constexpr (kBytes) {
            float f[4];
            read_factors(warp, part, j, n, f);
            FA_UNROLL_FOR (int i = 0; i < 4; i++) f[i] *= p_scale;
            if (!is_tail(warp, part)) {
                FA_UNROLL_FOR (int i = 0; i < 4; i++) f[i] *= LatentFactors::power(Mma::kValueLog2 - LatentFactors::kPScaleLog2);
            }
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                FA_UNROLL_FOR (int e = 0; e < 4; e++)
                    left[i].r[e] =
                        rt::pack_bf16(score[i][n].x[2 * e] * f[factor_of(2 * e)], score[i][n].x[2 * e + 1] * f[factor_of(2 * e + 1)]);
        } else {
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::round_probs(left[i], score[i][n]);
        }
    }
    // Online softmax of a tile's scores, and its product with the warp's dims. `largest`: of each part's factors.
    FA_MEMBER static void softmax_and_pv(const WarpPart<M>& warp, float unit, Scores score, const char* tile, int j,
                                         const float (&largest)[kParts], LatentFactors (&factors)[kParts], PerRow& m, PerRow& l,
                                         Acc (&o)[M::row_tiles][M::kColumnSteps]) {
        PerRow factor, exp2_offset;
        float raised[kParts];
        M::update_row_max(0.f, unit, score, m, factor, exp2_offset);
        bool moved = false;
        FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
            raised[part] = kBytes ? factors[part].raise(largest[part]) : 1.f;
            moved |= raised[part] != 1.f;
        }
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                l[i][r] *= factor[i][r];
                moved |= factor[i][r] != 1.f;
            }
        if (rt::warp_any(moved))
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                FA_UNROLL_FOR (int c = 0; c < M::kColumnSteps; c++)
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) o[i][c].x[e] *= factor[i][Acc::lane_row(e)] * raised[c / kPartSteps];
        FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) M::apply_exp2(n, unit, exp2_offset, score, l);
        const SwizzledPtr ptr = Mma::template v_ptr<kRowBytes, keys>(tile + warp.column_warp * kWarpBytes, 0);
        FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
            const float p_scale = factors[part].p_scale();
            if (is_tail(warp, part)) {
                const SwizzledPtr tail_ptr = TailMma::template v_ptr<kTailRowBytes, keys>(tail_tile(tile), 0);
                FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                    FragmentA left[M::row_tiles];
                    round_probs(warp, part, j, n, p_scale, score, left);
                    FA_UNROLL_FOR (int step = 0; step < kPartSteps; step++) {
                        FragmentB right;
                        TailMma::template load_v<kTailRowBytes, keys>(right, tail_ptr, n, step);
                        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::mma(o[i][part * kPartSteps + step], left[i], right);
                    }
                }
                continue;
            }
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                FragmentA left[M::row_tiles];
                round_probs(warp, part, j, n, p_scale, score, left);
                FA_UNROLL_FOR (int piece = 0; piece < kPieces; piece++) {
                    FragmentB right[kPieceSteps];
                    load_v(right, ptr, n, part * kPieces + piece);
                    FA_UNROLL_FOR (int c = 0; c < kPieceSteps; c++)
                        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                            Mma::mma(o[i][part * kPartSteps + kPieceSteps * piece + c], left[i], right[c]);
                }
            }
        }
    }
};

}  // namespace gpu
}  // namespace fa
