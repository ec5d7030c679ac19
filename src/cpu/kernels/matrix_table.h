// What the instruction sets with matrix instructions (AMX) or dot products of bf16 provide beside kernel_table.h: packed operands,
// and a mainloop over blocks of keys.
//
// A RowBlock is 32 query rows, two tiles of 16. A MainloopStep is a RowBlock against kKeyBlock keys: S = Q Kᵀ, P = exp2(S −
// row_ref), acc += P V. Products are of bf16 or f16, with f32 accumulators. Packed operands are tiles of 1 KB:
//     q   [2 row tiles][depth]         16 rows × 32 dims
//     k   [2][depth][2 key tiles]      16 pairs of dims × 16 keys × 2: the layout of a product's right operand (VNNI)
//     v   [columns / 2][2][2]          16 pairs of keys × 16 columns × 2, the pairs in the order of P: of bf16, keys 16 apart
// so that both products of a step are 2 × 2 blocks of tiles that read k and v in the order of their addresses.
#pragma once
#include <flashattn.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

constexpr int kRowBlock = 32, kKeyBlock = 64, kTileBytes = 1024, kTileValues = kTileBytes / 2;
constexpr int64_t kMatrixStageBytes = 3 * kRowBlock * kKeyBlock * 4;  // bytes of scratch for S and P of three steps

struct MatrixShape {
    int32_t type;  // FA_BF16 or FA_F16
    int dim_qk, dim_v;
    int depth, columns;  // tiles of 32 dims of q and k; tiles of 16 columns of v, an even number
    int64_t q_bytes() const { return int64_t(2) * depth * kTileBytes; }
    int64_t k_bytes() const { return int64_t(4) * depth * kTileBytes; }  // of a step
    int64_t v_bytes() const { return int64_t(2) * columns * kTileBytes; }
    int64_t o_bytes() const { return int64_t(2) * columns * kTileBytes; }
};

// What a row's score mod and mask need of it. Keys are counted within the sequence.
struct MatrixRow {
    int64_t begin, end;  // keys that the band leaves the row
    int64_t bias, mask;  // element index of key 0
    float bias_scale;
    float slope;       // ALiBi's, in log2 units
    int64_t diagonal;  // the key at distance 0
};

// The state of 32 rows during the mainloop. Scores are measured from row_ref, the lazily moved row maximum (lazy rescale).
struct RowBlock {
    uint16_t* q;
    float* o;                  // [2 row tiles][columns][16][16]: accumulators
    float* l[2];               // [32][16]: row sums of each lane; `l_index` says which of the two is current
    float *neg_ref, *rescale;  // [32]; added to log2 scores before exp2: p_scale_log2 − row_ref; factor of the accumulators
    float* factor;             // [32]; from products to log2 units
    MatrixRow* rows;           // [32]; those without a query see no key
    int l_index;
    bool acc_empty;  // no step has been added, and o is not set
    bool ref_unset;  // `neg_ref` and `factor` are not known yet
    bool prescaled;  // some row's factor is 1: its scores are multiplied by themselves, before exp2's argument is formed
};

struct MainloopStep {
    RowBlock* block;
    const uint16_t *k, *v;
    int64_t key;              // the first
    bool masked;              // a band or a mask removes some key of some row
    const uint64_t* visible;  // [32]: the step's keys, a bit for each that the row sees before masks; NULL: those of its band
};

enum class KeptKeys { none, some, all };

// What all steps of a mainloop have in common.
struct MatrixTask {
    MatrixShape shape;
    float factor;        // from products to log2 units
    bool has_score_mod;  // products are first multiplied by `scale`, for softcap, bias or ALiBi
    float scale, cap;
    const void* bias;
    int32_t bias_dtype;
    int64_t bias_step;  // elements between keys
    const uint8_t* mask;
    int64_t mask_step;
    bool alibi;
    bool lse;      // the caller wants the LSE: row sums need the accurate exp2
    char* stages;  // kMatrixStageBytes of scratch
};

