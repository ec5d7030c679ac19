/* The part of the CUDA run time that leads to a handle, as it answers for a GPU of 2016. Linked before the real one, which serves the
 * calls that are not reached, it shows what the backend makes of a device that its kernels were not built for. */
#include <cuda_runtime_api.h>
#include <string.h>

const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorNoKernelImageForDevice ? "no kernel image is available for execution on the device" : "another error";
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "NVIDIA Old One");
    p->major = 6;
    p->minor = 1;
    return cudaSetDevice(device);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* kernel) {
    (void)attributes;
    (void)kernel;
    return cudaErrorNoKernelImageForDevice;
}

/* Registration happens when the module is loaded. */
void** __cudaRegisterFatBinary(void* binary) {
    static void* handle;
    handle = binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void** handle) { (void)handle; }
void __cudaUnregisterFatBinary(void** handle) { (void)handle; }
void __cudaRegisterFunction(void) {}
