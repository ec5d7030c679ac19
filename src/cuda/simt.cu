// The SIMT forward kernels for CUDA, in a unit of their own: one unit compiles in at most 60 seconds. simt/instances.h compiles and
// lists them, from their rows.
#include "cuda/rt_cuda.h"
#include "gpu/simt/instances.h"
