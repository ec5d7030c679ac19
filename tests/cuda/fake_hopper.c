/* The part of the CUDA run time that leads to a launch, as it answers for a Hopper GPU. It prints the kernels that are loaded, the
 * part of a multiprocessor's memory that they are to share, if they are told, and those that are launched: those of the backward with what
 * their parameters begin with, in words of eight bytes, which is what the host's compiler has made of a plan. Where FAKE_PTX is set,
 * kernels have been compiled from PTX for another architecture. FAKE_GPU = sm_80, sm_89 or sm_100 makes it another GPU, for
 * tools/support_tables. Some stream is always being captured, in the mode that forbids others most: to load code in another mode than the
 * relaxed one would end that. FAKE_FAULT = load: there is no memory for any kernel's code. As the driver does, it ignores machine code
 * where CUDA_FORCE_PTX_JIT is set: Hopper's own kernels then have no image. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "fake_device.h"

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* found, int device) {
    const char* const gpu = getenv("FAKE_GPU");
    const int sm = gpu ? atoi(gpu + 3) : 90;
    memset(found, 0, sizeof *found);
    strcpy(found->name, "No Hopper");
    found->major = sm / 10;
    found->minor = sm % 10;
    found->multiProcessorCount = 132;
    found->sharedMemPerBlockOptin = sm == 90 || sm == 100 ? 232448 : sm == 80 ? 166912 : 101376;
    return cudaSetDevice(device);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* p) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = (void*)p;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, enum cudaFuncAttribute attribute, int value) {
    (void)kernel;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) printf("carveout %d\n", value);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
    (void)kernel, (void)config;
    return *clusters = 66, cudaSuccess;
}

static CUresult encode(void) { return CUDA_SUCCESS; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult* found) {
    (void)name, (void)version, (void)flags;
    *function = (void*)encode;
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

static struct {
    const void* kernel;
    const char* name;
} kernels[4096];
static unsigned known;
void __cudaRegisterFunction(void** handle, const void* kernel, const char* own_name, const char* name) {
    (void)handle, (void)own_name;
    if (known == sizeof kernels / sizeof *kernels) return;
    kernels[known].kernel = kernel;
    kernels[known++].name = name;
}
static const char* name_of(const void* kernel) {
    unsigned i = 0;
    while (i < known && kernels[i].kernel != kernel) i++;
    return i < known ? kernels[i].name : NULL;
}
cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
    return (*name = name_of(kernel)) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* kernel) {
    const struct timespec compiling = {0, 60000000};
    const int ptx = getenv("FAKE_PTX") != NULL;
    const char* const forced = getenv("CUDA_FORCE_PTX_JIT");
    if (capture_mode != cudaStreamCaptureModeRelaxed) return cudaErrorStreamCaptureUnsupported;
    if (forced && atoi(forced) && strstr(name_of(kernel), "sm90")) return cudaErrorNoKernelImageForDevice;
    if (getenv("FAKE_FAULT") && !strstr(name_of(kernel), "probe")) return cudaErrorMemoryAllocation;
    memset(attributes, 0, sizeof *attributes);
    attributes->ptxVersion = ptx ? 80 : 90;
    attributes->binaryVersion = 90;
    if (ptx) nanosleep(&compiling, NULL);
    printf("load %s\n", name_of(kernel));
    return cudaSuccess;
}

enum {
    kWords = 59, /* as many as backward_preprocess has, whose parameters are the fewest */
    kMaps = 64   /* words of the four tensor maps that the kernels of Hopper itself have first */
};
static cudaError_t print_launch(const void* kernel, void** parameters) {
    const char* const name = name_of(kernel);
    uint64_t words[kWords];
    unsigned word;
    if (!name) return cudaErrorInvalidDeviceFunction;
    if (capture_mode == cudaStreamCaptureModeRelaxed) return cudaErrorStreamCaptureUnsupported; /* which is the loader's alone */
    printf("launch %s:", name);
    if (strstr(name, "backward") || strstr(name, "finish") || strstr(name, "prepare_sm90")) {
        memcpy(words, (const char*)parameters[0] + (strstr(name, "sm90") ? 8 * kMaps : 0), sizeof words);
        for (word = 0; word < kWords; word++) printf(" %016llx", (unsigned long long)words[word]);
    }
    printf("\n");
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    (void)p, (void)value, (void)bytes, (void)stream;
    printf("launch memset:\n");
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** parameters) {
    (void)config;
    return print_launch(kernel, parameters);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return print_launch(kernel, parameters);
}
