#include "oracle/row.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Product {
    double sum, size;  // of q · k, and of the same with all signs dropped
};

// Four sums at a time, which a compiler may hold in vectors.
Product multiply(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& q_size,
                 const std::vector<double>& k_size) {
    constexpr size_t kLanes = 4;
    double sum[kLanes] = {}, size[kLanes] = {};
    const size_t whole = q.size() / kLanes * kLanes;
    for (size_t c = 0; c < whole; c += kLanes)
        for (size_t lane = 0; lane < kLanes; lane++) {
            sum[lane] += q[c + lane] * k[c + lane];
            size[lane] += std::fabs(q_size[c + lane] * k_size[c + lane]);
        }
    for (size_t c = whole; c < q.size(); c++) {
        sum[0] += q[c] * k[c];
        size[0] += std::fabs(q_size[c] * k_size[c]);
    }
    return {sum[0] + sum[1] + sum[2] + sum[3], size[0] + size[1] + size[2] + size[3]};
}

Score score_of(const Reading& reading, const Row& row, int64_t j, const Cache& cache) {
    const int64_t b = row.b, h = row.h, i = row.i;
    const Product product = multiply(row.q, cache.k[size_t(j)], row.q_size, cache.k_size[size_t(j)]);
    const double cap = reading.d.softcap,
                 bias = reading.has(FA_OPERAND_BIAS)
                            ? reading.bias_scale(h) * load(reading.a.bias, reading.bias(b, h, i, j), reading.bias_dtype)
                            : 0;
    const double alibi = reading.alibi_slope(b, h) * std::fabs(double(i + reading.diagonal(b) - j));
    Score s;
    s.raw = reading.scale * product.sum;
    s.capped = cap > 0 ? cap * std::tanh(s.raw / cap) : s.raw;
    s.attended = reading.attends(b, h, i, j);
    s.biased = s.attended ? s.capped + bias - alibi : -kInfinity;
    s.kappa = std::fabs(reading.scale) * product.size + (s.attended ? std::fabs(bias) : 0) + std::fabs(alibi);
    return s;
}

// A removed key has score −inf and weighs nothing; so does an attended one whose product is −inf.
void sum_up(Row& row) {
    row.top = row.sink, row.sum = 0, row.lse = -kInfinity;
    bool broken = std::isnan(row.sink) || row.sink == kInfinity;
    for (const Score& s : row.scores) {
        broken = broken || std::isnan(s.biased) || s.biased == kInfinity;
        if (s.biased > row.top) row.top = s.biased;
    }
    if (broken) row.top = row.sum = row.lse = kNaN;
    if (broken || row.top == -kInfinity) return;
    for (const Score& s : row.scores) row.sum += std::exp(s.biased - row.top);
    row.sum += std::exp(row.sink - row.top);
    row.lse = row.top + std::log(row.sum);
}

}  // namespace

std::vector<double> widen(const void* base, int64_t offset, int64_t count, int32_t dtype) {
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t c = 0; c < count; c++) values[size_t(c)] = load_dim(base, offset, c, dtype);
    return values;
}

namespace {

// Each value times its factor, and its shift added; what that was added up from.
template <typename Index>
std::vector<double> descale(std::vector<double>& values, const void* factors, const void* shifts, int32_t dtype, Index index) {
    std::vector<double> size = values;
    for (size_t c = 0; c < values.size() && factors; c++) {
        const double shift = shifts ? load(shifts, index(int64_t(c)), dtype) : 0;
        const double scaled = values[c] * load(factors, index(int64_t(c)), dtype);
        values[c] = scaled + shift;
        size[c] = std::fabs(scaled) + std::fabs(shift);
    }
    return size;
}

// The largest magnitude among 32 values, in place of each.
std::vector<double> largest_of_blocks(const std::vector<double>& values) {
    std::vector<double> largest(values.size());
    for (size_t c = 0; c < values.size(); c++)
        for (size_t other = c / 32 * 32; other < std::min(c / 32 * 32 + 32, values.size()); other++)
            largest[c] = std::fmax(largest[c], std::fabs(values[other]));
    return largest;
}

void append(std::vector<double>& values, const std::vector<double>& more) { values.insert(values.end(), more.begin(), more.end()); }

const void* given(const Reading& reading, uint64_t operand, const void* pointer) { return reading.has(operand) ? pointer : nullptr; }

}  // namespace

