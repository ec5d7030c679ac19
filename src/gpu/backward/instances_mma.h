// The backward's mma kernels of one policy and width: their block shapes and their list. For the translation units that compile
// them (src/emu, src/cuda), which define mma_backward_instances by it.
#pragma once
#include "gpu/backward/mma.h"
#include "gpu/mma/mma_sync.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {

// Shared memory that a block may have on sm_80, and on sm_86, sm_89 and sm_120.
constexpr int kSharedOfSm80 = 163 << 10, kSharedOfSm86 = 99 << 10;

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
// Blocks by keys that take plain calls, in descending order of the shared memory they need, then the general ones, each beside the block by
// rows that computes dq where its bits must be the same every time. General blocks have smaller tiles: a score mod needs registers.
template <class Mma, int width>
struct BackwardShape;
template <class T>
struct BackwardShape<MmaSync<T>, 64> {
    template <int rows, int stages>
    using Plain = MmaBackwardBlock<MmaSync<T>, 64, 4, 2, rows, stages, 1, false, true>;
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 64, 2, 4, 64, 2, 1, by_rows, false>;
    static_assert(Plain<128, 1>::kSharedBytes <= kSharedOfSm80 && Plain<64, 1>::kSharedBytes <= kSharedOfSm86, "");
    static constexpr BackwardInstance list[] = {
        backward_instance<Plain<128, 2>, General<true>>(), backward_instance<Plain<128, 1>, General<true>>(),
        backward_instance<Plain<64, 2>, General<true>>(), backward_instance<Plain<64, 1>, General<true>>(),
        backward_instance<General<false>, General<true>>()};
};
template <class T>
struct BackwardShape<MmaSync<T>, 128> {
    template <int own_warps, int rows, int stages>
    using Plain = MmaBackwardBlock<MmaSync<T>, 128, own_warps, 8 / own_warps, rows, stages, 1, false, true>;
    template <bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 128, 2, 4, 64, 1, 1, by_rows, false>;
    static_assert(Plain<4, 64, 1>::kSharedBytes <= kSharedOfSm80 && Plain<2, 64, 1>::kSharedBytes <= kSharedOfSm86, "");
    static constexpr BackwardInstance list[] = {
        backward_instance<Plain<4, 64, 2>, General<true>>(), backward_instance<Plain<4, 64, 1>, General<true>>(),
        backward_instance<Plain<4, 32, 2>, General<true>>(), backward_instance<Plain<2, 64, 1>, General<true>>(),
        backward_instance<General<false>, General<true>>()};
};
// Of 32 keys and rows, warps own one tile each.
template <class T>
struct BackwardShape<MmaSync<T>, 256> {
    template <int rows, bool by_rows, bool plain>
    using Block = MmaBackwardBlock<MmaSync<T>, 256, 2, 4, rows, 1, 1, by_rows, plain, rows / 32>;
    static_assert(Block<64, false, true>::kSharedBytes <= kSharedOfSm80 && Block<32, false, true>::kSharedBytes <= kSharedOfSm86, "");
    static constexpr BackwardInstance list[] = {backward_instance<Block<64, false, true>, Block<64, true, false>>(),
                                                backward_instance<Block<64, false, false>, Block<64, true, false>>(),
                                                backward_instance<Block<32, false, true>, Block<32, true, false>>(),
                                                backward_instance<Block<32, false, false>, Block<32, true, false>>()};
};
// A warp owns one tile: the gradients of 512 columns leave no registers for more.
template <class T>
struct BackwardShape<MmaSync<T>, 512> {
    template <int rows, bool by_rows>
    using General = MmaBackwardBlock<MmaSync<T>, 512, 2, 4, rows, 1, 1, by_rows, false, 1>;
    static_assert(General<32, false>::kSharedBytes <= kSharedOfSm80 && General<16, false>::kSharedBytes <= kSharedOfSm86, "");
    static constexpr BackwardInstance list[] = {backward_instance<General<64, false>, General<64, true>>(),
                                                backward_instance<General<32, false>, General<32, true>>(),
                                                backward_instance<General<16, false>, General<16, true>>()};
};
template <>
struct BackwardShape<MmaTf32, 64> {
    template <bool by_rows, bool plain>
    using Block = MmaBackwardBlock<MmaTf32, 64, 2, 2, 32, 1, 2, by_rows, plain>;
    static constexpr BackwardInstance list[] = {backward_instance<Block<false, true>, Block<true, false>>(),
                                                backward_instance<Block<false, false>, Block<true, false>>()};
};
template <>
struct BackwardShape<MmaTf32, 128> {
    template <bool by_rows, bool plain>
    using Block = MmaBackwardBlock<MmaTf32, 128, 2, 4, 64, 1, 1, by_rows, plain>;
    static constexpr BackwardInstance list[] = {backward_instance<Block<false, true>, Block<true, false>>(),
                                                backward_instance<Block<false, false>, Block<true, false>>()};
};

template <class Mma, int width>
BackwardInstances backward_instances() {
    constexpr auto& list = BackwardShape<Mma, width>::list;
    return {list, int(sizeof list / sizeof *list)};
}

}  // namespace gpu
}  // namespace fa
