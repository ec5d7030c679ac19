// Between the products of an f32 tile: score mods and masks, online softmax, and the backward's softcap with its derivative and
// softmax backward. Lanes are query rows.
#pragma once
#include "cpu/kernels/vector_math.h"

namespace fa {
namespace cpu {
namespace {

static void scale_scores(float* s, float factor, int count) {
    for (int i = 0; i < count; i += kLanes) store(s + i, load(s + i) * factor);
}

static void score_mod(float* s, const float* addend, float cap, int count) {
    const V none = splat(kNegInf);
    const bool invertible = cap > kMinInvertible && cap < kMaxInvertible;
    const float inverse = invertible ? 1 / cap : 0.f;
    for (int i = 0; i < count; i += kLanes) {
        V x = load(s + i);
        if (cap > 0) x = cap * tanh_v(invertible ? x * inverse : x / cap);
        if (addend) {
            const V a = load(addend + i);
            x = a == none ? none : x + a;
        }
        store(s + i, x * kLog2e);
    }
}

static void mask_bands(float* s, int vectors, int keys, const int32_t* begin, const int32_t* end) {
    const int width = vectors * kLanes;
    const V none = splat(kNegInf);
    for (int n = 0; n < width; n += kLanes) {
        VI first, last;
        memcpy(&first, begin + n, sizeof first);
        memcpy(&last, end + n, sizeof last);
        for (int j = 0; j < keys; j++) {
            float* at = s + j * width + n;
            const VI kept = (VI{} + j >= first) & (VI{} + j < last);
            store(at, kept ? load(at) : none);
        }
    }
}

template <int N>
static void online_softmax(float* s, int keys, float* m, float* l, float* rescale) {
    constexpr int width = N * kLanes;
    const V none = splat(kNegInf), zero = V{};
    V row_max[2][N], row_sum[2][N], row_ref[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) row_max[0][n] = row_max[1][n] = load(m + n * kLanes);
    int64_t j = 0;  // the standard algorithm passes all keys at once
    for (; j + 2 <= keys; j += 2)
#pragma GCC unroll 8
        for (int i = 0; i < 2 * N; i++) row_max[i / N][i % N] = max_v(load(s + j * width + i * kLanes), row_max[i / N][i % N]);
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        if (j < keys) row_max[0][n] = max_v(load(s + j * width + n * kLanes), row_max[0][n]);
        row_max[0][n] = max_v(row_max[1][n], row_max[0][n]);
        row_ref[n] = row_max[0][n] == none ? zero : row_max[0][n];  // safe_max() of the specification
        row_sum[0][n] = row_sum[1][n] = zero;
    }
    for (j = 0; j + 2 <= keys; j += 2)
#pragma GCC unroll 8
        for (int i = 0; i < 2 * N; i++) {
            float* const at = s + j * width + i * kLanes;
            const V p = exp2_v(load(at) - row_ref[i % N], kPScale);
            store(at, p);
            row_sum[i / N][i % N] += p;
        }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        if (j < keys) {
            float* const at = s + j * width + n * kLanes;
            const V p = exp2_v(load(at) - row_ref[n], kPScale);
            store(at, p);
            row_sum[0][n] += p;
        }
        const V before = load(m + n * kLanes), old = load(l + n * kLanes);
        const V factor = old == zero ? zero : exp2_v((before == none ? zero : before) - row_ref[n], 1.f);
        store(m + n * kLanes, row_max[0][n]);
        store(l + n * kLanes, fma_v(row_sum[0][n] + row_sum[1][n], splat(kHeadroomUnit / kPScale), old * factor));
        store(rescale + n * kLanes, factor);
    }
}

static void online_softmax(float* s, int vectors, int keys, float* m, float* l, float* rescale) {
    if (vectors == 1) online_softmax<1>(s, keys, m, l, rescale);
    else if (vectors == 2) online_softmax<2>(s, keys, m, l, rescale);
    else if (vectors == 3) online_softmax<3>(s, keys, m, l, rescale);
    else online_softmax<kTileVectors>(s, keys, m, l, rescale);
}

static void softcap(float* s, float* slope, float cap, int count) {
    const bool invertible = cap > kMinInvertible && cap < kMaxInvertible;
    const float inverse = invertible ? 1 / cap : 0.f;
    for (int i = 0; i < count; i += kLanes) {
        const V x = load(s + i), t = tanh_v(invertible ? x * inverse : x / cap);
        store(s + i, cap * t);
        store(slope + i, (1.f - t) * (1.f + t));
    }
}

static void softmax_backward(float* s, float* dp, int vectors, int keys, float factor, const float* lse, const float* delta,
                             const float* slope) {
    const int width = vectors * kLanes;
    const V none = splat(kNegInf), zero = V{}, f = splat(factor);
    for (int n = 0; n < width; n += kLanes) {
        // With 0 for its LSE, a lane without keys has a finite P, which is then replaced by 0.
        const V given = load(lse + n), from = given == -none ? zero : given, kept = given == -none ? zero : splat(1.f), d = load(delta + n);
        for (int j = 0; j < keys; j++) {
            const int at = j * width + n;
            const V x = load(s + at), above = fma_v(x, f, -from), exponent = above > zero ? zero : above;  // see exponent_below()
            const V p = ((x == none) | (kept == zero)) ? zero : exp2_v(exponent, 1.f);
            V ds = p * (load(dp + at) - d);
            if (slope) ds *= load(slope + at);
            store(s + at, p);
            store(dp + at, p == zero ? zero : ds);
        }
    }
}

}  // namespace
}  // namespace cpu
}  // namespace fa
