// Decoding by AMX: what decode_kernels.h does by vectors, where those could not keep up with memory bandwidth: for several rows
// that share a kv head, and for 8-bit values. Rows of k are left operands as memory has them, or as converted; those of v are
// interleaved to pairs of keys on their way through the first-level cache.
#pragma once
#include "cpu/isa/amx/decode_int8.h"
#include "cpu/isa/avx512_bf16/block_rows.h"

namespace fa {
namespace cpu {
namespace {

// Rows of bf16 from key `first` of the chunk on, at most a group's: where they lie, or, of 8 bits, as they were converted.
StridedRows group_rows(const DecodeChunk& chunk, int first, int dim, const DecodeMatrixScratch& memory) {
    char* const copy = reinterpret_cast<char*>(memory.converted + first * dim);
    const int64_t bytes = int64_t(dim) * 2;
    return chunk.type == FA_BF16 ? gather_strided(chunk.rows.row + first, chunk.rows.offset, chunk.keys - first, bytes, copy)
                                 : StridedRows{copy, bytes};
}

// convert(chunk, dim, to): k of 8 bits as bf16, [key][dim], in the order of q's packing.
template <class Convert>
void qk_tiles(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, const DecodeMatrixScratch& memory,
              const Convert& convert, float* s) {
    constexpr int32_t T = FA_BF16;
    const bool is_bf16 = chunk.type == FA_BF16, two_groups = chunk.keys > kGroupKeys;
    if (!is_bf16) convert(chunk, dim, memory.converted);
    const StridedRows low = group_rows(chunk, 0, dim, memory), high = two_groups ? group_rows(chunk, kGroupKeys, dim, memory) : low;
    const int columns = decode_columns(rows);
    // A chunk has as many lines as dims. Some prefetches are left for what follows the products, where memory would be idle
    // otherwise.
    const int lines_after = is_bf16 ? dim / 8 : 0;
    PrefetchCursor prefetch_cursor{chunk.rows, dim * 2};
    FA_TILE_ZERO(0);
    FA_TILE_ZERO(1);
    for (int x = 0; x < dim; x += 32) {
        FA_TILE_LOAD(2, q + x * columns, columns * 4);
        if (is_bf16) prefetch_cursor.prefetch_lines(6);
        FA_TILE_LOAD(3, low.data + x * 2, low.stride);
        if (is_bf16) prefetch_cursor.prefetch_lines(6);
        FA_TILE_DOT(0, 3, 2);
        if (is_bf16) prefetch_cursor.prefetch_lines(6);
        FA_TILE_LOAD(4, high.data + x * 2, high.stride);
        if (is_bf16) prefetch_cursor.prefetch_lines(6);
        FA_TILE_DOT(1, 4, 2);
    }
    FA_TILE_STORE(0, memory.products, columns * 4);
    FA_TILE_STORE(1, memory.products + kGroupKeys * columns, columns * 4);
    prefetch_cursor.prefetch_lines(lines_after);
    transpose_group(columns, memory.products, rows, factor, s);
    prefetch_cursor.prefetch_lines(lines_after);
    if (two_groups) transpose_group(columns, memory.products + kGroupKeys * columns, rows, factor, s + kGroupKeys);
}

void decode_matrix_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim,
                      const DecodeMatrixScratch& memory, float* s) {
    if (chunk.limbs) return qk_limbs(reinterpret_cast<const char*>(q), rows, factor, chunk, dim, memory, s);
    qk_tiles(q, rows, factor, chunk, dim, memory, convert_part, s);
}

inline void rescale_acc(float* o, int rows, int dim, const float* rescale) {
    for (int r = 0; r < rows; r++) {
        if (rescale[r] == 1.f) continue;
        for (int x = 0; x < dim; x += 16) store(o + r * dim + x, load(o + r * dim + x) * rescale[r]);
    }
}

// Pairs of keys of columns [x, x + 32) to two tiles of 16 columns. Those of int8 are in their order; of other types, of each eight
// columns the first four go to the first tile and the others to the second.
template <int32_t Type, bool Fetch>
inline __attribute__((always_inline)) void interleave_keys(const char* const* rows, PrefetchCursor& prefetch_cursor, int x, uint16_t* to) {
    for (int i = 0; i < 16; i++) {
        if (Fetch) prefetch_cursor.prefetch_lines(Type == FA_I8 ? 1 : 2);
        const char *const even = rows[2 * i], *const odd = rows[2 * i + 1];
        if (Type == FA_I8) {
            _mm512_storeu_si512(to + i * 32, pack_bf16_pairs(widen_bytes(even + x), widen_bytes(odd + x)));
            _mm512_storeu_si512(to + kTileValues + i * 32, pack_bf16_pairs(widen_bytes(even + x + 16), widen_bytes(odd + x + 16)));
        } else {
            const __m512i a = _mm512_loadu_si512(even + x * 2), b = _mm512_loadu_si512(odd + x * 2);
            _mm512_storeu_si512(to + i * 32, _mm512_unpacklo_epi16(a, b));
            _mm512_storeu_si512(to + kTileValues + i * 32, _mm512_unpackhi_epi16(a, b));
        }
    }
}

template <int32_t Type, bool Fetch>
void pv_tiles(const char* const* rows, const KvRows& next, int dim, const DecodeMatrixScratch& memory, float* o) {
    constexpr int32_t T = FA_BF16;
    PrefetchCursor prefetch_cursor{next, Type == FA_I8 ? dim : dim * 2};
    FA_TILE_LOAD(7, memory.p, kPairKeys * 2);
    // Pairs are written well before they are loaded as a tile, which waits for writes to reach the cache.
    interleave_keys<Type, Fetch>(rows, prefetch_cursor, 0, memory.pairs);
    for (int x = 0; x < dim; x += 32) {
        uint16_t *const now = memory.pairs + x / 32 % 2 * 2 * kTileValues, *const after = memory.pairs + (x / 32 + 1) % 2 * 2 * kTileValues;
        FA_TILE_LOAD(5, o + x, dim * 4);
        FA_TILE_LOAD(6, o + x + 16, dim * 4);
        if (x + 32 < dim) interleave_keys<Type, Fetch>(rows, prefetch_cursor, x + 32, after);
        FA_TILE_LOAD(3, now, 64);
        FA_TILE_LOAD(4, now + kTileValues, 64);
        FA_TILE_DOT(5, 7, 3);
        FA_TILE_DOT(6, 7, 4);
        FA_TILE_STORE(5, o + x, dim * 4);
        FA_TILE_STORE(6, o + x + 16, dim * 4);
    }
}

float* decode_matrix_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale,
                        const DecodeMatrixScratch& memory, float* o, float*) {
    if (rescale) rescale_acc(o, rows, dim, rescale);
    const __mmask16 first = __mmask16(first_bits(chunk.keys)), second = __mmask16(first_bits(chunk.keys) >> 16);
    for (int r = 0; r < rows; r++) {
        const V low = _mm512_maskz_loadu_ps(first, p + r * kTileKeys), high = _mm512_maskz_loadu_ps(second, p + r * kTileKeys + 16);
        _mm512_storeu_si512(memory.p + r * kPairKeys, (__m512i)_mm512_cvtne2ps_pbh(high * kDecodePScale, low * kDecodePScale));
    }
    const bool converted = chunk.type == FA_E4M3 || chunk.type == FA_E5M2;
    if (converted) convert_part(chunk, dim, memory.converted);
    const char* at[kPairKeys];
    for (int j = 0; j < chunk.keys; j++)
        at[j] = converted ? reinterpret_cast<const char*>(memory.converted + j * dim) : chunk.rows.row[j] + chunk.rows.offset;
    for (int j = chunk.keys; j < kPairKeys; j++) at[j] = reinterpret_cast<const char*>(memory.zeros);
    if (chunk.type == FA_I8) pv_tiles<FA_I8, true>(at, chunk.rows, dim, memory, o);
    else if (converted) pv_tiles<FA_BF16, false>(at, chunk.rows, dim, memory, o);
    else pv_tiles<FA_BF16, true>(at, chunk.rows, dim, memory, o);
    return o;
}

// A row's accumulators in the order of its columns.
void decode_matrix_finish(const float* from, int32_t type, int dim, float factor, float* to) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const V unit = splat(factor * (kHeadroomUnit / (kPScale * kDecodePScale)));
    for (int x = 0; x < dim; x += 32) {
        const V a = load(from + x) * unit, b = load(from + x + 16) * unit;
        store(to + x, type == FA_I8 ? a : V(_mm512_permutex2var_ps(a, first, b)));
        store(to + x + 16, type == FA_I8 ? b : V(_mm512_permutex2var_ps(a, second, b)));
    }
}

constexpr DecodeMatrixKernels kDecodeMatrix = {.byte_dims = 32,
                                               .short_chunk_rows = 0,
                                               .min_rows_bf16 = 4,
                                               .min_rows_int8 = 2,
                                               .min_rows_fp8 = 1,
                                               .max_rows = kDecodeRows,
                                               .acquire = acquire_tiles,
                                               .configure = decode_configure,
                                               .release = release_tiles,
                                               .pack_q = decode_pack_q,
                                               .pack_limbs = pack_limbs,
                                               .qk = decode_matrix_qk,
                                               .pv = decode_matrix_pv,
                                               .finish = decode_matrix_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
