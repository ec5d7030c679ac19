// The SIMT backward kernels for CUDA, in a unit of their own: one unit compiles in at most 60 seconds. backward/instances_simt.h compiles
// and lists them, from their rows.
#include "cuda/rt_cuda.h"
#include "gpu/backward/instances_simt.h"
