// The backward kernels on matrix cores: head dimensions up to 512 (f32: 128), every option. backward/mma_block.h has what surrounds the
// arithmetic, mma_sync.h the products of tiles.
//
// By keys: a block owns a tile of keys, whose dk and dv stay in registers while the rows of all query heads of the group are
// streamed past it; what the tile adds to those rows' dq goes to f32 sums in global memory (dq_acc), by atomic additions. By rows:
// a block owns a tile of rows and their dq, and keys are streamed; nothing is shared, so dq has the same bits every time, for two
// products more.
//
// Either way the tiles P and dS, [owned][streamed], go through shared memory, because the products that follow distribute them over
// the warps differently: a warp first has its owned rows times its share of the streamed ones, then the same rows times its share of
// the columns. With two stages, the next streamed tile is copied while this one is worked on. With one, each of its operands is copied
// when the last product of the present one's is done, and arrives during the products that follow.
#pragma once
#include "gpu/backward/mma_block.h"

namespace fa {
namespace gpu {

// Gradients of scores in a type with a narrow range of exponents: they are multiplied by `unit`, a power of two that makes the
// largest of the first tile about 2^kDsTargetExponent, and is made smaller when a tile has one beyond kMaxDs.
constexpr int kDsTargetExponent = 12;
constexpr float kMaxDs = 0x1p+15f;

template <class M>
struct MmaBackward {
    using Mma = typename M::Policy;
    using Acc = typename M::Acc;
    using FragmentA = typename Mma::FragmentA;
    using FragmentB = typename Mma::FragmentB;
    using Tile = typename M::Tile;
    using Shared = typename M::Shared;
    static constexpr int kTile = M::kTile, kOwnTiles = M::kOwnTiles;
    using Scores = Acc[kOwnTiles][M::kShareTiles];
    using Columns = Acc[kOwnTiles][M::kColumnSteps];
    static constexpr int kPrefetch = 1;  // fragments that are read before their use

    // Where a warp works: its owned rows, its share of the streamed ones, and of the columns of what it owns.
    struct Warp {
        int own0, share0, step0;
        bool writes;  // does it write its share of the probabilities?
        FA_MEMBER Warp() {
            const int warp = rt::warp_uniform(rt::opaque(rt::thread()) / Mma::kLanes), across = warp % (M::kSteps / M::kColumnSteps),
                      down = warp / (M::kSteps / M::kColumnSteps);
            own0 = kTile * kOwnTiles * down;
            share0 = M::kShare * (across % M::kShareWarps);
            writes = M::kShareWarps == M::kSteps / M::kColumnSteps || across < M::kShareWarps;
            step0 = M::kColumnSteps * across;
        }
    };

    // A lane's number, and where registers are full an opaque one: what is derived from it is then computed where it is used, and
    // takes no register meanwhile.
    FA_MEMBER static int lane_anew() {
        constexpr bool full = Mma::kSplitTf32 || M::columns > 128;
        return (full ? rt::opaque(rt::thread()) : rt::thread()) % Mma::kLanes;
    }

