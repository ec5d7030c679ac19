// Attention on 16 × 16 tiles of matrix instructions: how operands are packed, and the stream of steps that an instruction set's file runs.
//
// A pair is 32 query rows, two tiles of 16. A step is a pair against kStepKeys keys. Products are of bf16 or f16, with f32 sums. Packed
// operands are tiles of 1 KB:
//     q   [2 row tiles][depth]         16 rows × 32 dims
//     k   [2][depth][2 key tiles]      16 pairs of dims × 16 keys × 2: what a product wants of its right side
//     v   [columns / 2][2][2]          16 pairs of keys × 16 columns × 2, the pairs in the order of weights: of bf16, keys 16 apart
// so that both phases of a step are 2 × 2 blocks of products that read k and v straight on.
#pragma once
#include <flashattn.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

constexpr int kPairRows = 32, kStepKeys = 64, kTileBytes = 1024;
constexpr int64_t kMatrixSlots = 3 * kPairRows * kStepKeys * 4;  // bytes of scratch for scores and weights

struct MatrixShape {
    int32_t type;         // FA_BF16 or FA_F16
    int dim_qk, dim_v;
    int depth, columns;   // tiles of 32 dims of q and k; tiles of 16 columns of v, an even number
    int64_t q_bytes() const { return int64_t(2) * depth * kTileBytes; }
    int64_t k_bytes() const { return int64_t(4) * depth * kTileBytes; }  // of a step
    int64_t v_bytes() const { return int64_t(2) * columns * kTileBytes; }
    int64_t o_bytes() const { return int64_t(2) * columns * kTileBytes; }
};

// What is done to a row's scores beside the product. Keys are counted within the sequence.
struct MatrixRow {
    int64_t begin, end;   // keys that the row may see
    int64_t bias, mask;   // element index of key 0
    float slope;          // ALiBi's, in log2 units
    int64_t diagonal;     // the key at distance 0
};

// A pair's state.
struct Pair {
    uint16_t* q;
    float* o;                          // [2 row tiles][columns][16][16]
    float* l[2];                       // [32][16]: partial sums; `now` says which of the two holds
    float *from, *rescale;             // [32]; added to log2 scores before the exponent: −m, and the exponent of the sums' unit
    float* factor;                     // [32]; from scores to log2 units
    MatrixRow* rows;                   // [32]; those without a query see no key
    int now;
    bool empty;                        // no step has been folded, and o is not set
    bool fresh;                        // `from` and `factor` are not known yet
    bool huge;                         // some factor is 1, and the scores are multiplied apart
};

struct Step {
    Pair* pair;
    const uint16_t *k, *v;
    int64_t key;                       // the first
    bool cut;                          // some row does not see some key, or a mask removes it
};

enum class Kept { none, some, all };

struct MatrixTask {
    MatrixShape shape;
    float factor;                      // from products to log2 units
    bool has_score_mod;                      // first to natural units, by `scale`, for what follows
    float scale, cap;
    const void* bias;
    int32_t bias_dtype;
    int64_t bias_step;                 // elements between keys
    const uint8_t* mask;
    int64_t mask_step;
    bool alibi;
    bool lse;                          // sums are wanted for themselves
    char* slots;                       // kMatrixSlots of scratch
};

// c[16 rows each][32 columns each] = or += left times right, bf16 with f32 sums. Left tiles are 16 rows of 32 values, right ones 16 pairs of
// rows × 16 columns × 2, in pairs that follow each other, as packed k and v are. The depth may lie in several parts.
struct MatrixProduct {
    const uint16_t* left;
    int64_t left_down, left_along, left_row;  // values between tiles, downwards and along the depth; bytes between rows
    const uint16_t* right;
    int64_t right_across;                     // values between pairs of columns; along the depth a pair follows the other
    int row_pairs, column_pairs, depth;       // of tiles, pairs of tiles, tiles in each part
    int parts;
    int64_t left_part, right_part;            // values between them
    float* c;
    int64_t c_stride;                         // floats
    bool add;
};

// 64 rows against 64 keys, every score of which counts as it is: left sides of their products, right sides, and where weights and their
// gradients go.
struct GradientSquare {
    const uint16_t *k, *v, *q, *dout;
    const float *lse, *delta;
    uint16_t *p, *ds, *ds_pairs;
};
constexpr int kSquareFloats = 4096;  // of scratch for any number of squares

