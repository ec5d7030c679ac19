// Products of q and k, and of P and v, where 32 dims of a key share a factor: those of a block are summed by themselves. For mma/forward.h.
#pragma once
#include "gpu/mma/scores.h"

namespace fa {
namespace gpu {

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaBlockProducts : MmaScores<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident> {
    using Block = MmaScores<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    using Acc = typename Block::Acc;
    using Block::kColumnSteps, Block::kHoldQ, Block::kKeyTiles, Block::kRowBytes, Block::kSteps, Block::kTile, Block::shared;

    template <class Type, class QPtr>
    FA_MEMBER static void add_block_scores(Type type, const typename Mma::FragmentA (&held)[RowTiles][kHoldQ ? kSteps : 1],
                                           const QPtr& q_ptr, const char* k, int key0, Acc score[RowTiles][kKeyTiles]) {
        const auto k_ptr = Mma::template k_ptr<kRowBytes>(k, key0);
        const char* const factors = Mma::template factor_ptr<kRowBytes>(k, key0);
        typename Mma::FragmentA q[RowTiles][kHoldQ ? 1 : 2];
        FA_UNROLL_FOR (int block = 0; block < kSteps / 2; block++) {
            if constexpr (!kHoldQ) {
                FA_UNROLL_FOR (int m = 0; m < RowTiles; m++)
                    FA_UNROLL_FOR (int c = 0; c < 2; c++) Block::load_q_tile(q[m][c], q_ptr, m, 2 * block + c);
            }
            const auto q_tile = [&](int m, int c) -> const auto& {
                return kHoldQ ? held[m][kHoldQ ? 2 * block + c : 0] : q[m][kHoldQ ? 0 : c];
            };
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
                Mma::in_loop(type, [&](auto known) {
                    typename Mma::FragmentB right[2];
                    float factor[Mma::kFactors];
                    Mma::template load_k<decltype(known), kRowBytes>(right, k_ptr + kTile * n * kRowBytes, block);
                    Mma::template load_factors<decltype(known), kRowBytes>(factor, factors + kTile * n * kRowBytes, block);
                    if constexpr (!Mma::kScaled && KeyWarps > 1)  // see MmaForward::kWatches
                        FA_UNROLL_FOR (int i = 0; i < Mma::kFactors; i++) factor[i] = fmaf(0.f, factor[i], factor[i]);
                    if constexpr (Mma::kScaled)
                        if (shared().tile.features & kKeyHalves) {
                            float second[Mma::kFactors];
                            Mma::template load_offsets<kRowBytes>(second, factors + kTile * n * kRowBytes, block);
                            FA_UNROLL_FOR (int m = 0; m < RowTiles; m++)
                                FA_UNROLL_FOR (int c = 0; c < 2; c++) {
                                    Acc products{};
                                    Mma::mma(products, q_tile(m, c), right[c]);
                                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                                        score[m][n].x[e] = fmaf(products.x[e], (c ? second : factor)[Mma::factor_of(e)], score[m][n].x[e]);
                                }
                            return;
                        }
                    FA_UNROLL_FOR (int m = 0; m < RowTiles; m++) {
                        Acc products{};
                        FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma(products, q_tile(m, c), right[c]);
                        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                            score[m][n].x[e] = fmaf(products.x[e], factor[Mma::factor_of(e)], score[m][n].x[e]);
                    }
                });
            if constexpr (Mma::kScaled)
                if (shared().tile.features & kKeyOffsets)
                    FA_UNROLL_FOR (int m = 0; m < RowTiles; m++) {
                        Acc q_sum{};  // of rows of q over the block
                        FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma(q_sum, q_tile(m, c), Mma::template ones<typename Mma::Element>());
                        FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                            float offset[Mma::kFactors];
                            Mma::template load_offsets<kRowBytes>(offset, factors + kTile * n * kRowBytes, block);
                            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                                score[m][n].x[e] = fmaf(q_sum.x[e], offset[Mma::factor_of(e)], score[m][n].x[e]);
                        }
                    }
        }
    }

    // The probabilities of key tile n.
    template <class Type, class VPtr>
    FA_MEMBER static void add_block_outputs(Type type, Acc score[RowTiles][kKeyTiles], const VPtr& ptr, const char* factors, int n,
                                            Acc o[RowTiles][kColumnSteps]) {
        FA_UNROLL_FOR (int block = 0; block < kSteps / 2; block++)
            Mma::in_loop(type, [&](auto known) {
                typename Mma::FragmentB right[2];
                float factor[Mma::kFactors];
                Mma::template load_v<decltype(known), kRowBytes>(right, ptr + kTile * n * kRowBytes, block);
                Mma::template load_factors<decltype(known), kRowBytes>(factor, factors + kTile * n * kRowBytes, block);
                if constexpr (Mma::kScaled)
                    if (shared().tile.features & kValueOffsets) {
                        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
                            Mma::add_both_parts(o[i] + 2 * block, score[i][n], factor, right[0], right[1]);
                        const typename Mma::FragmentB ones = Mma::template ones<Bf16>();
                        Mma::template load_offsets<kRowBytes>(factor, factors + kTile * n * kRowBytes, block);
                        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) Mma::add_both_parts(o[i] + 2 * block, score[i][n], factor, ones, ones);
                        return;
                    }
                if constexpr (Mma::kScaled)
                    if (shared().tile.features & kValueHalves) {
                        float second[Mma::kFactors];
                        Mma::template load_offsets<kRowBytes>(second, factors + kTile * n * kRowBytes, block);
                        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
                            FA_UNROLL_FOR (int c = 0; c < 2; c++) {
                                typename Mma::FragmentA left, rest;
                                Mma::round_products(left, rest, score[i][n], c ? second : factor);
                                Mma::mma_v(o[i][2 * block + c], left, rest, right[c]);
                            }
                        return;
                    }
                FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) {
                    typename Mma::FragmentA left, rest;
                    Mma::round_products(left, rest, score[i][n], factor);
                    FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma_v(o[i][2 * block + c], left, rest, right[c]);
                }
            });
    }
};

}  // namespace gpu
}  // namespace fa
