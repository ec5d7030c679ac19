// Selects the kernel table: which of isa.def's this CPU can run, on x86-64 by CPUID and the registers that the system enables
// (XCR0), on little-endian aarch64 and on RISC-V by what the system says it has; and which of them it prefers.
#include "cpu/kernels/kernel_table.h"
#include "cpu/driver/parallel.h"
#include "os/processor.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fa {
namespace cpu {

#define FA_ON_ANY(...) __VA_ARGS__
#define FA_ON_X86(...)
#define FA_ON_ARM(...)
#define FA_ON_RISCV(...)
#if defined(__x86_64__)
#undef FA_ON_X86
#define FA_ON_X86(...) __VA_ARGS__
#elif defined(__AARCH64EL__)
#undef FA_ON_ARM
#define FA_ON_ARM(...) __VA_ARGS__
#elif defined(FA_COMPILES_RVV)
#undef FA_ON_RISCV
#define FA_ON_RISCV(...) __VA_ARGS__
#endif

#define FA_CPU_ISA(architecture, table, word, isa) FA_CPU_TABLE(architecture, table, isa)
#define FA_CPU_TABLE(architecture, table, isa) FA_ON_##architecture(extern const Kernels kKernels_##table;)
#include "backend/isa.def"

namespace {

struct Level {
    int32_t isa;
    const Kernels* kernels;
};
const Level kLevels[] = {
#define FA_CPU_ISA(architecture, table, word, isa) FA_CPU_TABLE(architecture, table, isa)
#define FA_CPU_TABLE(architecture, table, isa) FA_ON_##architecture({isa, &kKernels_##table}, )
#include "backend/isa.def"
};

#if defined(__x86_64__)
uint64_t enabled_state() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

bool detect(const Kernels& kernels) {
    if (kernels.isa == FA_ISA_GENERIC) return true;
    uint32_t a, b, c, d, a7, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return false;
    constexpr uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;
    constexpr uint32_t avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    if ((c & (osxsave | fma | f16c)) != (osxsave | fma | f16c) || !(b7 & avx2)) return false;
    const uint64_t state = enabled_state();
    if ((state & 0x6) != 0x6) return false;  // xmm, ymm
    if (kernels.isa == FA_ISA_AVX2) return true;
    if ((b7 & (f | dq | bw | vl)) != (f | dq | bw | vl) || (state & 0xe6) != 0xe6) return false;  // mask registers, zmm
    if (kernels.isa == FA_ISA_AVX512) return true;
    // The kernel's flags in /proc/cpuinfo do not tell all: only CPUID is asked.
    constexpr uint32_t amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx_int8 = 1u << 25, avx512_bf16 = 1u << 5, amx_fp16 = 1u << 21,
                       avx512_vbmi = 1u << 1, avx512_vnni = 1u << 11;
    uint32_t a71, b71, c71, d71;
    if (!__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) || !(a71 & avx512_bf16) || !(c7 & avx512_vbmi) || !(c7 & avx512_vnni))
        return false;
    if (kernels.isa == FA_ISA_AVX512_BF16) return true;
    if ((state & 0x60000) != 0x60000) return false;
    if ((d7 & (amx_bf16 | amx_tile | amx_int8)) != (amx_bf16 | amx_tile | amx_int8) ||
        (kernels.isa == FA_ISA_AMX_FP16 && !(a71 & amx_fp16)))
        return false;
    return os::permit_tiles();
}

// Whether a table that this CPU can run is worth running unasked: isa.def has the reasons.
bool prefer(const Kernels& kernels) {
    uint32_t a, vendor[3];
    if (kernels.isa != FA_ISA_AVX512_BF16) return true;
    return __get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1]) && memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0;
}

#define FA_PAUSE "pause"
#elif defined(__AARCH64EL__)
bool detect(const Kernels& k) {
    const os::ArmFeatures features = os::arm_features();
    const bool wants_bf16 = k.isa == FA_ISA_NEON_BF16 || k.isa == FA_ISA_SVE_BF16;
    const bool wants_sve = k.isa == FA_ISA_SVE || k.isa == FA_ISA_SVE_BF16;
    return (!wants_bf16 || features.bf16) && (!wants_sve || features.sve_bytes == k.lanes * int(sizeof(float)));
}

#define FA_PAUSE "yield"
#elif defined(FA_COMPILES_RVV)
bool detect(const Kernels& k) { return k.isa == FA_ISA_GENERIC || os::riscv_vector_bytes() >= k.lanes * int(sizeof(float)); }

#define FA_PAUSE ".word 0x0100000f"  // `pause`: a fence that does nothing on CPUs without it, and that no option need permit
#else
bool detect(const Kernels&) { return true; }

#define FA_PAUSE ""
#endif
#if !defined(__x86_64__)
bool prefer(const Kernels&) { return true; }
#endif

}  // namespace

const Kernels* select_kernels(int64_t isa) {
    const Kernels* best = nullptr;
    for (const Level& level : kLevels)
        if ((isa == 0 ? prefer(*level.kernels) : level.isa == isa) && detect(*level.kernels)) best = level.kernels;
    return best;
}

void pause_spinning() { __asm__ volatile(FA_PAUSE); }

}  // namespace cpu
}  // namespace fa
