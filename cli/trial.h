// What `verify` runs: a trial is one call with its data and its fp64 truth, put to every kernel in turn.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "library.h"

namespace tool {

struct Kernel {
    std::string name;  // "cpu avx2"
    Handle& handle;
    bool cpu;  // has every call
};

struct Outcome {
    bool supported = true;
    std::string fault;           // what is wrong, or why the kernel does not support the call; empty when all is well
    std::optional<double> norm;  // |result − truth| / |truth|, where the contract bounds it
    double norm_bound = 0;
    std::optional<double> share;  // the largest error of any element of what was written, as a share of its bound
    bool passed() const { return supported && fault.empty(); }
};

// Makes the call on one kernel, and lets `judge` look at what it wrote.
Outcome attempt(const Kernel& kernel, const fa_attention_desc_t& desc, int32_t op, const std::function<fa_status_t(fa_handle_t)>& call,
                const std::function<void(Outcome&)>& judge);

using Kernels = std::vector<Kernel>;
using Done = std::function<void(const Outcome&)>;

struct Trial {
    std::string name;
    std::function<void(const Kernels&, const Done&)> run;  // reports an outcome for each kernel, in order
};

std::vector<Trial> forward_trials();
std::vector<Trial> backward_trials();
std::vector<Trial> cache_trials();  // fa_merge, fa_append_kv, fa_rotary

}  // namespace tool
