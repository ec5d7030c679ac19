// libamdhip64 for machines without an AMD GPU, as of ROCm FAKE_ROCM (5, 6 or 7, whose structs and values differ): as many devices as
// FAKE_GPUS names (gfx90a:sramecc+:xnack-,gfx1036), memory that is the host's, and launches that only check what they are given.
// Written from AMD's manuals, without the module's own declarations. It ends the process where ROCm 5 would: when a fat binary is
// registered.
//
// FAKE_FAULT = driver, malloc, launch or load makes those calls fail. FAKE_LOG names a file to which launches are written. FAKE_MEMORY =
// host, peer or pageable is what every pointer is said to be; managed memory without it. FAKE_LAUNCHER names a library that runs kernels
// (tests/machine_code/launcher.cc); without it none runs. FAKE_CAPTURE = 1: every stream is being captured into a graph, in the mode that
// forbids most; what does not go with that is refused, as it would end the capture, and logged as illegal.
#include <dlfcn.h>
#include <elf.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using hipError_t = int;
using hipStream_t = void*;
using hipEvent_t = void*;
enum : int {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorInvalidConfiguration = 9,
    hipErrorInsufficientDriver = 35,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorNoBinaryForGpu = 209,
    hipErrorNotFound = 500,
    hipErrorLaunchFailure = 719,
    hipErrorStreamCaptureUnsupported = 900,
};

// The beginning of hipDeviceProp_t up to ROCm 5, and since.
struct PropertiesR0000 {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate, memoryClockRate, memoryBusWidth;
    size_t totalConstMem;
    int major, minor, multiProcessorCount, l2CacheSize, maxThreadsPerMultiProcessor, computeMode, clockInstructionRate;
    unsigned arch;
    int concurrentKernels, pciDomainID, pciBusID, pciDeviceID;
    size_t maxSharedMemoryPerMultiProcessor;
    int isMultiGpuBoard, canMapHostMemory, gcnArch;
    char gcnArchName[256];
    char rest[140];
};
struct PropertiesR0600 {
    char name[256], uuid[16], luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount;
    char others[768];
    char gcnArchName[256];
    char rest[312];
};
struct Attributes {
    int type, device;
    void *devicePointer, *hostPointer;
    int isManaged;
    unsigned allocationFlags;
};

constexpr size_t kSharedPerBlock = 64 << 10;
thread_local int current = 0;

struct Module {
    const char* elf;
};
struct Kernel {
    const char* elf;
    std::string name, target;
};

std::vector<std::string> devices() {
    std::vector<std::string> all;
    const char* list = getenv("FAKE_GPUS");
    for (std::string rest = list ? list : ""; !rest.empty();) {
        const size_t comma = rest.find(',');
        all.push_back(rest.substr(0, comma));
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    }
    return all;
}

bool faulty(const char* what) {
    const char* fault = getenv("FAKE_FAULT");
    return fault && strcmp(fault, what) == 0;
}

template <class... Args>
void log(const char* format, Args... args) {
    const char* const name = getenv("FAKE_LOG");
    if (!name) return;
    FILE* file = fopen(name, "a");
    fprintf(file, format, args...);
    fclose(file);
}

// Is this call one that ends a capture which is under way?
bool ends_capture(const char* function) {
    if (!getenv("FAKE_CAPTURE")) return false;
    log("illegal while a stream is captured: %s\n", function);
    return true;
}
#define FA_NOT_CAPTURED \
    if (ends_capture(__func__)) return hipErrorStreamCaptureUnsupported

// The processor numbers of the AMDGPU ELF header, from LLVM's manual.
unsigned machine_of(const std::string& arch) {
    const struct {
        const char* name;
        unsigned number;
    } machines[] = {{"gfx90a", 0x3f},  {"gfx942", 0x4c},  {"gfx950", 0x4f},  {"gfx1030", 0x36}, {"gfx1100", 0x41},
                    {"gfx1101", 0x46}, {"gfx1102", 0x47}, {"gfx1151", 0x4a}, {"gfx1200", 0x48}, {"gfx1201", 0x4e}};
    const std::string processor = arch.substr(0, arch.find(':'));
    for (const auto& machine : machines)
        if (processor == machine.name) return machine.number;
    return 0;
}

