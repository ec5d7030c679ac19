// What the host knows of a compiled kernel of fwd_sm90.h, and the lists of them: a translation unit for each type and width of q.
#pragma once
#include "gpu/native.h"

namespace fa {
namespace gpu {

struct HopperParams;
enum class Mask;
enum class Work;

struct HopperKernel {
    int columns;  // of v, at most
    Mask mask;
    Work work;
    int blocks;         // that share a tile of keys: 2 in pairs
    int from;           // keys
    int cost;           // of a row's way through many keys, to compare kernels of one width by
    int rows, keys, threads, shared_bytes;
    bool pages;         // can k and v lie in pages?
    int key_box, value_box;  // rows of k and of v that a copy brings
    void (*kernel)(HopperParams);
};
struct HopperKernels {
    const Native* native;  // its `how` is a HopperKernel
    int count;
};
template <class T, int dims>
HopperKernels hopper_kernels();
// kernels_sm90.def lists none for these.
template <>
inline HopperKernels hopper_kernels<F16, 96>() { return {}; }
template <>
inline HopperKernels hopper_kernels<F16, 192>() { return {}; }

}  // namespace gpu
}  // namespace fa
