// Decoding up to eight rows that share a kv head of bf16 or fp8, by AMX, with v as it lies: where a product wants two keys of a column it
// gets two columns of a key, and P has two rows for each of q, (p, 0) and (0, p), which sum the even and the odd columns. v's rows are then
// a right operand without being interleaved.
//
// The other column of a pair is multiplied by 0, which an infinity or NaN turns into NaN. Rare as that is, it is found in the sums, and the
// chunk is added once more with the columns apart, in the same order of additions.
#pragma once
#include "cpu/isa/amx/decode.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kSpreadRows = 8;
static_assert(2 * kSpreadRows <= 16, "rows of a tile");

// Tile registers as for more rows, but 5: P, 6 and 7: accumulators of o.
void spread_configure(int rows, bool limbs) { configure_decode_tiles(rows, limbs, 2 * rows); }

// Bytes of 8-bit floats as bf16: of each 64 the even ones first, then the odd ones, which spares shuffles.
template <int32_t Type>
inline __attribute__((always_inline)) void split_bytes(const ByteTables<Type>& tables, const char* at, uint16_t* to) {
    const __m512i bytes = _mm512_loadu_si512(at);
    __m512i low, high;
    tables.look_up(bytes, low, high);
    const __m512i low_half = _mm512_set1_epi16(0xff);
    _mm512_storeu_si512(to, _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low, low_half, 0xf8));       // high << 8 | low & mask
    _mm512_storeu_si512(to + 32, _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, low_half, 0xf4));  // low >> 8 | high & ~mask
}
template <int32_t Type>
void split_rows(const DecodeChunk& chunk, int dim, uint16_t* to) {
    const ByteTables<Type> tables;
    for (int j = 0; j < chunk.keys; j++, to += dim) {
        const char* const row = chunk.rows.row[j] + chunk.rows.offset;
        for (int x = 0; x < dim; x += 64) {
            prefetch(chunk.rows, j, x);
            split_bytes(tables, row + x, to + x);
        }
    }
}

void spread_convert(const DecodeChunk& chunk, int dim, uint16_t* to) {
    if (chunk.type == FA_E4M3) split_rows<FA_E4M3>(chunk, dim, to);
    else split_rows<FA_E5M2>(chunk, dim, to);
}

// As decode_pack_q(), the pairs as spread_convert() leaves those of k.
void spread_pack_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    if (type == FA_BF16) return decode_pack_q(rows, count, type, dim, to);
    const int columns = decode_columns(count);
    for (int x = 0; x < dim; x += 32)
        for (int i = 0; i < 16; i++)
            for (int r = 0; r < columns; r++, to += 2) {
                const int first = x / 64 * 64 + x / 32 % 2 + 4 * i;
                to[0] = r < count ? rows[r][first] : 0;
                to[1] = r < count ? rows[r][first + 2] : 0;
            }
}

void spread_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, const DecodeMatrixScratch& memory,
               float* s) {
    qk_tiles(q, rows, factor, chunk, dim, memory, spread_convert, s);
}

// Sixteen keys of P as a left operand.
inline void spread_p(const float* p, int rows, __mmask16 keys, uint16_t* to) {
    for (int r = 0; r < rows; r++, to += 64) {
        const __m512i x =
            _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(keys, p + r * kTileKeys) * kDecodePScale));
        _mm512_storeu_si512(to, x);
        _mm512_storeu_si512(to + 32, _mm512_slli_epi32(x, 16));
    }
}

// Sixteen rows of bf16, those beyond the chunk's keys zeros: fewer than sixteen are a copy.
StridedRows strided_v(const DecodeChunk& chunk, int first, int dim, const DecodeMatrixScratch& memory) {
    const int keys = chunk.keys - first;
    if (keys <= 0) return {reinterpret_cast<const char*>(memory.zeros), 0};
    const StridedRows rows = group_rows(chunk, first, dim, memory);
    if (keys < kGroupKeys) memset(memory.converted + chunk.keys * dim, 0, size_t(kGroupKeys - keys) * size_t(dim) * 2);
    return rows;
}

// to = o + P v. Of each row of q the even columns' sums come first, then the odd ones'.
template <bool Fetch>
void pv_as_it_lies(const DecodeChunk& chunk, const StridedRows (&v)[2], int dim, const DecodeMatrixScratch& memory, int rows,
                   const float* o, float* to) {
    constexpr int32_t T = FA_BF16;
    const int64_t stride = int64_t(dim) * 2;  // bytes: half a row of o
    const uint16_t* const p[2] = {memory.p, memory.p + rows * 64};
    PrefetchCursor prefetch_cursor{chunk.rows, int64_t(dim) * 2};
    const auto fetch = [&](int lines) {
        if (Fetch) prefetch_cursor.prefetch_lines(lines);
    };
    int x = 0;
    for (; x + 32 < dim; x += 64) {
        FA_TILE_LOAD(6, o + x / 2, stride);
        fetch(8);
        FA_TILE_LOAD(7, o + x / 2 + 16, stride);
        for (int group = 0; group < 2; group++) {
            const char* const at = v[group].data + x * 2;
            FA_TILE_LOAD(5, p[group], 64);
            fetch(8);
            FA_TILE_LOAD(3, at, v[group].stride);
            fetch(8);
            FA_TILE_DOT(6, 5, 3);
            FA_TILE_LOAD(4, at + 64, v[group].stride);
            fetch(8);
            FA_TILE_DOT(7, 5, 4);
        }
        FA_TILE_STORE(6, to + x / 2, stride);
        fetch(8);
        FA_TILE_STORE(7, to + x / 2 + 16, stride);
    }
    if (x == dim) return;
    FA_TILE_LOAD(6, o + x / 2, stride);
    for (int group = 0; group < 2; group++) {
        FA_TILE_LOAD(5, p[group], 64);
        fetch(16);
        FA_TILE_LOAD(3, v[group].data + x * 2, v[group].stride);
        FA_TILE_DOT(6, 5, 3);
    }
    FA_TILE_STORE(6, to + x / 2, stride);
}