// Does the ELF file hold this symbol?
bool has_symbol(const char* elf, const std::string& name) {
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(elf);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(elf + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) continue;
        const char* names = elf + sections[sections[i].sh_link].sh_offset;
        const auto* symbols = reinterpret_cast<const Elf64_Sym*>(elf + sections[i].sh_offset);
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++)
            if (name == names + symbols[n].st_name) return true;
    }
    return false;
}

template <class Properties>
hipError_t properties(Properties* found, int device) {
    if (device < 0 || device >= int(devices().size())) return hipErrorInvalidDevice;
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "Fake %d", FAKE_ROCM);
    snprintf(found->gcnArchName, sizeof found->gcnArchName, "%s", devices()[size_t(device)].c_str());
    found->multiProcessorCount = 104;
    found->totalGlobalMem = size_t(3) << 33;
    found->sharedMemPerBlock = kSharedPerBlock;
    return hipSuccess;
}

}  // namespace

extern "C" {

void** __hipRegisterFatBinary(const void*) { abort(); }
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*, int*) { abort(); }
void __hipUnregisterFatBinary(void**) { abort(); }

hipError_t hipRuntimeGetVersion(int* version) { return *version = FAKE_ROCM * 10000000 + 221153, hipSuccess; }
hipError_t hipGetDeviceCount(int* n) {
    if (faulty("driver")) return hipErrorInsufficientDriver;
    *n = int(devices().size());
    return *n == 0 ? hipErrorNoDevice : hipSuccess;
}
hipError_t hipGetDevice(int* device) { return *device = current, hipSuccess; }
hipError_t hipSetDevice(int device) {
    if (device < 0 || device >= int(devices().size())) return hipErrorInvalidDevice;
    current = device;
    return hipSuccess;
}
// Later libraries keep the old function for old programs.
hipError_t hipGetDeviceProperties(PropertiesR0000* found, int device) { return properties(found, device); }
#if FAKE_ROCM >= 6
hipError_t hipGetDevicePropertiesR0600(PropertiesR0600* found, int device) { return properties(found, device); }
#endif
hipError_t hipGetLastError() { return hipSuccess; }
const char* hipGetErrorString(hipError_t s) {
    return s == hipErrorNoBinaryForGpu  ? "no code"
           : s == hipErrorOutOfMemory   ? "out of memory"
           : s == hipErrorLaunchFailure ? "launch failure"
                                        : "error";
}
hipError_t hipMalloc(void** p, size_t bytes) {
    FA_NOT_CAPTURED;
    if (faulty("malloc")) return hipErrorOutOfMemory;
    return posix_memalign(p, 256, bytes) == 0 ? hipSuccess : hipErrorOutOfMemory;
}
hipError_t hipFree(void* p) {
    FA_NOT_CAPTURED;
    return free(p), hipSuccess;
}
// Of pageable memory: what the module copies at all.
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, int, hipStream_t) {
    FA_NOT_CAPTURED;
    return memmove(to, from, bytes), hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) {
    FA_NOT_CAPTURED;
    return hipSuccess;
}
hipError_t hipStreamIsCapturing(hipStream_t, int* status) { return *status = getenv("FAKE_CAPTURE") ? 1 : 0, hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
hipError_t hipEventCreateWithFlags(hipEvent_t* e, unsigned) { return *e = malloc(1), hipSuccess; }
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) {
    FA_NOT_CAPTURED;
    return hipSuccess;
}
hipError_t hipEventDestroy(hipEvent_t e) { return free(e), hipSuccess; }
hipError_t hipPointerGetAttributes(Attributes* attributes, const void*) {
    constexpr int host = FAKE_ROCM < 6 ? 0 : 1, device = FAKE_ROCM < 6 ? 1 : 2, unregistered = 0;
    const char* word = getenv("FAKE_MEMORY");
    const std::string memory = word ? word : "";
    memset(attributes, 0, sizeof *attributes);
    if (memory == "pageable" && FAKE_ROCM < 6) return hipErrorInvalidValue;
    attributes->device = memory == "pageable" ? -2 : 1;  // of pinned memory it is where that was allocated
    attributes->type = memory == "pageable" ? unregistered : memory == "host" ? host : device;
    attributes->isManaged = memory.empty();
    return hipSuccess;
}
hipError_t hipDeviceCanAccessPeer(int* can, int, int) { return *can = 0, hipSuccess; }
// FAKE_DIES: of each device, which ROCm 5 does not tell.
hipError_t hipDeviceGetAttribute(int* value, int attribute, int) {
    constexpr int number_of_xccs = 10018;
    const char* const dies = getenv("FAKE_DIES");
    *value = attribute == number_of_xccs && dies ? atoi(dies) : 0;
    return attribute == number_of_xccs && FAKE_ROCM < 6 ? hipErrorInvalidValue : hipSuccess;
}

