// What the host knows of a compiled backward kernel for sm_90a, with the kernels that run before and after it. Each type and width has a
// translation unit (backward/unit.cu.in, backward_wide/unit.cu.in) and a list; backward/dispatch.cu chooses.
#pragma once
#include "cuda/rt_cuda.h"
#include "gpu/host/backward_family.h"

namespace fa {
namespace gpu {

struct Sm90BackwardParams;
struct Sm90BackwardBiasParams;
enum class BwdVariant;

struct Sm90BackwardKernel {
    int max_dim;  // of q, k and v
    BwdVariant variant;
    int threads, shared_bytes;
    void (*kernel)(Sm90BackwardParams);           // NULL: bias_kernel is the one
    void (*bias_kernel)(Sm90BackwardBiasParams);  // of calls with a bias
    void (*prepare)(Sm90BackwardParams);
    void (*finish)(Sm90BackwardParams);
    void (*add_split)(Sm90BackwardParams);  // NULL: no block of keys is split
    void (*max_v)(Sm90BackwardParams);      // NULL: dS has no unit
};
// The kernels that compute a call's gradients together.
struct Sm90BackwardRow {
    const char* name;
    int rows, keys;
    int64_t dq_acc_columns;
    bool own_lse;
    const Sm90BackwardKernel* kernel;
};
struct Sm90BackwardKernelList {
    const Sm90BackwardRow* row;
    int count;
};
template <class T, int dims>
Sm90BackwardKernelList sm90_backward_kernels();

}  // namespace gpu
}  // namespace fa
