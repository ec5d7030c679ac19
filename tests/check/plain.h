// Attention as one would write it without fusing: three steps in f32, each result rounded to the input's type before the next.
// Accuracy line 1 asks the library to be no worse than this.
#pragma once
#include <cmath>
#include <limits>
#include "oracle/oracle.h"

namespace test {

inline std::vector<float> plain_row(const oracle::Reading& reading, int64_t b, int64_t h, int64_t i) {
    const int64_t k_head = reading.k_head(h), v_head = reading.v_head(h), keys = reading.keys(b);
    auto round = [](float x, int32_t dtype) { return float(oracle::rounded(double(x), dtype)); };
    std::vector<float> s(static_cast<size_t>(keys));
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        float dot = 0;
        for (int64_t c = 0; c < reading.d.dim_qk; c++)
            dot += float(oracle::load(reading.a.q, reading.q(b, h, i) + c, reading.q_dtype)) *
                   float(oracle::load(reading.a.k, reading.k(b, k_head, j) + c, reading.k_dtype));
        s[size_t(j)] =
            reading.attends(b, h, i, j) ? round(float(reading.scale) * dot, reading.q_dtype) : -std::numeric_limits<float>::infinity();
        top = std::fmax(top, s[size_t(j)]);
    }
    for (float& x : s) sum += x = std::exp(x - top);
    std::vector<float> o(static_cast<size_t>(reading.dim_v), 0.f);
    for (int64_t j = 0; j < keys; j++) {
        const float p = round(s[size_t(j)] / sum, reading.q_dtype);
        for (int64_t c = 0; c < reading.dim_v && p != 0; c++)
            o[size_t(c)] += p * float(oracle::load(reading.a.v, reading.v(b, v_head, j) + c, reading.v_dtype));
    }
    for (float& x : o) x = round(x, reading.o_dtype);
    return o;
}

}  // namespace test