hipError_t hipModuleLoadData(void** module, const void* image) {
    FA_NOT_CAPTURED;
    if (faulty("load")) return hipErrorOutOfMemory;
    const auto* header = static_cast<const Elf64_Ehdr*>(image);
    const unsigned machine = header->e_flags & 0xff;
    if (memcmp(image, ELFMAG, SELFMAG) != 0 || machine != machine_of(devices()[size_t(current)])) abort();  // as ROCm may
    log("load %s\n", devices()[size_t(current)].c_str());
    *module = new Module{static_cast<const char*>(image)};
    return hipSuccess;
}
hipError_t hipModuleGetFunction(void** f, void* module, const char* name) {
    const char* elf = static_cast<Module*>(module)->elf;
    if (!has_symbol(elf, name) || !has_symbol(elf, std::string(name) + ".kd")) return hipErrorNotFound;
    *f = new Kernel{elf, name, devices()[size_t(current)]};
    return hipSuccess;
}
hipError_t hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                 hipStream_t, void** arguments, void** extra) {
    if (faulty("launch")) return hipErrorLaunchFailure;
    const bool fits = uint64_t(gx) * bx <= UINT32_MAX && gy <= UINT16_MAX && gz == 1 && bx <= 1024 && by == 1 && bz == 1;
    if (!fits || gx == 0 || gy == 0 || shared > kSharedPerBlock || !arguments || !arguments[0] || extra)
        return hipErrorInvalidConfiguration;
    log("launch %s %llu x %u\n", static_cast<Kernel*>(f)->name.c_str(), static_cast<unsigned long long>(gx) * gy, bx);
    if (gy > 1) log("in %u rows\n", gy);
    const char* const launcher = getenv("FAKE_LAUNCHER");
    if (!launcher) return hipSuccess;
    static void* const library = dlopen(launcher, RTLD_NOW);
    using Launch = int (*)(const void* elf, const char* target, const char* kernel, unsigned gx, unsigned gy, unsigned threads,
                           unsigned shared, void** arguments);
    const auto launch = library ? reinterpret_cast<Launch>(dlsym(library, "launch_kernel")) : nullptr;
    if (!launch) return fprintf(stderr, "FAKE_LAUNCHER: %s\n", dlerror()), hipErrorLaunchFailure;
    const Kernel& kernel = *static_cast<Kernel*>(f);
    return launch(kernel.elf, kernel.target.c_str(), kernel.name.c_str(), gx, gy, bx, shared, arguments) == 0 ? hipSuccess
                                                                                                              : hipErrorLaunchFailure;
}

}  // extern "C"
