// What the host knows of a compiled forward kernel, and the lists of them. Matrix kernels are compiled in translation units of their own.
#pragma once
#include "gpu/score.h"

namespace fa {
namespace gpu {

struct Instance {
    const char* family;  // fwd_simt, fwd_mma, fwd_mma_byte
    int rows, columns;   // of a tile: group-major query rows; the widest head dimension
    int keys;            // of a tile
    int threads;
    int key_warps;       // warps that share a row tile's keys
    int resident;        // blocks that a multiprocessor holds at once
    void (*kernel)(ForwardParams);
    void (*plain)(ForwardParams);  // the same for what mma_block.h calls plain and paged calls
    void (*paged)(ForwardParams);
    int64_t (*shared_bytes)(int64_t q_dims);
};

struct Instances {
    const Instance* list;
    int count;
};

// The universal kernel's, by columns, then by rows, tall ones first.
Instances simt_instances();

// The compiled kernels of a policy, for the types of q and of k and v, and of one width, tall ones first; some entries are empty. Each list
// comes from a translation unit of its own.
template <class T>
struct MmaSync;  // f16 or bf16
template <class T>
struct MmaByte;  // the same beside k and v of 8 bits
struct MmaTf32;  // f32
template <class Mma, int width>
Instances mma_instances();

struct InstanceLists {
    Instances width[3];
};
template <class Mma>
InstanceLists lists_of() {
    return {{mma_instances<Mma, 64>(), mma_instances<Mma, 128>(), mma_instances<Mma, 256>()}};
}

}  // namespace gpu
}  // namespace fa
