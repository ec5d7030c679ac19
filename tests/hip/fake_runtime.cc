// libamdhip64 for machines without an AMD GPU: as many devices as FAKE_GPUS names (gfx90a:sramecc+:xnack-,gfx1036), memory that is the
// host's, and launches that only check what they are given. It ends the process where ROCm 5 would: when a fat binary is registered.
//
// FAKE_FAULT = driver, malloc, launch or load makes those calls fail. FAKE_LOG names a file to which launches are written.
#include <elf.h>
#include <hip/hip_runtime_api.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t kSharedPerBlock = 64 << 10;
thread_local int current = 0;

struct Module {
    const char* elf;
};
struct Kernel {
    std::string name;
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
    FILE* file = fopen(getenv("FAKE_LOG"), "a");
    fprintf(file, format, args...);
    fclose(file);
}

// The processor numbers of the AMDGPU ELF header, from LLVM's manual.
unsigned machine_of(const std::string& arch) {
    const std::string processor = arch.substr(0, arch.find(':'));
    return processor == "gfx90a" ? 0x3f : processor == "gfx1030" ? 0x36 : 0;
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

}  // namespace

extern "C" {

void** __hipRegisterFatBinary(const void*) { abort(); }
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*, int*) { abort(); }
void __hipUnregisterFatBinary(void**) { abort(); }
hipError_t __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*) { abort(); }
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t) { abort(); }

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
hipError_t hipGetDeviceProperties(hipDeviceProp_t* p, int device) {
    if (device < 0 || device >= int(devices().size())) return hipErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Fake");
    snprintf(p->gcnArchName, sizeof p->gcnArchName, "%s", devices()[size_t(device)].c_str());
    p->multiProcessorCount = 104;
    p->totalGlobalMem = size_t(1) << 30;
    p->sharedMemPerBlock = kSharedPerBlock;
    return hipSuccess;
}
hipError_t hipGetLastError() { return hipSuccess; }
const char* hipGetErrorString(hipError_t s) {
    return s == hipErrorNoBinaryForGpu  ? "no code"
           : s == hipErrorOutOfMemory   ? "out of memory"
           : s == hipErrorLaunchFailure ? "launch failure"
                                        : "error";
}
hipError_t hipMalloc(void** p, size_t bytes) {
    if (faulty("malloc")) return hipErrorOutOfMemory;
    *p = malloc(bytes);
    return hipSuccess;
}
hipError_t hipFree(void* p) { return free(p), hipSuccess; }
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t) {
    return memmove(to, from, bytes), hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus* s) { return *s = hipStreamCaptureStatusNone, hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
hipError_t hipEventCreateWithFlags(hipEvent_t* e, unsigned) { return *e = reinterpret_cast<hipEvent_t>(malloc(1)), hipSuccess; }
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return hipSuccess; }
hipError_t hipEventDestroy(hipEvent_t e) { return free(e), hipSuccess; }
hipError_t hipPointerGetAttributes(hipPointerAttribute_t* a, const void*) {
    memset(a, 0, sizeof *a);
    a->isManaged = 1;
    return hipSuccess;
}
hipError_t hipDeviceCanAccessPeer(int* can, int, int) { return *can = 0, hipSuccess; }
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) { return *value = 0, hipSuccess; }

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    if (faulty("load")) return hipErrorOutOfMemory;
    const auto* header = static_cast<const Elf64_Ehdr*>(image);
    const unsigned machine = header->e_flags & 0xff;
    if (memcmp(image, ELFMAG, SELFMAG) != 0 || machine != machine_of(devices()[size_t(current)])) abort();  // as ROCm may
    log("load %s\n", devices()[size_t(current)].c_str());
    *module = reinterpret_cast<hipModule_t>(new Module{static_cast<const char*>(image)});
    return hipSuccess;
}
hipError_t hipModuleGetFunction(hipFunction_t* f, hipModule_t module, const char* name) {
    const char* elf = reinterpret_cast<Module*>(module)->elf;
    if (!has_symbol(elf, name) || !has_symbol(elf, std::string(name) + ".kd")) return hipErrorNotFound;
    *f = reinterpret_cast<hipFunction_t>(new Kernel{name});
    return hipSuccess;
}
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, hipStream_t, void** arguments, void** extra) {
    if (faulty("launch")) return hipErrorLaunchFailure;
    const bool fits = uint64_t(gx) * bx <= UINT32_MAX && gy <= UINT16_MAX && gz == 1 && bx <= 1024 && by == 1 && bz == 1;
    if (!fits || gx == 0 || gy == 0 || shared > kSharedPerBlock || !arguments || !arguments[0] || extra)
        return hipErrorInvalidConfiguration;
    log("launch %s %llu x %u\n", reinterpret_cast<Kernel*>(f)->name.c_str(), static_cast<unsigned long long>(gx) * gy, bx);
    return hipSuccess;
}

}  // extern "C"
