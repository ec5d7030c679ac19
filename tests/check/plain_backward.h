// Gradients as one would write them without fusing: S, P, dP and dS in f32, each rounded to the input's type before the next.
#pragma once
#include <cmath>
#include <limits>
#include "oracle/backward.h"

namespace test {

struct PlainGradients {
    std::vector<float> dq, dk, dv;  // dense, as the slots of targets are listed
};

inline PlainGradients plain_backward(const oracle::BackwardReading& reading) {
    const size_t dim = size_t(reading.d.dim_qk), dim_v = size_t(reading.dim_v);
    const auto round = [&](float x) { return float(oracle::rounded(double(x), reading.q_dtype)); };
    const auto row = [&](const void* base, int64_t at, size_t n) {
        std::vector<float> values(n);
        for (size_t c = 0; c < n; c++) values[c] = float(oracle::load(base, at + int64_t(c), reading.q_dtype));
        return values;
    };
    const auto dot = [](const std::vector<float>& x, const std::vector<float>& y) {
        float sum = 0;
        for (size_t c = 0; c < x.size(); c++) sum += x[c] * y[c];
        return sum;
    };
    const size_t rows = size_t(reading.d.batch * reading.d.heads_q * reading.d.seqlen_q),
                 keys = size_t(reading.d.batch * reading.heads_k * reading.d.seqlen_k);
    PlainGradients g{std::vector<float>(rows * dim), std::vector<float>(keys * dim), std::vector<float>(keys * dim_v)};
    for (int64_t b = 0; b < reading.d.batch; b++)
        for (int64_t h = 0; h < reading.d.heads_q; h++)
            for (int64_t i = 0; i < reading.rows(b); i++) {
                const std::vector<float> q = row(reading.a.q, reading.q(b, h, i), dim),
                                         d_o = row(reading.g.dout, reading.dout(b, h, i), dim_v);
                const int64_t head = reading.k_head(h), n = reading.keys(b);
                std::vector<float> s(size_t(n), -std::numeric_limits<float>::infinity()), dp(size_t(n), 0.f);
                float top = s.empty() ? 0 : s[0], sum = 0, delta = 0;
                for (int64_t j = 0; j < n; j++) {
                    if (!reading.attends(b, h, i, j)) continue;
                    s[size_t(j)] = round(float(reading.scale) * dot(q, row(reading.a.k, reading.k(b, head, j), dim)));
                    dp[size_t(j)] = round(dot(d_o, row(reading.a.v, reading.v(b, head, j), dim_v)));
                    top = std::fmax(top, s[size_t(j)]);
                }
                for (float& x : s) sum += x = std::exp(x - top);
                for (float& x : s) x = round(x / sum);
                for (size_t j = 0; j < s.size(); j++) delta += s[j] * dp[j];
                float* const dq = &g.dq[size_t((b * reading.d.heads_q + h) * reading.d.seqlen_q + i) * dim];
                for (int64_t j = 0; j < n; j++) {
                    const float p = s[size_t(j)], ds = round(p * (dp[size_t(j)] - round(delta)));
                    const size_t key = size_t((b * reading.heads_k + head) * reading.d.seqlen_k + j);
                    const std::vector<float> k = row(reading.a.k, reading.k(b, head, j), dim);
                    for (size_t c = 0; c < dim_v; c++) g.dv[key * dim_v + c] += p * d_o[c];
                    for (size_t c = 0; c < dim; c++) dq[c] += float(reading.scale) * ds * k[c];
                    for (size_t c = 0; c < dim; c++) g.dk[key * dim + c] += float(reading.scale) * ds * q[c];
                }
            }
    for (std::vector<float>* list : {&g.dq, &g.dk, &g.dv})
        for (float& x : *list) x = round(x);
    return g;
}

}  // namespace test
