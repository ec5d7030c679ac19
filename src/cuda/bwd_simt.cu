#include "cuda/rt_cuda.h"
#include "gpu/instances_bwd_simt.h"
