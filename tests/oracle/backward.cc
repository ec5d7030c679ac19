// For a row with weights p, z = keep / (1 − dropout_p), and dP_j = z_j · dO·v_j:
//     Δ = dO·o,   dS_j = p_j (dP_j − Δ + dLSE)   is ∂L/∂score, and what a bias gets
//     dS_j · (1 − tanh²) · scale                 is ∂L/∂(q·k_j)
//     p_sink (0 − Δ + dLSE)                      is ∂L/∂sink: a logit without a value
#include "oracle/backward.h"
#include <cmath>
#include "oracle/row.h"

namespace oracle {
namespace {

// Errors of a term: its value, its size (of the magnitudes that it was computed from), and how much rounding of scores adds to it.
struct Term {
    double value, size, heat, reach, drift;
    Term operator*(double factor) const {
        const double f = std::fabs(factor);
        return {value * factor, size * f, heat * f, reach * f, drift * f};
    }
};

void add(Gradient& gradient, size_t at, const Term& term) {
    gradient.value[at] += term.value;
    gradient.spread[at] += term.size;
    gradient.heat[at] += term.heat;
    gradient.reach[at] += term.reach;
    gradient.drift[at] += term.drift;
}

Gradient zeros(int64_t count) {
    const std::vector<double> none(size_t(count), 0.0);
    return {none, none, none, none, none};
}

struct Given {
    std::vector<double> d_o;
    double d_lse, delta;
    double size;      // of the magnitudes behind Δ and dLSE
    double d_o_size;  // Σ|dO|
};

class RowGradient {
  public:
    RowGradient(const Reading& reading, const Cache& cache, const Row& row, const Given& given, Gradients& out)
        : r(reading), cache(cache), row(row), given(given), out(out), heat(1 + std::fmax(row.kappa, std::fabs(row.lse))) {}

    void run() {
        out.delta[size_t(out.row(row.b, row.h, row.i))] = given.delta;
        if (row.empty()) return;
        for (int64_t j = 0; j < int64_t(row.scores.size()); j++)
            if (row.scores[size_t(j)].attended && row.scores[size_t(j)].biased != -INFINITY) pair(j);
        if (r.has(FA_OPERAND_SINKS)) add(out.sink, size_t(row.h), term(row.weight(row.sink), 0, 0));
    }

  private:
    const Reading& r;
    const Cache& cache;
    const Row& row;
    const Given& given;
    Gradients& out;
    const double heat;

    Term term(double p, double dp, double dp_size) const {
        const double size = dp_size + given.size;
        return {p * (dp - given.delta + given.d_lse), p * size, p * size * heat, size, p * given.d_o_size};
    }

    // 1 − tanh² near 0 is what rounding leaves of it, and its argument was off by κ of the uncapped score.
    Term through_softcap(const Term& term, const Score& score) const {
        if (r.d.softcap == 0) return term;
        const double ratio = score.capped / double(r.d.softcap), slope = 1 - ratio * ratio;
        return {term.value * slope, term.size * slope, term.heat * slope * (1 + 2 / double(r.d.softcap)) + 8 * term.size, term.reach,
                term.drift};
    }

    void pair(int64_t j) {
        const int64_t b = row.b, h = row.h, i = row.i;
        const std::vector<double>& q = row.q;
        const Score& s = row.scores[size_t(j)];
        const std::vector<double>&k = cache.k[size_t(j)], &v = cache.v[size_t(j)];
        const double p = row.weight(s.biased), z = r.kept(b, h, i, j) ? 1 / (1 - double(r.d.dropout_p)) : 0;
        const size_t key = size_t(out.key(b, r.k_head(h), j));
        double dp = 0, dp_size = 0;
        for (size_t c = 0; c < v.size(); c++) {
            dp += z == 0 ? 0 : z * given.d_o[c] * v[c];
            dp_size += z * std::fabs(given.d_o[c] * v[c]);
            if (z != 0) add(out.v, key * v.size() + c, Term{p * z, p * z, p * z * heat, z, 0} * given.d_o[c]);
        }
        const Term ds = term(p, dp, dp_size);
        add(out.bias, size_t(out.row(b, h, i) * out.keys + j), ds * r.bias_scale(h));
        const Term dot = through_softcap(ds, s) * r.scale;
        for (size_t c = 0; c < q.size(); c++) {
            add(out.q, size_t(out.row(b, h, i)) * q.size() + c, dot * k[c]);
            add(out.k, key * q.size() + c, dot * q[c]);
        }
    }
};

void backward_row(const Reading& reading, const Upstream& up, const Attention& own, const Cache& cache, Row row, Gradients& out) {
    const size_t n = size_t(own.row(row.b, row.h, row.i));
    if (!up.lse.empty()) {
        row.top = row.lse = up.lse[n];
        row.sum = std::isinf(row.lse) ? 0 : 1;
    }
    Given given{{}, up.d_lse.empty() ? 0 : up.d_lse[n], 0, 0, 0};
    given.size = std::fabs(given.d_lse);
    for (size_t at = n * size_t(reading.dim_v); at < (n + 1) * size_t(reading.dim_v); at++) {
        const double d_o = up.d_o[at];
        given.d_o.push_back(d_o);
        given.d_o_size += std::fabs(d_o);
        given.delta += d_o * (up.o.empty() ? own.o[at] : up.o[at]);
        given.size += std::fabs(d_o) * (up.o.empty() ? own.spread[at] : std::fabs(up.o[at]));
    }
    RowGradient(reading, cache, row, given, out).run();
}

}  // namespace

Gradients backward(const Reading& reading, const Upstream& up) {
    const int64_t rows = reading.d.batch * reading.d.heads_q * reading.d.seqlen_q,
                  keys = reading.d.batch * reading.heads_k * reading.d.seqlen_k;
    Gradients out{reading.d.heads_q,
                  reading.heads_k,
                  reading.d.seqlen_q,
                  reading.d.seqlen_k,
                  zeros(rows * reading.d.dim_qk),
                  zeros(keys * reading.d.dim_qk),
                  zeros(keys * reading.dim_v),
                  zeros(rows * reading.d.seqlen_k),
                  zeros(reading.d.heads_q),
                  std::vector<double>(size_t(rows), 0.0)};
    const Attention own = attention(reading);
    each_head(reading, [&](int64_t b, int64_t h, const Cache& cache) {
        for (int64_t i = 0; i < reading.rows(b); i++) backward_row(reading, up, own, cache, load_row(reading, b, h, i, cache), out);
    });
    return out;
}

}  // namespace oracle
