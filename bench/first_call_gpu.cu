// What a process pays before its first result on a GPU: fa_create; fa_workspace_size, which loads kernels, or compiles them where there is
// no machine code for the device; the first call and the second; and the device memory that code takes. Then the host's time for one of
// many calls. In bf16, one query row over 4096 keys, 4096 rows, and their gradients.
//   fa_bench_first_call [calls]                                      calls: without fa_workspace_size, so that calls load their kernels
//   CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 fa_bench_first_call    as where there is PTX alone, which has never been compiled
#include <cuda_runtime.h>
#include <flashattn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <vector>

namespace {

void check(bool good, const char* what) {
    if (!good) fprintf(stderr, "fa_bench_first_call: %s\n", what), exit(1);
}
double free_mb() {
    size_t free_bytes, all;
    check(cudaMemGetInfo(&free_bytes, &all) == cudaSuccess, "no memory info");
    return double(free_bytes) / (1 << 20);
}
template <class F>
void measure(const char* what, const F& call) {
    const double before = free_mb();
    const auto begin = std::chrono::steady_clock::now();
    call();
    check(cudaDeviceSynchronize() == cudaSuccess, what);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    printf("%-32s %9.4f s  %7.1f MB\n", what, took.count(), before - free_mb());
}
// The median of what the host spends in a call, of which few are waiting at a time.
template <class F>
void measure_host(const char* what, const F& call) {
    constexpr int kCalls = 1000, kWaiting = 20;
    std::vector<double> took;
    for (int i = 0; i < kCalls; i++) {
        if (i % kWaiting == 0) check(cudaDeviceSynchronize() == cudaSuccess, what);
        const auto begin = std::chrono::steady_clock::now();
        call();
        took.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    check(cudaDeviceSynchronize() == cudaSuccess, what);
    std::nth_element(took.begin(), took.begin() + kCalls / 2, took.end());
    printf("%-32s %9.2f us of the host\n", what, took[kCalls / 2] * 1e6);
}
void* device_memory(size_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes) == cudaSuccess && cudaMemset(p, 0, bytes) == cudaSuccess, "no memory");
    return p;
}

}  // namespace

int main(int argc, char** argv) {
    const bool asks = argc < 2 || strcmp(argv[1], "calls") != 0;
    constexpr int64_t kRows = 4096, kHeads = 8, kDim = 128;
    constexpr size_t kBytes = kRows * kHeads * kDim * 2;
    measure("the device's context", [] { check(cudaFree(nullptr) == cudaSuccess, "no device"); });
    void* tensor[8];
    for (void*& t : tensor) t = device_memory(kBytes);
    void* const lse = device_memory(kRows * kHeads * 4);
    void* const workspace = device_memory(size_t(1) << 28);

    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA;
    info.memory = FA_MEMORY_DEVICE;
    measure("fa_create", [&] { check(fa_create(&handle, &info) == FA_OK, fa_last_error(nullptr)); });
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    forward.q = tensor[0], forward.k = tensor[1], forward.v = tensor[2], forward.o = tensor[3], forward.lse = static_cast<float*>(lse);
    forward.workspace = workspace, forward.workspace_size = size_t(1) << 28;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    backward.forward = &forward;
    backward.dout = tensor[4], backward.dq = tensor[5], backward.dk = tensor[6], backward.dv = tensor[7];
    backward.workspace = workspace, backward.workspace_size = size_t(1) << 28;
    for (const int64_t rows : {int64_t(1), kRows}) {
        fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
        d.q_dtype = FA_BF16, d.batch = 1, d.heads_q = kHeads, d.seqlen_q = rows, d.seqlen_k = kRows, d.dim_qk = kDim;
        d.operands = FA_OPERAND_LSE;
        char name[64], text[FA_TEXT_MAX];
        const auto both = [&](const char* what, int32_t op, const auto& call) {
            measure("questions", [&] { check(fa_explain(handle, &d, op, text, sizeof text) == FA_OK, fa_last_error(handle)); });
            uint64_t bytes;
            snprintf(name, sizeof name, "fa_workspace_size, %s", what);
            if (asks) measure(name, [&] { check(fa_workspace_size(handle, &d, op, &bytes) == FA_OK, fa_last_error(handle)); });
            for (const char* which : {"first", "second"}) {
                snprintf(name, sizeof name, "%s %s, %lld rows", which, what, (long long)rows);
                measure(name, call);
            }
            snprintf(name, sizeof name, "later %ss, %lld rows", what, (long long)rows);
            measure_host(name, call);
        };
        both("forward", FA_OP_FORWARD, [&] { check(fa_forward_ex(handle, &d, &forward) == FA_OK, fa_last_error(handle)); });
        if (rows == kRows)
            both("backward", FA_OP_BACKWARD, [&] { check(fa_backward(handle, &d, &backward) == FA_OK, fa_last_error(handle)); });
    }
    return fa_destroy(handle) == FA_OK ? 0 : 1;
}