// The same sums, the even columns' from v without the odd ones, and the other way round.
void pv_apart(const StridedRows (&v)[2], int dim, const DecodeMatrixScratch& memory, int rows, const float* o, float* to) {
    constexpr int32_t T = FA_BF16;
    const int64_t stride = int64_t(dim) * 2;
    for (int x = 0; x < dim; x += 32)
        for (int odd = 0; odd < 2; odd++) {
            const __m512i kept = _mm512_set1_epi32(odd ? int(0xffff0000u) : 0xffff);
            FA_TILE_LOAD(6, o + x / 2, stride);
            for (int group = 0; group < 2; group++) {
                uint16_t* const columns = memory.pairs + (2 * odd + group) * kTileValues;
                for (int j = 0; j < kGroupKeys; j++)
                    _mm512_storeu_si512(columns + j * 32,
                                        _mm512_and_si512(_mm512_loadu_si512(v[group].data + j * v[group].stride + x * 2), kept));
                FA_TILE_LOAD(5, memory.p + group * rows * 64, 64);
                FA_TILE_LOAD(3, columns, 64);
                FA_TILE_DOT(6, 5, 3);
            }
            FA_TILE_STORE(6, memory.products, 64);
            for (int r = 0; r < rows; r++) store(to + r * dim + odd * dim / 2 + x / 2, load(memory.products + (2 * r + odd) * 16));
        }
}

// Whether the first row's sums of even columns are finite. They are not where some v is not.
inline bool first_row_is_finite(const float* o, int dim) {
    const V magnitude = splat(FLT_MAX);
    __mmask16 odd = 0;
    for (int x = 0; x < dim / 2; x += 16) odd |= _mm512_cmp_ps_mask(_mm512_abs_ps(load(o + x)), magnitude, _CMP_NLE_UQ);
    return odd == 0;
}

float* spread_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale, const DecodeMatrixScratch& memory,
                 float* o, float* spare) {
    if (rescale) rescale_acc(o, rows, dim, rescale);
    const uint32_t keys = uint32_t(first_bits(chunk.keys));
    spread_p(p, rows, __mmask16(keys), memory.p);
    spread_p(p + kGroupKeys, rows, __mmask16(keys >> 16), memory.p + rows * 64);
    if (chunk.type != FA_BF16) spread_convert(chunk, dim, memory.converted);
    const StridedRows v[2] = {strided_v(chunk, 0, dim, memory), strided_v(chunk, kGroupKeys, dim, memory)};
    if (chunk.type == FA_BF16) pv_as_it_lies<true>(chunk, v, dim, memory, rows, o, spare);
    else pv_as_it_lies<false>(chunk, v, dim, memory, rows, o, spare);
    if (!first_row_is_finite(spare, dim)) pv_apart(v, dim, memory, rows, o, spare);
    return spare;
}

void spread_finish(const float* from, int32_t type, int dim, float factor, float* to) {
    const float unit = factor * (kHeadroomUnit / (kPScale * kDecodePScale));
    const float *const even = from, *const odd = from + dim / 2;
    if (type == FA_BF16) {
        for (int i = 0; i < dim / 2; i++) {
            to[2 * i] = even[i] * unit;
            to[2 * i + 1] = odd[i] * unit;
        }
        return;
    }
    for (int x = 0; x < dim / 2; x += 32)
        for (int i = 0; i < 16; i++) {
            float* const four = to + 2 * x + 4 * i;
            four[0] = even[x + i] * unit;
            four[1] = even[x + 16 + i] * unit;
            four[2] = odd[x + i] * unit;
            four[3] = odd[x + 16 + i] * unit;
        }
}

constexpr DecodeMatrixKernels kDecodeSpread = {.byte_dims = 64,
                                               .short_chunk_rows = 0,
                                               .min_rows_bf16 = 4,
                                               .min_rows_int8 = DecodeMatrixKernels::kNone,  // slower than pairs of keys from memory
                                               .min_rows_fp8 = 2,
                                               .max_rows = kSpreadRows,
                                               .acquire = acquire_tiles,
                                               .configure = spread_configure,
                                               .release = release_tiles,
                                               .pack_q = spread_pack_q,
                                               .qk = spread_qk,
                                               .pv = spread_pv,
                                               .finish = spread_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
