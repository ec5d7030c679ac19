// Decoding by dots of bf16 pairs: what decode_kernels.h does in f32, for queries of bf16, where a dot is two multiply-adds and
// spares the widening to f32. Scores are dots along a head, O of pairs of keys, which are interleaved in registers. Bytes become
// bf16, exactly, by table look-up.
#pragma once
#include "cpu/isa/avx512_bf16/block_rows.h"
#include "cpu/isa/avx512_bf16/byte_tables.h"
#include "cpu/kernels/decode_kernels.h"
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {
namespace {

// A line of 64 bytes of a row, as kVectors vectors of pairs of dims; and of two rows, as twice as many vectors of pairs of keys.
// Lane n of a vector of either is of dim or column order(vector, n), in units of two dims, or of one column.
struct Bf16Line {
    static constexpr int kDims = 32, kVectors = 1;
    inline __attribute__((always_inline)) void widen(const char* at, __m512i* x) const { x[0] = _mm512_loadu_si512(at); }
    inline __attribute__((always_inline)) void pair_keys(const char* even, const char* odd, __m512i* x) const {
        const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
        x[0] = _mm512_unpacklo_epi16(a, b);
        x[1] = _mm512_unpackhi_epi16(a, b);
    }
};
template <int32_t Type>
struct ByteLine {
    static constexpr int kDims = 64, kVectors = 2;
    const ByteTables<Type> tables{};
    inline __attribute__((always_inline)) void widen(const char* at, __m512i* x) const { tables.to_bf16(_mm512_loadu_si512(at), x); }
    inline __attribute__((always_inline)) void pair_keys(const char* even, const char* odd, __m512i* x) const {
        const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
        tables.to_bf16(_mm512_unpacklo_epi8(a, b), x);
        tables.to_bf16(_mm512_unpackhi_epi8(a, b), x + 2);
    }
};

inline V dot(V sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// [block of dot_rows()][line][vector][row]
void pack_dot_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    const bool bytes = type != FA_BF16;
    const int vectors = dim / 32;
    for (int first = 0; first < count; first += 8) {
        const int left = count - first, block = dot_rows(left);
        for (int n = 0; n < vectors; n++)
            for (int r = 0; r < block; r++, to += 32)
                for (int i = 0; i < 32; i++) {
                    const int x = bytes ? n / 2 * 64 + i / 8 * 16 + n % 2 * 8 + i % 8 : n * 32 + i;
                    to[i] = r < left ? rows[first + r][x] : 0;
                }
    }
}

// Scores of 16 / R keys and R rows, one vector.
template <class Line, int R>
__attribute__((always_inline)) inline V dot_block(const Line& line, const uint16_t* q, const KvRows& k, int first, int lines) {
    // Of keys whose vectors share a load of q: with four rows' 16 sums and tables for bytes, more than 4 vectors would not fit the
    // registers.
    constexpr int M = kLanes / R, N = Line::kVectors, most = R >= 4 ? 4 / N : 4, G = M < most ? M : most;
    V acc[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) acc[i] = V{};
#pragma GCC unroll 8
    for (int m = 0; m < M; m += G) {
        const char* row[G];
        uintptr_t far[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            row[g] = k.row[first + m + g] + k.offset;
            far[g] = uintptr_t(k.far_row[first + m + g]) + uintptr_t(k.far_offset);
        }
        const uint16_t* a = q;
        for (int64_t at = 0; at < int64_t(lines) * 64; at += 64, a += N * R * 32) {
            __m512i x[G][N];
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) {
                __builtin_prefetch(reinterpret_cast<const char*>(far[g] + uintptr_t(at)), 0, 2);
                line.widen(row[g] + at, x[g]);
            }
#pragma GCC unroll 2
            for (int n = 0; n < N; n++)
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const __m512i y = _mm512_loadu_si512(a + (n * R + r) * 32);
#pragma GCC unroll 4
                    for (int g = 0; g < G; g++) acc[r * M + m + g] = dot(acc[r * M + m + g], y, x[g][n]);
                }
        }
    }
    return add_lanes(acc);
}

template <class Line, int R>
[[gnu::noinline]] void dot_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, float* s) {
    constexpr int M = kLanes / R;
    const Line line;
    alignas(64) float of_lane[kLanes], scores[kLanes];
    for (int i = 0; i < kLanes; i++) of_lane[i] = i / M < rows ? factor[i / M] : 0.f;
    const V factors = load(of_lane);
    for (int j = 0; j < chunk.keys; j += M) {
        store(scores, dot_block<Line, R>(line, q, chunk.rows, j, dim / Line::kDims) * factors);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            if (r < rows) memcpy(s + r * kTileKeys + j, scores + r * M, M * sizeof(float));
    }
}

template <class Line>
void dot_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, float* s) {
    for_row_blocks(rows, [&](int first, int left, auto block) {
        dot_qk<Line, block>(q + first * dim, left, factor + first, chunk, dim, s + first * kTileKeys);
    });
}

void decode_dot_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, const DecodeMatrixScratch&,
                   float* s) {
    if (chunk.type == FA_BF16) dot_qk<Bf16Line>(q, rows, factor, chunk, dim, s);
    else if (chunk.type == FA_I8) dot_qk<ByteLine<FA_I8>>(q, rows, factor, chunk, dim, s);
    else if (chunk.type == FA_E4M3) dot_qk<ByteLine<FA_E4M3>>(q, rows, factor, chunk, dim, s);
    else dot_qk<ByteLine<FA_E5M2>>(q, rows, factor, chunk, dim, s);
}

