#include "os/processor.h"
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fa {
namespace os {

// Granted to a process that asks, unless a thread's signal stack is too small.
bool permit_tiles() {
#ifdef SYS_arch_prctl
    constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
    return false;
#endif
}

ArmFeatures arm_features() {
    ArmFeatures found{};
#ifdef __aarch64__
    constexpr unsigned long i8mm = 1ul << 13, bf16 = 1ul << 14;  // of AT_HWCAP2, also where the system's headers lack the names
    found.bf16 = (getauxval(AT_HWCAP2) & (i8mm | bf16)) == (i8mm | bf16);
    const int length = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) : 0;
    if (length > 0) found.sve_bytes = length & PR_SVE_VL_LEN_MASK;
#endif
    return found;
}

// Kernels of some vendors report V for processors that have its version 0.7, where the same bits ask for elements of 128 bits, of which no
// vector has one. Neither instruction need be known to the assembler: vsetvl, and the register vlenb.
int riscv_vector_bytes() {
#ifdef __riscv
    constexpr unsigned long v = 1ul << ('v' - 'a'), elements_of_32_bits = 0xd0;
    if (!(getauxval(AT_HWCAP) & v)) return 0;
    unsigned long elements, bytes;
    __asm__ volatile(".insn r 0x57, 7, 0x40, %0, %1, %2" : "=r"(elements) : "r"(1ul), "r"(elements_of_32_bits));
    if (elements != 1) return 0;
    __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes));
    return int(bytes);
#else
    return 0;
#endif
}

}  // namespace os
}  // namespace fa
