// Rotary embedding of one head's row, in f32.
#pragma once
#include <stdint.h>

namespace fa {
namespace cpu {

// Rotates the pairs of dims [0, dim) by the angles whose cosines and sines are given for each pair. Pair t is dims (2t, 2t + 1)
// when interleaved, else (t, t + dim / 2).
static inline void rotate(float* x, const float* cos, const float* sin, int64_t dim, bool interleaved) {
    const int64_t half = dim / 2;
    for (int64_t t = 0; t < half; t++) {
        float& a = x[interleaved ? 2 * t : t];
        float& b = x[interleaved ? 2 * t + 1 : t + half];
        const float rotated = a * cos[t] - b * sin[t];
        b = a * sin[t] + b * cos[t];
        a = rotated;
    }
}

}  // namespace cpu
}  // namespace fa
