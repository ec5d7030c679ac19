// Operands of decoding on AMX: tile registers and their configuration, 8-bit values converted to bf16, rows gathered for tile loads
// with their prefetches, and products transposed back to rows of scores.
#pragma once
#include "cpu/isa/amx/tiles.h"
#include "cpu/isa/avx512_bf16/byte_tables.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kGroupKeys = 16, kPairKeys = 32;  // of a left side's rows, and of its depth

// Prefetches a line of a row that is read next.
inline __attribute__((always_inline)) void prefetch(const KvRows& rows, int j, int64_t at) {
    __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(rows.next_row[j]) + uintptr_t(rows.next_offset + at)), 0, 3);
}
// Iterates over the lines of the rows that are read next, to prefetch them.
struct PrefetchCursor {
    const KvRows& rows;
    int64_t bytes;  // of a row
    int j = 0;
    int64_t at = 0;
    inline __attribute__((always_inline)) void prefetch_lines(int count) {
#pragma GCC unroll 8
        for (; count > 0; count--) {
            prefetch(rows, j, at);
            at += 64;
            if (at >= bytes) at = 0, j++;
        }
    }
};

// Sixteen values of int8, which bf16 holds exactly, as f32.
inline __m512i widen_bytes(const char* at) {
    return (__m512i)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
// bf16 of both, those of `low` in the low halves of each 32 bits.
inline __m512i pack_bf16_pairs(__m512i low, __m512i high) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, _mm512_set1_epi32(int(0xffff0000u)),
                                     0xf8);  // low | high & mask
}

// Rows of 8-bit floats as bf16, exact: neither type has more mantissa bits.
template <int32_t Type>
void convert_floats(const DecodeChunk& chunk, int dim, uint16_t* to) {
    const __m512i sign = _mm512_set1_epi8(char(0x80)), order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const Magnitudes& m = kMagnitudes<Type>;
    const __m512i low0 = _mm512_load_si512(m.low), low1 = _mm512_load_si512(m.low + 64);
    const __m512i high0 = _mm512_load_si512(m.high), high1 = _mm512_load_si512(m.high + 64);
    for (int j = 0; j < chunk.keys; j++, to += dim) {
        const char* const row = chunk.rows.row[j] + chunk.rows.offset;
        for (int x = 0; x < dim; x += 64) {
            prefetch(chunk.rows, j, x);
            const __m512i bytes = _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(first_bits(dim - x), row + x));
            const __m512i low = _mm512_permutex2var_epi8(low0, bytes, low1);  // of the index, 7 bits count
            __m512i high = _mm512_permutex2var_epi8(high0, bytes, high1);
            high = _mm512_ternarylogic_epi64(high, bytes, sign, 0xf8);  // high | bytes & sign
            _mm512_storeu_si512(to + x, _mm512_unpacklo_epi8(low, high));
            if (x + 32 < dim) _mm512_storeu_si512(to + x + 32, _mm512_unpackhi_epi8(low, high));
        }
    }
}
// Rows of int8, of which dims x and x + 16 of each 32 become neighbours.
void convert_integers(const DecodeChunk& chunk, int dim, uint16_t* to) {
    for (int j = 0; j < chunk.keys; j++, to += dim) {
        const char* const row = chunk.rows.row[j] + chunk.rows.offset;
        for (int x = 0; x < dim; x += 32) {
            if (x % 64 == 0) prefetch(chunk.rows, j, x);
            _mm512_storeu_si512(to + x, pack_bf16_pairs(widen_bytes(row + x), widen_bytes(row + x + 16)));
        }
    }
}
void convert_part(const DecodeChunk& chunk, int dim, uint16_t* to) {
    if (chunk.type == FA_E4M3) convert_floats<FA_E4M3>(chunk, dim, to);
    else if (chunk.type == FA_E5M2) convert_floats<FA_E5M2>(chunk, dim, to);
    else convert_integers(chunk, dim, to);
}

