#include "oracle/accuracy.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace oracle {
namespace {

// Does the device's matrix unit take subnormal numbers for 0? That of the emulated CDNA 2 does: of P, which is kept times 2^-24, and of
// sums with it.
bool flushes_subnormals(int32_t p_dtype) {
    const char* const matrix = std::getenv("FLASHATTN_EMU_MATRIX");
    return p_dtype == FA_BF16 && matrix && std::strcmp(matrix, "mfma_gfx90a") == 0;
}

double o_scale(const Reading& reading) { return reading.has(FA_OPERAND_O_SCALE) ? double(*reading.a.o_scale) : 1.0; }

double saturated(double value, int32_t dtype) {
    const double top = largest(dtype);
    return size_of(dtype) > 1 || std::isnan(value) ? value : value > top ? top : value < -top ? -top : value;
}

// Calls visit(b, h, i, valid) for every row that has a place of its own; rows beyond the length are not valid.
template <typename Visit>
void each_row(const Reading& reading, const Attention& want, Visit visit) {
    for (int64_t b = 0; b < reading.d.batch; b++)
        for (int64_t h = 0; h < reading.d.heads_q; h++)
            for (int64_t i = 0; i < reading.padded_rows(b); i++) {
                const bool valid = i < reading.rows(b);
                if (!valid || want.computed[size_t(want.row(b, h, i))]) visit(b, h, i, valid);
            }
}

}  // namespace

void judge(Verdict& verdict, const Element& at, double got, double want, double limit) {
    verdict.compared++;
    if (limit > 0 && std::isfinite(got) && std::isfinite(want)) verdict.worst = std::fmax(verdict.worst, std::fabs(got - want) / limit);
    if (agrees(got, want, limit) || !verdict.fault.empty()) return;
    char text[256];
    std::snprintf(text, sizeof text, "%s: sequence %lld, head %lld, row %lld, index %lld is %.9g, expected %.9g within %.3g", at.what,
                  (long long)at.b, (long long)at.h, (long long)at.i, (long long)at.c, got, want, limit);
    verdict.fault = text;
}

double forgive_overflow(double got, double want, double limit, int32_t dtype) {
    const bool beyond = std::isinf(got) && std::fabs(want) + limit > largest(dtype) && std::signbit(got) == std::signbit(want);
    return beyond ? want : got;
}

double unit_roundoff(int32_t dtype) {
    switch (dtype) {
        case FA_F16: return 0x1p-11;
        case FA_BF16: return 0x1p-8;
        case FA_E4M3: return 0x1p-4;
        case FA_E5M2: return 0x1p-3;
        default: return 0x1p-24;
    }
}

double smallest_step(int32_t dtype) {
    return dtype == FA_F16 ? 0x1p-24 : dtype == FA_E4M3 ? 0x1p-9 : dtype == FA_E5M2 ? 0x1p-16 : 0x1p-110;
}

double relative_norm(const std::vector<double>& got, const std::vector<double>& want) {
    double error = 0, size = 0;
    for (size_t n = 0; n < want.size(); n++) {
        error += (got[n] - want[n]) * (got[n] - want[n]);
        size += want[n] * want[n];
    }
    return size > 0 ? std::sqrt(error / size) : error == 0 ? 0 : INFINITY;
}

double norm_limit(int32_t dtype) {
    switch (dtype) {
        case FA_F16: return 5e-4;
        case FA_BF16: return 4e-3;
        case FA_E4M3: return 5e-2;
        case FA_E5M2: return 1e-1;
        default: return 4e-6;
    }
}

double faint_weight(int32_t p_dtype) {
    return p_dtype == FA_F16 ? 0x1p-34 : p_dtype == FA_E4M3 ? 0x1p-15 : flushes_subnormals(p_dtype) ? 0x1p-102 : 0x1p-105;
}

double short_qk_roundoff(int64_t dim_qk) { return double((dim_qk + 31) / 32) * 33 * 0x1p-13; }

double rounded_qk_roundoff(bool rounds_k) { return unit_roundoff(FA_BF16) * (rounds_k ? 2 : 1) + kQkRoundoff; }

double bytes_qk_roundoff() { return 1.0 / (2 * 127) + unit_roundoff(FA_BF16) + kQkRoundoff; }

double element_limit(const Reading& reading, int32_t p_dtype, double kappa, double spread, double reach, double qk_roundoff) {
    const double u = std::fmax(unit_roundoff(reading.o_dtype), unit_roundoff(p_dtype));
    const double c = p_dtype == FA_E4M3 ? 4 : u > 0x1p-24 ? 3 : std::fmax(8, 4 * std::sqrt(double(reading.d.seqlen_k) / 64));
    return c * (u + 0x1p-24 + qk_roundoff * kappa) * spread + faint_weight(p_dtype) * (std::isfinite(reach) ? reach : 0);
}

double lse_limit(double lse, double kappa, double qk_roundoff) {
    return 1e-5 * std::fmax(1, std::fabs(lse)) + (qk_roundoff > kQkRoundoff ? qk_roundoff : 0x1p-22) * kappa;
}

