// What host text asks of a backend, and rt_hip.h answers for AMD's GPUs, on others: one die, and no library of markers. The including file
// has defined the names of rt_cuda.h or rt_emu.h.
#pragma once
#include "backend/backend.h"

namespace fa {
namespace rt {

// A call in a profiler's time line.
struct Range {
    explicit Range(const char*) {}
};

// Dies with a second-level cache each.
inline int dies(const Device&) { return 1; }
// The blocks of a forward, of which `early` ones begin as by launch_after.
template <class Params>
Status launch_tiles(void (*kernel)(Params), int64_t blocks, int /*dies*/, bool early, int threads, uint64_t shared, Stream stream,
                    const Params& params) {
    return early ? launch_after(kernel, blocks, threads, shared, stream, params) : launch(kernel, blocks, threads, shared, stream, params);
}

}  // namespace rt
}  // namespace fa
