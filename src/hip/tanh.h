// tanh for devices whose compiler has none, in plain arithmetic, so that a test compares it with the C library's.
#pragma once
#include "spec/numerics.h"

namespace fa {

// Within 3 ulp. Where 1 − … would cancel, an odd polynomial, fitted for its relative error, which is 2^-29.
FA_FN float tanh_by_exp2(float x) {
    const float a = fabsf(x), square = x * x;
    if (a < 0.55f) {
        float series = fmaf(square, -0.0061987f, 0.02102053f);
        series = fmaf(square, series, -0.05384051f);
        series = fmaf(square, series, 0.1333248f);
        series = fmaf(square, series, -0.33333315f);
        return copysignf(fmaf(a * square, series, a), x);
    }
    return copysignf(1.f - 2.f / (exp2_fn(2.f * kLog2e * a) + 1.f), x);
}

}  // namespace fa
