// The backward's mma kernels of one policy and width: their block shapes and their list. For the translation units that compile
// them (src/emu, src/cuda), which define mma_backward_instances by it.
#pragma once
#include "gpu/backward/mma.h"
#include "gpu/mma/mma_sync.h"
#include "gpu/common/instance.h"

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
// A warp owns one tile: the gradients of 512 columns leave no registers for more. Tiles of 64 streamed rows take 206 KB of shared
// memory, for devices with less there are lower ones.
template <class T>
struct BackwardShape<MmaSync<T>, 512> {
    template <int rows, bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 512, 2, 4, rows, 1, 1, by_rows, false, 1>;
    using Plain = void;
    static_assert(General<32, false>::kSharedBytes <= 163 << 10 && General<16, false>::kSharedBytes <= 99 << 10,
                  "sm_80; sm_86, sm_89 and sm_120");
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
template <class Shape, class Plain = typename Shape::Plain>
struct BackwardList {
    using Rows = typename Shape::template General<true>;
    static constexpr BackwardInstance list[] = {backward_instance<Plain, Rows>(),
                                                backward_instance<typename Shape::template General<false>, Rows>()};
};
template <class Shape>
struct BackwardList<Shape, void> {
    static constexpr BackwardInstance list[] = {
        backward_instance<typename Shape::template General<false>, typename Shape::template General<true>>()};
};
template <class T>
struct BackwardList<BackwardShape<MmaSync<T>, 512>, void> {
    template <int rows, bool by_rows>
    using Block = typename BackwardShape<MmaSync<T>, 512>::template General<rows, by_rows>;
    static constexpr BackwardInstance list[] = {backward_instance<Block<64, false>, Block<64, true>>(),
                                                backward_instance<Block<32, false>, Block<32, true>>(),
                                                backward_instance<Block<16, false>, Block<16, true>>()};
};
template <class Mma, int width>
BackwardInstances backward_instances() {
    using List = BackwardList<BackwardShape<Mma, width>>;
    return {List::list, int(sizeof List::list / sizeof *List::list)};
}

}  // namespace gpu
}  // namespace fa
