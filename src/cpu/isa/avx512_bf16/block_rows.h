// What kernels that decode share: register blocks of rows of q, and rows of k and v of block formats as AVX-512 reads them.
#pragma once
#include "cpu/kernels/decode_kernels.h"
#include "cpu/kernels/matrix_table.h"
#include "spec/block_formats.h"

namespace fa {
namespace cpu {
namespace {

// Rows of q that a register block of scores takes: a power of two, of which some may be zeros.
inline int dot_rows(int rows) { return rows > 4 ? 8 : rows > 2 ? 4 : rows; }

// f(first row, rows from there on, Constant<R>()) for each register block, of up to Most rows.
template <int Most = 8, class F>
inline void for_row_blocks(int rows, const F& f) {
    for (int first = 0; first < rows; first += Most) {
        const int left = rows - first, block = dot_rows(left);
        if (Most == 8 && block == 8) f(first, left, Constant<Most>());
        else if (block >= 4) f(first, left, Constant<4>());
        else if (block == 2) f(first, left, Constant<2>());
        else f(first, left, Constant<1>());
    }
}

// Lane i of each quarter: x[i]'s lanes there, reduced by op. By unpacking, which leaves dots their units.
template <class Op>
inline V reduce_within_quarters(const V* x, const Op& op) {
    const V a = op(V(_mm512_unpacklo_ps(x[0], x[1])), V(_mm512_unpackhi_ps(x[0], x[1]))),
            b = op(V(_mm512_unpacklo_ps(x[2], x[3])), V(_mm512_unpackhi_ps(x[2], x[3])));
    return op(V(_mm512_unpacklo_pd((__m512d)a, (__m512d)b)), V(_mm512_unpackhi_pd((__m512d)a, (__m512d)b)));
}
inline V add_within_quarters(const V* x) {
    return reduce_within_quarters(x, [](V a, V b) { return a + b; });
}

// transpose_add_lanes() of 16 vectors, within quarters before these are exchanged.
inline V add_lanes(const V* x) {
    V sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) sum[i] = add_within_quarters(x + 4 * i);
    return transpose_quarters(sum, [](V a, V b) { return a + b; });
}

constexpr int kMaxBlocks = 1024 / kBlockDims;  // of a row: core takes no more
static_assert(kMaxBlocks * kDecodeChunkKeys <= kDecodeProducts, "their d lie there");

template <class T>
struct alignas(64) VectorOf {
    T x[64 / sizeof(T)];
    constexpr VectorOf(T (*value)(int)) : x() {
        for (int i = 0; i < int(64 / sizeof(T)); i++) x[i] = value(i);
    }
    inline __m512i get() const { return _mm512_load_si512(x); }
};

// 16 bytes of each of four rows that lie Step keys apart.
template <int Step>
inline __attribute__((always_inline)) __m512i quarters(const char* const* row, int64_t at) {
    const auto read = [&](int g) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[Step * g] + at)); };
    __m512i x = _mm512_castsi128_si512(read(0));
#pragma GCC unroll 3
    for (int g = 1; g < 4; g++) x = _mm512_mask_broadcast_i32x4(x, __mmask16(0xf << 4 * g), read(g));
    return x;
}

// For bytes of 32 columns of one key and of another behind them: pairs of bytes, of columns 0 … 3 and 16 … 19 in the first quarter, and so
// on.
constexpr VectorOf<uint8_t> kPairsOfColumns = {[](int i) { return uint8_t(i % 2 * 32 + i / 8 % 2 * 16 + i / 16 * 4 + i % 8 / 2); }};

// Bits 4 of a block of five bits.
inline int32_t fifth_bits(const char* block) {
    int32_t x;
    memcpy(&x, block + 2, sizeof x);
    return x;
}

// The d of a chunk's blocks: [block][kDecodeChunkKeys].
inline void read_factors(const KvRows& rows, int64_t block_bytes, int keys, int blocks, float* to) {
    for (int64_t j = 0; j < keys; j += 8, to += 8) {
        const char* row[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) row[i] = rows.row[j + i] + rows.offset;
        int64_t at = 0;
        for (float *n = to, *const end = to + blocks * kDecodeChunkKeys; n < end; n += kDecodeChunkKeys, at += block_bytes) {
            __m128i x[4];  // by unpacking, which leaves dots their units
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                x[i] = _mm_unpacklo_epi16(_mm_loadu_si128((const __m128i*)(row[2 * i] + at)),
                                          _mm_loadu_si128((const __m128i*)(row[2 * i + 1] + at)));
            _mm256_storeu_ps(n, _mm256_cvtph_ps(_mm_unpacklo_epi64(_mm_unpacklo_epi32(x[0], x[1]), _mm_unpacklo_epi32(x[2], x[3]))));
        }
    }
}

// Scores of keys with a d, of those that read_factors() has read, which is not finite become NaN (see nan_if_infinite()): they are infinite
// already.
[[gnu::noinline, gnu::cold]] inline void mark_infinite_factors(const float* d, int blocks, int keys, int rows, float* s) {
    for (int j = 0; j < keys; j++) {
        float sum = 0;
        for (int n = 0; n < blocks; n++) sum += 0.f * d[n * kDecodeChunkKeys + j];
        for (int r = 0; r < rows && sum != 0; r++) s[r * kTileKeys + j] = sum;
    }
}

}  // namespace
}  // namespace cpu
}  // namespace fa
