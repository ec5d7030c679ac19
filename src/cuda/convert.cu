// The kernel of fa_convert, for CUDA, in a unit of its own as those of merge_splits.cu.
#include "cuda/rt_cuda.h"
#include "gpu/rows/convert.h"
