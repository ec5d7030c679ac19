// Loads, stores, exp2 and tanh on vectors, written once over the primitives that the instruction set's vectors.h (FA_ISA_VECTORS)
// defines:
//     V, VI                      vectors of kLanes floats and 32-bit integers
//     splat(x)                   x in every lane
//     fma_v(a, b, c)             a · b + c
//     max_v(a, b)                the larger; b where a is NaN
//     exp2_split(x, f)           n with x = n + f, f in [0, 1], in a form for exp2_scale(p, n) = kExp2Scale · p · 2^n: 0 for x
//                                below kMinLog2P and for −inf; NaN stays NaN
//     kTileVectors               of a full tile: 3 or 4
//     kGemmRows[]                rows of the register block for 1, 2, … vectors; the first is not used
// All headers in kernels/ that include it are instantiated by every isa/*/kernels.cc, in unnamed namespaces: an object built for
// one instruction set must not lend code to the others.
#pragma once
#include "cpu/kernels/kernel_table.h"
#include FA_ISA_VECTORS

namespace fa {
namespace cpu {
namespace {

static inline V load(const float* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store(float* p, V v) { memcpy(p, &v, sizeof v); }

// unit · 2^x for x <= 0, unit a power of two. Relative error 1e-7: a degree-5 minimax polynomial of 2^f on [0, 1) whose constant
// term is exactly 1, because the factor of a row whose maximum did not move must be exactly 1. The unit goes into the coefficients:
// added to the exponent x it would cost bits of it.
static inline V exp2_v(V x, float unit) {
    V f;
    const V n = exp2_split(x, f);
    unit /= kExp2Scale;
    V p = splat(unit * 1.867130515165627e-3f);
    p = fma_v(p, f, splat(unit * 9.017029777169228e-3f));
    p = fma_v(p, f, splat(unit * 5.579991266131401e-2f));
    p = fma_v(p, f, splat(unit * 2.401644438505173e-1f));
    p = fma_v(p, f, splat(unit * 6.931512951850891e-1f));
    p = fma_v(p, f, splat(unit));
    return exp2_scale(p, n);
}

// Where the instruction set has none of its own.
template <class T>
static inline T divide(T a, T b) {
    return a / b;
}

// Between these, the softcap's inverse is a normal number, so that multiplying by it is as good as dividing by the cap.
constexpr float kMinInvertible = 0x1p-100f, kMaxInvertible = 0x1p+100f;

// Relative error 3e-7 everywhere: with e = 2^y − 1, tanh is e / (e + 2), and e = (2^f − 1) · 2^n + (2^n − 1) cancels nothing where
// it is small. 2^f − 1 is f times a degree-5 minimax polynomial (relative error 1e-8).
static inline V tanh_v(V x) {
    VI bits, sign;
    memcpy(&bits, &x, sizeof x);
    sign = bits & INT32_MIN;
    bits ^= sign;
    memcpy(&x, &bits, sizeof x);
    const V doubled = x * (2 * kLog2e), y = doubled > 30.f ? splat(30.f) : doubled;
    V f;
    const V n = exp2_split(y, f);
    V p = splat(2.0745575602632016e-4f);
    p = fma_v(p, f, splat(1.271005836315453e-3f));
    p = fma_v(p, f, splat(9.650650434195995e-3f));
    p = fma_v(p, f, splat(5.5496565997600555e-2f));
    p = fma_v(p, f, splat(2.402271330356598e-1f));
    p = fma_v(p, f, splat(6.931471824645996e-1f));
    constexpr float kOne = 1 / kExp2Scale;
    const V e = exp2_scale(p * f * kOne, n) + (exp2_scale(splat(kOne), n) - 1.f);
    V t = divide(e, e + 2.f);
    memcpy(&bits, &t, sizeof t);
    bits |= sign;
    memcpy(&t, &bits, sizeof t);
    return t;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
