#include "os/processor.h"
#include <sys/auxv.h>

namespace fa {
namespace os {

bool permit_tiles() { return false; }  // the system keeps no tile registers

// Nobody has tried whether the system keeps the upper parts of SVE's vectors.
ArmFeatures arm_features() {
    ArmFeatures found{};
#ifdef __aarch64__
    constexpr unsigned long i8mm = 1ul << 13, bf16 = 1ul << 14;  // as Linux has them
    unsigned long features = 0;
    found.bf16 = elf_aux_info(AT_HWCAP2, &features, sizeof features) == 0 && (features & (i8mm | bf16)) == (i8mm | bf16);
#endif
    return found;
}

int riscv_vector_bytes() { return 0; }  // nobody has tried it there

}  // namespace os
}  // namespace fa
