#include "os/processor.h"
#include "os/bsd/sysctl.h"

namespace fa {
namespace os {

bool permit_tiles() { return false; }  // no such machine was made

// Of SVE the processors have the streaming mode alone.
ArmFeatures arm_features() {
    return {sysctl_value<int>("hw.optional.arm.FEAT_BF16") != 0 && sysctl_value<int>("hw.optional.arm.FEAT_I8MM") != 0, 0};
}

int riscv_vector_bytes() { return 0; }

}  // namespace os
}  // namespace fa
