// The mma kernels on AMD's matrix cores, as kernels.def lists them, by width: for the translation units that compile them (src/hip,
// src/emu), which define mma_instances and mma_backward_instances by it.
#pragma once
#include "gpu/transposed/backward.h"
#include "gpu/transposed/mma.h"
#include "gpu/mma/register_pipe.h"
#include "gpu/mma/instances.h"

namespace fa {
namespace gpu {

template <class Kernels>
struct TransposedList;
template <bool wanted, class Mma, int D, int RowWarps, int KeyWarps, int Keys>
constexpr Instance transposed_entry() {
    if constexpr (wanted) return make_instance<Instantiate<Mma, D, RowWarps, 1, KeyWarps, Keys, 2, 1>>();
    else return Instance{};
}
template <class T, int D>
constexpr bool kWorthBytes = D <= 128 || !kIsF16<T>;  // as with mma.sync
template <int generation, class T>
struct TransposedList<MfmaKernels<generation, T>> {
    using Cdna = rt::Cdna<generation>;
    template <int width>
    static constexpr Instance list[] = {
#define FA_MFMA(I, D, ...) transposed_entry<D == width, MmaTransposed<I<Cdna>, T>, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MFMA
    };
};
template <>
struct TransposedList<MfmaKernels<3, F32>> {
    template <int width>
    static constexpr Instance list[] = {
#define FA_MFMA_32BIT(I, D, ...) transposed_entry<D == width, MmaTransposed<I, F32>, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MFMA_32BIT
    };
};
template <int generation, class T>
struct TransposedList<ByteKernels<MfmaKernels<generation, T>>> {
    using Cdna = rt::Cdna<generation>;
    template <int width>
    static constexpr Instance list[] = {
#define FA_MFMA_8BIT(I, D, ...) transposed_entry<D == width && kWorthBytes<T, D>, MmaTransposedByte<I<Cdna>, T>, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MFMA_8BIT
    };
};
// RDNA's instruction, with what heads of a width need of it.
template <class I>
struct WideWmma;
template <>
struct WideWmma<WmmaGfx11> {
    using Type = WideWmmaGfx11;
};
template <>
struct WideWmma<WmmaGfx12> {
    using Type = WideWmmaGfx12;
};
template <class I, int D, bool wide = (D > 128)>
struct WmmaOf {
    using Type = I;
};
template <class I, int D>
struct WmmaOf<I, D, true> : WideWmma<I> {};
template <class I, class T>
struct TransposedList<WmmaKernels<I, T>> {
    template <int width>
    static constexpr Instance list[] = {
#define FA_WMMA(D, ...) transposed_entry<D == width, MmaTransposed<typename WmmaOf<I, D>::Type, T>, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_WMMA
    };
};
template <class I, class T>
struct TransposedList<ByteKernels<WmmaKernels<I, T>>> {
    template <int width>
    static constexpr Instance list[] = {
#define FA_WMMA_8BIT(D, ...) \
    transposed_entry<D == width && kWorthBytes<T, D>, MmaTransposedByte<typename WmmaOf<I, D>::Type, T>, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_WMMA_8BIT
    };
};

template <class Kernels, int width>
Instances transposed_instances() {
    constexpr auto& list = TransposedList<Kernels>::template list<width>;
    return {list, int(sizeof list / sizeof *list)};
}

// A plain kernel, and a general one.
template <bool wanted, class Mma, int D, int Warps, int OwnTiles, int StreamRows, bool plain>
constexpr BackwardInstance transposed_backward_entry() {
    BackwardInstance one{};
    if constexpr (wanted) {
        using Keys = MmaBackwardBlock<Mma, D, Warps, 1, StreamRows, 1, 1, false, plain, OwnTiles>;
        using Rows = MmaBackwardBlock<Mma, D, Warps, 1, StreamRows, 1, 1, true, plain, OwnTiles>;
        static_assert(Keys::stream_rows <= kPaddedRows && Rows::own <= kPaddedRows, "");
        one.family = Mma::kLanes == 64 ? (plain ? "bwd_mfma_plain" : "bwd_mfma") : plain ? "bwd_wmma_plain" : "bwd_wmma";
        one.columns = D;
        one.rows = StreamRows;
        one.keys = one.block_keys = Keys::own;
        one.block_rows = Rows::own;
        one.threads = Keys::threads;
        one.mma_by_keys = backward_transposed<Keys>;
        one.mma_by_rows = backward_transposed<Rows>;
        one.by_keys_bytes = Keys::kSharedBytes;
        one.by_rows_bytes = Rows::kSharedBytes;
        one.plain = plain;
    }
    return one;
}
template <class Kernels>
struct TransposedBackwardList;
template <int generation, class T>
struct TransposedBackwardList<MfmaKernels<generation, T>> {
    using Cdna = rt::Cdna<generation>;
    template <int width>
    static constexpr BackwardInstance list[] = {
#define FA_MFMA_BACKWARD(I, D, ...)                                                           \
    transposed_backward_entry<D == width, MmaTransposed<I<Cdna>, T>, D, __VA_ARGS__, true>(), \
        transposed_backward_entry<D == width, MmaTransposed<I<Cdna>, T>, D, __VA_ARGS__, false>(),
#include "gpu/kernels.def"
#undef FA_MFMA_BACKWARD
    };
};
template <>
struct TransposedBackwardList<MfmaKernels<3, F32>> {
    template <int width>
    static constexpr BackwardInstance list[] = {
#define FA_MFMA_BACKWARD_32BIT(I, D, ...)                                                 \
    transposed_backward_entry<D == width, MmaTransposed<I, F32>, D, __VA_ARGS__, true>(), \
        transposed_backward_entry<D == width, MmaTransposed<I, F32>, D, __VA_ARGS__, false>(),
#include "gpu/kernels.def"
#undef FA_MFMA_BACKWARD_32BIT
    };
};
template <class I, class T>
struct TransposedBackwardList<WmmaKernels<I, T>> {
    template <int width>
    static constexpr BackwardInstance list[] = {
#define FA_WMMA_BACKWARD(D, ...)                                                        \
    transposed_backward_entry<D == width, MmaTransposed<I, T>, D, __VA_ARGS__, true>(), \
        transposed_backward_entry<D == width, MmaTransposed<I, T>, D, __VA_ARGS__, false>(),
#include "gpu/kernels.def"
#undef FA_WMMA_BACKWARD
    };
};
template <class Kernels, int width>
BackwardInstances transposed_backward_instances() {
    constexpr auto& list = TransposedBackwardList<Kernels>::template list<width>;
    return {list, int(sizeof list / sizeof *list)};
}

}  // namespace gpu
}  // namespace fa
