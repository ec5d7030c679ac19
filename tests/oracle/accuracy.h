// The accuracy that is promised, as three lines: a relative norm for benign data, an element-wise bound for any data, and exact
// counts (which need no tolerance). NaN on one side only is always a failure.
#pragma once
#include <string>
#include "oracle/oracle.h"

namespace oracle {

double unit_roundoff(int32_t dtype);
double smallest_step(int32_t dtype);   // η: what underflow of the stored type may cost
double faint_weight(int32_t p_dtype);  // φ: what may be lost of a weight, as a part of its row's largest

// Line 1. |got − want| / |want| over all elements, and the most it may be.
double relative_norm(const std::vector<double>& got, const std::vector<double>& want);
double norm_limit(int32_t coarsest_dtype);

// Line 2. p_dtype: the type that probabilities are rounded to before they meet v. Of each key, a faint weight may be lost; what that costs
// grows with the values they would have carried, up to `reach` of all together.
// qk_roundoff: what the score of a row may be off by, as a part of κ.
constexpr double kQkRoundoff = 0x1p-24;
double short_qk_roundoff(int64_t dim_qk);   // of 8-bit q and k where a matrix unit sums their products in few bits
double rounded_qk_roundoff(bool rounds_k);  // of a q that is rounded to bf16, and of k, too
double bytes_qk_roundoff();                 // of blocks of q that are rounded to 8 bits, of their largest values
double element_limit(const Reading& reading, int32_t p_dtype, double kappa, double spread, double reach, double qk_roundoff = kQkRoundoff);
double lse_limit(double lse, double kappa, double qk_roundoff = kQkRoundoff);

// |got − want| <= limit; equal infinities agree; NaN agrees with NaN alone.
bool agrees(double got, double want, double limit);
// Does the stored element hold the nearest value of its type, f32 slack allowed?
bool agrees(const Write& write);

// Compares whole outputs, element by element (line 2). What is wrong first, as a sentence, and how near the limit the rest came.
struct Verdict {
    std::string fault;  // empty: none
    int64_t compared = 0;
    double worst = 0;  // largest error over its limit
};
struct Element {
    const char* what;
    int64_t b, h, i, c;
};
void judge(Verdict& verdict, const Element& at, double got, double want, double limit);
// Where got has overflowed its type and want is within its error of doing so: want.
double forgive_overflow(double got, double want, double limit, int32_t dtype);

Verdict compare_o(const Reading& reading, const Attention& want, int32_t p_dtype, double qk_roundoff = kQkRoundoff);
Verdict compare_lse(const Reading& reading, const Attention& want, double qk_roundoff = kQkRoundoff);
Verdict compare_scores(const Reading& reading, const Attention& want);
Verdict compare(const std::vector<Write>& writes);

// Every computed element of o, stored and wanted side by side (in units of o, o_scale undone): what line 1 takes.
struct Pairs {
    std::vector<double> got, want;
};
Pairs pair_o(const Reading& reading, const Attention& want);

}  // namespace oracle
