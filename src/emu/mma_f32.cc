#include "emu/mma_emu.h"
#include "gpu/instances_mma.h"

namespace fa {
namespace gpu {

template <class Mma, int width>
Instances mma_instances() { return instances<Mma, width>(); }
template Instances mma_instances<MmaTf32, 64>();
template Instances mma_instances<MmaTf32, 128>();
template Instances mma_instances<MmaTf32, 256>();

}  // namespace gpu
}  // namespace fa
