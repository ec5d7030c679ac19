// The kernel table of AVX-512 with dot products of pairs of bf16 (VDPBF16PS) and byte permutations (VBMI): Zen 4 and later. What AMX does
// on tiles it does on vectors. Operands are packed alike (matrix_table.h).
//
// exp2 needs the execution units that dot products need, so that nothing is won by interleaving both as AMX does: a step's products
// and its softmax follow each other.
#define FA_ISA_VECTORS "cpu/isa/avx512/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/avx512/formats.h"
#define FA_ISA_PREFETCH_FAR
#include "cpu/isa/avx512_bf16/decode_blocks.h"
#include "cpu/isa/avx512_bf16/decode_integers.h"
#include "cpu/isa/avx512_bf16/shared_kernels.h"
#include "cpu/kernels/matrix_kernels.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512_bf16;

namespace {

// Rows of the register block: 24 accumulators of 4 vectors each hide the latency of a dot, beside 4 operands and a broadcast; the last of
// 16 rows are 4.
constexpr int kDotRows = 6, kLastDotRows = 4;

// Distances in a product's operands: 16-bit values between rows of a and between pairs of vectors of b, floats between rows and between
// vectors of c. Those of the forward are constants, of which a loop needs no registers.
struct QkStrides {
    static constexpr int64_t a_row = 32, c_row = kKeyBlock, c_across = 16;
    int64_t b_across;
};
struct PvStrides {
    static constexpr int64_t a_row = kKeyBlock, b_across = 4 * kTileValues, c_row = 16, c_across = 256;
};
struct AnyStrides {
    int64_t a_row, b_across, c_row, c_across;
};

// How much of a product's padded tiles holds values.
struct Extent {
    int vectors;   // of 16 columns
    int pairs;     // of the depth, in its last tile
    int64_t down;  // floats between tiles of 16 rows of c
};

// c[Rows][Vectors] = or += a · b.
template <int Rows, int Vectors, class Strides>
[[gnu::noinline]] void dot_block(const MatrixGemm& gemm, const Strides& by, int pairs, const uint16_t* left, const uint16_t* right,
                                 float* c) {
    V sum[Rows][Vectors];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < Vectors; n++) sum[r][n] = gemm.accumulate ? load(c + r * by.c_row + n * by.c_across) : V{};
    for (int part = 0; part < gemm.k_parts; part++)
        for (int k = 0; k < gemm.k_tiles; k++) {
            const uint16_t *a = left + part * gemm.a_part_stride + k * gemm.a_k_stride,
                           *b = right + part * gemm.b_part_stride + k * 2 * kTileValues;
            const uint16_t* const end = b + (k + 1 < gemm.k_tiles ? 16 : pairs) * 32;
            for (; b < end; a += 2, b += 32) {
                __m512i x[Vectors];
#pragma GCC unroll 4
                for (int n = 0; n < Vectors; n++) x[n] = _mm512_loadu_si512(b + n / 2 * by.b_across + n % 2 * kTileValues);
#pragma GCC unroll 6
                for (int r = 0; r < Rows; r++) {
                    int32_t two;
                    memcpy(&two, a + r * by.a_row, sizeof two);
                    const __m512i y = _mm512_set1_epi32(two);
#pragma GCC unroll 4
                    for (int n = 0; n < Vectors; n++) sum[r][n] = dot(sum[r][n], y, x[n]);
                }
            }
        }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < Vectors; n++) store(c + r * by.c_row + n * by.c_across, sum[r][n]);
}

template <int Rows, class Strides>
void dot_rows(const MatrixGemm& gemm, const Strides& by, const Extent& extent, const uint16_t* left, float* c) {
    for (int n = 0; n < extent.vectors; n += 4, c += 4 * by.c_across) {
        const uint16_t* const right = gemm.b + n / 2 * by.b_across;
        const int vectors = extent.vectors - n;
        if (vectors >= 4) dot_block<Rows, 4>(gemm, by, extent.pairs, left, right, c);
        else if (vectors == 3) dot_block<Rows, 3>(gemm, by, extent.pairs, left, right, c);
        else if (vectors == 2) dot_block<Rows, 2>(gemm, by, extent.pairs, left, right, c);
        else dot_block<Rows, 1>(gemm, by, extent.pairs, left, right, c);
    }
}

