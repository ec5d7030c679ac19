// Decoding by dots of bf16 pairs and by products of integers, written over primitives of ARM's instruction sets: what decode_kernels.h does
// in f32, for queries of bf16. Scores are dots along a head, O of pairs of keys, whose rows are interleaved in registers. Bytes become
// bf16, exactly, by way of f32. Scores of int8 keys are sums of integers, q being split into four limbs of a byte each, where it has such a
// form. An isa's dots.h has
//     Halves                         a vector of 2 · kLanes values of 16 bits
//     dot(sum, a, b)                 each lane plus the products of its pairs of bf16
//     splat_pair(at)                 two values in all lanes
//     interleave(a, b, to)           a[0], b[0], a[1], b[1] … as two vectors
//     pair_values(even, odd)         the upper halves of even[0], odd[0], even[1], odd[1] …: values that bf16 has
//     SignedBytes                    a vector of 4 · kLanes bytes
//     interleave_eights(a, b, to)    as interleave(), by 8 bytes
//     multiply_eights(sum, a, b)     of each 16 bytes, two rows of eight: sum[2 r + c] += a's row r · b's row c
#pragma once
#include "cpu/kernels/convert.h"
#include "cpu/kernels/decode_kernels.h"
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kHalves = 2 * kLanes;

// Which dim, or column, of kHalves neighbours lies at place i of their vector.
template <class T>
constexpr int dim_at(int i) {
    return T::kBytes == 2 || T::kDeinterleaved ? i : i / 2 + i % 2 * kLanes;
}
template <class T>
inline Halves read_halves(const char* at) {
    Halves x;
    if constexpr (T::kBytes == 2) {
        memcpy(&x, at, sizeof x);
    } else {
        VecPair pair = T::read(at);
        if constexpr (T::kNoNan) {  // what its code stands for in read()
            const auto restore_nan = [](V& y) {
                constexpr int32_t kNan = 0x7fc00000, kRead = 0x3ff00000;
                VI bits;
                memcpy(&bits, &y, sizeof y);
                const VI is_nan = (bits & 0x7fffffff) == kRead;
                bits |= is_nan & kNan;
                memcpy(&y, &bits, sizeof y);
            };
            static_assert(T::kDescale == 256, "480 / 256 is 1.875");
            restore_nan(pair.a), restore_nan(pair.b);
        }
        x = pair_values(pair.a, pair.b);
    }
    return x;
}

template <class F>
void for_type(int32_t type, const F& f) {
    if (type == FA_BF16) f(Bf16());
    else if (type == FA_I8) f(I8());
    else if (type == FA_E4M3) f(E4m3());
    else f(E5m2());
}

// f(first row, Constant<R>()) for blocks of 4, 2 and 1 rows.
template <class F>
inline void for_row_blocks(int rows, const F& f) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) f(r, Constant<4>());
    for (; r + 2 <= rows; r += 2) f(r, Constant<2>());
    if (r < rows) f(r, Constant<1>());
}

// [row][dim], in the order of the type's vectors.
void pack_dot_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    for_type(type, [&](auto t) {
        for (int r = 0; r < count; r++)
            for (int x = 0; x < dim; x += kHalves)
                for (int i = 0; i < kHalves; i++) *to++ = rows[r][x + dim_at<decltype(t)>(i)];
    });
}

inline void prefetch_line(const KvRows& rows, int j, int64_t at, int64_t bytes) {
    if (at % 64 < bytes)
        __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(rows.far_row[j]) + uintptr_t(rows.far_offset + at)), 0, 2);
}

// 16 scores at once: of 16 / R keys and R rows. A row's sums are the same whatever R is.
template <class T, int R>
[[gnu::noinline]] void dot_qk(const uint16_t* q, const float* factor, const DecodeChunk& b, int dim, float* s) {
    constexpr int M = 16 / R, kBytes = kHalves * T::kBytes;
    alignas(64) float scores[16];
    for (int j = 0; j < b.keys; j += M) {
        V acc[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) acc[i] = V{};
        for (int x = 0; x < dim; x += kHalves) {
            Halves y[R];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) memcpy(y + r, q + r * dim + x, sizeof *y);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                prefetch_line(b.rows, j + m, x * T::kBytes, kBytes);
                const Halves k = read_halves<T>(b.rows.row[j + m] + b.rows.offset + x * T::kBytes);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) acc[r * M + m] = dot(acc[r * M + m], y[r], k);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += kLanes) {
            transpose_add_lanes(acc + i);
            store(scores + i, acc[i]);
        }
        for (int r = 0; r < R; r++)
            for (int m = 0; m < M; m++) s[r * kTileKeys + j + m] = scores[r * M + m] * (factor[r] * T::kDescale);
    }
}