    template <int n>
    FA_MEMBER static void clear(Acc (&acc)[kOwnTiles][n]) {
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int c = 0; c < n; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) acc[m][c].x[e] = 0.f;
    }
    template <int n>
    FA_MEMBER static void scale(Acc (&acc)[kOwnTiles][n], float factor) {
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int c = 0; c < n; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) acc[m][c].x[e] *= factor;
    }
    // acc += left · right, of `steps` tiles deep. load_left(to, m, step), load_right(to, step, c): read a fragment. Of f32 a
    // step's fragments take many registers: those of a chain are all read first, and the loop is not unrolled, or the compiler
    // would read ahead until it spills.
    template <int steps, int n, class LoadLeft, class LoadRight>
    FA_MEMBER static void gemm(Acc (&acc)[kOwnTiles][n], LoadLeft load_left, LoadRight load_right) {
        if constexpr (Mma::kSplitTf32) return mma_chains<steps>(acc, load_left, load_right);
        else return mma_prefetched<steps>(acc, load_left, load_right);
    }
    template <int steps, int n, class LoadLeft, class LoadRight>
    FA_MEMBER static void mma_chains(Acc (&acc)[kOwnTiles][n], LoadLeft load_left, LoadRight load_right) {
        constexpr int chain = 2;
        FA_UNROLL_BY(1)
        for (int step = 0; step < steps; step += chain) {
            FragmentA left[kOwnTiles][chain];
            FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
                FA_UNROLL_FOR (int i = 0; i < chain; i++) load_left(left[m][i], m, step + i);
            FA_UNROLL_FOR (int c = 0; c < n; c++) {
                FragmentB right[chain];
                FA_UNROLL_FOR (int i = 0; i < chain; i++) load_right(right[i], step + i, c);
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) Mma::template mma_chain<false>(acc[m][c], left[m], right);
            }
        }
    }
    template <int steps, int n, class LoadLeft, class LoadRight>
    FA_MEMBER static void mma_prefetched(Acc (&acc)[kOwnTiles][n], LoadLeft load_left, LoadRight load_right) {
        constexpr int all = steps * n;
        FragmentA left[2][kOwnTiles];
        FragmentB right[kPrefetch + 1];
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) load_left(left[0][m], m, 0);
        FA_UNROLL_FOR (int i = 0; i < kPrefetch && i < all; i++) load_right(right[i], i / n, i % n);
        FA_UNROLL_FOR (int i = 0; i < all; i++) {
            const int step = i / n, c = i % n, next = i + kPrefetch;
            if (c == 0 && step + 1 < steps)
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) load_left(left[(step + 1) % 2][m], m, step + 1);
            if (next < all) load_right(right[next % (kPrefetch + 1)], next / n, next % n);
            FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) Mma::mma(acc[m][c], left[step % 2][m], right[i % (kPrefetch + 1)]);
        }
    }

    // Owned rows times streamed ones, over all dims.
    FA_MEMBER static void gemm_rows(const char* owned, const char* streamed, const Warp& warp, Scores& score) {
        const auto own = Mma::template q_ptr<M::kRowBytes>(owned, rt::opaque(warp.own0), lane_anew());
        const auto pass = Mma::template k_ptr<M::kRowBytes>(streamed, rt::opaque(warp.share0), lane_anew());
        clear(score);
        gemm<M::kSteps>(
            score, [&](FragmentA& a, int m, int step) { Mma::load_q(a, own, kTile * m * M::kRowBytes, step); },
            [&](FragmentB& b, int step, int n) { Mma::template load_k<M::kRowBytes>(b, pass, kTile * n * M::kRowBytes, step); });
    }
    // Adds P or dS of the owned rows, from shared memory, times the streamed rows.
    FA_MEMBER static void gemm_columns(const char* left_tile, const char* streamed, const Warp& warp, Columns& acc) {
        const auto own = Mma::template q_ptr<M::kProbRowBytes>(left_tile, rt::opaque(warp.own0), lane_anew());
        const auto pass = Mma::advance(Mma::template v_ptr<M::kRowBytes, M::stream_rows>(streamed, rt::opaque(0), lane_anew()), warp.step0);
        gemm<M::stream_rows / kTile>(
            acc, [&](FragmentA& a, int m, int step) { Mma::load_q(a, own, kTile * m * M::kProbRowBytes, step); },
            [&](FragmentB& b, int step, int c) { Mma::template load_v<M::kRowBytes, M::stream_rows>(b, pass, step, c); });
    }
    // The tile at hand: which rows and keys meet in a warp's part of it.
    struct Part {
        int stream0, head, stage;  // head: from the first of the block
        bool full;
    };
    // Adds a tile's part to its rows' dq, in global memory: rows beyond a sequence's, and columns beyond a head's, have room there.
    FA_MEMBER static void add_dq(const MmaBackwardParams& params, const Part& part, int buffer, float factor) {
        const int warp = rt::warp_uniform(rt::opaque(rt::thread()) / Mma::kLanes), row0 = warp % M::kDqWarps * M::kDqRows,
                  step0 = warp / M::kDqWarps * M::kDqSteps;
        const auto rows =
            Mma::advance(Mma::template transposed_ptr<M::kProbRowBytes>(M::ds_tile(buffer), rt::opaque(0), lane_anew()), row0 / kTile);
        const auto keys = Mma::advance(Mma::template v_ptr<M::kRowBytes, M::own>(M::owned(0), rt::opaque(0), lane_anew()), step0);
        const int64_t row = M::shared().tile.row0 + part.head * params.padded_rows + part.stream0;
        float* const to = params.dq_acc + dq_acc_index(row + row0, 16 * step0, M::columns) + rt::opaque(rt::thread()) % 32 * 4;
        if constexpr (M::kDqPassSteps == M::kDqSteps) {
            add_dq_pass(rows, keys, to, factor);
        } else {
            FA_UNROLL_BY(1)
            for (int step = 0; step < M::kDqSteps; step += M::kDqPassSteps)
                add_dq_pass(rows, Mma::advance(keys, step), to + dq_acc_index(0, 16 * step, M::columns), factor);
        }
    }
    template <class Rows, class Keys>
    FA_MEMBER static void add_dq_pass(const Rows& rows, const Keys& keys, float* to, float factor) {
        Acc acc[kOwnTiles][M::kDqPassSteps];
        clear(acc);
        gemm<M::own / kTile>(
            acc,
            [&](FragmentA& a, int m, int step) {
                Mma::template load_transposed<M::kProbRowBytes>(a, rows, kTile * step * M::kProbRowBytes, m);
            },
            [&](FragmentB& b, int step, int c) { Mma::template load_v<M::kRowBytes, M::own>(b, keys, step, c); });
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int c = 0; c < M::kDqPassSteps; c++)
                FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                    const float* const of = acc[m][c].x + 2 * r;
                    rt::red_add4(to + dq_acc_index(16 * m + 8 * r, 16 * c, M::columns), of[0] * factor, of[1] * factor, of[4] * factor,
                                 of[5] * factor);
                }
    }

    // ---- from scores to probabilities

    // Element e of a warp's scores (m, n): which row and key it belongs to. row_at: among those whose numbers are there.
    struct ScorePosition {
        Warp w;
        int own0, stream0, stage;
        FA_MEMBER explicit ScorePosition(const Part& part) : own0(M::shared().tile.first), stream0(part.stream0), stage(part.stage) {}
        FA_MEMBER int own_at(int m, int e) const { return w.own0 + kTile * m + Acc::row(Acc::lane_row(e)); }
        FA_MEMBER int stream_at(int n, int e) const { return w.share0 + kTile * n + Acc::column(e); }
        FA_MEMBER int row(int m, int n, int e) const { return M::by_rows ? own0 + own_at(m, e) : stream0 + stream_at(n, e); }
        FA_MEMBER int key(int m, int n, int e) const { return M::by_rows ? stream0 + stream_at(n, e) : own0 + own_at(m, e); }
        FA_MEMBER int row_at(int m, int n, int e) const { return M::by_rows ? own_at(m, e) : stream_at(n, e); }
    };
    // A bit for each score of owned tile m: set where the key lies in its row's band.
    FA_MEMBER static uint32_t visible_scores(const ScorePosition& position, int m) {
        const Shared& shared = M::shared();
        uint32_t visible = 0;
        FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                const typename M::Band band = shared.band[position.stage][position.row_at(m, n, e)];
                const int key = position.key(m, n, e);
                visible |= uint32_t(key >= band.begin && key < band.end) << (n * Acc::kElements + e);
            }
        return visible;
    }
    // Of `visible`, those that the mask keeps, or dropout. Loops that are not unrolled, without the scores: they leave few
    // registers.
    FA_COLD_MEMBER static uint32_t masked_scores(const MmaBackwardParams& params, const Part& part, int m, uint32_t visible) {
        const Tile& tile = M::shared().tile;
        const int64_t* stride = params.mask_stride;
        const ScorePosition position(part);
        const uint8_t* const mask = params.mask + tile.batch * stride[0] + (tile.head0 + part.head) * stride[1];
        for (int i = 0; i < M::kShareTiles * Acc::kElements; i++) {
            const int n = i / Acc::kElements, e = i % Acc::kElements;
            if ((visible >> i & 1) && !mask[position.row(m, n, e) * stride[2] + position.key(m, n, e) * stride[3]]) visible &= ~(1u << i);
        }
        return visible;
    }
    FA_COLD_MEMBER static uint32_t kept_scores(const Part& part, int m) {
        const Tile& tile = M::shared().tile;
        const ScorePosition position(part);
        uint32_t kept = 0;
        for (int i = 0; i < M::kShareTiles * Acc::kElements; i++) {
            const int n = i / Acc::kElements, e = i % Acc::kElements;
            kept |= uint32_t(keeps(tile.dropout, tile.head0 + part.head, position.row(m, n, e), position.key(m, n, e))) << i;
        }
        return kept;
    }
    FA_MEMBER static float load_bias(const MmaBackwardParams& params, int64_t at) {
        if (params.bias_dtype == FA_F32) return static_cast<const float*>(params.bias)[at];
        const uint16_t bits = static_cast<const uint16_t*>(params.bias)[at];
        return params.bias_dtype == FA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    // A product to its score in log2 units, and the softcap's slope there.
    FA_MEMBER static float apply_score_mods(const MmaBackwardParams& params, const Tile& tile, float product, int head, int row, int key,
                                            bool visible, float& slope) {
        float score = product * (params.scale * Mma::kScoreUnit);
        if (tile.features & kSoftcap) {
            const float tanh_s = Mma::tanh(score / params.softcap);
            score = params.softcap * tanh_s;
            slope = (1.f - tanh_s) * (1.f + tanh_s);
        }
        if (tile.features & kBias && visible) {
            const int64_t* stride = params.bias_stride;
            const float bias = load_bias(params, tile.batch * stride[0] + head * stride[1] + row * stride[2] + key * stride[3]);
            score = bias == kNegInf ? kNegInf : score + bias;
        }
        if (tile.features & kAlibi)
            score -= params.alibi_slopes[tile.batch * params.alibi_batch_stride + head] * fabsf(float(row + tile.rule.off - key));
        return score * kLog2e;
    }
    // Products of q and k become probabilities, those of dout and v the gradients of scores.
    template <class Tiles>
    FA_MEMBER static void softmax_backward(const MmaBackwardParams& params, const Part& part, float unit, Tiles& score, Tiles& grad) {
        const Shared& shared = M::shared();
        const Tile& tile = shared.tile;
        const ScorePosition position(part);
        uint32_t visible[kOwnTiles], kept[kOwnTiles];
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) {
            visible[m] = part.full ? ~0u : visible_scores(position, m);
            kept[m] = ~0u;
            if (!M::plain && tile.features & kMask) visible[m] = masked_scores(params, part, m, visible[m]);
            if (!M::plain && tile.features & kDropout) kept[m] = kept_scores(part, m);
        }
        const bool all = part.full && (M::plain || !(tile.features & kMask));
        const float to_log2 = params.scale * kLog2e * Mma::kScoreUnit, of_delta = unit / Mma::kProbUnit;
        const float of_dp = of_delta * params.dropout_scale * Mma::kScoreUnit;
        FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) {
                    const int i = n * Acc::kElements + e, at = position.row_at(m, n, e);
                    const float lse = shared.lse[part.stage][at], delta = shared.delta[part.stage][at];
                    const bool is_visible = all || (visible[m] >> i & 1);
                    float &p = score[m][n].x[e], &g = grad[m][n].x[e], slope = 1.f;
                    if constexpr (M::plain) {
                        p = rt::exp2_fast(fmaf(p, to_log2, Mma::kProbExponent - lse));
                        g = p * fmaf(g, of_dp, -delta * of_delta);
                    } else {
                        const float final_score = apply_score_mods(params, tile, p, tile.head0 + part.head, position.row(m, n, e),
                                                                   position.key(m, n, e), is_visible, slope);
                        const bool is_kept = kept[m] >> i & 1;
                        p = rt::exp2_fast(Mma::kProbExponent + exponent_below(final_score, lse));
                        g = p * slope * fmaf(is_kept ? g : 0.f, of_dp, -delta * of_delta);
                        if (!is_kept) p = 0.f;
                    }
                    if (!is_visible) p = g = 0.f;
                }
    }

    template <int n>
    FA_MEMBER static void put(char* tile, const Warp& warp, const Acc (&acc)[kOwnTiles][n]) {
        if (!warp.writes) return;
        const auto ptr = Mma::advance(Mma::template prob_ptr<M::kProbRowBytes>(tile, rt::opaque(warp.own0)), warp.share0 / kTile);
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int c = 0; c < n; c++)
                Mma::template store_probs<M::kProbRowBytes>(ptr, kTile * m * M::kProbRowBytes, c, acc[m][c]);
    }
    FA_MEMBER static float unit() { return Mma::kNarrow ? M::shared().unit : 1.f; }
    FA_MEMBER static float inv_unit() { return Mma::kNarrow ? M::shared().inv_unit : 1.f; }
    // New units, by the block's largest gradient: what those that are there already are to be multiplied by.
    FA_COLD_MEMBER static float rescale_ds(float amax) {
        Shared& shared = M::shared();
        FA_UNROLL_FOR (int mask = Mma::kLanes / 2; mask > 0; mask /= 2) amax = max_fn(amax, rt::shuffle_xor32(amax, mask));
        if (rt::thread() % Mma::kLanes == 0) shared.amax[rt::thread() / Mma::kLanes] = amax;
        rt::barrier();
        FA_UNROLL_FOR (int w = 0; w < M::warps; w++) amax = max_fn(amax, shared.amax[w]);
        if (!(amax > 0x1p-100f) || amax == kPosInf) return 1.f;
        const float factor = float_of((uint32_t(2 * 127 + kDsTargetExponent) << 23) - (bits_of(amax) & 0x7f800000u));
        if (rt::thread() == 0) {
            shared.unit *= factor;
            shared.inv_unit = 1.f / shared.unit;
            shared.unit_set = true;
        }
        return factor;
    }
};

