// The HIP backend: the table of functions of gpu/host/backend.h over rt_hip.h, and all of its kernels, in one unit: the SIMT kernels,
// and those on AMD's matrix cores. Other policies' lists are empty.
#include "hip/rt_hip.h"
#include "gpu/host/backend.h"
#include "gpu/backward/instances_simt.h"
#include "gpu/rows/merge_splits.h"
#include "gpu/simt/instances.h"
#include "gpu/simt/study.h"
#ifdef __HIP__
#include "hip/matrix_hip.h"
#include "gpu/transposed/instances.h"
#endif

template <class Mma, int width>
fa::gpu::Instances fa::gpu::mma_instances() {
#ifdef __HIP__
    if constexpr (kTransposed<Mma>) return transposed_instances<Mma, width>();
#endif
    return {};
}
template <class Mma, int width>
fa::gpu::BackwardInstances fa::gpu::mma_backward_instances() {
#ifdef __HIP__
    if constexpr (kTransposed<Mma>) return transposed_backward_instances<Mma, width>();
#endif
    return {};
}
