// Counting cases: k = 0, so every attended key weighs the same; v_j = one-hot of j modulo dim_v.
#pragma once
#include <algorithm>
#include <cmath>
#include "support/shaped.h"

namespace test {

constexpr int64_t kMostColumns = 256;  // up to this many keys, the output names every key

inline Case counting_shape(int64_t batch, int64_t heads, int64_t rows, int64_t keys, int32_t dtype = FA_F32) {
    return shaped({batch, heads, heads, rows, keys, 3, std::clamp<int64_t>(keys, 1, kMostColumns)}, dtype);
}

inline void fill_counting(Case& test_case) {
    const int64_t columns = test_case.reading().dim_v;
    test_case.set_q([](int64_t, int64_t h, int64_t i, int64_t e) { return double((h + 3 * i + e) % 7) - 3; });
    test_case.set_k([](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
    test_case.set_v([&](int64_t, int64_t, int64_t j, int64_t e) { return j % columns == e ? 1.0 : 0.0; });
}

// Runs a case that is bound and has its masks. o is compared exactly where its type holds 1/n exactly enough (f32); LSE always.
inline std::string count_bound(const Handle& handle, Case& test_case) {
    fill_counting(test_case);
    if (test_case.run(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
    const oracle::Reading r = test_case.reading();
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (int64_t h = 0; h < test_case.d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) {
                std::vector<int64_t> kept(static_cast<size_t>(r.dim_v), 0);
                int64_t attended = 0;
                for (int64_t j = 0; j < r.keys(b); j++) {
                    if (!r.attends(b, h, i, j)) continue;
                    attended++;
                    kept[size_t(j % r.dim_v)] += r.kept(b, h, i, j);
                }
                const std::string at = " in sequence " + std::to_string(b) + ", head " + std::to_string(h) + ", row " + std::to_string(i);
                const double sum = std::exp(double(test_case.lse.as<float>()[r.lse(b, h, i)]));
                if (!(std::fabs(sum - double(attended)) < 0.5))
                    return "LSE counts " + std::to_string(sum) + " keys of " + std::to_string(attended) + at;
                for (int64_t e = 0; e < r.dim_v && r.o_dtype == FA_F32; e++) {
                    const double share =
                        oracle::load(test_case.o.as(), r.o(b, h, i) + e, FA_F32) * double(attended) * (1 - double(test_case.d.dropout_p));
                    const double want = double(kept[size_t(e)]);
                    if (!(std::fabs(share - want) < 0.25) || (want == 0 && share != 0))
                        return "column " + std::to_string(e) + " counts " + std::to_string(share) + " keys of " + std::to_string(want) + at;
                }
            }
    return test_case.check_untouched();
}

inline std::string count(const Handle& handle, Case& test_case, Rng& rng) {
    test_case.bind(rng);
    return count_bound(handle, test_case);
}

}  // namespace test