// One streamed tile, number i: its part of dk and dv of the block, or of dq. prev: the tile before. reload(n), with one stage: copies the
// next tile's operand n over this one's, which no warp reads any more.
template <class M, class Reload>
FA_DEVICE void process_tile(const MmaBackwardParams& params, const typename MmaBackward<M>::Part& prev,
                            const typename MmaBackward<M>::Part& part, int i, typename MmaBackward<M>::Columns& acc_ds,
                            typename MmaBackward<M>::Columns& acc_p, Reload reload) {
    using G = MmaBackward<M>;
    using Mma = typename M::Policy;
    typename M::Shared& shared = M::shared();
    const typename G::Warp warp;
    const int stage = M::stages == 2 ? i & 1 : 0, buffer = i & 1;
    const bool first_half = warp.own0 < M::own / 2;  // one of each scheduler's two warps
    const auto add_prev = [&] {
        if (i > 0 && params.dq_acc) G::add_dq(params, prev, buffer ^ 1, Mma::kProductUnit);
    };
    if (M::kLate && first_half) add_prev();
    char *const stream0 = M::streamed(stage, 0), *const stream1 = M::streamed(stage, 1);
    if (M::by_rows ? i == 0 && M::zero_empty_rows(0, M::owned(0), M::owned(1)) : M::zero_empty_rows(stage, stream0, stream1)) rt::barrier();

    typename G::Scores score, grad;
    G::gemm_rows(M::owned(0), stream0, warp, score);
    G::gemm_rows(M::owned(1), stream1, warp, grad);
    G::softmax_backward(params, part, G::unit(), score, grad);
    if constexpr (!M::by_rows) G::put(M::p_tile(), warp, score);
    G::put(M::ds_tile(buffer), warp, grad);
    float amax = 0.f;
    if constexpr (Mma::kNarrow) {
        FA_UNROLL_FOR (int m = 0; m < M::kOwnTiles; m++)
            FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++)
                FA_UNROLL_FOR (int e = 0; e < M::Acc::kElements; e++) amax = max_fn(amax, fabsf(grad[m][n].x[e]));
        if (amax > kMaxDs || (!shared.unit_set && amax > 0.f)) shared.overflowed[buffer] = 1;
    }
    if constexpr (M::kLate) rt::named_barrier(1 + warp.own0 / (M::kTile * M::kOwnTiles), Mma::kLanes * (M::kSteps / M::kColumnSteps));
    else rt::barrier();
    if constexpr (Mma::kNarrow) {
        if (rt::opaque(rt::thread()) == 0) shared.overflowed[buffer ^ 1] = 0;
        if (shared.overflowed[buffer]) {
            const float factor = G::rescale_ds(amax);
            G::scale(acc_ds, factor);
            G::scale(grad, factor);
            G::put(M::ds_tile(buffer), warp, grad);
            rt::barrier();
        }
    }
    constexpr bool reloads = M::stages == 1;
    const auto add_own = [&] {
        if (!M::by_rows && !M::kLate && params.dq_acc) G::add_dq(params, part, buffer, Mma::kProductUnit * G::inv_unit());
    };
    if constexpr (!M::by_rows) {
        G::gemm_columns(M::p_tile(), stream1, warp, acc_p);
        if constexpr (reloads) rt::barrier();
    }
    if constexpr (reloads) reload(1);
    else add_own();
    G::gemm_columns(M::ds_tile(buffer), stream0, warp, acc_ds);
    if constexpr (reloads) {
        rt::barrier();
        reload(0);
        add_own();
    }
    if (M::kLate && !first_half) add_prev();
}