// Some keys of few rows' k or v, up to kDecodeChunkKeys.
struct DecodeChunk {
    int32_t type;  // FA_BF16 or one of 8 bits
    bool limbs;   // int8 k by products of integers: q is digits of a byte each
    KvRows rows;
    int keys;
};
constexpr int kDecodeChunkKeys = 32;
constexpr int kDecodeRows = 16;
constexpr int kLimbRows = 4;  // most that have their digits of q in the 16 columns of a tile
struct DecodeMatrixScratch {
    uint16_t* converted;  // [kDecodeChunkKeys][dim]
    uint16_t* zeros;      // [dim]
    float* products;      // kDecodeProducts
    uint16_t* p;          // [kDecodeRows][kDecodeChunkKeys]
    uint16_t* pairs;      // 4 tiles
};
constexpr int kDecodeProducts = 2048;

// Few query rows, up to kDecodeRows, against keys as they are stored: DecodeKernels by matrix instructions, for q of bf16 and dims that are
// multiples of 32. Sums o lie [row][dim], in an order of their own. The type is that of k and v.
struct DecodeMatrixKernels {
    void (*begin)(int rows, bool limbs);  // before the others, on each thread, and end() behind them
    void (*end)();
    void (*pack_q)(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to);  // 32 · dim bytes
    // Of up to kLimbRows rows: 16 · dim bytes, and behind them a factor for each row. False: q has no such form.
    bool (*pack_limbs)(const uint16_t* const* rows, int count, int dim, char* to);
    void (*qk)(const uint16_t* q, int rows, const float* factor, const DecodeChunk&, int dim, const DecodeMatrixScratch&, float* s);
    // A rescale of NULL is 1 for all.
    void (*pv)(const float* p, int rows, const DecodeChunk&, int dim, const float* rescale, const DecodeMatrixScratch&, float* o);
    void (*finish)(const float* o, int32_t type, int dim, float factor, float* to);  // a row, in kAccScale
};

struct MatrixKernels {
    bool halves;                   // has products of f16
    double speed, gradient_speed;  // about: forward's and backward's, as multiples of the f32 tiles'
    // `count` values of an 8-bit storage type as `type` has them, exactly.
    void (*convert)(int32_t from_type, const void* from, int count, int32_t type, uint16_t* to);
    // Packs rows given by pointers to values of the shape's type, NULL for a row of zeros: of q (16 for each tile), of k and v (kStepKeys).
    void (*pack_q)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_k)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_v)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_rows)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);  // as v, but pairs of neighbours
    // What bands, mask and bias leave the rows of keys [key, key + kStepKeys).
    Kept (*kept)(const MatrixTask&, const MatrixRow* rows, int64_t key);
    // Measures those of the pair's rows whose diagonal is one of the step's keys from their scores there. Of the step it reads k alone.
    void (*settle_diagonal)(const MatrixTask&, const Step&);
    // Folds the steps into their pairs, each pair's in the order given.
    void (*run)(const MatrixTask&, const Step* steps, int64_t count);
    // The sums of the pair's first rows as PartialState has them, o times `scale`, unless it is NULL.
    void (*finish_rows)(const MatrixShape&, const Pair&, int rows, float scale, float* o, float* m, float* l);
    // The table's average_row() of that o, as bf16, row by row.
    void (*write_o)(const MatrixShape&, const Pair&, int rows, float scale, const float* factor, float o_scale, char* const* to);

    const DecodeMatrixKernels* decode;  // NULL: none

    // For gradients, in bf16.
    void (*multiply)(const MatrixProduct*, int count);
    // Weights p and their gradients ds, [keys][64] and zeros behind them, to 64 × 64 values of the same layout, for left tiles, and ds to
    // right ones too: those of a v of 64 columns.
    void (*narrow)(const float* p, const float* ds, int keys, uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs);
    // The table's differentiate() and narrow() at once.
    void (*softmax_backward)(const float* s, const float* dp, int keys, float factor, const float* lse, const float* delta, const float* slope,
                          uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs);
    // Products and differentiate() of squares at once; dims in tiles of 32. NULL: none.
    void (*differentiate_squares)(const GradientSquare*, int count, int depth_qk, int depth_v, float factor, float* scratch);
    // From a packed k to left tiles [2 · depth][2] of its transpose, 16 dims × 32 keys.
    void (*transpose_k)(const MatrixShape&, const uint16_t* k, uint16_t* to);
};

}  // namespace cpu
}  // namespace fa