// o = o · rescale + sum, R rows of N vectors, those of o `dim` floats apart.
template <int R, int N>
inline __attribute__((always_inline)) void add_rescaled(const V (&sum)[R][N], const float* rescale, int dim, float* o) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const V factor = splat(rescale ? rescale[r] : 1.f);
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) {
            float* const to = o + r * dim + n * kLanes;
            store(to, fma_v(load(to), factor, sum[r][n]));
        }
    }
}

// o[R rows][C lines] = o · rescale + P v, the pairs of P `kDecodeChunkKeys` values of a row apart.
template <class Line, int R, int C>
[[gnu::noinline]] void dot_pv_block(const uint16_t* p, const DecodeChunk& chunk, const char* zeros, int64_t column, int dim,
                                    const float* rescale, float* o) {
    constexpr int N = 2 * Line::kVectors;  // accumulators of a line
    const Line line;
    V acc[R][C * N];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int n = 0; n < C * N; n++) acc[r][n] = V{};
    const KvRows& v = chunk.rows;
    for (int j = 0; j < chunk.keys; j += 2) {
        const char* const even = v.row[j] + v.offset + column;
        const char* const odd = j + 1 < chunk.keys ? v.row[j + 1] + v.offset + column : zeros;
        __m512i y[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, p + r * kDecodeChunkKeys + j, sizeof pair);
            y[r] = _mm512_set1_epi32(pair);
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(v.far_row[j + i]) + uintptr_t(v.far_offset + column + c * 64)),
                                   0, 2);
            }
            __m512i x[N];
            line.pair_keys(even + c * 64, odd + c * 64, x);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) acc[r][c * N + n] = dot(acc[r][c * N + n], y[r], x[n]);
        }
    }
    add_rescaled(acc, rescale, dim, o);
}

template <class Line, int R>
void dot_pv(const uint16_t* p, const DecodeChunk& chunk, const char* zeros, int dim, const float* rescale, float* o) {
    constexpr int N = 2 * Line::kVectors, C = R * N >= 16 ? 1 : 16 / (R * N) > 4 ? 4 : 16 / (R * N);
    const int lines = dim / Line::kDims;
    int c = 0;
    for (; c + C <= lines; c += C) dot_pv_block<Line, R, C>(p, chunk, zeros, c * 64, dim, rescale, o + c * Line::kDims);
    for (; c < lines; c++) dot_pv_block<Line, R, 1>(p, chunk, zeros, c * 64, dim, rescale, o + c * Line::kDims);
}

template <class Line>
void dot_pv(const uint16_t* p, int rows, const DecodeChunk& chunk, const char* zeros, int dim, const float* rescale, float* o) {
    constexpr int kMost = 8 / Line::kVectors;  // 16 accumulators of a line
    int r = 0;
    const auto step = [&](int n, auto block) {
        for (; r + n <= rows; r += n) block(p + r * kDecodeChunkKeys, chunk, zeros, dim, rescale ? rescale + r : nullptr, o + r * dim);
    };
    if (kMost == 8) step(8, dot_pv<Line, kMost>);
    step(4, dot_pv<Line, 4>);
    step(3, dot_pv<Line, 3>);
    step(2, dot_pv<Line, 2>);
    step(1, dot_pv<Line, 1>);
}

float* decode_dot_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale, const DecodeMatrixScratch& memory,
                     float* o, float*) {
    const __mmask16 first = __mmask16(first_bits(chunk.keys)), second = __mmask16(first_bits(chunk.keys) >> 16);
    for (int r = 0; r < rows; r++) {
        const V low = _mm512_maskz_loadu_ps(first, p + r * kTileKeys), high = _mm512_maskz_loadu_ps(second, p + r * kTileKeys + 16);
        _mm512_storeu_si512(memory.p + r * kDecodeChunkKeys, (__m512i)_mm512_cvtne2ps_pbh(high * kDecodePScale, low * kDecodePScale));
    }
    const char* const zeros = reinterpret_cast<const char*>(memory.zeros);
    if (chunk.type == FA_BF16) dot_pv<Bf16Line>(memory.p, rows, chunk, zeros, dim, rescale, o);
    else if (chunk.type == FA_I8) dot_pv<ByteLine<FA_I8>>(memory.p, rows, chunk, zeros, dim, rescale, o);
    else if (chunk.type == FA_E4M3) dot_pv<ByteLine<FA_E4M3>>(memory.p, rows, chunk, zeros, dim, rescale, o);
    else dot_pv<ByteLine<FA_E5M2>>(memory.p, rows, chunk, zeros, dim, rescale, o);
    return o;
}

// A row's accumulators in the order of its columns: each vector has four neighbours of each 8 of bf16, or 16 bytes.
void decode_dot_finish(const float* from, int32_t type, int dim, float factor, float* to) {
    const float unit = factor * (kHeadroomUnit / (kPScale * kDecodePScale));
    const int vectors = type == FA_BF16 ? 2 : 4, step = vectors * 16;
    for (int x = 0; x < dim; x += step)
        for (int n = 0; n < vectors; n++)
            for (int i = 0; i < 16; i++) to[x + i / 4 * vectors * 4 + n * 4 + i % 4] = from[x + n * 16 + i] * unit;
}

constexpr DecodeMatrixKernels kDecodeDots = {.byte_dims = 64,
                                             .short_chunk_rows = 2,
                                             .min_rows_bf16 = 1,
                                             .min_rows_int8 = 1,
                                             .min_rows_fp8 = 1,
                                             .max_rows = kDecodeRows,
                                             .pack_q = pack_dot_q,
                                             .qk = decode_dot_qk,
                                             .pv = decode_dot_pv,
                                             .finish = decode_dot_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