// The mainloop over the streamed tiles. A tile is loaded while the one before it is processed.
template <class M>
FA_DEVICE void backward_mainloop(const MmaBackwardParams& params, typename MmaBackward<M>::Columns& acc_ds,
                                 typename MmaBackward<M>::Columns& acc_p) {
    const typename M::Tile& tile = M::shared().tile;  // read each time: registers are scarce
    constexpr bool prefetches = M::stages == 2;
    M::load_owned(params);
    using Part = typename MmaBackward<M>::Part;
    const auto part_of = [&](int head, int tile_index, int stage) {
        return Part{tile_index * M::stream_rows, head, M::by_rows ? 0 : stage, tile_index >= tile.full_begin && tile_index < tile.full_end};
    };
    const auto prev_of = [&](int head, int tile_index) {
        return tile_index == tile.begin ? part_of(head - 1, tile.end - 1, 0) : part_of(head, tile_index - 1, 0);
    };
    const auto next = [&](int& head, int& tile_index) {
        const bool wraps = tile_index + 1 == tile.end;
        tile_index = wraps ? tile.begin : tile_index + 1;
        head += wraps;
    };
    int head = -1, tile_index = tile.end - 1, i = -1;
    for (; tile.begin < tile.end && head < tile.heads; i++) {
        const int stage = prefetches ? i & 1 : 0;
        const Part part = part_of(head, tile_index, stage);
        if (i >= 0) {
            if (M::by_rows ? i == 0 : !part.full) M::init_bands(M::by_rows ? tile.first : part.stream0, part.stage);
            rt::cp_async_wait<0>();
            rt::barrier();
        }
        int next_head = head, next_tile = tile_index;
        next(next_head, next_tile);
        const auto load_next = [&](int operand) {
            if (next_head < tile.heads) M::load_streamed(params, next_head, next_tile, prefetches ? stage ^ 1 : 0, operand);
        };
        if (prefetches || i < 0) load_next(0), load_next(1);
        if (i >= 0) process_tile<M>(params, prev_of(head, tile_index), part, i, acc_ds, acc_p, load_next);
        head = next_head;
        tile_index = next_tile;
    }
    if constexpr (M::kLate) {
        rt::barrier();
        if (i > 0 && params.dq_acc) MmaBackward<M>::add_dq(params, prev_of(head, tile_index), (i - 1) & 1, M::Policy::kProductUnit);
    }
    // Where nothing is streamed, the copies of the owned rows are still in flight, in no group yet.
    rt::cp_async_commit();
    rt::cp_async_wait<0>();
}

