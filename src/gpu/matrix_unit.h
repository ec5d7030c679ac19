// The matrix instructions that a device has, of those that kernels are written for.
#pragma once

namespace fa {
namespace gpu {

enum class MatrixUnit {
    none,
    mma_sync,    // NVIDIA, from sm_80 on
    mfma,        // CDNA 3; CDNA 2's takes subnormal numbers for 0, in operands and sums, and would lose small v
    wmma_gfx11,  // RDNA 3
    wmma_gfx12,  // RDNA 4
};

}  // namespace gpu
}  // namespace fa
