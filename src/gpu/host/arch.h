// What a backend with kernels of an architecture's own adds, beside their families (families.h): today sm_90's, under src/cuda. Such a
// backend sets rt::kArchKernels and defines the functions below; others never refer to them.
#pragma once
#include "gpu/common/mma_params.h"

namespace fa {
namespace gpu {

// A handle's memory for their forwards, some for each of a few streams: zeros, and zeros again when a call ends.
struct ZeroedMemory {
    static constexpr int kStreams = 8;
    char* zeros;
    uint64_t stream[kStreams];  // by the driver's number, which no other stream gets
    int streams;
};
// What there is for the stream, kZeroedBytes, or NULL: it is being captured, or there are too many.
rt::Status zeroed_memory(ZeroedMemory*, rt::Stream, void** zeros);
// Does the driver have what they need? Where it ignores machine code, which they are only, or a block may have less shared memory than the
// device has, there are none of them.
rt::Status find_arch_driver(const Host&, rt::Device*);

// Plain and paged mma kernels for decode in clusters of a tile's splits, which merge among themselves: can as many run at once as a
// call has tiles, and their launch. `early`: as launch_after.
struct Instance;
bool cluster_fits(const rt::Device&, const Instance&, int64_t tiles, int64_t splits);
rt::Status launch_cluster(void (*kernel)(MmaForwardParams), int64_t blocks, int threads, uint64_t shared, rt::Stream,
                          const MmaForwardParams&, bool early);

}  // namespace gpu
}  // namespace fa
