// Decoding over block formats that have no m, by dots of bf16 pairs: integers become bf16, exactly, by table look-up. A block's d
// multiplies its sum of a score, and P before that is rounded, since both differ by key. What is loaded at once lies within a block.
#pragma once
#include "cpu/isa/avx512_bf16/decode.h"

namespace fa {
namespace cpu {
namespace {

// Vectors of bf16 that a block of each of four keys fills: each quarter has 8 dims of a key.
constexpr int kQuadVectors = kBlockDims / 8;
// P · d is multiplied by it: with d from 2^-24 to 2^16 nothing of it is subnormal, and sums stay far below f32's largest.
constexpr float kBlockPScale = 0x1p16f;
constexpr uint16_t bf16_of_integer(int x) { return uint16_t(x < 0 ? 0x8000 | small_bf16(uint32_t(-x), 0) : small_bf16(uint32_t(x), 0)); }

// Lane i of each quarter in all four of them. (Its number belongs to the instruction, also where a compiler unrolls nothing.)
inline __attribute__((always_inline)) V broadcast_within_quarters(V x, int i) {
    return i == 0   ? _mm512_permute_ps(x, 0)
           : i == 1 ? _mm512_permute_ps(x, 0x55)
           : i == 2 ? _mm512_permute_ps(x, 0xaa)
                    : _mm512_permute_ps(x, 0xff);
}

// Each format has, of blocks at `at` bytes of rows,
//     dim(vector, i)             which dim of its block widen() puts there
//     widen(row, at, x)          kQuadVectors of four keys
//     pair_keys(even, odd, x)    32 columns of two keys as two vectors of pairs, in order
struct Q8Blocks {
    static constexpr int kBytes = 34;
    const ByteTables<FA_I8> tables{};
    const __m512i pairs = kPairsOfColumns.get();

    static constexpr int dim(int vector, int i) { return vector * 8 + i; }
    inline __attribute__((always_inline)) void widen(const char* const* row, int64_t at, __m512i* x) const {
        tables.to_bf16(quarters<4>(row, at + 2), x);
        tables.to_bf16(quarters<4>(row, at + 18), x + 2);
    }
    inline __attribute__((always_inline)) void pair_keys(const char* even, const char* odd, __m512i* x) const {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + 2)),
                      b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + 2));
        tables.to_bf16(_mm512_permutexvar_epi8(pairs, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)), x);
    }
};

// A word has four nibbles, whose dims lie 16, 1 and 17 apart. Five bits of a word pick a value.
template <int Bits>
struct NibbleBlocks {
    static constexpr int kNibbles = Bits == 5 ? 6 : 2, kBytes = kNibbles + 16;
    static constexpr VectorOf<uint16_t> kValues = {[](int i) { return bf16_of_integer(i % (1 << Bits) - (1 << (Bits - 1))); }};
    static constexpr VectorOf<uint8_t> kPairs = {[](int i) { return uint8_t(i / 2 % 2 * 16 + i / 4); }};
    // For each word where bits 4 of the blocks' x begin, less 4, of the 64 bits that two keys have, or one key twice.
    static constexpr VectorOf<uint8_t> kQuadBits = {[](int i) { return uint8_t((i / 2 % 8 * 2 - 4) & 63); }};
    static constexpr VectorOf<uint8_t> kPairBits = {[](int i) { return uint8_t((i / 4 + i / 2 % 2 * 32 - 4) & 63); }};
    const __m512i values = kValues.get(), pairs = kPairs.get();

