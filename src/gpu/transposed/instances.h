// The mma kernels on AMD's matrix cores, from their rows, by width: for the translation units that compile them (src/hip, src/emu), which
// define mma_instances and mma_backward_instances by it.
#pragma once
#include "gpu/transposed/backward.h"
#include "gpu/transposed/mma.h"
#include "gpu/transposed/rows.h"
#include "gpu/mma/register_pipe.h"
#include "gpu/mma/instances.h"

namespace fa {
namespace gpu {

// CDNA's instruction by the rows of its tile.
template <int generation, class T, int tile_rows>
struct MfmaOf;
template <int generation, class T>
struct MfmaOf<generation, T, 32> {
    using Type = Mfma32<rt::Cdna<generation>>;
};
template <int generation, class T>
struct MfmaOf<generation, T, 16> {
    using Type = Mfma16<rt::Cdna<generation>>;
};
template <>
struct MfmaOf<3, F32, 32> {
    using Type = Mfma32x2;
};
template <>
struct MfmaOf<3, F32, 16> {
    using Type = Mfma16x4;
};
// RDNA's, with what heads of a width need of it.
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
template <class I, int dims, bool wide = (dims > 128)>
struct WmmaOf {
    using Type = I;
};
template <class I, int dims>
struct WmmaOf<I, dims, true> : WideWmma<I> {};

// The rows of an instruction's family, the widest heads of them that are worth their code, and the policy of a row.
template <class Kernels>
struct TransposedRows;
template <int generation, class T>
struct TransposedRows<MfmaKernels<generation, T>> {
    using Element = T;
    static constexpr auto& kForward = kMfmaRows;
    static constexpr auto& kForwardOfBytes = kMfmaByteRows;
    static constexpr auto& kBackward = kMfmaBackwardRows;
    static constexpr int kWidest = 256;
    template <int dims, int tile_rows>
    using Instruction = typename MfmaOf<generation, T, tile_rows>::Type;
    template <int dims, int tile_rows>
    using Mma = MmaTransposed<Instruction<dims, tile_rows>, T>;
};
template <>
struct TransposedRows<MfmaKernels<3, F32>> {
    static constexpr auto& kForward = kMfmaF32Rows;
    static constexpr auto& kBackward = kMfmaF32BackwardRows;
    static constexpr int kWidest = 256;
    template <int dims, int tile_rows>
    using Mma = MmaTransposed<typename MfmaOf<3, F32, tile_rows>::Type, F32>;
};
template <class I, class T>
struct TransposedRows<WmmaKernels<I, T>> {
    using Element = T;
    static constexpr auto& kForward = kWmmaRows;
    static constexpr auto& kForwardOfBytes = kWmmaByteRows;
    static constexpr auto& kBackward = kWmmaBackwardRows;
    static constexpr int kWidest = 256;
    template <int dims, int tile_rows>
    using Instruction = typename WmmaOf<I, dims>::Type;
    template <int dims, int tile_rows>
    using Mma = MmaTransposed<Instruction<dims, tile_rows>, T>;
};
template <class Kernels>
struct TransposedRows<ByteKernels<Kernels>> {
    using Of = TransposedRows<Kernels>;
    static constexpr auto& kForward = Of::kForwardOfBytes;
    static constexpr int kWidest = kIsF16<typename Of::Element> ? 128 : 256;
    template <int dims, int tile_rows>
    using Mma = MmaTransposedByte<typename Of::template Instruction<dims, tile_rows>, typename Of::Element>;
};

template <class Kernels, int width>
struct TransposedList {
    static constexpr auto& kRows = TransposedRows<Kernels>::kForward;
    static constexpr bool has(const TransposedRow& row) { return row.dims == width && width <= TransposedRows<Kernels>::kWidest; }
    template <int i>
    static constexpr Instance kernel() {
        constexpr TransposedRow row = kRows[i];
        using Mma = typename TransposedRows<Kernels>::template Mma<width, row.tile_rows>;
        return make_instance<Instantiate<Mma, width, row.row_warps, 1, row.key_warps, row.keys, 2, 1>>();
    }
};
template <class Kernels, int width>
Instances transposed_instances() {
    static constexpr auto list = list_kernels<Instance, TransposedList<Kernels, width>>();
    return {list.at, list.used};
}

// A plain kernel, or a general one, of each row.
template <class Kernels, int width, bool plain>
struct TransposedBackwardList {
    static constexpr auto& kRows = TransposedRows<Kernels>::kBackward;
    static constexpr bool has(const TransposedBackwardRow& row) { return row.dims == width; }
    template <int i>
    static constexpr BackwardInstance kernel() {
        constexpr TransposedBackwardRow row = kRows[i];
        using Mma = typename TransposedRows<Kernels>::template Mma<width, 16>;
        using Keys = MmaBackwardBlock<Mma, width, row.warps, 1, row.streamed, 1, 1, false, plain, row.own_tiles>;
        using Rows = MmaBackwardBlock<Mma, width, row.warps, 1, row.streamed, 1, 1, true, plain, row.own_tiles>;
        static_assert(Keys::stream_rows <= kPaddedRows && Rows::own <= kPaddedRows, "");
        BackwardInstance one{};
        one.family = Mma::kLanes == 64 ? (plain ? "bwd_mfma_plain" : "bwd_mfma") : plain ? "bwd_wmma_plain" : "bwd_wmma";
        one.columns = width;
        one.rows = row.streamed;
        one.keys = one.block_keys = Keys::own;
        one.block_rows = Rows::own;
        one.threads = Keys::threads;
        one.mma_by_keys = backward_transposed<Keys>;
        one.mma_by_rows = backward_transposed<Rows>;
        one.by_keys_bytes = Keys::kSharedBytes;
        one.by_rows_bytes = Rows::kSharedBytes;
        one.plain = plain;
        return one;
    }
};
template <class Kernels, int width>
BackwardInstances transposed_backward_instances() {
    static constexpr auto list =
        list_kernels<BackwardInstance, TransposedBackwardList<Kernels, width, true>, TransposedBackwardList<Kernels, width, false>>();
    return {list.at, list.used};
}

}  // namespace gpu
}  // namespace fa