// The block's tile; false: it has nothing to do.
template <class M>
FA_DEVICE bool begin_backward_block(const MmaBackwardParams& params) {
    rt::fetch_parameters(params);
    const uint32_t blocks = uint32_t(ceil_div(M::by_rows ? params.sequences.q.seqlen : params.sequences.seqlen_k, M::own)),
                   heads = uint32_t(M::by_rows ? params.heads_q : params.kv_heads);
    const uint32_t index = uint32_t(rt::block()), item = index % blocks, head = index / blocks % heads, batch = index / blocks / heads;
    const uint32_t block = M::by_rows && params.causal ? blocks - 1 - item : item;  // those with the most keys first
    const typename M::Tile& tile = M::shared().tile;
    if (M::initializes(rt::thread())) M::init_block(params, batch, head, int(block) * M::own);
    rt::barrier();
    return tile.valid > 0;
}

template <class M>
FA_DEVICE void run_backward_mma(const MmaBackwardParams& params) {
    using G = MmaBackward<M>;
    if (!begin_backward_block<M>(params)) return;
    const typename M::Tile& tile = M::shared().tile;
    typename G::Columns acc_ds, acc_p;
    G::clear(acc_ds);
    if (!M::by_rows) G::clear(acc_p);
    backward_mainloop<M>(params, acc_ds, acc_p);
    const typename G::Warp warp;
    const float factor = params.scale * M::Policy::kProductUnit * G::inv_unit();
    const auto store = [&](const typename G::Columns& acc, float unit, void* base, const RowStrides& strides, int64_t dim, int64_t first) {
        rt::barrier();
        M::stage_acc(unit, warp.own0, M::kTile * warp.step0, acc);
        rt::barrier();
        if (base) M::store_acc(params, base, strides, dim, first);
    };
    if constexpr (M::by_rows) {
        store(acc_ds, factor, params.dq, params.dq_strides, params.dim_qk,
              query_index(params.dq_strides, tile.seq, tile.batch, tile.first, tile.head0));
    } else {
        const KeyLocation at{tile.batch, tile.seq.k_begin + tile.first, true};
        store(acc_ds, factor, params.dk, params.dk_strides, params.dim_qk, key_index(params.dk_strides, at, tile.kv_head));
        const float of_dv = params.dropout_scale * M::Policy::kProductUnit / M::Policy::kProbUnit;
        store(acc_p, of_dv, params.dv, params.dv_strides, params.dim_v, key_index(params.dv_strides, at, tile.kv_head));
    }
}

template <class M>
FA_KERNEL void FA_BOUNDS(M::threads, M::resident) backward_mma(FA_PARAM MmaBackwardParams params) {
    if constexpr (rt::kHasMma) run_backward_mma<M>(params);
}

}  // namespace gpu
}  // namespace fa
