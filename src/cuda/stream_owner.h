// Whether a stream belongs to the current device, for machines of several. The run time accepts launches on another device's
// stream; kernels would then run there, and read whatever its addresses hold.
#pragma once
#include <cudaTypedefs.h>
#include "cuda/driver.h"

namespace fa {
namespace rt {

// The driver says in 15 ns, at any time; the run time's own question for a stream's device ends a capture.
struct StreamOwner {
    PFN_cuStreamGetCtx_v9020 context_of;  // NULL: one device has all streams
    PFN_cuCtxPushCurrent_v4000 enter;
    PFN_cuCtxPopCurrent_v4000 leave;
    CUcontext known;  // the last one found to be of the device
};
static inline StreamOwner stream_owner() {
    int devices = 0;
    StreamOwner owner = {};
    if (cudaGetDeviceCount(&devices) != kSuccess || devices < 2) return owner;
    owner.enter = driver_function<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent", 4000);
    owner.leave = driver_function<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent", 4000);
    if (owner.enter && owner.leave) owner.context_of = driver_function<PFN_cuStreamGetCtx_v9020>("cuStreamGetCtx", 9020);
    return owner;
}
// Where nobody says, it is.
static inline bool owns(StreamOwner* owner, int device, Stream s) {
    CUcontext context = nullptr;
    if (!owner->context_of || !s || owner->context_of(s, &context) != CUDA_SUCCESS || context == owner->known) return true;
    int found = device;
    if (owner->enter(context) != CUDA_SUCCESS) return true;
    const bool found_device = cudaGetDevice(&found) == kSuccess;
    owner->leave(&context);
    if (found_device && found != device) return false;
    owner->known = context;
    return true;
}

}  // namespace rt
}  // namespace fa
