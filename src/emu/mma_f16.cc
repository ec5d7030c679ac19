#include "emu/matrix_emu.h"
#include "gpu/mma_sync.h"
#include "gpu/instances_mma.h"

fa::gpu::Instances fa::gpu::mma_f16_instances() { return instances<Instances16<MmaSync<F16>>>(); }