    static constexpr int dim(int vector, int i) { return vector % 2 * 16 + i * 2 + vector / 2; }
    // `fifths`: the blocks' bits 4 as they are stored, of which the word wants bit begin + dim.
    inline __attribute__((always_inline)) __m512i pick(__m512i words, __m512i fifths, const VectorOf<uint8_t>& begin, int dim) const {
        if (Bits == 5) {
            const __m512i from = _mm512_add_epi8(begin.get(), _mm512_set1_epi8(char(dim)));
            words = _mm512_ternarylogic_epi64(_mm512_set1_epi16(15), words, _mm512_multishift_epi64_epi8(from, fifths), 0xca);
        }
        return _mm512_permutexvar_epi16(words, values);
    }
    inline __attribute__((always_inline)) void widen(const char* const* row, int64_t at, __m512i* x) const {
        const __m512i words = quarters<4>(row, at + kNibbles);
        __m512i bits{};
        if (Bits == 5) {
            bits = _mm512_set1_epi32(fifth_bits(row[0] + at));
#pragma GCC unroll 3
            for (int g = 1; g < 4; g++) bits = _mm512_mask_set1_epi32(bits, __mmask16(0xf << 4 * g), fifth_bits(row[4 * g] + at));
        }
        x[0] = pick(words, bits, kQuadBits, 0);
        x[1] = pick(_mm512_srli_epi16(words, 4), bits, kQuadBits, 16);
        x[2] = pick(_mm512_srli_epi16(words, 8), bits, kQuadBits, 1);
        x[3] = pick(_mm512_srli_epi16(words, 12), bits, kQuadBits, 17);
    }
    inline __attribute__((always_inline)) void pair_keys(const char* even, const char* odd, __m512i* x) const {
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + kNibbles)),
                      b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + kNibbles));
        const __m512i words = _mm512_permutexvar_epi8(pairs, _mm512_castsi256_si512(_mm256_set_m128i(b, a)));
        const __m512i bits = Bits == 5 ? _mm512_mask_set1_epi32(_mm512_set1_epi32(fifth_bits(even)), 0xaaaa, fifth_bits(odd)) : __m512i{};
        x[0] = pick(words, bits, kPairBits, 0);
        x[1] = pick(_mm512_srli_epi16(words, 4), bits, kPairBits, 16);
    }
};

// [block of dot_rows()][block of dims][vector][row][8 dims]
template <class Format>
void pack_blocks_q(const uint16_t* const* rows, int count, int dim, uint16_t* to) {
    for_row_blocks(count, [&](int first, int left, auto block) {
        for (int x = 0; x < dim; x += kBlockDims)
            for (int n = 0; n < kQuadVectors; n++)
                for (int r = 0; r < block; r++)
                    for (int i = 0; i < 8; i++) *to++ = r < left ? rows[first + r][x + Format::dim(n, i)] : 0;
    });
}

// A block of dims of all keys before the next, so that q's part stays in registers. acc[keys / 16][i] has in quarter g the sums of key 4 g
// + i.
template <class Format, int R>
[[gnu::noinline]] void blocks_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, const float* d, int dim,
                                 float* s) {
    constexpr int G = R > 4 ? 2 : 1;  // times four keys that share a load of q, where it does not stay in registers
    const Format format;
    const KvRows& k = chunk.rows;
    V acc[kDecodeChunkKeys / kLanes][4][R];
    const float* const first_d = d;
    int64_t at = 0;
    const auto add_block = [&](auto is_first) __attribute__((always_inline)) {
        __m512i y[kQuadVectors][R];
#pragma GCC unroll 4
        for (int n = 0; n < kQuadVectors; n++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++, q += 8) y[n][r] = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
        const int64_t line = (at + 63) / 64 * 64;
        const bool begins_line = line < at + Format::kBytes;
        for (int j = 0; j < chunk.keys; j += kLanes)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i += G) {
                if (begins_line)
#pragma GCC unroll 8
                    for (int g = 0; g < 4 * G; g++)
                        __builtin_prefetch(
                            reinterpret_cast<const char*>(uintptr_t(k.far_row[j + 4 * i + g]) + uintptr_t(k.far_offset + line)), 0, 3);
                __m512i x[G][kQuadVectors];
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) format.widen(k.row + j + i + g, k.offset + at, x[g]);
                V sum[G][R];
#pragma GCC unroll 4
                for (int n = 0; n < kQuadVectors; n++)
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                        for (int g = 0; g < G; g++) sum[g][r] = dot(n == 0 ? V{} : sum[g][r], y[n][r], x[g][n]);
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) {
                    const V scale = broadcast_within_quarters(load(d + j), i + g);
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) {
                        V& to = acc[j / kLanes][i + g][r];
                        to = is_first ? sum[g][r] * scale : fma_v(sum[g][r], scale, to);
                    }
                }
            }
        at += Format::kBytes;
        d += kDecodeChunkKeys;
    };
    add_block(Constant<true>());
    for (int x = kBlockDims; x < dim; x += kBlockDims) add_block(Constant<false>());
    V probe = V{};  // 0 times all scores
    for (int j = 0; j < chunk.keys; j += kLanes)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const V(&sum)[4][R] = acc[j / kLanes];
            const V of_row[] = {sum[0][r], sum[1][r], sum[2][r], sum[3][r]}, product = add_within_quarters(of_row);
            if (r < rows) store(s + r * kTileKeys + j, product * splat(factor[r]));
            probe = fma_v(product, V{}, probe);
        }
    if (__builtin_expect(has_nan(probe), 0)) mark_infinite_factors(first_d, dim / kBlockDims, chunk.keys, rows < R ? rows : R, s);
}

