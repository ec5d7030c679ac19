#include "emu/mma_emu.h"
#include "gpu/instances_bwd_mma.h"

namespace fa {
namespace gpu {

template <>
BackwardInstances mma_backward_instances<MmaTf32, 64>() { return backward_instances<MmaTf32, 64>(); }
template <>
BackwardInstances mma_backward_instances<MmaTf32, 128>() { return backward_instances<MmaTf32, 128>(); }

}  // namespace gpu
}  // namespace fa
