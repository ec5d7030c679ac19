// The kernel table of an instruction set: functions on one tile (Q Kᵀ, score mods, online softmax, P V), and nothing about
// blocking, the meaning of masks or threads. One table for each line of isa.def; driver/cpuid.cc selects it.
//
// A tile is up to kMaxRows query rows against up to kTileKeys keys, in f32. Lanes are query rows: S, P and o are stored
// [key][width] and [column][width], so a row's maximum, sum and rescaling need no shuffles, and every row's arithmetic is its own:
// its bits depend on its scores alone, never on its neighbours or on its index in the tile.
#pragma once
#include <flashattn.h>
#include <float.h>
#include "spec/mask.h"
#include "spec/online_softmax.h"
#include "spec/random.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {

constexpr int kTileKeys = 64;  // keys of a tile; equals the split quantum
constexpr int kMaxRows = 64;   // four vectors of the widest instruction set

// Accumulators l and o are kept in the units of kHeadroomUnit (spec/online_softmax.h); P of one tile 2^-8 of its value, for its own sums.
// What of P is below 2^kMinLog2P of the row's largest is 0: no element of P is subnormal, not even 2^-8 of one as bf16, which would
// make each of its products a hundred times slower.
constexpr float kPScale = 0x1p-8f;
constexpr float kMinLog2P = -110.f;

// Rows of the next register block of decoding: 8, 4, 2 or 1, at most `lanes` and at most `rows`.
static inline int decode_block_rows(int rows, int lanes) {
    int block = lanes < 8 ? lanes : 8;
    while (block > rows) block /= 2;
    return block;
}

// Rows of k or v as they are stored: addresses, with `offset` bytes to be added; the rows that are read next, in the same order, which
// are prefetched meanwhile, a line for each that is read, so that a prefetched line lies on a page that was just used; and rows that
// are read some time later, for the second-level cache.
struct KvRows {
    const char* const* row;
    int64_t offset;
    const char* const* next_row;
    int64_t next_offset;
    const char* const* far_row;
    int64_t far_offset;
};

// Decoding: few query rows against keys as they are stored. Here lanes are elements of a head: q and o are padded to whole vector
// pairs, 2 · lanes elements, with zeros behind the last element of q. o lies [row][pair]; q, in blocks of decode_block_rows() rows,
// [pair][row of the block]. S and P lie [row][kTileKeys].
struct DecodeKernels {
    // s = Σ_c q · k, computed for a whole vector of keys at a time: so many addresses are read, and up to there s is written.
    void (*qk)(const float* q, int rows, const KvRows& k, int keys, int dim, float* s);
    // o = o · rescale + kAccScale / kPScale · Σ_key p · v
    void (*pv)(const float* p, int rows, const KvRows& v, int keys, int dim, const float* rescale, float* o);
    // Whether the two above can read all these keys: a format whose NaN they do not convert; NULL: always.
    bool (*can_read)(const char* const* rows, int64_t offset, int keys, int dim);
    bool deinterleaved;  // q and o have the even elements of each vector pair first, then the odd ones
};

struct MatrixKernels;

// What dropout's random numbers depend on, for each row of a tile: position, and batch · heads + head by its low and high bits.
struct DropoutRows {
    uint32_t position[kMaxRows], low[kMaxRows], high[kMaxRows];
};

struct Kernels {
    const char* name;
    int32_t isa;  // FA_ISA_…
    int lanes;    // floats of a vector
    int rows;     // of a full tile. A tile is up to so many rows' vectors wide: width = vectors · lanes

    // s[key][width] = Σ_c q[c][width] · k[key · stride + c], of the first `vectors` of `width`, which counts vectors, too: all of them, or
    // some of a full tile's.
    void (*qk)(const float* q, int vectors, int width, const float* k, int64_t stride, int keys, int dim, float* s);
    // s = s · factor
    void (*scale_scores)(float* s, float factor, int count);
    // Score mod, from natural to log2 units: cap · tanh(s / cap) when cap > 0, + addend unless NULL (−inf there removes the key), ·
    // log2 e.
    void (*score_mod)(float* s, const float* addend, float cap, int count);
    // Masks keys outside [begin, end) of each row; both count from the tile's first key.
    void (*mask_bands)(float* s, int vectors, int keys, const int32_t* begin, const int32_t* end);
    // Online softmax: updates the row states (m, l) by the tile's scores, replaces them by P in kPScale, and gives the factor that
    // rescales the accumulators so far.
    void (*online_softmax)(float* s, int vectors, int keys, float* m, float* l, float* rescale);
    // o[column][width] = o · rescale + kAccScale / kPScale · Σ_key p[key][width] · v[key · stride + column], of such vectors
    void (*pv)(const float* p, int vectors, int width, const float* v, int64_t stride, int keys, int dim, const float* rescale, float* o);

