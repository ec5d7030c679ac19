// The lists of matrix kernels, for the translation units that compile them.
#pragma once
#include "gpu/fwd_mma.h"
#include "gpu/instance.h"

namespace fa {
namespace gpu {

template <class M>
constexpr Instance matrix_instance() {
    return {"fwd_mma", M::rows, M::columns, M::keys, M::threads, M::key_warps, M::resident, forward_mma<M, false>,
            forward_mma<M, true>, [](int64_t) -> int64_t { return M::kSharedBytes; }};
}

template <class Mma>
struct Instances16 {
    static constexpr Instance list[] = {
#define FA_MMA_16BIT(...) matrix_instance<Matrix<Mma, __VA_ARGS__>>(),
#include "gpu/kernels.def"
#undef FA_MMA_16BIT
    };
};

template <class Mma>
struct Instances32 {
    static constexpr Instance list[] = {
#define FA_MMA_32BIT(...) matrix_instance<Matrix<Mma, __VA_ARGS__>>(),
#include "gpu/kernels.def"
#undef FA_MMA_32BIT
    };
};

template <class List>
Instances instances() {
    return {List::list, int(sizeof List::list / sizeof *List::list)};
}

}  // namespace gpu
}  // namespace fa
