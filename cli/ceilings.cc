#include "ceilings.h"
#include <flashattn.h>
#include <omp.h>
#include <sched.h>
#include <algorithm>
#include <chrono>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tool {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// ---- units. Enough chains that none waits for its own sum; registers are zeroed first, since one that holds a subnormal is slow.

constexpr int kTurns = 1000;  // of a run

#if defined(__x86_64__)
#define FA_CHAINS "0,1,2,3,4,5,6,7,8,9,10,11"
#define FA_CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15"

constexpr int kChains = 12;

// `product`: an instruction that adds a product to its last operand; `clear`: one that makes a register of three times itself 0.
#define FA_PRODUCTS(name, instructions, clear, product, width)                                       \
    __attribute__((target(instructions))) void name() {                                              \
        int turns = kTurns;                                                                          \
        asm volatile(".irp r," FA_CHAINS ",14,15\n " clear " %%" width "\\r,%%" width "\\r,%%" width \
                     "\\r\n .endr\n"                                                                 \
                     "1:\n .irp r," FA_CHAINS "\n " product " %%" width "14,%%" width "15,%%" width  \
                     "\\r\n .endr\n dec %0\n"                                                        \
                     "jnz 1b\n vzeroupper"                                                           \
                     : "+r"(turns)::FA_CLOBBERED);                                                   \
    }
FA_PRODUCTS(fma_avx512, "avx512f", "vpxord", "vfmadd231ps", "zmm")
FA_PRODUCTS(dot_bf16, "avx512f", "vpxord", "vdpbf16ps", "zmm")
FA_PRODUCTS(fma_avx2, "avx2,fma", "vpxor", "vfmadd231ps", "ymm")

// Half of the chains multiply, half add: the baseline has no instruction for both.
void multiply_add_sse2() {
    int turns = kTurns;
    asm volatile(".irp r," FA_CHAINS
                 ",14,15\n xorps %%xmm\\r,%%xmm\\r\n .endr\n"
                 "1:\n .irp r,0,2,4,6,8,10\n mulps %%xmm14,%%xmm\\r\n .endr\n .irp r,1,3,5,7,9,11\n addps %%xmm15,%%xmm\\r\n .endr\n"
                 "dec %0\n jnz 1b"
                 : "+r"(turns)::FA_CLOBBERED);
}

