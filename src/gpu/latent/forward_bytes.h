// The mainloop of latent attention over 8 bits for few rows: latent/forward.h's with roles. Score warps own 16 keys of a tile each, of
// which they have all dims: no sum needs another warp. They agree on the rows' maxima through shared memory and leave probabilities there,
// times the factors of each part of the dims, as column warps multiply them, each with its own dims of the tile before. So each exponential
// is computed once, and a value is widened twice, in the way that is cheapest for each product.
//
//     step j:   score warps:    S of tile j | maxima | P of tile j
//               column warps:   O += P v of tile j - 1, its first half | its second half
#pragma once
#include "gpu/latent/forward.h"

namespace fa {
namespace gpu {

template <class M>
struct LatentRoles : LatentTile<M> {
    using Tile = LatentTile<M>;
    using Mma = typename M::Policy;
    using TailMma = typename Tile::TailMma;
    using Acc = typename M::Acc;
    using PerRow = typename M::PerRow;
    using FragmentA = typename Mma::FragmentA;
    using FragmentB = typename Mma::FragmentB;
    using Place = typename Tile::Place;
    using Tile::kMixed, Tile::kRowBytes, Tile::kTailRowBytes, Tile::kParts, Tile::keys, Tile::stages, Tile::threads, Tile::is_tail,
        Tile::tail_tile, Tile::factor_of;
    static constexpr int kLanes = Mma::kLanes, kScoreKeys = 16, kScoreWarps = M::score_warps, kColumnWarps = M::column_warps,
                         kRows = M::rows;
    // Parts of the dims that have factors of their own, those of bytes; k16 steps of all bytes, of a part and of the tail.
    static constexpr int kAllParts = kColumnWarps * kParts, kByteParts = kAllParts - (kMixed ? 1 : 0), kPartDims = kLatentDims / kAllParts,
                         kPartPieces = kPartDims / 32, kByteSteps = kByteParts * kPartDims / M::kTile, kTailSteps = kLatentTail / M::kTile;
    static constexpr int kPartsAtOnce = 4;  // whose sums come about side by side
    static constexpr int kThreadFactors = kAllParts * keys / threads, kFactorTiles = 3;
    static_assert(M::row_tiles == 1 && keys == kScoreKeys * kScoreWarps && keys == 2 * kLanes && kAllParts * keys % threads == 0, "");

    struct Exchange {
        Place place[M::kLocationTiles][keys];
        float probs[2][kAllParts][kScoreWarps][kLanes][4];  // pairs, as left sides of products
        float factor[kFactorTiles][kAllParts][keys];
        float largest[kFactorTiles][kAllParts][2];  // of all so far, of half of the keys each
        float row_max[kScoreWarps][kRows], row_sum[kScoreWarps][kRows];
        float rescale[2][kRows];  // what outputs so far are to be multiplied by
        float final_max[kRows];
        int q_exponent[kRows];  // bits of the largest's, 0: f16 has not all of the row
    };
    static_assert(int(sizeof(Exchange)) <= M::kExchangeBytes, "");
    FA_MEMBER static Exchange& exchange() { return *reinterpret_cast<Exchange*>(M::stage_tile(stages)); }

    // ---- factors: a thread has one or two of a tile's