template <class Format>
void blocks_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, float* d, float* s) {
    read_factors(chunk.rows, Format::kBytes, chunk.keys, dim / kBlockDims, d);
    for_row_blocks(rows, [&](int first, int left, auto block) {
        blocks_qk<Format, block>(q + first * dim, left, factor + first, chunk, d, dim, s + first * kTileKeys);
    });
}

// P · d of R rows as bf16, zeros behind the keys: [block][row][kDecodeChunkKeys].
template <int R>
inline void scale_p(const float* p, int keys, const float* d, int blocks, uint16_t* to) {
    const __mmask16 first = __mmask16(first_bits(keys)), second = __mmask16(first_bits(keys) >> 16);
    V low[R], high[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        low[r] = _mm512_maskz_loadu_ps(first, p + r * kTileKeys) * kBlockPScale;
        high[r] = _mm512_maskz_loadu_ps(second, p + r * kTileKeys + kLanes) * kBlockPScale;
    }
    for (const float* const end = d + blocks * kDecodeChunkKeys; d < end; d += kDecodeChunkKeys) {
        const V d_low = _mm512_maskz_loadu_ps(first, d), d_high = _mm512_maskz_loadu_ps(second, d + kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++, to += kDecodeChunkKeys)
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high[r] * d_high, low[r] * d_low));
    }
}

// o[R rows][C blocks of columns] = o · rescale + P v.
template <class Format, int R, int C>
[[gnu::noinline]] void blocks_pv(const uint16_t* scaled_p, const DecodeChunk& chunk, const char* zeros, int64_t column, int dim,
                                 const float* rescale, float* o) {
    const Format format;
    V acc[R][2 * C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < 2 * C; n++) acc[r][n] = V{};
    const KvRows& v = chunk.rows;
    for (int j = 0; j < chunk.keys; j += 2) {
        const char* const even = v.row[j] + v.offset + column;
        const char* const odd = j + 1 < chunk.keys ? v.row[j + 1] + v.offset + column : zeros;
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
#pragma GCC unroll 4
            for (int x = 0; x < C * Format::kBytes; x += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(v.far_row[j + i]) + uintptr_t(v.far_offset + column + x)), 0, 3);
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            __m512i x[2];
            format.pair_keys(even + c * Format::kBytes, odd + c * Format::kBytes, x);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, scaled_p + (c * R + r) * kDecodeChunkKeys + j, sizeof pair);
                const __m512i y = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
                for (int n = 0; n < 2; n++) acc[r][2 * c + n] = dot(acc[r][2 * c + n], y, x[n]);
            }
        }
    }
    add_rescaled(acc, rescale, dim, o);
}

