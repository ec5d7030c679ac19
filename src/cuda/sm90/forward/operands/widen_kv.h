// The kernel that copies 8-bit k or v to q's 16-bit type, before a forward of many rows over an 8-bit cache: each value exactly, without
// its factor, which the forward multiplies in. Reading 8 and writing 16 bits once takes a few percent of the time that a thousand rows
// take, where every tile that widened for itself would do it again.
#pragma once
#include "gpu/mma/cache/bytes.h"

namespace fa {
namespace gpu {

struct WidenKvParams {
    const uint8_t* from;
    uint16_t* to;                 // dense: sequences (or pages), rows, heads, dims
    int64_t stride[3];            // of `from`, in bytes, all multiples of 8
    const int32_t* seqused;       // rows of a sequence that are wanted; NULL: all
    uint32_t rows, heads, units;  // of 8 dims, of a head
    uint32_t total;               // units in all; 0: nothing is copied
    int64_t bytes() const { return int64_t(total) * 16; }
};
constexpr int kWidenThreads = 256, kWidenUnits = 4;  // of a thread, all of which are asked for before the first is written

template <class T, class S>
FA_KERNEL void FA_BOUNDS(kWidenThreads, 1) widen_kv(FA_PARAM WidenKvParams params) {
    const uint32_t first = blockIdx.x * (kWidenThreads * kWidenUnits) + threadIdx.x;
    uint2 bytes[kWidenUnits];
    bool wanted[kWidenUnits];
    FA_UNROLL_FOR (int i = 0; i < kWidenUnits; i++) {
        const uint32_t unit = first + i * kWidenThreads, line = unit / params.units, column = unit % params.units,
                       position = line / params.heads;
        const uint32_t row = position % params.rows, sequence = position / params.rows;
        wanted[i] = unit < params.total && (!params.seqused || int64_t(row) < params.seqused[sequence]);
        if (wanted[i])
            bytes[i] = *reinterpret_cast<const uint2*>(params.from + sequence * params.stride[0] + row * params.stride[1] +
                                                       line % params.heads * params.stride[2] + column * 8);
    }
    FA_UNROLL_FOR (int i = 0; i < kWidenUnits; i++) {
        if (!wanted[i]) continue;
        uint4 pair;
        MmaByte<T>::template widen<false>(S{}, bytes[i].x, pair.x, pair.y);
        MmaByte<T>::template widen<false>(S{}, bytes[i].y, pair.z, pair.w);
        reinterpret_cast<uint4*>(params.to)[first + i * kWidenThreads] = pair;
    }
}

}  // namespace gpu
}  // namespace fa
