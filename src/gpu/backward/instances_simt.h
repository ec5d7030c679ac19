// The list of the SIMT backward kernels, as kernels.def gives their sizes. For the one translation unit of a module that compiles
// them.
#pragma once
#include "gpu/backward/simt.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {
namespace {

template <int TV>
constexpr BackwardInstance simt_backward_instance() {
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
constexpr BackwardInstance kSimtBackward[] = {
#define FA_SIMT_BACKWARD(columns) simt_backward_instance<columns / 16>(),
#include "gpu/kernels.def"
#undef FA_SIMT_BACKWARD
};

}  // namespace

BackwardInstances simt_backward_instances() { return {kSimtBackward, int(sizeof kSimtBackward / sizeof *kSimtBackward)}; }

}  // namespace gpu
}  // namespace fa
