// The list of the SIMT forward kernels, from their rows. For the one translation unit of a module that compiles them.
#pragma once
#include "gpu/simt/forward.h"
#include "gpu/simt/kernel_rows.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {
namespace {

struct SimtList {
    static constexpr auto& kRows = kSimtRows<rt::kWideRows>;
    static constexpr bool has(const SimtRow&) { return true; }
    template <int i>
    static constexpr Instance kernel() {
        constexpr int TR = kRows[i].rows / 16, TV = kRows[i].columns / 16;
        Instance one{};
        one.family = "fwd_simt";
        one.rows = Simt<TR, TV>::rows;
        one.columns = Simt<TR, TV>::columns;
        one.keys = kKeys;
        one.threads = kThreads;
        one.key_warps = one.resident = 1;
        one.simt = forward_simt<TR, TV>;
        one.shared_bytes = Simt<TR, TV>::shared_bytes;
        return one;
    }
};
constexpr auto kSimt = list_kernels<Instance, SimtList>();

}  // namespace

Instances simt_instances() { return {kSimt.at, kSimt.used}; }

}  // namespace gpu
}  // namespace fa
