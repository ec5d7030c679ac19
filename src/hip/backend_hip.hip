// The HIP backend: the shared device text under HIP's names.
#include "hip/rt_hip.h"
#include "gpu/backend_gpu.h"
#include "gpu/instances_bwd_simt.h"
#include "gpu/instances_simt.h"

// MMA kernels have no HIP policy yet.
template <class Mma, int width>
fa::gpu::Instances fa::gpu::mma_instances() { return {}; }
template <class Mma, int width>
fa::gpu::BackwardInstances fa::gpu::mma_backward_instances() { return {}; }
