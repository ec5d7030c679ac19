#include "emu/mma_emu.h"
#include "gpu/instances_mma.h"

namespace fa {
namespace gpu {

template <class Mma, int width>
Instances mma_instances() { return instances<Mma, width>(); }
template Instances mma_instances<MmaByte<F16>, 64>();
template Instances mma_instances<MmaByte<F16>, 128>();
template Instances mma_instances<MmaByte<F16>, 256>();
template Instances mma_instances<MmaByte<Bf16>, 64>();
template Instances mma_instances<MmaByte<Bf16>, 128>();
template Instances mma_instances<MmaByte<Bf16>, 256>();

}  // namespace gpu
}  // namespace fa
