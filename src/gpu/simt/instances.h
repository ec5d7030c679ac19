// The list of the SIMT forward kernels, as kernels.def gives their sizes. For the one translation unit of a module that compiles
// them.
#pragma once
#include "gpu/simt/forward.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {
namespace {

template <int TR, int TV>
constexpr Instance simt_instance() {
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
constexpr Instance kSimt[] = {
#define FA_SIMT(rows, columns) simt_instance<rows / 16, columns / 16>(),
#include "gpu/kernels.def"
#undef FA_SIMT
};

}  // namespace

Instances simt_instances() { return {kSimt, int(sizeof kSimt / sizeof *kSimt)}; }

}  // namespace gpu
}  // namespace fa
