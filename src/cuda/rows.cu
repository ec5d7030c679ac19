// The kernels that append, rotate and merge rows, for CUDA, in a unit of their own as those of merge_splits.cu.
#include "cuda/rt_cuda.h"
#include "gpu/rows/append.h"
