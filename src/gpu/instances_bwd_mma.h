// The backward's mma kernels of one policy and width: their block shapes and their list. For the translation units that compile
// them (src/emu, src/cuda), which define mma_backward_instances by it.
#pragma once
#include "gpu/bwd_mma.h"
#include "gpu/instance.h"

namespace fa {
namespace gpu {

// How a width's blocks are shaped: warps that own keys or rows, warps that share the streamed ones and then the columns, rows or
// keys of a streamed tile, its stages, blocks that a multiprocessor holds. General blocks have smaller tiles: a score mod needs
// registers.
template <class Mma, int width>
struct BackwardShape;
template <class T>
struct BackwardShape<MmaSync<T>, 64> {
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 64, 2, 4, 64, 2, 1, by_rows, false>;
    using Plain = MmaBackwardBlock<MmaSync<T>, 64, 4, 2, 128, 2, 1, false, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 128> {
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 128, 2, 4, 64, 1, 1, by_rows, false>;
    using Plain = MmaBackwardBlock<MmaSync<T>, 128, 4, 2, 64, 2, 1, false, true>;
};
template <class T>
struct BackwardShape<MmaSync<T>, 256> {
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 256, 2, 4, 64, 1, 1, by_rows, false>;
    using Plain = void;  // registers are full of gradients either way
};
template <>
struct BackwardShape<MmaTf32, 64> {
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaTf32, 64, 2, 2, 32, 1, 2, by_rows, false>;
    using Plain = MmaBackwardBlock<MmaTf32, 64, 2, 2, 32, 1, 2, false, true>;
};
template <>
struct BackwardShape<MmaTf32, 128> {
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaTf32, 128, 2, 4, 64, 1, 1, by_rows, false>;
    using Plain = MmaBackwardBlock<MmaTf32, 128, 2, 4, 64, 1, 1, false, true>;
};

template <class Keys, class Rows>
constexpr BackwardInstance backward_instance() {
    static_assert(Keys::threads == Rows::threads && Keys::stream_rows <= kPaddedRows && Rows::own <= kPaddedRows, "");
    BackwardInstance one{};
    one.family = Keys::plain ? "bwd_mma_plain" : "bwd_mma";
    one.columns = Keys::columns;
    one.rows = Keys::stream_rows;
    one.keys = one.block_keys = Keys::own;
    one.block_rows = Rows::own;
    one.threads = Keys::threads;
    one.dq_by_atomics = true;
    one.mma_by_keys = backward_mma<Keys>;
    one.mma_by_rows = backward_mma<Rows>;
    one.by_keys_bytes = Keys::kSharedBytes;
    one.by_rows_bytes = Rows::kSharedBytes;
    one.plain = Keys::plain;
    return one;
}
template <class Plain, class General, class Rows>
struct BackwardList {
    static constexpr BackwardInstance list[] = {backward_instance<Plain, Rows>(), backward_instance<General, Rows>()};
};
template <class General, class Rows>
struct BackwardList<void, General, Rows> {
    static constexpr BackwardInstance list[] = {backward_instance<General, Rows>()};
};
template <class Mma, int width>
BackwardInstances backward_instances() {
    using Shape = BackwardShape<Mma, width>;
    using List = BackwardList<typename Shape::Plain, typename Shape::template General<false>, typename Shape::template General<true>>;
    return {List::list, int(sizeof List::list / sizeof *List::list)};
}

}  // namespace gpu
}  // namespace fa