// A tile of 16 rows of a product.
template <class Strides>
void gemm_16_rows(const MatrixGemm& gemm, const Strides& by, const Extent& extent, int tile) {
    const uint16_t* const left = gemm.a + tile * gemm.a_m_stride;
    float* const c = gemm.c + tile * extent.down;
    int r = 0;
    for (; r + kDotRows <= 16; r += kDotRows) dot_rows<kDotRows>(gemm, by, extent, left + r * by.a_row, c + r * by.c_row);
    dot_rows<kLastDotRows>(gemm, by, extent, left + r * by.a_row, c + r * by.c_row);
}

void gemm(const MatrixGemm* products, int count) {
    for (const MatrixGemm* m = products; m < products + count; m++)
        for (int tile = 0; tile < 2 * m->m_pairs; tile++)
            gemm_16_rows(*m, AnyStrides{m->a_row_bytes / 2, m->b_n_stride, m->c_stride, 16}, {2 * m->n_pairs, 16, 16 * m->c_stride}, tile);
}

// Of a step that a band cuts, vectors of keys from the first on to the last that one row of a tile sees: what lies behind is neither
// multiplied nor, as P, added. What its scores then are does not matter: they are masked.
int visible_vectors(const MainloopStep& step, int tile) {
    if (!step.masked || step.visible) return kKeyBlock / 16;
    int64_t keys = 0;
    for (int r = 16 * tile; r < 16 * tile + 16; r++) {
        const int64_t seen = step.block->rows[r].end - step.key;
        keys = seen > keys ? seen : keys;
    }
    return keys < kKeyBlock ? int(keys + 15) / 16 : kKeyBlock / 16;
}

void qk_gemm(const MatrixShape& shape, const MainloopStep& step, float* s) {
    const int64_t tiles = int64_t(shape.depth) * kTileValues;
    const MatrixGemm m = {.a = step.block->q,
                          .a_m_stride = tiles,
                          .a_k_stride = kTileValues,
                          .a_row_bytes = 64,
                          .b = step.k,
                          .b_n_stride = 2 * tiles,
                          .m_pairs = 1,
                          .n_pairs = 2,
                          .k_tiles = shape.depth,
                          .k_parts = 1,
                          .a_part_stride = 0,
                          .b_part_stride = 0,
                          .c = s,
                          .c_stride = kKeyBlock,
                          .accumulate = false};
    for (int tile = 0; tile < 2; tile++)
        gemm_16_rows(m, QkStrides{m.b_n_stride}, {visible_vectors(step, tile), (shape.dim_qk - 1) % 32 / 2 + 1, 16 * kKeyBlock}, tile);
}

// S and P of a step.
struct ScoreStage {
    float* s;     // [kRowBlock][kKeyBlock]
    uint16_t* p;  // the same
    bool rescale;
};

void pv_gemm(const MatrixShape& shape, const MainloopStep& step, const ScoreStage& stage) {
    RowBlock& block = *step.block;
    if (__builtin_expect(stage.rescale && !block.acc_empty, 0)) rescale_o(shape, block);
    MatrixGemm m = {.a = stage.p,
                    .a_m_stride = 16 * kKeyBlock,
                    .a_k_stride = 32,
                    .a_row_bytes = 2 * kKeyBlock,
                    .b = step.v,
                    .b_n_stride = 4 * kTileValues,
                    .m_pairs = 1,
                    .n_pairs = shape.columns / 2,
                    .k_tiles = 2,
                    .k_parts = 1,
                    .a_part_stride = 0,
                    .b_part_stride = 0,
                    .c = block.o,
                    .c_stride = 16,
                    .accumulate = !block.acc_empty};
    for (int tile = 0; tile < 2; tile++) {
        m.k_tiles = (visible_vectors(step, tile) + 1) / 2;
        gemm_16_rows(m, PvStrides{}, {(shape.dim_v - 1) / 16 + 1, 16, int64_t(shape.columns) * 256}, tile);
    }
    block.acc_empty = false;
}

