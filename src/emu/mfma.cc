// The forward's MFMA kernels on the emulator.
#include "emu/matrix_emu.h"
#include "gpu/instances_transposed.h"

namespace fa {
namespace gpu {

template <>
Instances mma_instances<MfmaKernels<F16>, 64>() { return transposed_instances<MfmaKernels<F16>, 64>(); }
template <>
Instances mma_instances<MfmaKernels<F16>, 128>() { return transposed_instances<MfmaKernels<F16>, 128>(); }
template <>
Instances mma_instances<MfmaKernels<F16>, 256>() { return transposed_instances<MfmaKernels<F16>, 256>(); }
template <>
Instances mma_instances<MfmaKernels<Bf16>, 64>() { return transposed_instances<MfmaKernels<Bf16>, 64>(); }
template <>
Instances mma_instances<MfmaKernels<Bf16>, 128>() { return transposed_instances<MfmaKernels<Bf16>, 128>(); }
template <>
Instances mma_instances<MfmaKernels<Bf16>, 256>() { return transposed_instances<MfmaKernels<Bf16>, 256>(); }

}  // namespace gpu
}  // namespace fa
