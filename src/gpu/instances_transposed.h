// The forward's mma kernels on AMD's matrix cores, as kernels.def lists them, by width: for the translation units that compile them
// (src/hip, src/emu), which define mma_instances by it.
#pragma once
#include "gpu/mma_transposed.h"
#include "gpu/register_pipe.h"
#include "gpu/instances_mma.h"

namespace fa {
namespace gpu {

template <class Kernels>
struct TransposedList;
template <bool wanted, class I, class T, int D, int RowWarps, int KeyWarps, int Keys>
constexpr Instance transposed_entry() {
    return entry<wanted, MmaTransposed<I, T>, D, RowWarps, 1, KeyWarps, Keys, 2, 1>();
}
template <class T>
struct TransposedList<MfmaKernels<T>> {
    template <int width>
    static constexpr Instance list[] = {
#define FA_MFMA(I, D, ...) transposed_entry<D == width, I, T, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MFMA
    };
};
template <class I, class T>
struct TransposedList<WmmaKernels<I, T>> {
    template <int width>
    static constexpr Instance list[] = {
#define FA_WMMA(D, ...) transposed_entry<D == width, I, T, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_WMMA
    };
};

template <class Kernels, int width>
Instances transposed_instances() {
    constexpr auto& list = TransposedList<Kernels>::template list<width>;
    return {list, int(sizeof list / sizeof *list)};
}

}  // namespace gpu
}  // namespace fa