static std::vector<double> largest_of_values(const Reading& reading, int64_t b, int64_t k_head, int64_t v_head, int64_t j) {
    std::vector<double> largest(size_t((reading.dim_v + 31) / 32));
    for (size_t n = 0; n < largest.size(); n++) {
        const int64_t dim = int64_t(n) * 32;
        largest[n] = reading.v_in_k() ? largest_of_block(reading.a.k, reading.k(b, k_head, j), dim, reading.k_dtype)
                                      : largest_of_block(reading.a.v, reading.v(b, v_head, j), dim, reading.v_dtype);
        if (const void* const factors = given(reading, FA_OPERAND_V_DESCALE, reading.a.v_descale))
            largest[n] *= std::fabs(load(factors, reading.v_descale(b, v_head, j, dim), reading.v_factors.dtype));
        if (const void* const factors = reading.v_in_k() ? given(reading, FA_OPERAND_K_DESCALE, reading.a.k_descale) : nullptr)
            largest[n] *= std::fabs(load(factors, reading.k_descale(b, k_head, j, dim), reading.k_factors.dtype));
    }
    return largest;
}

Cache load_cache(const Reading& reading, int64_t b, int64_t k_head, int64_t v_head, bool bytes) {
    Cache cache;
    for (int64_t j = 0; j < reading.keys(b); j++) {
        std::vector<double> k = widen(reading.a.k, reading.k(b, k_head, j), reading.own_k, reading.k_dtype);
        // An infinite factor of a block, or of a head, counts as NaN; and so does one of a row of q.
        for (size_t c = 0; c < k.size() && is_block(reading.k_dtype); c++)
            if (!has_finite_factors(reading.a.k, reading.k(b, k_head, j), int64_t(c), reading.k_dtype)) k[c] = kNaN;
        if (reading.k_factor_of_heads() && std::isinf(load(reading.a.k_descale, reading.k_descale(b, k_head, j), FA_F32))) k[0] = kNaN;
        std::vector<double> k_size =
            descale(k, given(reading, FA_OPERAND_K_DESCALE, reading.a.k_descale), given(reading, FA_OPERAND_K_SHIFT, reading.a.k_shift),
                    reading.k_factors.dtype, [&](int64_t c) { return reading.k_descale(b, k_head, j, c); });
        if (reading.has(FA_OPERAND_K_TAIL)) {
            const std::vector<double> tail =
                widen(reading.a.k_tail, reading.k_tail(b, k_head, j), reading.d.dim_tail, reading.k_tail_dtype);
            append(k, tail);
            append(k_size, tail);
        }
        cache.k.push_back(k);
        cache.k_size.push_back(k_size);
        if (reading.v_in_k()) {
            k.resize(size_t(reading.dim_v));
            k_size.resize(size_t(reading.dim_v));
            cache.v.push_back(k);
            cache.v_size.push_back(k_size);
            continue;
        }
        std::vector<double> v = widen(reading.a.v, reading.v(b, v_head, j), reading.dim_v, reading.v_dtype);
        cache.v_size.push_back(descale(v, given(reading, FA_OPERAND_V_DESCALE, reading.a.v_descale),
                                       given(reading, FA_OPERAND_V_SHIFT, reading.a.v_shift), reading.v_factors.dtype,
                                       [&](int64_t c) { return reading.v_descale(b, v_head, j, c); }));
        cache.v.push_back(v);
    }
    for (int64_t j = 0; bytes && j < reading.keys(b); j++) cache.v_block.push_back(largest_of_values(reading, b, k_head, v_head, j));
    return cache;
}

double Row::weight(double score) const { return empty() ? 0 : std::exp(score - top) / sum; }

Row load_row(const Reading& reading, int64_t b, int64_t h, int64_t i, const Cache& cache, bool bytes) {
    std::vector<double> q = widen(reading.a.q, reading.q(b, h, i), reading.own_q, reading.q_dtype);
    descale(q, given(reading, FA_OPERAND_Q_DESCALE, reading.a.q_descale), nullptr, reading.q_factors.dtype,
            [&](int64_t c) { return reading.q_descale(b, h, i, c); });
    if (reading.q_factor_of_rows() && std::isinf(load(reading.a.q_descale, reading.q_descale(b, h, i), FA_F32))) q[0] = kNaN;
    if (reading.has(FA_OPERAND_Q_TAIL))
        append(q, widen(reading.a.q_tail, reading.q_tail(b, h, i), reading.d.dim_tail, reading.q_tail_dtype));
    Row row{b, h, i, q, bytes ? largest_of_blocks(q) : q, {}, -kInfinity, 0, 0, 0, 0};
    if (reading.has(FA_OPERAND_SINKS)) row.sink = double(reading.a.sinks[h]);
    row.kappa = std::isfinite(row.sink) ? std::fabs(row.sink) : 0;
    for (int64_t j = 0; j < int64_t(cache.k.size()); j++) {
        row.scores.push_back(score_of(reading, row, j, cache));
        const Score& s = row.scores.back();
        if (s.attended && std::isfinite(s.kappa)) row.kappa = std::fmax(row.kappa, s.kappa);
    }
    sum_up(row);
    return row;
}

}  // namespace oracle
