// Converts between rows as memory has them and lanes as tiles have them: transposition, normalisation of o, ALiBi by lanes, and
// masks by rows.
#pragma once
#include "cpu/kernels/vector_math.h"

namespace fa {
namespace cpu {
namespace {

// The same types to every compiler, whatever V is.
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

// Interleaves the lanes of the lower (half 0) or upper halves of two vectors.
template <int Half, int N, int... I>
struct Zip : Zip<Half, N - 1, Half * kLanes / 2 + N - 1, Half * kLanes / 2 + N - 1 + kLanes, I...> {};
template <int Half, int... I>
struct Zip<Half, 0, I...> {
    template <class T>
    static T of(T a, T b) {
        return __builtin_shufflevector(a, b, I...);
    }
};

// A square of kLanes rows. Each round moves one bit of an element's address (row, lane) from the row's top to the lane's bottom.
// Inlined, or gcc forgets behind the call that upper halves of registers are in use.
static inline __attribute__((always_inline)) void transpose_square(const float* from, int64_t from_stride, V factor, float* to,
                                                                   int64_t to_stride) {
    Floats x[kLanes], y[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) memcpy(&x[i], from + i * from_stride, sizeof(V));
#pragma GCC unroll 4
    for (int round = kLanes; round > 1; round /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; i++) {
            y[2 * i] = Zip<0, kLanes / 2>::of(x[i], x[i + kLanes / 2]);
            y[2 * i + 1] = Zip<1, kLanes / 2>::of(x[i], x[i + kLanes / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) x[i] = y[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) {
        V v;
        memcpy(&v, &x[i], sizeof v);
        store(to + i * to_stride, v * factor);
    }
}

static void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, const float* factor, float* to,
                      int64_t to_stride) {
    for (int64_t r = 0; r < rows; r += kLanes)
        for (int64_t c = 0; c < columns; c += kLanes) {
            const float* square = from + r * from_stride + c;
            float* out = to + c * to_stride + r;
            if (r + kLanes <= rows && c + kLanes <= columns) {
                transpose_square(square, from_stride, factor ? load(factor + r) : splat(1.f), out, to_stride);
                continue;
            }
            const int64_t high = rows - r < kLanes ? rows - r : kLanes, wide = columns - c < kLanes ? columns - c : kLanes;
            for (int64_t x = 0; x < wide; x++)
                for (int64_t y = 0; y < high; y++) out[x * to_stride + y] = square[y * from_stride + x] * (factor ? factor[r + y] : 1.f);
        }
}

// o, an average of finite values, is finite, and −0 becomes 0, so that the sign of removed keys' zeros never shows. As integers,
// the largest float is one below infinity, of either sign.
static inline V finished(V sum, V factor) {
    const V infinity = splat(kPosInf), a = sum * factor + 0.f;
    const VI magnitude = (VI)a & 0x7fffffff, overflows = (V(magnitude) == infinity) & (V((VI)sum & 0x7fffffff) < infinity);
    return V((VI)a + overflows);
}

static void finish_o(float* o, int vectors, int64_t dim, const float* factor, float scale) {
    const int width = vectors * kLanes;
    for (int64_t x = 0; x < dim; x++)
        for (int n = 0; n < width; n += kLanes) {
            float* at = o + x * width + n;
            store(at, finished(load(at), load(factor + n)) * scale);
        }
}

static void finish_o_row(float* o, int64_t dim, float factor, float scale) {
    int64_t x = 0;
    for (; x + kLanes <= dim; x += kLanes) store(o + x, finished(load(o + x), splat(factor)) * scale);
    if (x == dim) return;
    float last[kLanes] = {};
    memcpy(last, o + x, size_t(dim - x) * sizeof(float));
    store(last, finished(load(last), splat(factor)) * scale);
    memcpy(o + x, last, size_t(dim - x) * sizeof(float));
}

static void add_alibi(float* s, int vectors, int keys, const float* slope, const float* distance) {
    const int width = vectors * kLanes;
    for (int n = 0; n < width; n += kLanes) {
        const V down = -load(slope + n), from = load(distance + n);
        for (int j = 0; j < keys; j++) {
            const V d = from - float(j);
            float* at = s + j * width + n;
            store(at, fma_v(down, d < 0 ? -d : d, load(at)));
        }
    }
}

static void apply_mask(const uint8_t* mask, float* line, int count) {
    for (int i = 0; i < count; i++) line[i] = mask[i] ? line[i] : kNegInf;
}

static void expand_masks(const uint8_t* const* masks, int rows, int keys, float* lines) {
    for (int r = 0; r < rows; r++) {
        const uint8_t* __restrict mask = masks[r];
        float* __restrict line = lines + r * kTileKeys;
        if (keys == kTileKeys)
            for (int j = 0; j < kTileKeys; j++) line[j] = mask[j] ? 0.f : kNegInf;
        else
            for (int j = 0; j < keys; j++) line[j] = mask[j] ? 0.f : kNegInf;
    }
}

static int count_masks(const uint8_t* const* masks, int rows, int keys) {
    typedef uint8_t Bytes __attribute__((vector_size(4 * kLanes)));
    constexpr int kParts = kTileKeys / int(sizeof(Bytes));
    static_assert(kMaxRows <= UINT8_MAX, "zeros of as many rows are counted in a byte");
    int removed = 0;
    if (keys == kTileKeys) {
        Bytes zeros[kParts] = {};
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < kParts; i++) {
                Bytes x;
                memcpy(&x, masks[r] + i * sizeof x, sizeof x);
                zeros[i] -= Bytes(x == 0);
            }
        for (int j = 0; j < kTileKeys; j++) removed += zeros[j / sizeof(Bytes)][j % sizeof(Bytes)];
    } else {
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < keys; j++) removed += masks[r][j] == 0;
    }
    return rows * keys - removed;
}

template <class T>
static uint64_t other_elements(const T* x, T one, int count) {
    uint64_t bits = 0;
    if (count == kTileKeys)
        for (int j = 0; j < kTileKeys; j++) bits |= uint64_t(x[j] != one) << j;
    else
        for (int j = 0; j < count; j++) bits |= uint64_t(x[j] != one) << j;
    return bits;
}

static void mask_word(float* line, uint64_t kept) {
    Ints bit;
    for (int i = 0; i < kLanes; i++) bit[i] = 1 << i;
    for (int j = 0; j < kTileKeys; j += kLanes, kept >>= kLanes) {
        Floats x;
        memcpy(&x, line + j, sizeof x);
        const Ints hidden = (bit & int32_t(kept & 0xffff)) == 0;
        x = hidden ? kNegInf - Floats{} : x;
        memcpy(line + j, &x, sizeof x);
    }
}

static int count_kept(const float* lines, int64_t stride, int rows, int count) {
    const Floats none = kNegInf - Floats{};
    Ints kept_lanes{};
    int kept = 0;
    for (int r = 0; r < rows; r++) {
        const float* line = lines + r * stride;
        int i = 0;
        for (; i + kLanes <= count; i += kLanes) {
            Floats x;
            memcpy(&x, line + i, sizeof x);
            kept_lanes -= x != none;
        }
        for (; i < count; i++) kept += line[i] != kNegInf;
    }
    for (int i = 0; i < kLanes; i++) kept += kept_lanes[i];
    return kept;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
