#include "emu/mma_emu.h"
#include "gpu/instances_bwd_mma.h"

namespace fa {
namespace gpu {

template <class Mma, int width>
BackwardInstances mma_backward_instances() { return backward_instances<Mma, width>(); }
template BackwardInstances mma_backward_instances<MmaSync<Bf16>, 64>();
template BackwardInstances mma_backward_instances<MmaSync<Bf16>, 128>();
template BackwardInstances mma_backward_instances<MmaSync<Bf16>, 256>();

}  // namespace gpu
}  // namespace fa