    // For the backward. C += A B, or Aᵀ B: c[row][width] += Σ_k a[row · stride + k] · b[k][width], or a[k · stride + row] ·
    // b[k][width].
    void (*gemm_nn)(const float* a, int64_t stride, int rows, const float* b, int vectors, int depth, float* c);
    void (*gemm_tn)(const float* a, int64_t stride, int rows, const float* b, int vectors, int depth, float* c);
    double (*dot)(const float* a, const float* b, int64_t count);
    // s = cap · tanh(s / cap) in natural units, slope = 1 − tanh².
    void (*softcap)(float* s, float* slope, float cap, int count);
    // Softmax's backward: scores, in log2 units once multiplied by a factor > 0, become P = 2^(factor · s − lse), and dp becomes dS
    // = P · (dp − delta), times slope unless that is NULL; both 0 for a removed key, and in a lane whose lse is +inf.
    void (*softmax_backward)(float* s, float* dp, int vectors, int keys, float factor, const float* lse, const float* delta,
                             const float* slope);

    // to[column · to_stride + row] = from[row · from_stride + column] · factor[row], a factor of NULL being 1.
    void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, const float* factor, float* to,
                      int64_t to_stride);
    // Normalises the accumulators: o[dim][width] = o · factor · scale, a product of finite values ending at the largest float.
    void (*finish_o)(float* o, int vectors, int64_t dim, const float* factor, float scale);
    void (*finish_o_row)(float* o, int64_t dim, float factor, float scale);  // of one row by itself
    // s −= slope · |distance − key|, keys counted from the tile's first.
    void (*add_alibi)(float* s, int vectors, int keys, const float* slope, const float* distance);
    // −inf where the mask is 0.
    void (*apply_mask)(const uint8_t* mask, float* line, int count);
    // 0, or −inf where the mask is 0, for rows of masks: lines of kTileKeys.
    void (*expand_masks)(const uint8_t* const* masks, int rows, int keys, float* lines);
    // How many keys such masks keep.
    int (*count_masks)(const uint8_t* const* masks, int rows, int keys);
    // How many elements of the lines, `stride` apart, are not −inf.
    int (*count_kept)(const float* lines, int64_t stride, int rows, int count);
    // A bit for each of up to kTileKeys elements: whether it is another than this one.
    uint64_t (*other_bytes)(const uint8_t* x, uint8_t one, int count);
    uint64_t (*other_halves)(const uint16_t* x, uint16_t one, int count);
    uint64_t (*other_words)(const uint32_t* x, uint32_t one, int count);
    // −inf in a line of kTileKeys where the bit is 0.
    void (*mask_word)(float* line, uint64_t kept);
    // Zeroes the elements of P that dropout removes, of keys [key, key + keys).
    void (*apply_dropout)(float* p, int vectors, int keys, int64_t key, const Dropout& dropout, const DropoutRows& rows);

    // Storage formats by type_index(), to and from f32, `count` elements in a row. Narrowing to FA_I8 rounds and saturates at ±
    // 127.
    void (*widen[kTypes])(const void* from, int64_t count, float* to);
    void (*widen_k[kTypes])(const void* from, int64_t count,
                            float* to);  // the same of k: a factor that is infinite leaves NaN in its block
    void (*narrow[kTypes])(const float* from, int64_t count, void* to);

    // online_softmax() for scores [row][kTileKeys].
    void (*decode_online_softmax)(float* s, int rows, float* m, float* l, float* rescale);
    DecodeKernels decode[kDecodeTypes];

    const MatrixKernels* matrix = nullptr;  // matrix_table.h
};

// The best table of a level (FA_ISA_…, 0: of those that this CPU prefers) for this CPU; NULL when the CPU lacks the level that is
// named.
const Kernels* select_kernels(int64_t isa);

}  // namespace cpu
}  // namespace fa
