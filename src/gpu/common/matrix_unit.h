// The matrix instructions that a device has, of those that kernels are written for.
#pragma once

namespace fa {
namespace gpu {

enum class MatrixUnit {
    none,
    mma_sync,     // NVIDIA, from sm_80 on
    mfma_gfx90a,  // CDNA 2, which takes subnormal numbers of 16 bits, and results, for 0: of f16 too many count
    mfma,         // CDNA 3
    mfma_gfx950,  // CDNA 4
    wmma_gfx11,   // RDNA 3
    wmma_gfx12,   // RDNA 4
};
constexpr bool is_mfma(MatrixUnit unit) {
    return unit == MatrixUnit::mfma_gfx90a || unit == MatrixUnit::mfma || unit == MatrixUnit::mfma_gfx950;
}

}  // namespace gpu
}  // namespace fa
