// The backward's matrix kernels of one policy and width, for the translation units that compile them.
#pragma once
#include "gpu/bwd_mma.h"
#include "gpu/instance.h"

namespace fa {
namespace gpu {

// Warps that own keys, warps that share what passes by and then the columns, rows that pass by, slots for them; for a block by rows the keys
// that pass by.
template <class Mma, int width>
struct BackwardShape;
template <class T>
struct BackwardShape<MmaSync<T>, 64> {
    using ByKeys = GradientBlock<MmaSync<T>, 64, 4, 2, 128, 2, false>;
    using ByRows = GradientBlock<MmaSync<T>, 64, 4, 2, 128, 2, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 128> {
    using ByKeys = GradientBlock<MmaSync<T>, 128, 4, 2, 64, 2, false>;
    using ByRows = GradientBlock<MmaSync<T>, 128, 4, 2, 64, 2, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 256> {
    using ByKeys = GradientBlock<MmaSync<T>, 256, 2, 4, 64, 1, false>;
    using ByRows = GradientBlock<MmaSync<T>, 256, 2, 4, 64, 1, true>;
};

template <class Mma, int width>
constexpr BackwardInstance backward_instance() {
    using K = typename BackwardShape<Mma, width>::ByKeys;
    using R = typename BackwardShape<Mma, width>::ByRows;
    static_assert(K::threads == R::threads && K::passing <= kPaddedRows && R::own <= kPaddedRows, "");
    return {"bwd_mma", width, K::passing, K::own, K::own, R::own, K::threads, true, backward_mma<K, false>, backward_mma<R, false>,
            K::kSharedBytes, R::kSharedBytes, backward_mma<K, true>};
}
template <class Mma, int width>
BackwardInstances backward_instances() {
    static constexpr BackwardInstance list[] = {backward_instance<Mma, width>()};
    return {list, 1};
}

}  // namespace gpu
}  // namespace fa
