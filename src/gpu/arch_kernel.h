// The hook by which an architecture's own kernels replace the portable ones of this folder: today sm_90's, under src/cuda. A
// backend that has such kernels sets rt::kArchKernels and defines the functions below; the calls in forward_call.h and
// backward_call.h ask them first, and take a portable kernel where they answer NULL. Backends without them never refer to these
// functions.
#pragma once
#include "gpu/bwd_params.h"

namespace fa {
namespace gpu {

struct ArchKernel {
    const char* name;
    int rows, keys;    // of a tile
    const void* impl;  // the backend's own description
    bool splits_keys = false;  // cuts the keys itself, where rows leave multiprocessors idle
};

// The kernel that takes a call whose tensors all begin at multiples of 16 bytes, from device and descriptor alone; NULL: none.
const ArchKernel* arch_kernel_for(const rt::Device&, const Problem&);
// A handle's memory for them, some for each of a few streams: zeros, and zeros again when a call ends.
struct ArchKernelMemory {
    static constexpr int kStreams = 8;
    char* zeros;
    uint64_t stream[kStreams];  // by the driver's number, which no other stream gets
    int streams;
};
constexpr uint64_t kArchKernelBytes = 256;  // that a call gets of it; one that needs more has a workspace
uint64_t arch_kernel_bytes(const ArchKernel&, const rt::Device&, const Problem&);
// What there is for the stream, or NULL: it is being captured, or there are too many.
rt::Status arch_kernel_memory(ArchKernelMemory*, rt::Stream, void** zeros);
rt::Status prepare_arch_kernels(const rt::Device&);
// `memory`: of arch_kernel_bytes. `zeroed`: it holds zeros, which the call will have restored when it ends.
rt::Status launch_arch_kernel(const ArchKernel&, const rt::Device&, const Problem&, const ForwardParams&, void* memory, bool zeroed,
                              rt::Stream);

// Plain and paged mma kernels for decode in clusters of a tile's splits, which merge among themselves: can as many run at once as a
// call has tiles, and their launch. `early`: as launch_after.
struct Instance;
bool cluster_fits(const rt::Device&, const Instance&, int64_t tiles, int64_t splits);
rt::Status prepare_cluster(const rt::Device&, void (*kernel)(ForwardParams));
rt::Status launch_cluster(void (*kernel)(ForwardParams), int64_t blocks, int threads, uint64_t shared, rt::Stream,
                          const ForwardParams&, bool early);

// The same for the backward: kernels for dq, dk and dv, behind backward_preprocess. Which of the three are wanted, and where they
// lie, is known only when the call is made; dq_acc is there when dq_acc_columns is not 0.
struct ArchBackwardKernel {
    const char* name;
    int rows, keys;
    int64_t dq_acc_columns;  // of dq_acc
    const void* impl;
};
const ArchBackwardKernel* arch_backward_for(const rt::Device&, const Problem&);
// Does it take tensors that lie so?
bool arch_backward_reads(const Problem&, const fa_backward_args_t&);
// Of `memory` below, which may hold anything.
uint64_t arch_backward_bytes(const ArchBackwardKernel&, const rt::Device&, const Problem&);
rt::Status prepare_arch_backward(const rt::Device&);
rt::Status launch_arch_backward(const ArchBackwardKernel&, const rt::Device&, const Problem&, const BackwardParams&, void* memory,
                                rt::Stream);

}  // namespace gpu
}  // namespace fa
