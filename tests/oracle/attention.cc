// Two passes over every row: the largest score and the sum of weights, then the weighted values.
#include <cmath>
#include <limits>
#include "oracle/oracle.h"

namespace oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Score {
    double raw, capped, biased;  // biased is −inf for a removed key
    double kappa;
    bool attended;
};

std::vector<double> widen(const void* base, int64_t offset, int64_t count, int32_t dtype, double factor) {
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t c = 0; c < count; c++) values[size_t(c)] = load(base, offset + c, dtype) * factor;
    return values;
}

// Keys or values of one sequence and one head, de-scaled.
struct Cache {
    std::vector<std::vector<double>> k, v;
};

Cache load_cache(const Reading& r, int64_t b, int64_t head) {
    Cache cache;
    for (int64_t j = 0; j < r.keys(b); j++) {
        const double fk = r.has(FA_OPERAND_K_DESCALE) ? double(r.a.k_descale[r.k_descale(b, head, j)]) : 1.0;
        const double fv = r.has(FA_OPERAND_V_DESCALE) ? double(r.a.v_descale[r.v_descale(b, head, j)]) : 1.0;
        cache.k.push_back(widen(r.a.k, r.k(b, head, j), r.d.dim_qk, r.kv_dtype, fk));
        cache.v.push_back(widen(r.a.v, r.v(b, head, j), r.dim_v, r.kv_dtype, fv));
    }
    return cache;
}

Score score_of(const Reading& r, int64_t b, int64_t h, int64_t i, int64_t j, const std::vector<double>& q,
               const std::vector<double>& k) {
    double dot = 0, size = 0;
    for (size_t c = 0; c < q.size(); c++) {
        dot += q[c] * k[c];
        size += std::fabs(q[c] * k[c]);
    }
    const double cap = r.d.softcap, bias = r.has(FA_OPERAND_BIAS) ? load(r.a.bias, r.bias(b, h, i, j), r.bias_dtype) : 0;
    const double alibi = r.alibi_slope(b, h) * std::fabs(double(i + r.diagonal(b) - j));
    Score s;
    s.raw = r.scale * dot;
    s.capped = cap > 0 ? cap * std::tanh(s.raw / cap) : s.raw;
    s.attended = r.attends(b, h, i, j);
    s.biased = s.attended ? s.capped + bias - alibi : -kInfinity;
    s.kappa = std::fabs(r.scale) * size + (s.attended ? std::fabs(bias) : 0) + std::fabs(alibi);
    return s;
}

struct RowSum {
    double top, sum, lse;
};

// A removed key has score −inf and weighs nothing; so does an attended one whose product is −inf.
RowSum sum_of(const std::vector<Score>& scores, const double* sink) {
    RowSum row{sink ? *sink : -kInfinity, 0, -kInfinity};
    bool broken = sink && (std::isnan(*sink) || *sink == kInfinity);
    for (const Score& s : scores) {
        broken = broken || std::isnan(s.biased) || s.biased == kInfinity;
        if (s.biased > row.top) row.top = s.biased;
    }
    if (broken) return {kNaN, kNaN, kNaN};
    if (row.top == -kInfinity) return row;
    for (const Score& s : scores) row.sum += std::exp(s.biased - row.top);
    if (sink) row.sum += std::exp(*sink - row.top);
    row.lse = row.top + std::log(row.sum);
    return row;
}

struct Coordinates {
    int64_t b, h, i;
};

void compute_row(const Reading& r, const Coordinates& at, const Cache& cache, bool keep_scores, Attention& out) {
    const auto [b, h, i] = at;
    const double fq = r.has(FA_OPERAND_Q_DESCALE) ? double(r.a.q_descale[r.q_descale(b, h, i)]) : 1.0;
    const std::vector<double> q = widen(r.a.q, r.q(b, h, i), r.d.dim_qk, r.q_dtype, fq);
    const size_t row = size_t(out.row(b, h, i));
    const double sink_value = r.has(FA_OPERAND_SINKS) ? double(r.a.sinks[h]) : 0;
    const double* sink = r.has(FA_OPERAND_SINKS) ? &sink_value : nullptr;

    std::vector<Score> scores;
    for (int64_t j = 0; j < int64_t(cache.k.size()); j++) scores.push_back(score_of(r, b, h, i, j, q, cache.k[size_t(j)]));
    const RowSum sum = sum_of(scores, sink);

    out.computed[row] = 1;
    out.lse[row] = sum.lse;
    out.kappa[row] = sink && std::isfinite(sink_value) ? std::fabs(sink_value) : 0;
    for (size_t j = 0; j < scores.size(); j++) {
        const Score& s = scores[j];
        const double p = !s.attended || sum.lse == -kInfinity ? 0 : std::exp(s.biased - sum.top) / sum.sum;
        if (keep_scores) {
            const size_t pair = row * size_t(out.keys) + j;
            out.scores[FA_SCORES_RAW][pair] = s.raw;
            out.scores[FA_SCORES_CAPPED][pair] = s.capped;
            out.scores[FA_SCORES_BIASED][pair] = s.biased;
            out.scores[FA_SCORES_PROBABILITY][pair] = p;
            out.score_kappa[pair] = s.kappa;
        }
        if (!s.attended) continue;
        out.attended[row]++;
        if (std::isfinite(s.kappa) && s.kappa > out.kappa[row]) out.kappa[row] = s.kappa;
        const double weight = r.kept(b, h, i, int64_t(j)) ? p / (1 - double(r.d.dropout_p)) : 0;
        for (int64_t c = 0; c < r.dim_v; c++) {
            const double value = cache.v[j][size_t(c)];
            const size_t at = row * size_t(r.dim_v) + size_t(c);
            out.o[at] += weight * value;
            out.spread[at] += weight * std::fabs(value);
            out.reach[at] = std::fmax(out.reach[at], std::fabs(value) / (1 - double(r.d.dropout_p)));
        }
    }
}

}  // namespace

Attention attention(const Reading& r, AttentionOptions options) {
    Attention out{r.d.heads_q, r.d.seqlen_q, r.d.seqlen_k, r.dim_v, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    const size_t rows = size_t(r.d.batch * r.d.heads_q * r.d.seqlen_q), pairs = options.scores ? rows * size_t(r.d.seqlen_k) : 0;
    out.o.assign(rows * size_t(r.dim_v), 0);
    out.spread.assign(rows * size_t(r.dim_v), 0);
    out.reach.assign(rows * size_t(r.dim_v), 0);
    out.lse.assign(rows, -kInfinity);
    out.kappa.assign(rows, 0);
    out.attended.assign(rows, 0);
    out.computed.assign(rows, 0);
    for (int stage = 0; stage < 4; stage++) out.scores[size_t(stage)].assign(pairs, stage == FA_SCORES_BIASED ? -kInfinity : 0);
    out.score_kappa.assign(pairs, 0);

    for (int64_t b = 0; b < r.d.batch; b++) {
        for (int64_t head = 0; head < r.heads_kv; head++) {
            const Cache cache = load_cache(r, b, head);
            for (int64_t h = 0; h < r.d.heads_q; h++) {
                if (r.kv_head(h) != head) continue;
                for (int64_t i = 0; i < r.rows(b); i++)
                    if (i % options.row_step == 0 || i == r.rows(b) - 1) compute_row(r, {b, h, i}, cache, options.scores, out);
            }
        }
    }
    return out;
}

}  // namespace oracle
