// Launches of the portable matrix kernel for decode (mma/forward.h) in clusters, which sm_90 has: the splits of a tile are a cluster's
// CTAs, and merge their partial states through distributed shared memory.
#include "cuda/rt_cuda.h"
#include "gpu/host/arch.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {
namespace {

// The CTAs of a cluster are spread over multiprocessors: two on one would share its bandwidth.
struct ClusterLaunch {
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config = {};
    ClusterLaunch(int64_t blocks, int threads, uint64_t shared, int64_t splits, rt::Stream stream, bool early) {
        config.gridDim = dim3(unsigned(blocks));
        config.blockDim = dim3(unsigned(threads));
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = early ? 3 : 2;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = unsigned(splits);
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
        attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
        attributes[2].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[2].val.programmaticStreamSerializationAllowed = 1;
    }
};

}  // namespace

bool cluster_fits(const rt::Device& device, const Instance& one, int64_t tiles, int64_t splits) {
    if (!device.sm90 || one.key_warps == 1 || tiles == 0) return false;  // the query fails for a call without rows
    if (rt::compiles_kernels()) return false;                            // the query loads kernels, and this may be but a question
    if (tiles * splits > int64_t(device.multiprocessors) * one.resident) return false;
    const ClusterLaunch launch(tiles * splits, one.threads, uint64_t(one.shared_bytes(0)), splits, nullptr, false);
    for (void (*const kernel)(MmaForwardParams) : {one.plain, one.paged}) {
        int clusters = 0;
        if (rt::prepare_kernel(reinterpret_cast<const void*>(kernel)) != cudaSuccess) return rt::clear_error(), false;
        if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config) != cudaSuccess) return rt::clear_error(), false;
        if (clusters < tiles) return false;
    }
    return true;
}

rt::Status launch_cluster(void (*kernel)(MmaForwardParams), int64_t blocks, int threads, uint64_t shared, rt::Stream stream,
                          const MmaForwardParams& params, bool early) {
    const ClusterLaunch launch(blocks, threads, shared, params.splits, stream, early);
    const rt::Status s = rt::prepare_kernel(reinterpret_cast<const void*>(kernel));
    return s != rt::kSuccess || rt::prepares() ? s : cudaLaunchKernelEx(&launch.config, kernel, params);
}

}  // namespace gpu
}  // namespace fa
