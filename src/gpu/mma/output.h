// How the outputs of a block's rows leave the forward's mma kernel: by way of shared memory, where warps' sums and states are merged.
#pragma once
#include "gpu/common/epilogue.h"
#include "gpu/mma/block.h"

namespace fa {
namespace gpu {

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaOutput : MmaBlock<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident> {
    using Block = MmaBlock<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    using Acc = typename Block::Acc;
    using Element = typename Block::Element;
    using Shared = typename Block::Shared;
    using Tile = typename Block::Tile;
    using Block::column_warps, Block::kColumnSteps, Block::kOutputColumns, Block::kOutputPasses, Block::kTile, Block::kTileRows,
        Block::q_tile, Block::rows, Block::shared, Block::threads;

    // Four columns of a row stay together, and those of neighbouring rows lie in different banks.
    FA_MEMBER static float* output_at(int key_warp, int row, int column) {
        return reinterpret_cast<float*>(q_tile()) + (key_warp * rows + row) * kOutputColumns + (column ^ (row & 3) << 3);
    }
    FA_MEMBER static int output_column(int column_warp, int c, int i) {
        if constexpr (kLatentParts<Mma> > 1) return Mma::output_column(column_warp, c, i);
        else return Mma::output_column(c, i);
    }
    // A warp's sums of the columns of a pass, and, with the first, its rows' states. Warps that share rows stage one after another where
    // not all columns fit.
    static constexpr int kPassSteps = kOutputColumns / kTile < kColumnSteps ? kOutputColumns / kTile : kColumnSteps;
    FA_MEMBER static void stage_output(int row0, int key_warp, int column_warp, int pass, float unit, float v_factor,
                                       const float m[RowTiles][Acc::kRows], const float l[RowTiles][Acc::kRows],
                                       const Acc o[RowTiles][Block::kAccs]) {
        constexpr int warp_passes = kColumnSteps / kPassSteps;  // that a warp's columns take
        const bool stages = (Block::score_warps == 0 || column_warp < column_warps) &&
                            (kOutputPasses == 1 || column_warps == 1 || column_warp == pass / warp_passes);
        const int column0 = column_warps > 1 && kOutputPasses == 1 ? column_warp * kTile * kColumnSteps : 0;
        // The unit of f16 times a small factor is no normal number: of 8-bit queries, whose o may be f32, it comes first.
        constexpr float first = Mma::kWidensQ ? Mma::kOutputUnit : 1.f, unit_left = Mma::kOutputUnit / first;
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) {
            float factor[Acc::kRows];
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                const float sum = Acc::sum_of_row(l[i][r]) * Mma::kRowSumUnit;
                factor[r] = sum == 0.f ? 0.f : unit_left * v_factor;  // no key: 0, whatever v's factor
                if (pass == 0 && (column_warps == 1 || column_warp == 0) && Acc::first_of_row())
                    shared().state[key_warp][row0 + kTileRows * i + Acc::row(r)] = {m[i][r] == kNegInf ? kNegInf : m[i][r] * unit, sum};
            }
            if (stages)
                FA_UNROLL_FOR (int c = 0; c < kPassSteps; c++)
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                        *output_at(key_warp, row0 + kTileRows * i + Acc::row(Acc::lane_row(e)),
                                   column0 + output_column(column_warp, c, e)) =
                            o[i][pass % warp_passes * kPassSteps + c].x[e] * first * factor[Acc::lane_row(e)];
        }
    }
    // A row's state over all key warps, and what their sums are to be multiplied by.
    FA_MEMBER static RowState merge_warps(int r) {
        Shared& shared = Block::shared();
        RowState state = shared.state[0][r];
        if constexpr (KeyWarps > 1) shared.factor[0][r] = 1.f;
        FA_UNROLL_BY(1)
        for (int w = 1; w < KeyWarps; w++) {
            const Merged merged = fa::merge(state, shared.state[w][r]);
            for (int before = 0; before < w; before++) shared.factor[before][r] *= merged.scale_a;
            shared.factor[w][r] = merged.scale_b;
            state = merged.state;
        }
        return state;
    }
    // The same, LSE, and what a row's sums are to be multiplied by.
    FA_MEMBER static void finalize_rows(const MmaForwardParams& params) {
        Shared& shared = Block::shared();
        const Tile& tile = shared.tile;
        const int64_t heads = params.kv_heads, split = uint32_t(rt::block()) % uint32_t(params.splits);
        const int64_t all = params.batch * heads * params.rows, index0 = (tile.batch * heads + tile.kv_head) * params.rows + tile.first;
        for (int r = rt::thread(); r < tile.valid; r += threads) {
            const RowState state = merge_warps(r);
            if (params.partial_o) {
                params.state[split * all + index0 + r] = state;
                shared.output[r] = (split * all + index0 + r) * params.dim_v;
                continue;
            }
            shared.output[r] = query_index(params.o_strides, tile.seq, tile.batch, shared.row[r].position, shared.row[r].head);
            const RowOutput output = finalize_row(params, tile.seq, tile.batch, shared.row[r].head, shared.row[r].position, state, true);
            if (params.state) params.state[index0 + r] = output.state;
            shared.state[0][r].l = output.factor;
        }
    }
    // The same for kernels without registers for it.
    FA_COLD_MEMBER static void finalize_rows_cold(const MmaForwardParams& params) { finalize_rows(params); }
    FA_MEMBER static void merge_key_warps(int r, int column, float sum[4]) {
        rt::load4(output_at(0, r, column), sum);
        if constexpr (KeyWarps > 1) {
            FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] *= shared().factor[0][r];
            FA_UNROLL_FOR (int w = 1; w < KeyWarps; w++) {
                float part[4];
                rt::load4(output_at(w, r, column), part);
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] = fmaf(part[e], shared().factor[w][r], sum[e]);
            }
        }
    }
    // The columns from `column0` on that were staged.
    FA_MEMBER static void write_rows(const MmaForwardParams& params, int column0) {
        constexpr int across = kOutputColumns / 4;
        const Shared& shared = Block::shared();
        const int dim = int(params.dim_v) - column0, items = shared.tile.valid * across;
        if (params.o_plain && !params.partial_o) {  // what most calls write: nothing to decide for each element
            FA_UNROLL_BY(4)
            for (int i = rt::thread(); i < items; i += threads) {
                const int r = i / across, column = i % across * 4;
                float sum[4];
                merge_key_warps(r, column, sum);
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] = normalized(sum[e], shared.state[0][r].l);
                if (column < dim) Mma::store4(static_cast<Element*>(params.o) + shared.output[r] + column0 + column, sum);
            }
            return;
        }
        for (int i = rt::thread(); i < items; i += threads) {
            const int r = i / across, column = i % across * 4;
            const int64_t at = shared.output[r] + column0 + column;
            float sum[4];
            if (column >= dim) continue;
            merge_key_warps(r, column, sum);
            if (params.partial_o && dim % 4 == 0) rt::store4(params.partial_o + at, sum);
            else
                for (int e = 0; e < 4 && column + e < dim; e++) {
                    if (params.partial_o) params.partial_o[at + e] = sum[e];
                    else store_output(params, at + e, sum[e], shared.state[0][r].l);
                }
        }
    }
};

}  // namespace gpu
}  // namespace fa
