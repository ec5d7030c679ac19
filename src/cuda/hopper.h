// What the host knows of a compiled kernel of fwd_sm90.h, and the lists of them.
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

// A translation unit's kernels: of a type and a width of q, and of some kinds of calls.
struct HopperKernels {
    const Native* native;  // `how` is a HopperKernel, an empty one where the unit does not compile it
    int count;
};
constexpr unsigned kind_of(Mask mask, Work work) { return 1u << (4 * int(mask) + int(work)); }
#define FA_KIND(mask, work) kind_of(Mask::mask, Work::work)
template <class T, int dims, int unit>
HopperKernels hopper_kernels();

}  // namespace gpu
}  // namespace fa
