#include "cuda/rt_cuda.h"
#include "gpu/instances_simt.h"
