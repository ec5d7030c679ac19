// The forward's RDNA 3's WMMA kernels on the emulator.
#include "emu/matrix_emu.h"
#include "gpu/instances_transposed.h"

namespace fa {
namespace gpu {

template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, F16>, 64>() { return transposed_instances<WmmaKernels<WmmaGfx11, F16>, 64>(); }
template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, F16>, 128>() { return transposed_instances<WmmaKernels<WmmaGfx11, F16>, 128>(); }
template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, F16>, 256>() { return transposed_instances<WmmaKernels<WmmaGfx11, F16>, 256>(); }
template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, Bf16>, 64>() { return transposed_instances<WmmaKernels<WmmaGfx11, Bf16>, 64>(); }
template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, Bf16>, 128>() { return transposed_instances<WmmaKernels<WmmaGfx11, Bf16>, 128>(); }
template <>
Instances mma_instances<WmmaKernels<WmmaGfx11, Bf16>, 256>() { return transposed_instances<WmmaKernels<WmmaGfx11, Bf16>, 256>(); }

}  // namespace gpu
}  // namespace fa
