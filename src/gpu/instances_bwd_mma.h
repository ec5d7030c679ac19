// The backward's matrix kernels of one policy and width, for the translation units that compile them.
#pragma once
#include "gpu/bwd_mma.h"
#include "gpu/instance.h"

namespace fa {
namespace gpu {

// How a width's blocks are shaped: warps that own keys or rows, warps that share what passes by and then the columns, rows or keys that pass
// by at once, slots for them, blocks that a multiprocessor holds. What work on scores takes of registers,
// general blocks save in tiles.
template <class Mma, int width>
struct BackwardShape;
template <class T>
struct BackwardShape<MmaSync<T>, 64> {
    template <bool by_rows>
    using General = GradientBlock<MmaSync<T>, 64, 2, 4, 64, 2, 1, by_rows, false>;
    using Plain = GradientBlock<MmaSync<T>, 64, 4, 2, 128, 2, 1, false, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 128> {
    template <bool by_rows>
    using General = GradientBlock<MmaSync<T>, 128, 2, 4, 64, 1, 1, by_rows, false>;
    using Plain = GradientBlock<MmaSync<T>, 128, 4, 2, 64, 2, 1, false, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 256> {
    template <bool by_rows>
    using General = GradientBlock<MmaSync<T>, 256, 2, 4, 64, 1, 1, by_rows, false>;
    using Plain = GradientBlock<MmaSync<T>, 256, 2, 4, 64, 1, 1, false, true>;
};

template <class Mma, int width>
BackwardInstances backward_instances() {
    using Shape = BackwardShape<Mma, width>;
    using P = typename Shape::Plain;
    using K = typename Shape::template General<false>;
    using R = typename Shape::template General<true>;
    static_assert(P::threads == R::threads && K::threads == R::threads && P::passing <= kPaddedRows && R::own <= kPaddedRows, "");
    constexpr auto rows = backward_mma<R>;
    static constexpr BackwardInstance list[] = {
        {"bwd_mma_plain", width, P::passing, P::own, P::own, R::own, P::threads, true, backward_mma<P>, rows, P::kSharedBytes, R::kSharedBytes, true},
        {"bwd_mma", width, K::passing, K::own, K::own, R::own, K::threads, true, backward_mma<K>, rows, K::kSharedBytes, R::kSharedBytes, false}};
    return {list, 2};
}

}  // namespace gpu
}  // namespace fa