    FA_MEMBER static int factor_at(int i) { return rt::thread() / kLanes * (kThreadFactors * kLanes) + kLanes * i + rt::thread() % kLanes; }
    FA_MEMBER static int64_t factor_column(const MmaForwardParams& params) {
        const Factors& factors = params.k_factors;
        const int dim = rt::warp_uniform(factor_at(0) / keys * kPartDims);
        return factors.factor && dim < params.k_dims
                   ? M::shared().tile.kv_head * factors.stride[2] + dim / factors.block[1] * factors.stride[3]
                   : -1;
    }
    FA_MEMBER static void load_factors(const MmaForwardParams& params, int64_t column, int j, uint32_t (&raw)[kThreadFactors]) {
        const Factors& factors = params.k_factors;
        FA_UNROLL_FOR (int i = 0; i < kThreadFactors; i++) {
            raw[i] = 0;
            const int64_t location = M::shared().location[j % M::kLocationTiles][factor_at(i) % keys];
            if (location < 0 || column < 0) continue;
            const int64_t row = uint32_t(location), block = factors.block[0] == 1 ? row : row / factors.block[0];
            const int64_t at = (location >> 32) * factors.stride[0] + block * factors.stride[1] + column;
            raw[i] = Tile::raw_factor(factors, at);
        }
    }
    FA_MEMBER static void store_factors(const MmaForwardParams& params, int64_t column, int j, const uint32_t (&raw)[kThreadFactors]) {
        Exchange& to = exchange();
        FA_UNROLL_FOR (int i = 0; i < kThreadFactors; i++) {
            const int at = factor_at(i), part = at / keys, key = at % keys;
            const float factor = Tile::factor_value(params.k_factors, column, raw[i]), size = fabsf(factor);
            to.factor[j % kFactorTiles][part][key] = factor;
            float largest = size <= kMaxFloat ? size : 0.f;
            FA_UNROLL_FOR (int mask = 1; mask < kLanes; mask *= 2) largest = max_fn(largest, rt::shuffle_xor32(largest, mask));
            if (rt::thread() % kLanes == 0)
                to.largest[j % kFactorTiles][part][key / kLanes] =
                    j == 0 ? largest : max_fn(largest, to.largest[(j - 1) % kFactorTiles][part][key / kLanes]);
        }
    }
    FA_MEMBER static float largest_factor(int j, int part) {
        const float* const largest = exchange().largest[j % kFactorTiles][part];
        return max_fn(largest[0], largest[1]);
    }

    // ---- score warps

