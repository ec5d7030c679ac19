// The HIP backend: the shared device text under HIP's names.
#include "hip/rt_hip.h"
#include "gpu/backend_gpu.inc"

// Matrix kernels have no HIP policy yet.
fa::gpu::Instances fa::gpu::mma_f16_instances() { return {}; }
fa::gpu::Instances fa::gpu::mma_bf16_instances() { return {}; }
fa::gpu::Instances fa::gpu::mma_f32_instances() { return {}; }
fa::gpu::Instances fa::gpu::mma_byte_f16_instances() { return {}; }
fa::gpu::Instances fa::gpu::mma_byte_bf16_instances() { return {}; }