// Sixteen rows of k with one stride, as tile loads need them.
struct StridedRows {
    const char* data;
    int64_t stride;
};
StridedRows gather_strided(const char* const* rows, int64_t offset, int keys, int64_t bytes, char* copy) {
    const __m512i step = _mm512_set1_epi64(rows[keys > 1] - rows[0]);
    const auto differ = [&](int j) {
        return _mm512_cmpneq_epi64_mask(_mm512_sub_epi64(_mm512_loadu_si512(rows + j + 1), _mm512_loadu_si512(rows + j)), step);
    };
    if (keys >= kGroupKeys && (differ(0) | differ(7)) == 0) return {rows[0] + offset, rows[1] - rows[0]};
    for (int j = 0; j < keys && j < kGroupKeys; j++) memcpy(copy + j * bytes, rows[j] + offset, size_t(bytes));
    return {copy, bytes};
}

// Columns of the right operand for so many rows of q: products are stored [key][column], and then transposed by halves.
inline int decode_columns(int rows) { return rows > 8 ? 16 : rows > 4 ? 8 : rows > 2 ? 4 : rows; }

// Columns between limbs.
inline int limb_rows(int rows) { return rows > 2 ? 4 : rows; }

// Tile registers 0 and 1: products of k and q, 2: q, 3 and 4: other operands, 5 and 6: accumulators of o, 7: P; the last three of `p_rows`.
void configure_decode_tiles(int rows, bool limbs, int p_rows) {
    TileConfig c = {};
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = uint16_t(i < 3 ? (limbs ? kLimbs * limb_rows(rows) : decode_columns(rows)) * 4 : 64);
        c.rows[i] = uint8_t(i < 5 ? 16 : p_rows);
    }
    c.load();
}
void decode_configure(int rows, bool limbs) { configure_decode_tiles(rows, limbs, rows); }

// [dim / 32][16][column][2], the pairs as convert_part() leaves those of k.
void decode_pack_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    const int columns = decode_columns(count), second = type == FA_I8 ? 16 : 1, step = type == FA_I8 ? 1 : 2;
    for (int x = 0; x < dim; x += 32, to += 32 * columns)
        for (int r = 0; r < columns; r++)
            for (int i = 0; i < 16; i++) {
                uint16_t* const pair = to + (i * columns + r) * 2;
                pair[0] = r < count ? rows[r][x + i * step] : 0;
                pair[1] = r < count ? rows[r][x + i * step + second] : 0;
            }
}

// From [16 keys][N rows, `step` apart] to s, times a factor for each row.
template <int N>
inline __attribute__((always_inline)) void transpose_products(const V* x, int row, int step, int rows, const float* factor, float* s) {
    if constexpr (N == 1) {
        if (row < rows) store(s + row * kTileKeys, x[0] * factor[row]);
    } else {
        const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
        V even[N / 2], odd[N / 2];
#pragma GCC unroll 8
        for (int i = 0; i < N / 2; i++) {
            even[i] = _mm512_permutex2var_ps(x[2 * i], first, x[2 * i + 1]);
            odd[i] = _mm512_permutex2var_ps(x[2 * i], second, x[2 * i + 1]);
        }
        transpose_products<N / 2>(even, row, 2 * step, rows, factor, s);
        transpose_products<N / 2>(odd, row + step, 2 * step, rows, factor, s);
    }
}
template <int N>
inline void transpose_group(const float* from, int rows, const float* factor, float* s) {
    V x[N];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) x[i] = load(from + i * 16);
    transpose_products<N>(x, 0, 1, rows, factor, s);
}
inline void transpose_group(int columns, const float* from, int rows, const float* factor, float* s) {
    if (columns == 1) transpose_group<1>(from, rows, factor, s);
    else if (columns == 2) transpose_group<2>(from, rows, factor, s);
    else if (columns == 4) transpose_group<4>(from, rows, factor, s);
    else if (columns == 8) transpose_group<8>(from, rows, factor, s);
    else transpose_group<16>(from, rows, factor, s);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