bool agrees(double got, double want, double limit) {
    if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
    if (std::isinf(got) || std::isinf(want)) return got == want;
    return std::fabs(got - want) <= limit;
}

bool agrees(const Write& w) {
    const double got = load(w.base, w.index, w.dtype);
    if (w.dtype == FA_BIT) return got == w.value;
    const double value = (w.dtype == FA_I8 || is_nibble(w.dtype)) && std::isnan(w.value) ? 0 : saturated(w.value, w.dtype);
    const double nearest = rounded(value, w.dtype);
    if (std::isnan(nearest) || std::isinf(nearest) || !std::isfinite(got)) return agrees(got, nearest, 0);
    return std::fabs(got - value) <= std::fabs(nearest - value) + 2 * w.slack;
}

Verdict compare_o(const Reading& reading, const Attention& want, int32_t p_dtype, double qk_roundoff) {
    Verdict verdict;
    const double factor = o_scale(reading);
    each_row(reading, want, [&](int64_t b, int64_t h, int64_t i, bool valid) {
        const size_t row = size_t(want.row(b, h, i));
        for (int64_t c = 0; c < reading.dim_v; c++) {
            const size_t n = row * size_t(reading.dim_v) + size_t(c);
            const double got = load(reading.a.o, reading.o(b, h, i) + c, reading.o_dtype);
            const double reach = double(want.attended[row]) * want.reach[n];
            const double rounding = want.rounding.empty() ? 0 : want.rounding[n];
            const double limit =
                std::fabs(factor) * (element_limit(reading, p_dtype, want.kappa[row], want.spread[n], reach, qk_roundoff) + rounding) +
                smallest_step(reading.o_dtype) + (flushes_subnormals(p_dtype) ? double(reading.d.seqlen_k) * 0x1p-102 : 0);
            const bool exact = !valid || want.attended[row] == 0;
            const double value = saturated(want.o[n] * factor, reading.o_dtype);
            judge(verdict, {"o", b, h, i, c}, forgive_overflow(got, value, limit, reading.o_dtype), value, exact ? 0 : limit);
        }
    });
    return verdict;
}

Verdict compare_lse(const Reading& reading, const Attention& want, double qk_roundoff) {
    Verdict verdict;
    each_row(reading, want, [&](int64_t b, int64_t h, int64_t i, bool valid) {
        const size_t row = size_t(want.row(b, h, i));
        const double got = double(reading.a.lse[reading.lse(b, h, i)]);
        judge(verdict, {"LSE", b, h, i, 0}, got, want.lse[row], valid ? lse_limit(want.lse[row], want.kappa[row], qk_roundoff) : 0);
    });
    return verdict;
}

Verdict compare_scores(const Reading& reading, const Attention& want) {
    Verdict verdict;
    // For 16 bits a GPU's tanh is within 2^-22, of whatever size: the score is off by so much of the cap, and so is what it is compared
    // with.
    const double bent = size_of(reading.q_dtype) == 2 ? 0x1p-21 * double(reading.d.softcap) : 0;
    const std::vector<double>& stage = want.scores[size_t(reading.d.scores_stage)];
    for (int64_t b = 0; b < reading.d.batch; b++)
        for (int64_t h = 0; h < want.heads; h++)
            for (int64_t i = 0; i < want.rows; i++)
                for (int64_t j = 0; j < want.keys; j++) {
                    const int64_t row = want.row(b, h, i);
                    const size_t n = size_t(row * want.keys + j);
                    const double kappa = reading.d.scores_stage == FA_SCORES_PROBABILITY ? want.kappa[size_t(row)] : want.score_kappa[n];
                    const bool p = reading.d.scores_stage == FA_SCORES_PROBABILITY;
                    const double limit = p ? (0x1p-21 * (1 + kappa) + bent) * stage[n] + 0x1p-110 : 0x1p-21 * kappa + 0x1p-110;
                    judge(verdict, {"scores", b, h, i, j}, double(reading.a.scores[reading.scores(b, h, i, j)]), stage[n], limit);
                }
    return verdict;
}

Verdict compare(const std::vector<Write>& writes) {
    Verdict verdict;
    for (const Write& w : writes) {
        verdict.compared++;
        if (agrees(w) || !verdict.fault.empty()) continue;
        char text[256];
        std::snprintf(text, sizeof text, "element %lld (%s) is %.9g, expected the nearest to %.9g (slack %.3g)", (long long)w.index,
                      name_of(w.dtype), load(w.base, w.index, w.dtype), w.value, w.slack);
        verdict.fault = text;
    }
    return verdict;
}

Pairs pair_o(const Reading& reading, const Attention& want) {
    Pairs pairs;
    const double factor = o_scale(reading);
    each_row(reading, want, [&](int64_t b, int64_t h, int64_t i, bool valid) {
        for (int64_t c = 0; valid && c < reading.dim_v; c++) {
            pairs.got.push_back(load(reading.a.o, reading.o(b, h, i) + c, reading.o_dtype) / factor);
            pairs.want.push_back(want.o[size_t(want.row(b, h, i) * reading.dim_v + c)]);
        }
    });
    return pairs;
}

}  // namespace oracle
