// The CUDA backend: the table of functions of gpu/host/backend.h over rt_cuda.h, with the kernels that it launches itself. Forward
// and backward kernels have translation units of their own (CMakeLists.txt lists them), those for sm_90a a folder of their own.
#include "cuda/stream_owner.h"
#include "gpu/host/plain_launch.h"
#include "gpu/host/backend.h"