// c[m][n] = or += a · b, bf16 with f32 accumulators, for backward and decoding of matrices in tiles: of a 16 rows × 32 values, of b
// 16 pairs of rows × 16 columns × 2, in pairs of tiles that follow each other, as packed k and v are. The depth may lie in several
// parts.
struct MatrixGemm {
    const uint16_t* a;
    int64_t a_m_stride, a_k_stride, a_row_bytes;  // values between tiles along m and along the depth; bytes between rows
    const uint16_t* b;
    int64_t b_n_stride;             // values between pairs of column tiles; along the depth a pair follows the other
    int m_pairs, n_pairs, k_tiles;  // pairs of row tiles, pairs of column tiles, tiles of the depth in each part
    int k_parts;
    int64_t a_part_stride, b_part_stride;  // values between the parts
    float* c;
    int64_t c_stride;  // floats
    bool accumulate;
};

// A tile of the backward, 64 rows against 64 keys, that no mask, score mod or dropout touches: operands of its two products, and
// where P and dS go.
struct BackwardTile {
    const uint16_t *k, *v, *q, *dout;
    const float *lse, *delta;
    uint16_t *p, *ds, *ds_pairs;
};
constexpr int kBackwardTileFloats = 4096;  // of scratch for any number of tiles

// A chunk of the keys, up to kDecodeChunkKeys, whose rows of k or v decoding reads where they lie.
struct DecodeChunk {
    int32_t type;  // FA_BF16, one of 8 bits, or of blocks without an m
    bool limbs;    // int8 k by products of integers: q is split into limbs of a byte each
    KvRows rows;
    int keys;
};
constexpr int kDecodeChunkKeys = 32;
constexpr int kDecodeRows = 16;
constexpr int64_t kFarBytes = 16 * 1024;  // so far ahead is what decoding prefetches for the second-level cache
// P, as bf16, is multiplied by it once more: sums of 2^16 values at their type's limit are finite.
constexpr float kDecodePScale = 0x1p-8f;
constexpr int kLimbRows = 4;  // rows whose limbs of q fit the 16 columns of a tile
constexpr int kLimbs = 4;     // of a value of q: signed bytes, the highest first, in units of
constexpr float kLimbUnits[kLimbs] = {0x1p24f, 0x1p16f, 0x1p8f, 1.f};
// The configuration of tile registers that a thread comes with.
struct CallersTiles {
    unsigned char config[64];
};
struct DecodeMatrixScratch {
    uint16_t* converted;  // [kDecodeChunkKeys][dim]
    uint16_t* zeros;      // [dim]
    float* products;      // kDecodeProducts
    uint16_t* p;          // [kDecodeRows][2 · kDecodeChunkKeys]
    uint16_t* pairs;      // 4 tiles
};
constexpr int kDecodeProducts = 2048;

// Decoding by matrix instructions: DecodeKernels for up to kDecodeRows query rows of bf16 and dims that are multiples of 32.
// Accumulators of o lie [row][dim], in an order of their own. The type is that of k and v.
struct DecodeMatrixKernels {
    static constexpr int kNone = kDecodeRows + 1;  // more rows than there are: a type is left to others
    int byte_dims;                                 // of 8-bit types, dims are multiples of it
    int64_t far_bytes = kFarBytes;
    bool rounds_to_8_bits = false;  // blocks of q and of P: for calls that permit native precision
    int short_chunk_rows;  // up to so many rows short chunks will do; for more, accumulators are read and written once for kDecodeChunkKeys
    int min_chunk_keys(int rows) const { return rows > short_chunk_rows ? kDecodeChunkKeys : 16; }
    // From so many rows on that share a kv head they keep up with memory better than vectors, which on some convert bf16 for next to
    // nothing, and fp8 for most of their time.
    int min_rows_bf16 = kNone, min_rows_int8 = kNone, min_rows_fp8 = kNone;
    int min_rows_q8 = kNone, min_rows_q4 = kNone;  // of the block formats, q4's are q5's too
    int max_rows;
    int min_rows(int32_t type) const {
        if (is_block_type(type)) return type == FA_Q8_0 ? min_rows_q8 : min_rows_q4;
        return type == FA_BF16 ? min_rows_bf16 : type == FA_I8 ? min_rows_int8 : min_rows_fp8;
    }
    bool takes(int32_t type, int64_t rows, int64_t dim_qk, int64_t dim_v) const {
        const int least = min_rows(type), step = is_byte_type(type) ? byte_dims : 32;
        return rows >= least && rows <= max_rows && dim_qk % step == 0 && dim_v % step == 0;
    }
    // Tile registers, on each thread: acquire() and configure() before the others, release() behind them. NULL: there are none.
    void (*acquire)(CallersTiles*) = nullptr;
    void (*configure)(int rows, bool limbs) = nullptr;
    void (*release)(const CallersTiles&) = nullptr;
    void (*pack_q)(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to);  // 32 · dim bytes
    // Of up to kLimbRows rows: 16 · dim bytes, and behind them a factor for each row. False: q has no such form. NULL: none has.
    bool (*pack_limbs)(const uint16_t* const* rows, int count, int dim, char* to) = nullptr;
    void (*qk)(const uint16_t* q, int rows, const float* factor, const DecodeChunk&, int dim, const DecodeMatrixScratch&, float* s);
    // o · rescale + P v; a rescale of NULL is 1 for all. Returns where it is: o or `spare`, of which the other has nothing then.
    float* (*pv)(const float* p, int rows, const DecodeChunk&, int dim, const float* rescale, const DecodeMatrixScratch&, float* o,
                 float* spare);
    void (*finish)(const float* o, int32_t type, int dim, float factor, float* to);  // a row, in kHeadroomUnit
};

