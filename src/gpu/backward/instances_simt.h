// The list of the SIMT backward kernels, from their rows. For the one translation unit of a module that compiles them.
#pragma once
#include "gpu/backward/simt.h"
#include "gpu/simt/kernel_rows.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {
namespace {

struct SimtBackwardList {
    static constexpr auto& kRows = kSimtBackwardRows;
    static constexpr bool has(const SimtBackwardRow&) { return true; }
    template <int i>
    static constexpr BackwardInstance kernel() {
        constexpr int TV = kRows[i].columns / 16;
        BackwardInstance one{};
        one.family = "bwd_simt";
        one.columns = SimtBackward<TV>::columns;
        one.rows = one.keys = one.block_keys = one.block_rows = kTile;
        one.threads = kThreads;
        one.simt_by_keys = backward_simt_keys<TV>;
        one.simt_by_rows = backward_simt_rows<TV>;
        one.by_keys_bytes = one.by_rows_bytes = kBackwardShared;
        return one;
    }
};
constexpr auto kSimtBackward = list_kernels<BackwardInstance, SimtBackwardList>();

}  // namespace

BackwardInstances simt_backward_instances() { return {kSimtBackward.at, kSimtBackward.used}; }

}  // namespace gpu
}  // namespace fa
