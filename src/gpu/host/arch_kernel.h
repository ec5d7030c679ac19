// The hook by which an architecture's own kernels replace the portable ones of this folder: today sm_90's, under src/cuda. A
// backend that has such kernels sets rt::kArchKernels and defines the functions below; the calls in forward_call.h and
// backward_call.h ask them first, and take a portable kernel where they answer NULL. Backends without them never refer to these
// functions.
#pragma once
#include <string.h>
#include "gpu/common/mma_params.h"

namespace fa {
namespace gpu {

struct ArchKernel {
    const char* name;
    int rows, keys;            // of a tile
    const void* impl;          // the backend's own description
    bool splits_keys = false;  // cuts the keys itself, where rows leave multiprocessors idle
};

// A kernel's parameters as far as they follow from device and descriptor, in a plan, whose other readers do not know their type.
template <int bytes>
class PlannedParams {
  public:
    template <class Params>
    void set(const Params& x) {
        static_assert(sizeof x <= bytes && __is_trivially_copyable(Params), "plain data, of bounded size");
        memcpy(data_, &x, sizeof x);
    }
    template <class Params>
    Params get() const {
        Params x;
        memcpy(&x, data_, sizeof x);
        return x;
    }

  private:
    unsigned char data_[bytes];
};

// What an architecture's kernels make of a forward whose tensors all begin at multiples of 16 bytes, from device and descriptor alone.
// A launch takes it as it is; it adds pointers, and the tensor maps that hold some.
struct ArchPlan {
    const ArchKernel* kernel;  // NULL: none takes the call
    int64_t blocks;            // of the launch
    int64_t tiles;             // that they take between them; 0: not said
    SplitParams split;         // without pointers; more than one split: merging them follows
    const char* merge;         // the architecture's own kernel, which the launch brings along; NULL: one of merge.h
    SplitMemory split_memory;
    uint64_t workspace;  // bytes, and of those, from the first on, that must be 0 and will be 0 again
    uint64_t zeroed;
    uint64_t widened;  // bytes at the workspace's end in which copies of 8-bit k and v in q's type lie
    bool rounds_k;     // to bf16, by permission
    PlannedParams<2560> params;
};
ArchPlan plan_arch_kernel(const rt::Device&, const Problem&);
// A handle's memory for them, some for each of a few streams: zeros, and zeros again when a call ends.
struct ArchKernelMemory {
    static constexpr int kStreams = 8;
    char* zeros;
    uint64_t stream[kStreams];  // by the driver's number, which no other stream gets
    int streams;
};
constexpr uint64_t kArchKernelBytes = 256;  // that a call gets of it; one that needs more has a workspace
// What there is for the stream, or NULL: it is being captured, or there are too many.
rt::Status arch_kernel_memory(ArchKernelMemory*, rt::Stream, void** zeros);
// Does the driver have what they need?
rt::Status find_arch_driver(const rt::Device&);
// `memory`: of the planned size. `zeroed`: it holds zeros where it must.
rt::Status launch_arch_kernel(const ArchPlan&, const Problem&, const fa_forward_args_t&, char* memory, bool zeroed, rt::Stream);

// How many kv heads' keys and values so many bytes of the second-level cache hold.
inline int64_t kv_heads_in_l2(const Problem& p, int64_t cache_bytes = 32 << 20) {
    const int64_t row = row_bytes(p.d.k_dtype, p.d.dim_qk) + row_bytes(p.d.v_dtype, p.d.dim_v);
    return max_of(cache_bytes / max_of(p.d.seqlen_k * row, 1), 1);
}

// Plain and paged mma kernels for decode in clusters of a tile's splits, which merge among themselves: can as many run at once as a
// call has tiles, and their launch. `early`: as launch_after.
struct Instance;
bool cluster_fits(const rt::Device&, const Instance&, int64_t tiles, int64_t splits);
rt::Status launch_cluster(void (*kernel)(MmaForwardParams), int64_t blocks, int threads, uint64_t shared, rt::Stream,
                          const MmaForwardParams&, bool early);

}  // namespace gpu
}  // namespace fa
