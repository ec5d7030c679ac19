// What CMake tries each target with: a kernel from device.h, which a compiler that is too old refuses.
#include "hip/device.h"
#if __clang_major__ < 19
#error clang 19 or later is needed
#endif

__global__ void probe(float* to) {
    const unsigned i = fa::rt::device::thread();
    fa::rt::device::barrier();
    to[i] = tanhf(fa::rt::device::shuffle_xor(exp2f(to[i]), 16)) + float(fa::rt::device::block());
}
