// The place for forward kernels that one backend alone has, beside those of the shared text: rt::kNative says whether there are any.
#pragma once
#include "gpu/score.h"

namespace fa {
namespace gpu {

struct Native {
    const char* name;
    int rows, keys;    // of a tile
    const void* how;   // the backend's own description
};

// The kernel that takes a call whose tensors all begin at multiples of 16 bytes, from device and descriptor alone; NULL: none.
const Native* native_for(const rt::Device&, const Problem&);
// Device memory that a call needs, at most kNativeBytes. `zeroed`: it holds zeros, which the call will have restored when it ends.
constexpr uint64_t kNativeBytes = 256;
uint64_t native_bytes(const Native&, const rt::Device&, const Problem&);
rt::Status prepare_native(const rt::Device&);
rt::Status launch_native(const Native&, const rt::Device&, const ForwardParams&, void* memory, bool zeroed, rt::Stream);

}  // namespace gpu
}  // namespace fa