// ---- int8 keys by limbs of q

constexpr int kDimsAtOnce = 4 * kLanes;  // of a key: two vectors of two keys' eights

// [dim / kHalves][row][pair of limbs][eight of dims][limb of the pair][8], and behind 16 · dim bytes a unit for each row. False where q is
// not of so many limbs, or not finite.
bool pack_limbs(const uint16_t* const* rows, int count, int dim, char* to) {
    char* const units = to + int64_t(16) * dim;
    for (int r = 0; r < count; r++) {
        int most = 0;
        for (int x = 0; x < dim; x++) most = (rows[r][x] & 0x7fff) > most ? rows[r][x] & 0x7fff : most;
        if (most >= 0x7f80) return false;
        // The largest, in units, is in [2^29, 2^30): four signed limbs reach almost twice that. Of tiny rows the unit's inverse is finite.
        const int wanted = (most >> 7) - 127 - 29, exponent = wanted < -126 ? -126 : wanted;
        const float unit = ldexpf(1.f, exponent), inverse = ldexpf(1.f, -exponent);
        memcpy(units + r * sizeof unit, &unit, sizeof unit);
        for (int x = 0; x < dim; x++) {
            const float given = bf16_to_f32(rows[r][x]);
            int32_t value = int32_t(given * inverse);
            if (float(value) * unit != given) return false;
            char* const eight = to + (int64_t(x / kHalves) * count + r) * kLimbs * kHalves + x % kHalves / 8 * 16 + x % 8;
            for (int limb = kLimbs - 1; limb >= 0; limb--) {
                const int8_t low = int8_t(value);
                value = (value - low) >> 8;
                eight[limb / 2 * (2 * kHalves) + limb % 2 * 8] = char(low);
            }
        }
    }
    return true;
}

// Scores of two keys at a time.
template <int R>
[[gnu::noinline]] void limb_qk(const char* q, int rows, const float* factor, const DecodeChunk& b, int dim, float* s) {
    const int64_t step = int64_t(rows) * kLimbs * kHalves;  // bytes between kHalves dims
    for (int j = 0; j < b.keys; j += 2) {
        VI acc[R][2];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = VI{};
        const char *const even = b.rows.row[j] + b.rows.offset, *const odd = b.rows.row[j + 1] + b.rows.offset;
        for (int x = 0; x < dim; x += kDimsAtOnce) {
            prefetch_line(b.rows, j, x, kDimsAtOnce), prefetch_line(b.rows, j + 1, x, kDimsAtOnce);
            SignedBytes first, second, keys[2];
            memcpy(&first, even + x, sizeof first), memcpy(&second, odd + x, sizeof second);
            interleave_eights(first, second, keys);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++)
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                    for (int pair = 0; pair < 2; pair++) {
                        SignedBytes limbs;
                        memcpy(&limbs, q + (x / kHalves + half) * step + (r * 2 + pair) * int(sizeof limbs), sizeof limbs);
                        acc[r][pair] = multiply_eights(acc[r][pair], limbs, keys[half]);
                    }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            int32_t added[2][kLanes], limb[kLimbs][2] = {};
            memcpy(added, acc[r], sizeof added);
            for (int pair = 0; pair < 2; pair++)
                for (int i = 0; i < kLanes; i++) limb[pair * 2 + i % 4 / 2][i % 2] += added[pair][i];
            for (int key = 0; key < 2; key++) {
                const auto of = [&](int n) { return float(limb[n][key]) * kLimbUnits[n]; };
                s[r * kTileKeys + j + key] = ((of(0) + of(1)) + (of(2) + of(3))) * factor[r];
            }
        }
    }
}

void decode_limb_qk(const char* q, int rows, const float* factor, const DecodeChunk& b, int dim, float* s) {
    float scale[kLimbRows];
    for (int r = 0; r < rows; r++) {
        float unit;
        memcpy(&unit, q + int64_t(16) * dim + r * sizeof unit, sizeof unit);
        scale[r] = factor[r] * unit;
    }
    for_row_blocks(rows, [&](int r, auto block) { limb_qk<block>(q + r * kLimbs * kHalves, rows, scale + r, b, dim, s + r * kTileKeys); });
}

