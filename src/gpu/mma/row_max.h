// The references of rows in the online softmax: maxima of the scores so far. For mma/forward.h.
#pragma once
#include "gpu/mma/scores.h"

namespace fa {
namespace gpu {

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaRowMax : MmaScores<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident> {
    using Block = MmaScores<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    using Acc = typename Block::Acc;
    using PerRow = typename Block::PerRow;
    using Block::kKeyTiles, Block::scale_scores;

    // Updates m by the maxima of the scores; returns in `factor` what l and o so far are to be multiplied by, and in `exp2_offset`
    // what is to be added to the scores before exp2. m is in the units of the scores, which `unit` takes to log2. A fused
    // multiplication's exact product may exceed the rounded reference by that one's rounding: where this is not small, scores are
    // multiplied and rounded first, as the reference is. Loops run over rows innermost: chains of maxima, and below of sums, that
    // do not wait for each other.
    // Where a policy has a kLag, a row keeps its m until the maximum is `lag` larger, in log2 units; false: no row of the wave has moved.
    FA_MEMBER static bool update_row_max(float lag, float& unit, Acc score[RowTiles][kKeyTiles], PerRow& m, PerRow& factor,
                                         PerRow& exp2_offset) {
        PerRow row_max;
        max_of_scores(score, m, row_max);
        return move_row_max(lag, unit, score, row_max, m, factor, exp2_offset);
    }
    template <int tiles>
    FA_MEMBER static void max_of_scores(const Acc (*score)[tiles], const PerRow& m, PerRow& row_max) {
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) row_max[i][r] = m[i][r];
        FA_UNROLL_FOR (int n = 0; n < tiles; n++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) {
                    float& t = row_max[i][Acc::lane_row(e)];
                    t = max_fn(t, score[i][n].x[e]);
                }
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) row_max[i][r] = Acc::max_of_row(row_max[i][r]);
    }
    // row_max: of all scores of the tile and of m.
    template <int tiles>
    FA_MEMBER static bool move_row_max(float lag, float& unit, Acc (*score)[tiles], PerRow& row_max, PerRow& m, PerRow& factor,
                                       PerRow& exp2_offset) {
        constexpr float kLarge = 0x1p+16f;
        bool large = false, moves = Mma::kLag == 0.f;
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                if constexpr (Mma::kLag > 0.f) {
                    const bool row_moves = !(row_max[i][r] * unit <= fmaf(m[i][r], unit, lag));
                    row_max[i][r] = row_moves ? row_max[i][r] : m[i][r];
                    moves |= row_moves;
                }
                const float row_ref = safe_max(row_max[i][r]) * unit;
                large |= fabsf(row_ref) > kLarge;
                const float moved = rt::exp2_fast(m[i][r] * unit - row_ref);
                factor[i][r] = m[i][r] == kNegInf ? 1.f : moved;
                m[i][r] = row_max[i][r];
                exp2_offset[i][r] = Mma::kExponent == 0.f ? -row_ref : Mma::kExponent - row_ref;
            }
        const bool any_moves = Mma::kLag == 0.f || rt::warp_any(moves);
        // Beside a large reference the offset's exponent would be rounded: there the difference is taken first.
        if (rt::warp_any(large)) {
            scale_scores(score, unit);
            if constexpr (Mma::kExponent != 0.f) {
                FA_UNROLL_FOR (int n = 0; n < tiles; n++)
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) score[i][n].x[e] -= safe_max(m[i][Acc::lane_row(e)]) * unit;
                FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
                    FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) exp2_offset[i][r] = Mma::kExponent;
            }
            unit = 1.f;
        }
        return any_moves;
    }
};

}  // namespace gpu
}  // namespace fa