template <class Format, int R>
void blocks_pv(const float* p, const DecodeChunk& chunk, const float* d, const char* zeros, int dim, const float* rescale, float* o) {
    constexpr int C = R >= 8 ? 1 : R >= 3 ? 2 : 4;
    const int blocks = dim / kBlockDims;
    alignas(64) uint16_t scaled_p[kMaxBlocks * R * kDecodeChunkKeys];
    scale_p<R>(p, chunk.keys, d, blocks, scaled_p);
    int c = 0;
    const auto step = [&](int n, auto block) {
        for (; c + n <= blocks; c += n)
            block(scaled_p + c * R * kDecodeChunkKeys, chunk, zeros, c * Format::kBytes, dim, rescale, o + c * kBlockDims);
    };
    step(C, blocks_pv<Format, R, C>);
    step(1, blocks_pv<Format, R, 1>);
}

template <class Format>
void blocks_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale, const DecodeMatrixScratch& memory,
               float* o) {
    float* const d = memory.products;
    read_factors(chunk.rows, Format::kBytes, chunk.keys, dim / kBlockDims, d);
    int r = 0;
    const auto step = [&](int n, auto block) {
        for (; r + n <= rows; r += n)
            block(p + r * kTileKeys, chunk, d, reinterpret_cast<const char*>(memory.zeros), dim, rescale ? rescale + r : nullptr,
                  o + r * dim);
    };
    step(8, blocks_pv<Format, 8>);
    step(4, blocks_pv<Format, 4>);
    step(3, blocks_pv<Format, 3>);
    step(2, blocks_pv<Format, 2>);
    step(1, blocks_pv<Format, 1>);
}

void decode_blocks_pack_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    if (type == FA_Q8_0) pack_blocks_q<Q8Blocks>(rows, count, dim, to);
    else pack_blocks_q<NibbleBlocks<4>>(rows, count, dim, to);  // q5_0's order, too
}
void decode_blocks_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim,
                      const DecodeMatrixScratch& memory, float* s) {
    if (chunk.type == FA_Q8_0) blocks_qk<Q8Blocks>(q, rows, factor, chunk, dim, memory.products, s);
    else if (chunk.type == FA_Q5_0) blocks_qk<NibbleBlocks<5>>(q, rows, factor, chunk, dim, memory.products, s);
    else blocks_qk<NibbleBlocks<4>>(q, rows, factor, chunk, dim, memory.products, s);
}
float* decode_blocks_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale,
                        const DecodeMatrixScratch& memory, float* o, float*) {
    if (chunk.type == FA_Q8_0) blocks_pv<Q8Blocks>(p, rows, chunk, dim, rescale, memory, o);
    else if (chunk.type == FA_Q5_0) blocks_pv<NibbleBlocks<5>>(p, rows, chunk, dim, rescale, memory, o);
    else blocks_pv<NibbleBlocks<4>>(p, rows, chunk, dim, rescale, memory, o);
    return o;
}
void decode_blocks_finish(const float* from, int32_t, int dim, float factor, float* to) {
    const float unit = factor * (kHeadroomUnit / (kPScale * kBlockPScale));
    for (int x = 0; x < dim; x++) to[x] = from[x] * unit;
}

// Over q8_0, whose look-up is most of the work, one row is as fast by vectors in f32, or faster.
constexpr DecodeMatrixKernels kDecodeBlocks = {.byte_dims = 64,
                                               .far_bytes = kFarBytes / 2,
                                               .short_chunk_rows = 0,
                                               .min_rows_q8 = 2,
                                               .min_rows_q4 = 1,
                                               .max_rows = kDecodeRows,
                                               .pack_q = decode_blocks_pack_q,
                                               .qk = decode_blocks_qk,
                                               .pv = decode_blocks_pv,
                                               .finish = decode_blocks_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
