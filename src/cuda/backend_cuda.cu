// The CUDA backend: the shared device text under CUDA's names.
#include "cuda/rt_cuda.h"
#include "gpu/backend_gpu.inc"
