// AMX products of the backward: the general GEMM for dq, dk and dv, and the fused path of unmasked tiles, S = Q Kᵀ and dP = dO Vᵀ
// with softmax's backward of the quarter before interleaved.
#pragma once
#include "cpu/isa/amx/tiles.h"
#include "cpu/kernels/matrix_backward.h"

namespace fa {
namespace cpu {
namespace {

// A block of 2 × 2 tiles of c. Stores the block before on the way.
inline __attribute__((always_inline)) void gemm_block(const MatrixGemm& gemm, const uint16_t* a, const uint16_t* b, float* c,
                                                      AccTiles& before) {
    NoInterleave none;
    const int64_t stride = gemm.c_stride * 4;
    float* const lower = c + 16 * gemm.c_stride;
    gemm_2x2<FA_BF16, 0>(a, a + gemm.a_m_stride, gemm.a_row_bytes, b, none, [&](int n) __attribute__((always_inline)) {
        if (before.upper) before.store(n);
        if (gemm.accumulate) {
            if (n == 0) FA_TILE_LOAD(0, c, stride);
            else if (n == 1) FA_TILE_LOAD(1, c + 16, stride);
            else if (n == 2) FA_TILE_LOAD(2, lower, stride);
            else FA_TILE_LOAD(3, lower + 16, stride);
        } else {
            if (n == 0) FA_TILE_ZERO(0);
            else if (n == 1) FA_TILE_ZERO(1);
            else if (n == 2) FA_TILE_ZERO(2);
            else FA_TILE_ZERO(3);
        }
    });
    for (int part = 0; part < gemm.k_parts; part++)
        for (int k = part == 0; k < gemm.k_tiles; k++) {
            const uint16_t* const left = a + part * gemm.a_part_stride + k * gemm.a_k_stride;
            const uint16_t* const right = b + part * gemm.b_part_stride + k * 2 * kTileValues;
            gemm_2x2<FA_BF16, 0>(left, left + gemm.a_m_stride, gemm.a_row_bytes, right, none, [](int) {});
        }
    before = {c, lower, 16, stride};
}

void gemm(const MatrixGemm* products, int count) {
    AccTiles before{};
    const Tiles registers;
    for (const MatrixGemm* m = products; m < products + count; m++)
        for (int i = 0; i < m->m_pairs; i++)
            for (int j = 0; j < m->n_pairs; j++)
                gemm_block(*m, m->a + 2 * i * m->a_m_stride, m->b + j * m->b_n_stride, m->c + 32 * (i * m->c_stride + j), before);
    if (before.upper) before.store();
}

// A quarter of a tile: 32 of its keys and 32 of its rows.
struct TileQuarter {
    const BackwardTile* tile;
    int key, row;  // 0 or 32
};
inline TileQuarter quarter(const BackwardTile* tiles, int n) { return {tiles + n / 4, n % 2 * kQuarterRows, n % 4 / 2 * kQuarterRows}; }

// s = left times right; its last accumulators are returned, to be stored later, and those before are stored within the first four
// products, which have no softmax between them where it needs these accumulators.
template <int Pairs, class Interleaved>
inline __attribute__((always_inline)) AccTiles gemm_quarter(const uint16_t* left, const uint16_t* right, int depth, float* s,
                                                            AccTiles before, Interleaved& interleaved, bool waits) {
    const uint16_t* lower = left + depth * kTileValues;
    NoInterleave none;
    const auto begin = [&](int n) __attribute__((always_inline)) {
        if (before.upper) before.store(n);
        zero_acc(n);
    };
    if (waits) gemm_2x2<FA_BF16, 0>(left, lower, 64, right, none, begin);
    else gemm_2x2<FA_BF16, Pairs>(left, lower, 64, right, interleaved, begin);
    for (int c = 1; c < depth; c++)
        gemm_2x2<FA_BF16, Pairs>(left + c * kTileValues, lower + c * kTileValues, 64, right + c * 2 * kTileValues, interleaved, [](int) {});
    return {s, s + 16 * kQuarterRows, 16, kQuarterRows * 4};
}

// S and dP of a quarter, [key][row], into to[0 …] and behind these. Between the products P and dS of the quarter before are
// computed, whose last accumulators are those `before`.
template <int Pairs, class Interleaved>
inline __attribute__((always_inline)) AccTiles gemm_s_dp(const TileQuarter& q, int depth, int depth_v, float* to, const AccTiles& before,
                                                         Interleaved& interleaved) {
    const int k_at = q.key / 16 * depth * kTileValues, v_at = q.key / 16 * depth_v * kTileValues;
    const int q_at = q.row / 16 * depth * kTileValues, dout_at = q.row / 16 * depth_v * kTileValues;
    const AccTiles s = gemm_quarter<Pairs>(q.tile->k + k_at, q.tile->q + q_at, depth, to, before, interleaved, true);
    return gemm_quarter<Pairs>(q.tile->v + v_at, q.tile->dout + dout_at, depth_v, to + kQuarterRows * kQuarterRows, s, interleaved, false);
}

// P and dS of a quarter are computed while the next one's products are: Pairs of keys beside four of them.
template <int Pairs>
void backward_tiles(const BackwardTile* tiles, int count, int depth, int depth_v, float factor, float* memory) {
    const Tiles registers;
    NoInterleave none;
    AccTiles acc = gemm_s_dp<0>(quarter(tiles, 0), depth, depth_v, memory, AccTiles{}, none);
    for (int n = 0; n < 4 * count; n++) {
        const TileQuarter now = quarter(tiles, n);
        const BackwardTile& tile = *now.tile;
        constexpr int kStage = 2 * kQuarterRows * kQuarterRows;  // floats of S and dP
        float *const s = memory + n % 2 * kStage, *const other = memory + (n + 1) % 2 * kStage;
        SoftmaxBackwardBlock w{.s = s,
                               .dp = s + kQuarterRows * kQuarterRows,
                               .rows = {tile.lse + now.row, tile.delta + now.row, factor},
                               .to = {tile.p, tile.ds, tile.ds_pairs},
                               .first_key = now.key,
                               .first_row = now.row,
                               .key = 0};
        if (n + 1 < 4 * count) acc = gemm_s_dp<Pairs>(quarter(tiles, n + 1), depth, depth_v, other, acc, w);
        else acc.store();
        w.finish();
    }
}

void softmax_backward_tiles(const BackwardTile* tiles, int count, int depth, int depth_v, float factor, float* memory) {
    const int groups = depth + depth_v - 1;  // of four products that softmax's backward may be interleaved with
    if (groups >= 14) backward_tiles<1>(tiles, count, depth, depth_v, factor, memory);
    else if (groups >= 6) backward_tiles<3>(tiles, count, depth, depth_v, factor, memory);
    else if (groups >= 3) backward_tiles<6>(tiles, count, depth, depth_v, factor, memory);
    else backward_tiles<16>(tiles, count, depth, depth_v, factor, memory);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
