// The kernels that merge splits, for CUDA, in a unit of their own: without machine code a call compiles the units that it needs.
#include "cuda/rt_cuda.h"
#include "gpu/rows/merge_splits.h"
