// The CUDA backend: the shared device text under CUDA's names.
#include "cuda/stream_owner.h"
#include "gpu/backend_gpu.h"
