/* What the run times of ours answer alike: there is one device, and a module's code is registered when it is loaded. Each is linked before
 * the real one, which serves the calls that are not reached. */
#include <cuda_runtime_api.h>
#include <string.h>

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

void** __cudaRegisterFatBinary(void* binary) {
    static void* handle;
    handle = binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void** handle) { (void)handle; }
void __cudaUnregisterFatBinary(void** handle) { (void)handle; }

static enum cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
    const enum cudaStreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    return *mode = before, cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: return *value = 9, cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return *value = 233472, cudaSuccess;
        default: return *value = 232448, cudaSuccess;
    }
}
