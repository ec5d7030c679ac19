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

// By columns, then by rows, tall ones first.
Instances mma_f16_instances();
Instances mma_bf16_instances();
Instances mma_f32_instances();
Instances mma_byte_f16_instances();  // 8-bit k and v, f16 q
Instances mma_byte_bf16_instances();

}  // namespace gpu
}  // namespace fa
