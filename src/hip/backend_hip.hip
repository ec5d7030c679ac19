// The HIP backend: the table of functions of gpu/backend_gpu.h over rt_hip.h, and all of its kernels, in one unit. They are the
// SIMT kernels alone: mma kernels have no HIP policy yet, so their lists are empty.
#include "hip/rt_hip.h"
#include "gpu/backend_gpu.h"
#include "gpu/instances_bwd_simt.h"
#include "gpu/instances_simt.h"

template <class Mma, int width>
fa::gpu::Instances fa::gpu::mma_instances() { return {}; }
template <class Mma, int width>
fa::gpu::BackwardInstances fa::gpu::mma_backward_instances() { return {}; }