template <Exp2Accuracy E>
void softmax(const MatrixTask& task, RowBlock& block, ScoreStage& stage) {
    stage.rescale = false;
    if (block.ref_unset) init_block(task, block, stage.s);
    else if (__builtin_expect(block.prescaled, 0)) prescale_rows(task, block, 0, kRowBlock, stage.s);
    for (int tile = 0; tile < 2; tile++) {
        const ScoreTile part{stage.s + tile * kTileScores, stage.p + tile * kTileScores};
        SoftmaxRows<FA_BF16, E, kKeyBlock> w = softmax_rows<FA_BF16, E, kKeyBlock>(block, part, tile, block.l_index);
        w.finish();
        if (__builtin_expect(exceeds_threshold(FA_BF16, w.largest), 0))
            lazy_rescale<FA_BF16, E, kKeyBlock>(task, block, part, tile, block.l_index, stage.rescale);
    }
    block.l_index = !block.l_index;
}

template <Exp2Accuracy E>
void mainloop_steps(MatrixTask task, const MainloopStep* steps, int64_t count) {
    float* const s = reinterpret_cast<float*>(task.stages);
    ScoreStage stage{s, reinterpret_cast<uint16_t*>(s + 2 * kTileScores), false};
    if (task.has_score_mod) task.factor = 1.f;  // apply_score_mod() has multiplied
    for (const MainloopStep* step = steps; step < steps + count; step++) {
        qk_gemm(task.shape, *step, stage.s);
        maybe_score_mod(task, *step, stage.s, 0, kRowBlock);
        softmax<E>(task, *step->block, stage);
        pv_gemm(task.shape, *step, stage);
    }
}

void mainloop(const MatrixTask& task, const MainloopStep* steps, int64_t count) {
    if (task.lse) mainloop_steps<Exp2Accuracy::high>(task, steps, count);
    else mainloop_steps<Exp2Accuracy::low>(task, steps, count);
}

void init_refs_at_diagonal(const MatrixTask& task, const MainloopStep& step) {
    float* const s = reinterpret_cast<float*>(task.stages);
    qk_gemm(task.shape, step, s);
    update_refs_at_diagonal(task, step, s);
}

constexpr DecodeMatrixKernels dots_of_bytes() {
    DecodeMatrixKernels k = kDecodeDots;
    k.max_rows = 1;
    k.min_rows_bf16 = k.min_rows_int8 = k.kNone;
    return k;
}
// For up to four rows dots of bf16 take as long.
constexpr DecodeMatrixKernels integers_of_many_rows() {
    DecodeMatrixKernels k = kIntegers;
    k.min_rows_q8 = k.min_rows_q4 = 5;
    return k;
}
constexpr DecodeMatrixKernels kIntegersOfManyRows = integers_of_many_rows();

constexpr MatrixKernels matrix_kernels() {
    MatrixKernels k = common_matrix_kernels();
    k.speed = 1.8;  // where the CPU prefers this table
    k.backward_speed = 1.5;
    k.init_refs_at_diagonal = init_refs_at_diagonal;
    k.mainloop = mainloop;
    k.decode[0] = &kDecodeDots;
    k.decode[1] = &kIntegersOfManyRows;
    k.decode[2] = &kDecodeBlocks;
    k.gemm = gemm;
    return k;
}
constexpr MatrixKernels kMatrix = matrix_kernels();

}  // namespace

constexpr DecodeMatrixKernels kDecodeDotsOfBytes = dots_of_bytes(), kDecodeIntegers = kIntegers;
constexpr Kernels kKernels_avx512_bf16 = tile_kernels("avx512_bf16", FA_ISA_AVX512_BF16, &kMatrix);

}  // namespace cpu
}  // namespace fa