// Eight tiles of 16 rows of 64 bytes: the operand of ldtilecfg.
struct alignas(64) TileShape {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Products of 16 × 32 by 32 × 16 values, four sums in turn.
void amx_bf16() {
    static const TileShape shape;
    int turns = kTurns;
    asm volatile(
        "ldtilecfg %1\n .irp r,0,1,2,3,4,5,6,7\n tilezero %%tmm\\r\n .endr\n"
        "1:\n tdpbf16ps %%tmm6,%%tmm4,%%tmm0\n tdpbf16ps %%tmm7,%%tmm4,%%tmm1\n"
        "tdpbf16ps %%tmm6,%%tmm5,%%tmm2\n tdpbf16ps %%tmm7,%%tmm5,%%tmm3\n dec %0\n jnz 1b\n tilerelease"
        : "+r"(turns)
        : "m"(shape));
}

const Unit kAmx = {"AMX bf16", 4.0 * kTurns * 2 * 16 * 16 * 32, amx_bf16};
const Unit kDot = {"AVX-512 BF16 dot", 4.0 * kTurns * kChains * 16, dot_bf16};
const Unit kAvx512 = {"AVX-512 FMA", 2.0 * kTurns * kChains * 16, fma_avx512};
const Unit kAvx2 = {"AVX2 FMA", 2.0 * kTurns * kChains * 8, fma_avx2};
const Unit kSse2 = {"SSE2 multiply and add", 1.0 * kTurns * kChains * 4, multiply_add_sse2};

bool has_dot() {
    uint32_t a, b, c, d;
    return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

// Tiles are the process's for the asking; the system may refuse, and says so by an error.
bool has_amx() {
    uint32_t a, b, c, d;
    constexpr uint32_t bf16 = 1u << 22, tile = 1u << 24;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (bf16 | tile)) == (bf16 | tile) &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::vector<const Unit*> units(int32_t dtype, int64_t max_isa) {
    const auto allows = [max_isa](int64_t isa) { return max_isa == 0 || max_isa >= isa; };
    if (!allows(FA_ISA_AVX2) || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return {&kSse2};
    if (!allows(FA_ISA_AVX512) || !__builtin_cpu_supports("avx512f")) return {&kAvx2};
    std::vector<const Unit*> list = {&kAvx512};
    if (dtype == FA_F32) return list;
    if (allows(FA_ISA_AVX512_BF16) && has_dot()) list.push_back(&kDot);
    if (allows(FA_ISA_AMX) && has_amx()) list.push_back(&kAmx);
    return list;
}

#elif defined(__aarch64__)
void fma_neon() {
    int turns = kTurns;
    asm volatile(
        ".irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,30,31\n movi v\\r\\().4s, #0\n .endr\n"
        "1:\n .irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23\n fmla v\\r\\().4s, v30.4s, v31.4s\n .endr\n"
        "subs %w0, %w0, #1\n b.ne 1b"
        : "+r"(turns)
        :
        : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31");
}

const Unit kNeon = {"NEON FMA", 2.0 * kTurns * 16 * 4, fma_neon};

std::vector<const Unit*> units(int32_t, int64_t) { return {&kNeon}; }
#else
std::vector<const Unit*> units(int32_t, int64_t) { return {}; }
#endif

// ---- reading

#if defined(__x86_64__)
#define FA_READ_512(r)                                                                          \
    "vmovups (%0)," r "0\n vmovups 64(%0)," r "1\n vmovups 128(%0)," r "2\n vmovups 192(%0)," r \
    "3\n"                                                                                       \
    "vmovups 256(%0)," r "4\n vmovups 320(%0)," r "5\n vmovups 384(%0)," r "6\n vmovups 448(%0)," r "7\n"

__attribute__((target("avx512f"))) void read_avx512(const std::byte* at, const std::byte* end) {
    for (; end - at >= 512; at += 512) asm volatile(FA_READ_512("%%zmm") : : "r"(at) : FA_CLOBBERED);
    asm volatile("vzeroupper");
}

__attribute__((target("avx2"))) void read_avx2(const std::byte* at, const std::byte* end) {
    for (; end - at >= 512; at += 512)
        asm volatile(FA_READ_512("%%ymm") "add $32, %0\n" FA_READ_512("%%ymm") "sub $32, %0" : "+r"(at) : : FA_CLOBBERED);
    asm volatile("vzeroupper");
}
#endif

void read_words(const std::byte* at, const std::byte* end) {
    typedef uint64_t Words __attribute__((vector_size(16), aligned(1), may_alias));
    Words sum[8] = {};
    for (; end - at >= 128; at += 128)
        for (int i = 0; i < 8; ++i) sum[i] += reinterpret_cast<const Words*>(at)[i];
    for (const Words& s : sum) asm volatile("" : : "r"(s[0] + s[1]));
}

// Repeats step(thread) on each thread until the time is over; gives the sum of the threads' rates of `amount` a step.
template <class Step>
double rate_of(int threads, double seconds, double amount, const Step& step) {
    double sum = 0;
    const auto keep_busy = [&](int thread) {
        int64_t steps = 0;
        const auto begin = Clock::now();
        double spent = 0;
        do {
            step(thread);
            ++steps;
        } while ((spent = since(begin)) < seconds);
        return amount * double(steps) / spent;
    };
    if (threads == 1) return keep_busy(0);
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum = keep_busy(omp_get_thread_num());
    // Threads that wait by spinning, as OMP_WAIT_POLICY may say, would take part of the cores from the calls that are timed next.
    omp_pause_resource(omp_pause_soft, omp_get_initial_device());
    return sum;
}

}  // namespace

const Unit* unit_for(int32_t dtype, int64_t max_isa) {
    constexpr int kTries = 5;  // one alone may be broken off by other work
    const Unit* best = nullptr;
    double best_rate = 0;
    for (int i = 0; i < kTries; ++i) {
        for (const Unit* unit : units(dtype, max_isa)) {
            const double rate = arithmetic_rate(*unit, 1, 2e-4);
            if (rate > best_rate) best = unit, best_rate = rate;
        }
    }
    return best;
}

int threads_of(int64_t wanted) {
    if (wanted > 0) return int(wanted);
    cpu_set_t set;
    const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : omp_get_num_procs();
    return std::min(omp_get_max_threads(), allowed);
}

double arithmetic_rate(const Unit& unit, int threads, double seconds) {
    return rate_of(threads, seconds, unit.flops, [&](int) { unit.run(); });
}

ReadFunction reader_for(int64_t max_isa) {
#if defined(__x86_64__)
    const auto allows = [max_isa](int64_t isa) { return max_isa == 0 || max_isa >= isa; };
    if (allows(FA_ISA_AVX512) && __builtin_cpu_supports("avx512f")) return read_avx512;
    if (allows(FA_ISA_AVX2) && __builtin_cpu_supports("avx2")) return read_avx2;
#else
    static_cast<void>(max_isa);
#endif
    return read_words;
}

double read_rate(ReadFunction read, const std::vector<std::vector<Stretch>>& sets, size_t& turn, int threads, double seconds) {
    constexpr size_t kApart = 16;  // counters of a cache line
    double bytes = 0;
    for (const Stretch& s : sets[0]) bytes += double(s.bytes);
    std::vector<size_t> steps(size_t(threads) * kApart);
    const double rate = rate_of(threads, seconds, bytes / threads, [&](int thread) {
        const uint64_t t = uint64_t(thread), all = uint64_t(threads);
        for (const Stretch& s : sets[(turn + steps[t * kApart]++) % sets.size()])
            read(s.begin + s.bytes * t / all, s.begin + s.bytes * (t + 1) / all);
    });
    turn += *std::max_element(steps.begin(), steps.end());
    return rate;
}

}  // namespace tool
