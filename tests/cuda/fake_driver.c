/* A libcuda.so.1 that answers the CUDA run time's first questions, up to FAKE_INIT, what cuInit gives. A device that starts cannot be
 * faked here: the run time puts the driver to an undocumented test. fake_runtime.c takes over from there. */
#include <stdint.h>
#include <string.h>

enum { CUDA_ERROR_NOT_SUPPORTED = 801 };

int cuInit(unsigned flags) {
    (void)flags;
    return FAKE_INIT;
}

int cuDriverGetVersion(int* version) {
    *version = FAKE_VERSION;
    return 0;
}

static int nothing_else(void) { return CUDA_ERROR_NOT_SUPPORTED; }

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* found) {
    (void)version;
    (void)flags;
    *function = !strcmp(name, "cuInit")               ? (void*)cuInit
                : !strcmp(name, "cuDriverGetVersion") ? (void*)cuDriverGetVersion
                : !strcmp(name, "cuGetProcAddress")   ? (void*)cuGetProcAddress_v2
                                                      : (void*)nothing_else;
    if (found) *found = 0;
    return 0;
}

int cuGetExportTable(const void** table, const void* id) {
    (void)table;
    (void)id;
    return CUDA_ERROR_NOT_SUPPORTED;
}
