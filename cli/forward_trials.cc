// How a forward case of `verify` is judged: the norm of its error on benign data, and every element of every output on any.
#include <algorithm>
#include <memory>
#include "forward_call.h"
#include "oracle/accuracy.h"
#include "trial.h"

namespace tool {
namespace {

void judge(const oracle::Reading& reading, const oracle::Attention& want, Data data, int32_t p_dtype, Outcome& outcome) {
    double share = 0;
    const auto take = [&](const oracle::Verdict& verdict) {
        share = std::max(share, verdict.worst);
        if (outcome.fault.empty()) outcome.fault = verdict.fault;
    };
    take(oracle::compare_o(reading, want, p_dtype));
    take(oracle::compare_lse(reading, want));
    if (reading.has(FA_OPERAND_SCORES)) take(oracle::compare_scores(reading, want));
    outcome.share = share;
    if (data != Data::normal) return;
    const oracle::Pairs pairs = oracle::pair_o(reading, want);
    const bool o_is_coarser = oracle::unit_roundoff(reading.o_dtype) > oracle::unit_roundoff(p_dtype);
    outcome.norm = oracle::relative_norm(pairs.got, pairs.want);
    outcome.norm_bound = oracle::norm_limit(o_is_coarser ? reading.o_dtype : p_dtype);
    if (outcome.fault.empty() && !(*outcome.norm <= outcome.norm_bound))
        outcome.fault = text_of("o: the relative norm of the error is ", *outcome.norm, ", expected at most ", outcome.norm_bound);
}

// What probabilities are rounded to before they meet v.
int32_t p_dtype_of(const Kernel& kernel, const oracle::Reading& reading) {
    const bool in_f32 = kernel.cpu && kernel.handle.explain(&reading.d).find("cpu_flash_matrix") == std::string::npos;
    return in_f32 ? int32_t(FA_F32) : reading.q_dtype;
}

void run_forward(const ForwardCase& test_case, const Kernels& kernels, const Done& done) {
    ForwardCall call(test_case);
    const oracle::Reading& r = call.reading();
    const oracle::Attention want = oracle::attention(r, {r.has(FA_OPERAND_SCORES), 1});
    for (const Kernel& kernel : kernels) {
        call.spoil_outputs();
        done(attempt(
            kernel, r.d, FA_OP_FORWARD, [&](fa_handle_t h) { return fa_forward_ex(h, &r.d, &r.a); },
            [&](Outcome& outcome) { judge(r, want, test_case.data, p_dtype_of(kernel, r), outcome); }));
    }
}

}  // namespace

std::vector<Trial> forward_trials() {
    std::vector<Trial> trials;
    for (ForwardCase& c : forward_cases()) {
        const auto shared = std::make_shared<ForwardCase>(std::move(c));
        trials.push_back({shared->name, [shared](const auto& kernels, const auto& done) { run_forward(*shared, kernels, done); }});
    }
    return trials;
}

}  // namespace tool
