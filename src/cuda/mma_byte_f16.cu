#include "cuda/matrix_cuda.h"
#include "gpu/mma_byte.h"
#include "gpu/instances_mma.h"

fa::gpu::Instances fa::gpu::mma_byte_f16_instances() { return instances<Instances8<MmaByte<F16>>>(); }
