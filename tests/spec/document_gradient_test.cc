// The worked example of docs/SPEC.md, section 15: by its formulas, and by moving every number a little.
#include <gtest/gtest.h>
#include <cmath>
#include "example.h"

namespace spec {
namespace {

using std::vector;

struct Row {
    vector<double> raw, bias, values, z;
    double softcap, sink, d_o, d_lse;

    struct Forward {
        vector<double> p;
        double lse, sink, output;
    };
    Forward forward() const {
        Forward f{{}, 0, 0, 0};
        double sum = std::exp(sink);
        for (size_t j = 0; j < raw.size(); j++) {
            f.p.push_back(std::exp(softcap * std::tanh(raw[j] / softcap) + bias[j]));
            sum += f.p[j];
        }
        for (size_t j = 0; j < raw.size(); j++) f.output += (f.p[j] /= sum) * z[j] * values[j];
        f.lse = std::log(sum);
        f.sink = std::exp(sink) / sum;
        return f;
    }
    double loss() const { return d_o * forward().output + d_lse * forward().lse; }

    double slope(double& x) {
        constexpr double kStep = 1e-5;
        const double middle = x;
        x = middle + kStep;
        const double above = loss();
        x = middle - kStep;
        const double below = loss();
        x = middle;
        return (above - below) / (2 * kStep);
    }
    vector<double> slopes(vector<double>& list) {
        vector<double> all;
        for (double& x : list) all.push_back(slope(x));
        return all;
    }
};

void check_gradient(Example& example) {
    Row row{example.numbers("raw"),    example.numbers("bias"), example.numbers("values"), example.numbers("keep"),
            example.number("softcap"), example.number("sink"),  example.number("d_o"),     example.number("d_lse")};
    for (double& z : row.z) z /= 1 - example.number("dropout");
    const Row::Forward f = row.forward();
    example.expect("p", f.p);
    example.expect("lse", {f.lse});
    example.expect("output", {f.output});
    const double delta = row.d_o * f.output;
    example.expect("delta", {delta});

    vector<double> dp, ds, dx, dv;
    for (size_t j = 0; j < f.p.size(); j++) {
        const double t = std::tanh(row.raw[j] / row.softcap);
        dp.push_back(row.z[j] * row.d_o * row.values[j]);
        ds.push_back(f.p[j] * (dp[j] - delta + row.d_lse));
        dx.push_back(ds[j] * (1 - t * t));
        dv.push_back(f.p[j] * row.z[j] * row.d_o);
    }
    example.expect("dp", dp);
    example.expect("ds", ds);
    example.expect("dx", dx);
    example.expect("dv", dv);
    example.expect("dsink", {f.sink * (row.d_lse - delta)});

    double sum = f.sink * (row.d_lse - delta);
    for (const double x : ds) sum += x;
    EXPECT_NEAR(sum, row.d_lse, 1e-12) << "a row of dS and its sink's part";

    example.expect("dx", row.slopes(row.raw));
    example.expect("dv", row.slopes(row.values));
    example.expect("dsink", {row.slope(row.sink)});
    for (double& b : row.bias)
        if (std::isinf(b)) b = -1e3;  // as good as removed, and it can be moved
    example.expect("ds", row.slopes(row.bias));
}

TEST(SpecDocument, Gradients) { check_examples("gradient", check_gradient); }

}  // namespace
}  // namespace spec
