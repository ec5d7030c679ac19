/* The part of the CUDA run time that leads to a handle, as it answers for a GPU of 2016: what the backend makes of a device that its
 * kernels were not built for. */
#include "fake_device.h"

const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorNoKernelImageForDevice ? "no kernel image is available for execution on the device" : "another error";
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* found, int device) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "NVIDIA Old One");
    found->major = 6;
    found->minor = 1;
    return cudaSetDevice(device);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* kernel) {
    (void)attributes;
    (void)kernel;
    return cudaErrorNoKernelImageForDevice;
}
void __cudaRegisterFunction(void) {}