struct MatrixKernels {
    bool has_fp16;                 // has products of f16
    double speed, backward_speed;  // about: forward's and backward's, as multiples of the f32 tiles'
    // `count` values of an 8-bit storage type as `type` has them, exactly.
    void (*convert)(int32_t from_type, const void* from, int count, int32_t type, uint16_t* to);
    // Packs rows given by pointers to values of the shape's type, NULL for a row of zeros: of q (16 for each tile), of k and v
    // (kKeyBlock).
    void (*pack_q)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_k)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_v)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);
    void (*pack_rows)(const MatrixShape&, const uint16_t* const* rows, uint16_t* to);  // as v, but pairs of neighbours
    // What bands (or `visible`, as a step has it), mask and bias leave the rows of keys [key, key + kKeyBlock).
    KeptKeys (*classify_keys)(const MatrixTask&, const MatrixRow* rows, int64_t key, const uint64_t* visible);
    // Sets row_ref of those rows whose diagonal is one of the step's keys from their scores there. Of the step it reads k alone.
    void (*init_refs_at_diagonal)(const MatrixTask&, const MainloopStep&);
    // Adds the steps to the states of their row blocks, each block's in the order given.
    void (*mainloop)(const MatrixTask&, const MainloopStep* steps, int64_t count);
    // The state of the block's first rows as PartialState has it, o times `scale`, unless it is NULL.
    void (*finish_state)(const MatrixShape&, const RowBlock&, int rows, float scale, float* o, float* m, float* l);
    // The table's finish_o_row() of that o, as bf16, row by row.
    void (*write_o)(const MatrixShape&, const RowBlock&, int rows, float scale, const float* factor, float o_scale, char* const* to);

    const DecodeMatrixKernels* decode[5];  // of those that take a call, the first does; NULL: none

    // For the backward, in bf16.
    void (*gemm)(const MatrixGemm*, int count);
    // P and dS, [keys][64] and zeros behind them, to 64 × 64 values of the same layout, as left operands, and dS as a right operand
    // too: the layout of a v of 64 columns.
    void (*pack_p_ds)(const float* p, const float* ds, int keys, uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs);
    // The table's softmax_backward() and pack_p_ds() at once.
    void (*softmax_backward)(const float* s, const float* dp, int keys, float factor, const float* lse, const float* delta,
                             const float* slope, uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs);
    // Products and softmax_backward() of tiles at once; depths in tiles of 32 dims. NULL: none.
    void (*softmax_backward_tiles)(const BackwardTile*, int count, int depth_qk, int depth_v, float factor, float* scratch);
    // From a packed k to left tiles [2 · depth][2] of its transpose, 16 dims × 32 keys.
    void (*transpose_k)(const MatrixShape&, const uint16_t* k, uint16_t* to);
};

}  // namespace cpu
}  // namespace fa
