// What the forward and the backward both know of one query row: the keys that it sees, their scores, and what these sum to.
#pragma once
#include "oracle/oracle.h"

namespace oracle {

struct Score {
    double raw, capped, biased;  // biased is −inf for a removed key
    double kappa;
    bool attended;
};

// Keys and values of one sequence and one head, de-scaled; and Σ of the magnitudes that each was added up from.
struct Cache {
    std::vector<std::vector<double>> k, v, k_size, v_size;
    std::vector<std::vector<double>> v_block;  // the largest magnitude that each block could hold; when asked for
};
// bytes: as in AttentionOptions.
Cache load_cache(const Reading& reading, int64_t b, int64_t k_head, int64_t v_head, bool bytes = false);

// visit(b, h, cache) for every query head, with the keys and values that it reads.
template <typename Visit>
void each_head(const Reading& reading, Visit visit, bool bytes = false) {
    for (int64_t b = 0; b < reading.d.batch; b++) {
        Cache cache;
        for (int64_t h = 0; h < reading.d.heads_q; h++) {
            if (h == 0 || reading.k_head(h) != reading.k_head(h - 1) || reading.v_head(h) != reading.v_head(h - 1))
                cache = load_cache(reading, b, reading.k_head(h), reading.v_head(h), bytes);
            visit(b, h, cache);
        }
    }
}

struct Row {
    int64_t b, h, i;
    std::vector<double> q, q_size;
    std::vector<Score> scores;  // of every valid key
    double sink;                // −inf: none
    double top, sum, lse;       // Σ exp(score) and exp(sink) = sum · exp(top) = exp(lse); NaN when a score is not below +inf
    double kappa;               // as in Attention

    bool empty() const { return sum == 0; }
    double weight(double score) const;  // its share of the whole
};
Row load_row(const Reading& reading, int64_t b, int64_t h, int64_t i, const Cache& cache, bool bytes = false);

std::vector<double> widen(const void* base, int64_t offset, int64_t count, int32_t dtype);

}  // namespace oracle
