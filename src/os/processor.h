// Features of a processor that only the system knows of, or grants.
#pragma once

namespace fa {
namespace os {

// x86-64: asks for the use of AMX's tile registers, which enlarge the frames of signals.
bool permit_tiles();

// 64-bit ARM.
struct ArmFeatures {
    bool bf16;      // FEAT_BF16 and FEAT_I8MM
    int sve_bytes;  // the length of a vector; 0: no SVE
};
ArmFeatures arm_features();

// 64-bit RISC-V: the length of a vector; 0: no V, or one before version 1.0.
int riscv_vector_bytes();

}  // namespace os
}  // namespace fa
