// The mainloop of latent attention: mma/forward.h's kernel where v is the first 512 dims of k (latent/policies.h). The four warps that
// share rows have 128 dims each, of k as of v. A warp multiplies its own dims, of all keys of a tile, with its part of q, which it keeps in
// registers; the four sums meet in shared memory, from where each warp takes the scores, computes the same probabilities, and multiplies
// them with its dims as v. So each value of a tile is read twice and widened twice, by the same warp, and no score is computed twice but
// for its exponential.
//
// Stored bytes have a factor for each key and 128 dims, a warp's own, or 64: it multiplies the warp's sum, and the probabilities before
// they are rounded.
#pragma once
#include "gpu/latent/tile.h"

namespace fa {
namespace gpu {

template <class M>
struct LatentRoles;  // see latent/forward_bytes.h

template <class M>
struct LatentLoop {
    using Tile = LatentTile<M>;
    // While a tile is multiplied as v, the scores of the next one come about: a barrier for each tile.
    FA_MEMBER static float run(const MmaForwardParams& params, const WarpPart<M>& warp, int begin, int end, float unit, float,
                               typename M::PerRow& m, typename M::PerRow& l, typename M::Acc (&o)[M::row_tiles][M::kColumnSteps]) {
        if constexpr (M::score_warps > 0) return LatentRoles<M>::run(params, warp, begin, end, unit, m, l, o);
        constexpr int keys = M::keys, stages = M::stages, parts = Tile::kParts;
        const typename M::Shared& shared = M::shared();
        FA_UNROLL_FOR (int j = 0; j < stages; j++) Tile::store(params, Tile::find(params, begin + j * keys, end), j, begin + j * keys, end);
        int64_t location = Tile::find(params, begin + stages * keys, end);  // of tile j + stages
        rt::barrier();
        const typename Tile::Reader from;
        FA_UNROLL_FOR (int j = 0; j < stages - 1; j++) Tile::load(from, j, j, begin + j * keys, end);
        uint32_t raw[parts][Tile::kLaneKeys];
        LatentFactors factors[parts];
        float largest[2][parts] = {};  // of tiles j and j + 1
        int64_t column[parts];
        const auto store_factors = [&](int j, float (&to)[parts]) {
            FA_UNROLL_FOR (int part = 0; part < parts; part++)
                to[part] = Tile::store_factors(params, warp, column[part], part, j, raw[part]);
        };
        if constexpr (Tile::kBytes) {
            FA_UNROLL_FOR (int part = 0; part < parts; part++) column[part] = Tile::factor_column(params, warp, part);
            FA_UNROLL_FOR (int j = 0; j < 2; j++) {
                Tile::load_factors(params, column, j, raw);
                store_factors(j, largest[j]);
            }
        }
        typename Tile::Query q;
        Tile::load_q(params, warp, q);
        const auto active = [&](int key) { return key >= warp.some_begin && key < warp.some_end; };
        rt::cp_async_wait<stages - 2>();
        rt::barrier();
        if (begin < end && active(begin)) Tile::multiply_own_dims(warp, q, M::stage_tile(0), 0);
        int stage = 0;
        for (int key = begin, j = 0; key < end; key += keys, j++) {
            const int next = stage + 1 == stages ? 0 : stage + 1;
            rt::cp_async_wait<stages - 3>();
            rt::barrier();
            Tile::load(from, j + stages - 1, stage ? stage - 1 : stages - 1, key + (stages - 1) * keys, end);
            if constexpr (Tile::kBytes) Tile::load_factors(params, column, j + 2, raw);
            Tile::store(params, location, j + stages, key + stages * keys, end);
            location = Tile::find(params, key + (stages + 1) * keys, end);
            if (key + keys < end && active(key + keys)) Tile::multiply_own_dims(warp, q, M::stage_tile(next), j + 1);
            if (active(key)) {
                const bool full = key >= warp.full_begin && key < warp.full_end;
                typename Tile::Scores score;
                Tile::add_up(warp, j, score);
                const bool has_missing = shared.missing[j % M::kLocationTiles] == j;
                if (!full || has_missing)
                    M::mask_scores(warp.row0, key, has_missing ? shared.location[j % M::kLocationTiles] : nullptr, score);
                Tile::softmax_and_pv(warp, unit, score, M::stage_tile(stage), j, largest[0], factors, m, l, o);
            }
            FA_UNROLL_FOR (int part = 0; part < parts; part++) largest[0][part] = largest[1][part];
            if constexpr (Tile::kBytes) store_factors(j + 2, largest[1]);
            stage = next;
        }
        rt::cp_async_wait<0>();
        if constexpr (Tile::kBytes) {
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                FA_UNROLL_FOR (int c = 0; c < M::kColumnSteps; c++)
                    FA_UNROLL_FOR (int e = 0; e < M::Acc::kElements; e++) {
                        const int part = c / Tile::kPartSteps;
                        o[i][c].x[e] = factors[part].output_unit(o[i][c].x[e], Tile::is_tail(warp, part));
                    }
        }
        return unit;
    }
};

}  // namespace gpu
}  // namespace fa
