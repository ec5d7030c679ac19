// Two passes over every row: the largest score and the sum of weights, then the weighted values.
#include <algorithm>
#include <cmath>
#include <limits>
#include "oracle/row.h"

namespace oracle {
namespace {

void compute_row(const Reading& reading, const Row& row, const Cache& cache, bool keep_scores, Attention& out) {
    const size_t n = size_t(out.row(row.b, row.h, row.i)), dim = size_t(reading.dim_v);
    double *o = out.o.data() + n * dim, *spread = out.spread.data() + n * dim, *reach = out.reach.data() + n * dim;
    const double kept = 1 - double(reading.d.dropout_p);
    out.computed[n] = 1;
    out.lse[n] = row.lse;
    out.kappa[n] = row.kappa;
    for (size_t j = 0; j < row.scores.size(); j++) {
        const Score& s = row.scores[j];
        const double p = s.attended ? row.weight(s.biased) : 0;
        if (keep_scores) {
            const size_t pair = n * size_t(out.keys) + j;
            out.scores[FA_SCORES_RAW][pair] = s.raw;
            out.scores[FA_SCORES_CAPPED][pair] = s.capped;
            out.scores[FA_SCORES_BIASED][pair] = s.biased;
            out.scores[FA_SCORES_PROBABILITY][pair] = p;
            out.score_kappa[pair] = s.kappa;
        }
        if (!s.attended) continue;
        out.attended[n]++;
        const double weight = reading.kept(row.b, row.h, row.i, int64_t(j)) ? p / kept : 0;
        const double *v = cache.v[j].data(), *v_size = cache.v_size[j].data();
        for (size_t c = 0; c < dim; c++) {
            o[c] += weight * v[c];
            spread[c] += weight * std::fabs(v_size[c]);
        }
        for (size_t c = 0; c < dim; c++) {
            const double far = std::fabs(v_size[c]) / kept;
            reach[c] = far > reach[c] ? far : reach[c];  // a NaN has none
        }
    }
}

// P times a block's factor is rounded to a 127th of the largest of up to 32 neighbouring keys, and meets an integer that the block could
// hold.
void add_rounding(const Reading& reading, const Row& row, const Cache& cache, Attention& out) {
    constexpr size_t kNeighbours = 32;
    const double kept = 1 - double(reading.d.dropout_p);
    double* const rounding = out.rounding.data() + size_t(out.row(row.b, row.h, row.i)) * size_t(reading.dim_v);
    const size_t keys = row.scores.size();
    std::vector<double> product(keys);
    for (size_t block = 0; keys > 0 && block < cache.v_block[0].size(); block++) {
        for (size_t j = 0; j < keys; j++) {
            const double p = row.scores[j].attended ? row.weight(row.scores[j].biased) / kept : 0;
            product[j] = p > 0 ? p * cache.v_block[j][block] : 0;
        }
        double cost = 0;
        for (size_t j = 0; j < keys; j++) {
            double largest = 0;
            for (size_t i = j < kNeighbours ? 0 : j - kNeighbours + 1; i < std::min(j + kNeighbours, keys); i++)
                largest = std::fmax(largest, std::isfinite(product[i]) ? product[i] : 0);
            if (row.scores[j].attended) cost += largest / (2 * 127);
        }
        for (size_t c = block * 32; c < std::min(block * 32 + 32, size_t(reading.dim_v)); c++) rounding[c] = cost;
    }
}

}  // namespace

Attention attention(const Reading& reading, AttentionOptions options) {
    Attention out{reading.d.heads_q, reading.d.seqlen_q, reading.d.seqlen_k, reading.dim_v, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    const size_t rows = size_t(reading.d.batch * reading.d.heads_q * reading.d.seqlen_q),
                 pairs = options.scores ? rows * size_t(reading.d.seqlen_k) : 0;
    out.o.assign(rows * size_t(reading.dim_v), 0);
    out.spread.assign(rows * size_t(reading.dim_v), 0);
    out.reach.assign(rows * size_t(reading.dim_v), 0);
    if (options.bytes) out.rounding.assign(rows * size_t(reading.dim_v), 0);
    out.lse.assign(rows, kNever);
    out.kappa.assign(rows, 0);
    out.attended.assign(rows, 0);
    out.computed.assign(rows, 0);
    for (int stage = 0; stage < 4; stage++) out.scores[size_t(stage)].assign(pairs, stage == FA_SCORES_BIASED ? kNever : 0);
    out.score_kappa.assign(pairs, 0);

    each_head(
        reading,
        [&](int64_t b, int64_t h, const Cache& cache) {
            for (int64_t i = 0; i < reading.rows(b); i++)
                if (i % options.row_step == 0 || i == reading.rows(b) - 1) {
                    const Row row = load_row(reading, b, h, i, cache, options.bytes);
                    compute_row(reading, row, cache, options.scores, out);
                    if (options.bytes) add_rounding(reading, row, cache, out);
                }
        },
        options.bytes);
    return out;
}

}  // namespace oracle