    // q as they multiply it: all bytes' dims, in the order in which these widen, and the tail.
    struct Query {
        FragmentA r[kByteSteps], tail[kTailSteps];
        float unit[2];  // takes products of bytes to their value
        bool f16;       // the former are f16, as bytes then are
    };
    // It lies in the last stage first, row by row, and takes its form there, in loops: what runs once costs the fetch of its instructions.
    static constexpr int kOwnDims = kByteParts * kPartDims, kQWords = (kOwnDims + kLatentTail) / 2, kQPitch = kQWords + 4,
                         kQVecs = kQWords / 4;
    static_assert(kRows * kQPitch * 4 <= M::kStageBytes, "");
    FA_MEMBER static uint32_t* staged_q(int r) { return reinterpret_cast<uint32_t*>(M::stage_tile(stages - 1)) + r * kQPitch; }
    FA_MEMBER static void stage_q(const MmaForwardParams& params) {
        const int valid = M::shared().tile.valid, dims = int(params.dim_qk), own_end = min_of(params.k_dims, kOwnDims);
        if (params.q_width == 16 && own_end == kOwnDims) {
            FA_UNROLL_BY(1)
            for (int i = rt::thread(); i < kRows * kQVecs; i += threads) {
                const int r = i / kQVecs, vec = i % kQVecs;
                rt::cp_async16(rt::smem_addr(staged_q(r) + 4 * vec), M::q_row(params, r < valid ? r : 0) + 16 * vec,
                               r < valid && 8 * vec < dims);
            }
        } else {
            FA_UNROLL_BY(1)
            for (int i = rt::thread(); i < kRows * kQWords; i += threads) {
                const int r = i / kQWords, dim = i % kQWords * 2;
                const bool there = r < valid, in_tail = dim >= kOwnDims;
                const int64_t index = there ? M::q_index(params, r) : 0;
                const char* const row =
                    there ? static_cast<const char*>(params.q) + index * int64_t(sizeof(typename Mma::Element)) : nullptr;
                staged_q(r)[dim / 2] = Tile::q_pair(params, row, index, in_tail ? own_end + dim - kOwnDims : dim, in_tail ? dims : own_end);
            }
        }
        rt::cp_async_commit();
    }
    // A warp's rows: the exponent of each one's largest dim beside bytes, and whether f16, times a power of two, has them all (see
    // narrow()).
    template <class Row>
    FA_MEMBER static void each_row(Row row) {
        FA_UNROLL_BY(1)
        for (int r = rt::thread() / kLanes; r < kRows; r += threads / kLanes) row(r);
    }
    FA_MEMBER static void measure_q() {
        each_row([](int r) {
            const int lane = rt::thread() % kLanes;
            uint32_t largest = 0;
            FA_UNROLL_BY(1)
            for (int i = lane; i < kOwnDims / 2; i += kLanes) largest = max_of(largest, Tile::largest_exponent(staged_q(r)[i]));
            FA_UNROLL_FOR (int mask = 1; mask < kLanes; mask *= 2)
                largest = max_of(largest, bits_of(rt::shuffle_xor32(float_of(largest), mask)));
            largest = max_of(largest, Tile::kLeastExponent);
            bool exact = true;
            FA_UNROLL_BY(1)
            for (int i = lane; i < kOwnDims / 2; i += kLanes) exact &= Tile::is_exact(staged_q(r)[i], largest);
            exact = !rt::warp_any(!exact);
            if (lane == 0) exchange().q_exponent[r] = exact ? int(largest) : 0;
        });
    }
    FA_MEMBER static bool fits_f16() {
        bool fits = true;
        FA_UNROLL_BY(1)
        for (int r = 0; r < kRows; r++) fits &= exchange().q_exponent[r] != 0;
        return fits;
    }
    FA_MEMBER static void narrow_q(bool f16) {
        if (!f16) return;
        each_row([](int r) {
            const float power = Tile::narrow_power(uint32_t(exchange().q_exponent[r]));
            FA_UNROLL_BY(1)
            for (int i = rt::thread() % kLanes; i < kOwnDims / 2; i += kLanes) staged_q(r)[i] = Tile::narrow(staged_q(r)[i], power);
        });
    }
    FA_MEMBER static void load_q(bool f16, Query& q) {
        const int t = rt::thread() % 4;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            const uint32_t* const row = staged_q(Acc::row(half));
            FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                FA_UNROLL_FOR (int step = 0; step < kByteSteps; step++) q.r[step].r[half + 2 * i] = row[8 * step + 2 * t + i];
                FA_UNROLL_FOR (int step = 0; step < kTailSteps; step++)
                    q.tail[step].r[half + 2 * i] = row[8 * (kByteSteps + step) + t + 4 * i];
            }
            q.unit[half] = f16 ? Tile::narrow_unit(uint32_t(exchange().q_exponent[Acc::row(half)])) : 1.f;
        }
        q.f16 = f16;
    }
    template <bool f16>
    FA_MEMBER static void multiply_bytes(const Query& q, const char* tile, int key0, int j, Acc& score) {
        const SwizzledPtr ptr = Mma::template k_ptr<kRowBytes>(tile, key0);
        FA_UNROLL_FOR (int first = 0; first < kByteParts; first += kPartsAtOnce) {
            Acc sum[kPartsAtOnce] = {};
            FA_UNROLL_FOR (int piece = 0; piece < kPartPieces; piece++)
                FA_UNROLL_FOR (int p = 0; p < kPartsAtOnce && first + p < kByteParts; p++) {
                    const int at = (first + p) * kPartPieces + piece;
                    typename Mma::PackedB packed[1];
                    FragmentB right[2];
                    Mma::template load_k<kRowBytes>(packed[0], ptr, 0, at);
                    if constexpr (f16) Mma::widen_to_f16(right, packed[0]);
                    else Mma::template widen_k<1>(right, packed, E4m3{});
                    FA_UNROLL_FOR (int c = 0; c < 2; c++) {
                        if constexpr (f16) Mma::mma_f16(sum[p], q.r[2 * at + c], right[c]);
                        else Mma::mma(sum[p], q.r[2 * at + c], right[c]);
                    }
                }
            FA_UNROLL_FOR (int p = 0; p < kPartsAtOnce && first + p < kByteParts; p++) {
                float factor[4];
                read_factors(first + p, j, key0, factor);
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                    score.x[e] = fmaf(sum[p].x[e] * q.unit[Acc::lane_row(e)], factor[factor_of(e)], score.x[e]);
            }
        }
    }
    // Of the four keys whose scores a lane has.
    FA_MEMBER static void read_factors(int part, int j, int key0, float (&factor)[4]) {
        const float* const from = exchange().factor[j % kFactorTiles][part] + key0 + rt::thread() % 4 * 2;
        FA_UNROLL_FOR (int i = 0; i < 4; i++) factor[i] = from[i / 2 * 8 + i % 2];
    }
    FA_MEMBER static void multiply_q(const Query& q, const char* tile, int key0, int j, Acc& score) {
        score = Acc{};
        const SwizzledPtr tail = TailMma::template k_ptr<kTailRowBytes>(tail_tile(tile), key0);
        FA_UNROLL_FOR (int step = 0; step < kTailSteps; step++) {
            FragmentB right;
            TailMma::template load_k<kTailRowBytes>(right, tail, 0, step);
            Mma::mma(score, q.tail[step], right);
        }
        if (q.f16) multiply_bytes<true>(q, tile, key0, j, score);
        else multiply_bytes<false>(q, tile, key0, j, score);
    }
    // Probabilities to the column warps, times each part's factors, and rounded.
    FA_MEMBER static void store_probs(int warp, int key0, int j, const Acc& p) {
        Exchange& to = exchange();
        FA_UNROLL_BY(4)
        for (int part = 0; part < kAllParts; part++) {
            LatentFactors factors;
            factors.raise(largest_factor(j, part));
            float f[4];
            read_factors(part, j, key0, f);
            FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                f[i] *= factors.p_scale();
                if (part < kByteParts) f[i] *= LatentFactors::power(Mma::kValueLog2 - LatentFactors::kPScaleLog2);
            }
            float pair[4];
            FA_UNROLL_FOR (int i = 0; i < 4; i++)
                pair[i] = float_of(rt::pack_bf16(p.x[2 * i] * f[factor_of(2 * i)], p.x[2 * i + 1] * f[factor_of(2 * i + 1)]));
            rt::store4(to.probs[j % 2][part][warp][rt::thread() % kLanes], pair);
        }
    }

    // ---- column warps

    // Key tiles [first, last) of tile j.
    FA_MEMBER static void multiply_v(const WarpPart<M>& warp, const char* tile, int j, int first, int last, Acc (&o)[M::kColumnSteps]) {
        const SwizzledPtr ptr = Mma::template v_ptr<kRowBytes, keys>(tile + warp.column_warp * Tile::kWarpBytes, 0);
        FA_UNROLL_BY(1)
        for (int n = first; n < last; n++)
            FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
                float pair[4];
                rt::load4(exchange().probs[j % 2][warp.column_warp * kParts + part][n][rt::thread() % kLanes], pair);
                const FragmentA left{{bits_of(pair[0]), bits_of(pair[1]), bits_of(pair[2]), bits_of(pair[3])}};
                if (is_tail(warp, part)) {
                    const SwizzledPtr tail_ptr = TailMma::template v_ptr<kTailRowBytes, keys>(tail_tile(tile), 0);
                    FA_UNROLL_FOR (int step = 0; step < Tile::kPartSteps; step++) {
                        FragmentB right;
                        TailMma::template load_v<kTailRowBytes, keys>(right, tail_ptr, n, step);
                        Mma::mma(o[part * Tile::kPartSteps + step], left, right);
                    }
                    continue;
                }
                FA_UNROLL_FOR (int piece = 0; piece < Tile::kPieces; piece++) {
                    FragmentB right[Tile::kPieceSteps];
                    Tile::load_v(right, ptr, n, part * Tile::kPieces + piece);
                    FA_UNROLL_FOR (int c = 0; c < Tile::kPieceSteps; c++)
                        Mma::mma(o[part * Tile::kPartSteps + Tile::kPieceSteps * piece + c], left, right[c]);
                }
            }
    }
    // To the maxima and the largest factors of tile j.
    FA_MEMBER static void rescale(const WarpPart<M>& warp, int j, LatentFactors (&factors)[kParts], Acc (&o)[M::kColumnSteps]) {
        float row[2], raised[kParts];
        bool moved = false;
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            row[r] = exchange().rescale[j % 2][Acc::row(r)];
            moved |= row[r] != 1.f;
        }
        FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
            raised[part] = factors[part].raise(largest_factor(j, warp.column_warp * kParts + part));
            moved |= raised[part] != 1.f;
        }
        if (!rt::warp_any(moved)) return;
        FA_UNROLL_FOR (int c = 0; c < M::kColumnSteps; c++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) o[c].x[e] *= row[Acc::lane_row(e)] * raised[c / Tile::kPartSteps];
    }

    // ---- the loop, of each role

    static constexpr int ahead = stages - 2;  // tiles whose copies are under way beside the tile at hand
    // Until the first tiles are on their way, and the first factors are there, and q, as f16 if so much is true.
    FA_MEMBER static bool begin_tiles(const MmaForwardParams& params, bool copies, int begin, int end) {
        stage_q(params);
        if (copies) {
            FA_UNROLL_BY(1)
            for (int j = 0; j <= ahead; j++) Tile::store(params, Tile::find(params, begin + j * keys, end), j, begin + j * keys, end);
        }
        rt::cp_async_wait<0>();  // q
        rt::barrier();
        if (copies) {
            const typename Tile::Reader from;
            FA_UNROLL_BY(1)
            for (int j = 0; j < ahead; j++) Tile::load(from, j, j, begin + j * keys, end);
        }
        const int64_t column = factor_column(params);
        FA_UNROLL_BY(1)
        for (int j = 0; j < ahead; j++) {
            uint32_t raw[kThreadFactors];
            load_factors(params, column, j, raw);
            store_factors(params, column, j, raw);
        }
        measure_q();
        rt::barrier();
        const bool f16 = fits_f16();
        narrow_q(f16);
        rt::barrier();
        return f16;
    }
    template <class Role>
    FA_MEMBER static void iterate(const MmaForwardParams& params, const WarpPart<M>& warp, int begin, int end, Role& role) {
        int64_t location = -1;  // of tile j + ahead + 1
        if constexpr (Role::kCopies) location = Tile::find(params, begin + (ahead + 1) * keys, end);
        const typename Tile::Reader from;
        const int64_t column = factor_column(params);
        uint32_t raw[kThreadFactors];
        const auto active = [&](int key) { return key < end && key >= warp.some_begin && key < warp.some_end; };
        int stage = 0, before = stages - 1;  // of tiles j and j - 1
        for (int key = begin, j = 0;; key += keys, j++) {
            const bool now = active(key), previous = j > 0 && active(key - keys);
            if constexpr (Role::kCopies) rt::cp_async_wait<ahead - 1>();
            rt::barrier_of_roles(threads);
            load_factors(params, column, j + ahead, raw);
            if constexpr (Role::kCopies) {
                Tile::load(from, j + ahead, before ? before - 1 : stages - 1, key + ahead * keys, end);
                Tile::store(params, location, j + ahead + 1, key + (ahead + 1) * keys, end);
                location = Tile::find(params, key + (ahead + 2) * keys, end);
            }
            role.before_maxima(j, key, now, previous, M::stage_tile(stage), M::stage_tile(before));
            rt::barrier_of_roles(threads);
            store_factors(params, column, j + ahead, raw);
            role.behind_maxima(j, now, previous, M::stage_tile(before));
            if (key >= end) break;
            before = stage;
            stage = stage + 1 == stages ? 0 : stage + 1;
        }
        rt::cp_async_wait<0>();
    }
    struct Scores {
        static constexpr bool kCopies = false;
        const WarpPart<M>& w;
        const float unit;
        const int warp, key0;
        Query q;
        PerRow m, l;
        Acc score[1][1];
        FA_MEMBER Scores(const WarpPart<M>& part, float unit_of_scores, bool f16)
            : w(part), unit(unit_of_scores), warp(part.column_warp - kColumnWarps), key0(warp * kScoreKeys) {
            load_q(f16, q);
            FA_UNROLL_FOR (int r = 0; r < 2; r++) m[0][r] = kNegInf, l[0][r] = 0.f;
        }
        FA_MEMBER void before_maxima(int j, int key, bool now, bool, const char* tile, const char*) {
            if (!now) return;
            const typename M::Shared& shared = M::shared();
            multiply_q(q, tile, key0, j, score[0][0]);
            const bool full = key >= w.full_begin && key < w.full_end, has_missing = shared.missing[j % M::kLocationTiles] == j;
            if (!full || has_missing)
                M::mask_scores(w.row0, key + key0, has_missing ? shared.location[j % M::kLocationTiles] + key0 : nullptr, score);
            PerRow row_max;
            M::max_of_scores(score, m, row_max);
            if (Acc::first_of_row())
                FA_UNROLL_FOR (int r = 0; r < 2; r++) exchange().row_max[warp][Acc::row(r)] = row_max[0][r];
        }
        FA_MEMBER void behind_maxima(int j, bool now, bool, const char*) {
            if (!now) return;
            PerRow row_max, factor, exp2_offset;
            FA_UNROLL_FOR (int r = 0; r < 2; r++) {
                row_max[0][r] = exchange().row_max[0][Acc::row(r)];
                FA_UNROLL_FOR (int i = 1; i < kScoreWarps; i++) row_max[0][r] = max_fn(row_max[0][r], exchange().row_max[i][Acc::row(r)]);
            }
            float unit_now = unit;
            M::move_row_max(0.f, unit_now, score, row_max, m, factor, exp2_offset);
            FA_UNROLL_FOR (int r = 0; r < 2; r++) {
                l[0][r] *= factor[0][r];
                if (warp == 0 && Acc::first_of_row()) exchange().rescale[j % 2][Acc::row(r)] = factor[0][r];
            }
            M::apply_exp2(0, unit_now, exp2_offset, score, l);
            store_probs(warp, key0, j, score[0][0]);
        }
        FA_MEMBER void publish() const {
            FA_UNROLL_FOR (int r = 0; r < 2; r++) {
                const float sum = Acc::sum_of_row(l[0][r]);
                if (!Acc::first_of_row()) continue;
                exchange().row_sum[warp][Acc::row(r)] = sum;
                if (warp == 0) exchange().final_max[Acc::row(r)] = m[0][r];
            }
        }
    };
    struct Columns {
        static constexpr bool kCopies = true;
        const WarpPart<M>& w;
        Acc (&o)[M::kColumnSteps];
        LatentFactors factors[kParts];
        FA_MEMBER void before_maxima(int j, int, bool, bool previous, const char*, const char* tile) {
            if (!previous) return;
            rescale(w, j - 1, factors, o);
            multiply_v(w, tile, j - 1, 0, kScoreWarps / 2, o);
        }
        FA_MEMBER void behind_maxima(int j, bool, bool previous, const char* tile) {
            if (previous) multiply_v(w, tile, j - 1, kScoreWarps / 2, kScoreWarps, o);
        }
        FA_MEMBER void apply_units() const {
            FA_UNROLL_FOR (int c = 0; c < M::kColumnSteps; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                    o[c].x[e] = factors[c / Tile::kPartSteps].output_unit(o[c].x[e], is_tail(w, c / Tile::kPartSteps));
        }
    };
    FA_MEMBER static float run(const MmaForwardParams& params, const WarpPart<M>& warp, int begin, int end, float unit, PerRow& m,
                               PerRow& l, Acc (&o)[M::row_tiles][M::kColumnSteps]) {
        const bool computes_scores = warp.column_warp >= kColumnWarps;
        const bool f16 = begin_tiles(params, !computes_scores, begin, end);
        if (computes_scores) {
            Scores scores(warp, unit, f16);
            iterate(params, warp, begin, end, scores);
            scores.publish();
            FA_UNROLL_FOR (int c = 0; c < M::kColumnSteps; c++) o[0][c] = Acc{};  // no register keeps them through the loop
        } else {
            Columns columns{warp, o[0], {}};
            iterate(params, warp, begin, end, columns);
            columns.apply_units();
        }
        rt::barrier();
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const int row = Acc::row(r);
            m[0][r] = exchange().final_max[row];
            l[0][r] = 0.f;
            if (Acc::first_of_row())
                FA_UNROLL_FOR (int i = 0; i < kScoreWarps; i++) l[0][r] += exchange().row_sum[i][row];
        }
        return unit;
    }
};

}  // namespace gpu
}  // namespace fa
