// The products of a warp of the forward's mma kernel, S = q kᵀ and O += P v, for policies whose k and v are q's type: fragments are read
// some products before their use. Policies name the products that they take (Mma::Products); those of other layouts derive from these.
#pragma once
#include "gpu/common/mma_params.h"
#include "gpu/mma/common.h"

namespace fa {
namespace gpu {

template <class M>
struct MmaProducts {
    using Mma = typename M::Policy;
    using Acc = typename M::Acc;
    using FragmentA = typename Mma::FragmentA;
    using FragmentB = typename Mma::FragmentB;
    using Held = FragmentA[M::row_tiles][M::kHoldQ ? M::kSteps : 1];
    using Score = Acc[M::row_tiles][M::kKeyTiles];
    using Output = Acc[M::row_tiles][M::kAccs];

    // q's tile into shared memory, by all threads.
    FA_MEMBER static void load_q(const MmaForwardParams& params) {
        if (params.q_width != 16) return M::load_q_narrow(params);
        M::load_q_vectors(params);
    }
    // A warp's rows of it, where they stay in registers.
    FA_MEMBER static void hold_q(const MmaForwardParams& params, int row0, Held& q) {
        const auto ptr = M::q_ptr(params, row0, rt::thread() % Mma::kLanes);
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
            FA_UNROLL_FOR (int step = 0; step < M::kSteps; step++) M::load_q_tile(q[i][step], ptr, i, step);
    }
    // Where a lane reads q's tiles that no register holds.
    FA_MEMBER static auto q_ptr(const MmaForwardParams& params, int row0, int lane) {
        if constexpr (M::kHoldQ) return 0;
        else return M::q_ptr(params, row0, lane);
    }
    // loop(type): over the keys, with the type of k and v as a C++ type or, to keep one loop for all of them, as a number.
    template <Kind kind, class Loop>
    FA_MEMBER static float by_type(int32_t dtype, Loop loop) {
        return loop(dtype);
    }
    // Does a loop read pages and rows alike?
    static constexpr bool kReadsPages = false;
    // What the outputs are to be multiplied by; `any`: are there keys?
    FA_MEMBER static float v_factor(const MmaForwardParams& params, bool any) { return any ? M::descale(params.v_descale) : 1.f; }

    // Before a tile of k is read.
    template <class Type>
    FA_MEMBER static void prepare_keys(Type, char*) {}
    // When all keys have been: must the block go through them again?
    FA_MEMBER static bool begins_again() { return false; }

    // Scores of a tile of keys, added to zeros.
    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type, const Held& held, const char* k, int row0, int key0,
                                     Score& score) {
        constexpr int all = M::kSteps * M::kKeyTiles, ahead = M::kPrefetch;
        const auto q_ptr = MmaProducts::q_ptr(params, row0, rt::thread() % Mma::kLanes);
        const auto k_ptr = Mma::template k_ptr<M::kRowBytes>(k, key0);
        FragmentA q[2][M::row_tiles];
        FragmentB right[ahead + 1];
        const auto load_step = [&](int step) {
            if constexpr (!M::kHoldQ) {
                FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) M::load_q_tile(q[step % 2][m], q_ptr, m, step);
            }
        };
        const auto load = [&](int i) {
            Mma::template load_k<M::kRowBytes>(right[i % (ahead + 1)], k_ptr, M::kTile * (i % M::kKeyTiles) * M::kRowBytes,
                                               i / M::kKeyTiles);
        };
        if constexpr (!M::kHoldQ) load_step(0);
        FA_UNROLL_FOR (int i = 0; i < ahead && i < all; i++) load(i);
        FA_UNROLL_FOR (int i = 0; i < all; i++) {
            const int step = i / M::kKeyTiles, n = i % M::kKeyTiles;
            if constexpr (!M::kHoldQ)
                if (n == 0 && step + 1 < M::kSteps) load_step(step + 1);
            if (i + ahead < all) load(i + ahead);
            FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                Mma::mma(score[m][n], M::kHoldQ ? held[m][step % (M::kHoldQ ? M::kSteps : 1)] : q[step % 2][m], right[i % (ahead + 1)]);
        }
    }

    // l and o so far, for references that have moved.
    FA_MEMBER static void rescale(const typename M::PerRow& factor, typename M::PerRow& l, Output& o) {
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) l[i][r] *= factor[i][r];
        rescale_outputs(factor, o);
    }
    FA_MEMBER static void rescale_outputs(const typename M::PerRow& factor, Output& o) {
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
            FA_UNROLL_FOR (int c = 0; c < M::kAccs; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) o[i][c].x[e] *= factor[i][Acc::lane_row(e)];
    }

    // Outputs of a tile of keys. compute_probs(n) makes probabilities of the scores of its n-th 16 keys: one ahead, so that the products of
    // one overlap the exponentials of the next.
    template <class Type, class Probs>
    FA_MEMBER static void add_outputs(Type, Score& score, Probs compute_probs, const char* v, int key0, int column_warp, Output& o) {
        constexpr int all = M::kColumnSteps * M::kKeyTiles, ahead = M::kPrefetch;
        const auto ptr = Mma::template v_ptr<M::kRowBytes, M::keys>(v, key0);
        FragmentA left[M::row_tiles];
        FragmentB right[ahead + 1];
        const auto own = [&] {
            if constexpr (M::column_warps > 1) return Mma::advance(ptr, column_warp * M::kColumnSteps);
            else return ptr;
        }();
        const auto load = [&](int i) {
            Mma::template load_v<M::kRowBytes, M::keys>(right[i % (ahead + 1)], own, i / M::kColumnSteps, i % M::kColumnSteps);
        };
        FA_UNROLL_FOR (int i = 0; i < ahead && i < all; i++) load(i);
        compute_probs(0);
        FA_UNROLL_FOR (int j = 0; j < all; j++) {
            const int n = j / M::kColumnSteps, c = j % M::kColumnSteps;
            if (c == 0) {
                FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::round_probs(left[i], score[i][n]);
                if (n + 1 < M::kKeyTiles) compute_probs(n + 1);
            }
            if (j + ahead < all) load(j + ahead);
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::mma(o[i][c], left[i], right[j % (ahead + 1)]);
        }
    }
    // When all have been added.
    FA_MEMBER static void finish_outputs(Output&) {}
};

}  // namespace gpu
}  // namespace fa
