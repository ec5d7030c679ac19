// The products of f32 by three of tf32 each (MmaTf32): chains of a few, whose results are added by FADD.
#pragma once
#include "gpu/mma/products.h"

namespace fa {
namespace gpu {

template <class M>
struct SplitProducts : MmaProducts<M> {
    using Base = MmaProducts<M>;
    using typename Base::Acc, typename Base::FragmentA, typename Base::FragmentB, typename Base::Held, typename Base::Mma,
        typename Base::Output, typename Base::Score;

    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type, const Held&, const char* k, int row0, int key0, Score& score) {
        constexpr int chain = 2;  // of steps
        // Registers are too few to keep where q is read from tile to tile.
        const int lane = (M::dims == 64 ? rt::opaque(rt::thread()) : rt::thread()) % Mma::kLanes;
        const auto q_ptr = Base::q_ptr(params, row0, lane);
        const auto k_ptr = Mma::template k_ptr<M::kRowBytes>(k, key0);
        for (int step = 0; step < M::kSteps; step += chain) {
            FragmentA q[M::row_tiles][chain];
            FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                FA_UNROLL_FOR (int c = 0; c < chain; c++) M::load_q_tile(q[m][c], q_ptr, m, step + c);
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) {
                FragmentB right[chain];
                FA_UNROLL_FOR (int c = 0; c < chain; c++)
                    Mma::template load_k<M::kRowBytes>(right[c], k_ptr, M::kTile * n * M::kRowBytes, step + c);
                FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) Mma::mma_chain(score[m][n], q[m], right);
            }
        }
    }
    template <class Type, class Probs>
    FA_MEMBER static void add_outputs(Type, Score& score, Probs compute_probs, const char* v, int key0, int, Output& o) {
        const auto ptr = Mma::template v_ptr<M::kRowBytes, M::keys>(v, key0);
        FragmentA left[M::row_tiles][M::kKeyTiles];
        FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) {
            compute_probs(n);
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::round_probs(left[i][n], score[i][n]);
        }
        FA_UNROLL_FOR (int c = 0; c < M::kSteps; c++) {
            FragmentB right[M::kKeyTiles];
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) Mma::template load_v<M::kRowBytes, M::keys>(right[n], ptr, n, c);
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::mma_chain(o[i][c], left[i], right);
        }
    }
};

}  // namespace gpu
}  // namespace fa
