// The study baselines' kernels, for CUDA, in a unit of their own as those of merge_splits.cu.
#include "cuda/rt_cuda.h"
#include "gpu/simt/study.h"
