// rt_cuda.h's names on the emulator: what the device text under src/gpu needs of a GPU, for kernels and for the host. Launches run
// the kernel at once, on the calling thread; there are no streams, and allocations are the C library's.
#pragma once
#include <math.h>
#include <flashattn.h>
#include "backend/backend.h"
#include "emu/lockstep.h"
#include "gpu/common/matrix_unit.h"
#include "spec/numerics.h"

#define FA_KERNEL static inline
#define FA_DEVICE static inline
#define FA_COLD static inline
#define FA_COLD_MEMBER inline
#define FA_MEMBER inline  // a static member function of a kernel's struct
#define FA_BOUNDS(threads, blocks)
#define FA_PARAM const
#define FA_UNROLL_FOR for
#define FA_UNROLL_BY(n)

namespace fa {
namespace rt {

constexpr int32_t kBackend = FA_BACKEND_HIP;  // it stands in for the backend that no test machine has
constexpr char kName[] = "hip";
constexpr char kVendor[] = "emulated";
constexpr bool kArchKernels = false;  // see gpu/host/arch.h
#ifdef FA_EMU_AMD
constexpr bool kAmdKernels = true;  // are MFMA and WMMA kernels compiled?
#else
constexpr bool kAmdKernels = false;
#endif
#ifdef FA_LIST_CUDA_KERNELS
constexpr int kWideRows = 64;  // as in rt_cuda.h, whose kernels tests/budgets lists by this text
#else
constexpr int kWideRows = 32;  // as in rt_hip.h
#endif
constexpr int kWideStudyColumns = 128;  // as in rt_cuda.h, so that both widths are tested

FA_DEVICE int thread() { return lockstep::block().now; }
FA_DEVICE int threads() { return lockstep::block().threads; }
FA_DEVICE int64_t block() { return lockstep::block().index; }
FA_DEVICE void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (lockstep::removed(file, line)) return;
    lockstep::Block& b = lockstep::block();
    lockstep::meet(b.all, b.now, &b, [](void**, int) {});
}
FA_DEVICE void atomic_or(uint32_t* to, uint32_t bits) { *to |= bits; }  // no thread of a block runs beside another
FA_DEVICE float shuffle_xor16(float x, int mask) { return lockstep::shuffle_xor(x, mask, 16); }
FA_DEVICE float shuffle_xor32(float x, int mask) { return lockstep::shuffle_xor(x, mask, 32); }
FA_DEVICE void load4(const float* p, float* to) {
    lockstep::check_aligned(p, 16);
    memcpy(to, p, 16);
}
FA_DEVICE void store4(float* p, const float* from) {
    lockstep::check_aligned(p, 16);
    memcpy(p, from, 16);
}
FA_DEVICE uint32_t pack_f16(float low, float high) { return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16; }
FA_DEVICE uint32_t pack_bf16(float low, float high) { return f32_to_bf16(low) | uint32_t(f32_to_bf16(high)) << 16; }
FA_DEVICE float widen_f16(uint16_t bits) { return f16_to_f32(bits); }
template <class Params>
FA_DEVICE void fetch_parameters(const Params&) {}
FA_DEVICE char* shared_memory() { return lockstep::block().shared.get(); }

enum Status { kSuccess, kOutOfMemory, kBadDevice };
using Stream = void*;

static inline bool out_of_memory(Status s) { return s == kOutOfMemory; }
static inline const char* text(Status s) { return s == kOutOfMemory ? "out of memory" : s == kBadDevice ? "no such device" : "no error"; }
static inline Status clear_error() { return kSuccess; }

struct Device {
    char name[128];
    char arch[64];
    int32_t multiprocessors;
    uint64_t memory;
    uint64_t shared_per_block;
    gpu::MatrixUnit matrix;
};

// FLASHATTN_EMU_MATRIX = mfma, mfma_gfx90a or mfma_gfx950 (waves of 64), wmma_gfx11 or wmma_gfx12 (of 32): the matrix instructions of the
// emulated device. Without it, NVIDIA's in waves of 32, and none in others.
static inline gpu::MatrixUnit matrix_unit() {
    using gpu::MatrixUnit;
    const char* const name = getenv("FLASHATTN_EMU_MATRIX");
    const bool wave32 = lockstep::wave() == 32;
    if (!name) return wave32 ? MatrixUnit::mma_sync : MatrixUnit::none;
    if (strcmp(name, "mfma_gfx90a") == 0 && !wave32) return MatrixUnit::mfma_gfx90a;
    if (strcmp(name, "mfma") == 0 && !wave32) return MatrixUnit::mfma;
    if (strcmp(name, "mfma_gfx950") == 0 && !wave32) return MatrixUnit::mfma_gfx950;
    if (strcmp(name, "wmma_gfx11") == 0 && wave32) return MatrixUnit::wmma_gfx11;
    if (strcmp(name, "wmma_gfx12") == 0 && wave32) return MatrixUnit::wmma_gfx12;
    lockstep::die(
        "FLASHATTN_EMU_MATRIX: expected mfma, mfma_gfx90a or mfma_gfx950 with waves of 64, wmma_gfx11 or wmma_gfx12 with waves of 32");
}

static inline fa_status_t no_device(Status, Message* m) { return fail(m, FA_NO_DEVICE, "the emulator is gone"); }
static inline Status device_count(int* n) { return *n = 1, kSuccess; }
static inline Status current_device(int* device) { return *device = 0, kSuccess; }
static inline Status set_device(int device) { return device == 0 ? kSuccess : kBadDevice; }
static inline Status describe(int, Device* d) {
    snprintf(d->name, sizeof d->name, "GPU emulator");
    snprintf(d->arch, sizeof d->arch, "wave%d", lockstep::wave());
    d->multiprocessors = 4;
    d->memory = uint64_t(1) << 30;
    d->matrix = matrix_unit();
    d->shared_per_block = uint64_t(d->matrix == gpu::MatrixUnit::mma_sync ? 227 : 64) << 10;  // as on NVIDIA's and AMD's devices
    return kSuccess;
}

static inline Status allocate(void** p, uint64_t bytes) { return posix_memalign(p, 256, bytes) == 0 ? kSuccess : kOutOfMemory; }
static inline Status release(void* p) { return free(p), kSuccess; }
static inline Status copy(void* to, const void* from, uint64_t bytes, Stream) { return memmove(to, from, bytes), kSuccess; }
static inline Status synchronize(Stream) { return kSuccess; }
struct StreamOwner {};
static inline StreamOwner stream_owner() { return {}; }
static inline bool owns(StreamOwner*, int, Stream) { return true; }
static inline bool capturing(Stream) { return false; }
using Event = void*;
static inline Status record(Event*, Stream) { return kSuccess; }
static inline Status follow(Stream, Event) { return kSuccess; }
static inline void finish(Event*) {}
static inline Status accessible(const void*, int, bool* yes) { return *yes = true, kSuccess; }

template <class Params>
static inline Status launch(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream, const Params& params) {
    struct Bound {
        void (*kernel)(Params);
        const Params* params;
    } const bound{kernel, &params};
    lockstep::Block& b = lockstep::block();
    b.blocks = blocks;
    b.argument = &bound;
    b.body = [](const void* argument) {
        const Bound& x = *static_cast<const Bound*>(argument);
        x.kernel(*x.params);
    };
    for (b.index = 0; b.index < blocks; b.index++) b.run(threads, shared);
    return kSuccess;
}

FA_DEVICE void wait_for_predecessor() {}
FA_DEVICE void release_successor() {}
template <class Params>
static inline Status launch_after(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream stream,
                                  const Params& params) {
    return launch(kernel, blocks, threads, shared, stream, params);
}

// As in rt_cuda.h, where kernels are loaded one by one.
struct Caller {
    int device;
    const Host* host;
    bool prepares;
};
constexpr bool kLoadsWhenUsed = false;
static inline Caller enter(Caller) { return {}; }
static inline Status find_code() { return kSuccess; }
static inline bool compiles_kernels() { return false; }

}  // namespace rt
}  // namespace fa
