#include "emu/matrix_emu.h"
#include "gpu/backend_gpu.inc"
#include "gpu/mma_sync.h"
#include "gpu/instances_mma.h"

fa::gpu::Instances fa::gpu::mma_f16_instances() { return instances<Instances16<MmaSync<F16>>>(); }
fa::gpu::Instances fa::gpu::mma_bf16_instances() { return instances<Instances16<MmaSync<Bf16>>>(); }
fa::gpu::Instances fa::gpu::mma_f32_instances() { return instances<Instances32<MmaTf32>>(); }
