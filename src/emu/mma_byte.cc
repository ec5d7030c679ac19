#include "emu/matrix_emu.h"
#include "gpu/mma_byte.h"
#include "gpu/instances_mma.h"

fa::gpu::Instances fa::gpu::mma_byte_f16_instances() { return instances<Instances8<MmaByte<F16>>>(); }
fa::gpu::Instances fa::gpu::mma_byte_bf16_instances() { return instances<Instances8<MmaByte<Bf16>>>(); }