void decode_dot_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& b, int dim, const DecodeMatrixScratch&, float* s) {
    if (b.limbs) return decode_limb_qk(reinterpret_cast<const char*>(q), rows, factor, b, dim, s);
    for_type(b.type, [&](auto t) {
        for_row_blocks(rows, [&](int r, auto block) { dot_qk<decltype(t), block>(q + r * dim, factor + r, b, dim, s + r * kTileKeys); });
    });
}

// o[R rows][C vectors of columns] = o · rescale + P v
template <class T, int R, int C>
[[gnu::noinline]] void dot_pv_block(const uint16_t* p, const DecodeChunk& b, const char* zeros, int64_t column, int dim,
                                    const float* rescale, float* o) {
    constexpr int kBytes = kHalves * T::kBytes;
    V acc[R][2 * C];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < 2 * C; n++) acc[r][n] = V{};
    const KvRows& v = b.rows;
    for (int j = 0; j < b.keys; j += 2) {
        const char* const even = v.row[j] + v.offset + column;
        const char* const odd = j + 1 < b.keys ? v.row[j + 1] + v.offset + column : zeros;
        Halves y[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) y[r] = splat_pair(p + r * kDecodeChunkKeys + j);
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            prefetch_line(v, j, column + c * kBytes, kBytes), prefetch_line(v, j + 1, column + c * kBytes, kBytes);
            Halves x[2];
            interleave(read_halves<T>(even + c * kBytes), read_halves<T>(odd + c * kBytes), x);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                acc[r][2 * c] = dot(acc[r][2 * c], y[r], x[0]);
                acc[r][2 * c + 1] = dot(acc[r][2 * c + 1], y[r], x[1]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < 2 * C; n++) {
            float* const to = o + r * dim + n * kLanes;
            store(to, fma_v(load(to), splat(rescale ? rescale[r] : 1.f), acc[r][n]));
        }
}

template <class T, int R>
void dot_pv(const uint16_t* p, const DecodeChunk& b, const char* zeros, int dim, const float* rescale, float* o) {
    constexpr int C = R == 4 ? 2 : 4;
    int x = 0;
    for (; x + C * kHalves <= dim; x += C * kHalves) dot_pv_block<T, R, C>(p, b, zeros, x * T::kBytes, dim, rescale, o + x);
    for (; x < dim; x += kHalves) dot_pv_block<T, R, 1>(p, b, zeros, x * T::kBytes, dim, rescale, o + x);
}

float* decode_dot_pv(const float* p, int rows, const DecodeChunk& b, int dim, const float* rescale, const DecodeMatrixScratch& memory,
                     float* o, float*) {
    const char* const zeros = reinterpret_cast<const char*>(memory.zeros);
    for (int r = 0; r < rows; r++) {
        float scaled[kDecodeChunkKeys] = {};
        for (int j = 0; j < b.keys; j++) scaled[j] = p[r * kTileKeys + j] * kDecodePScale;
        narrow_bf16(scaled, kDecodeChunkKeys, memory.p + r * kDecodeChunkKeys);
    }
    for_type(b.type, [&](auto t) {
        for_row_blocks(rows, [&](int r, auto block) {
            dot_pv<decltype(t), block>(memory.p + r * kDecodeChunkKeys, b, zeros, dim, rescale ? rescale + r : nullptr, o + r * dim);
        });
    });
    return o;
}

// A row's accumulators in the order of its columns.
void decode_dot_finish(const float* from, int32_t type, int dim, float factor, float* to) {
    for_type(type, [&](auto t) {
        using T = decltype(t);
        const float unit = factor * (T::kDescale * kHeadroomUnit / (kPScale * kDecodePScale));
        for (int x = 0; x < dim; x += kHalves)
            for (int i = 0; i < kHalves; i++) to[x + dim_at<T>(i)] = from[x + i] * unit;
    });
}

constexpr DecodeMatrixKernels kDecodeDots = {.byte_dims = 64,
                                             .short_chunk_rows = 2,
                                             .min_rows_bf16 = 1,
                                             .min_rows_int8 = 1,
                                             .min_rows_fp8 = 1,
                                             .max_rows = kDecodeRows,
                                             .pack_q = pack_dot_q,
                                             .pack_limbs = pack_limbs,
                                             .qk = decode_dot_qk,
                                             .pv = decode_dot_pv,
                                             .finish = decode_dot_finish};

constexpr MatrixKernels dot_kernels() {
    MatrixKernels k{};
    k.decode[0] = &kDecodeDots;
    return k;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
