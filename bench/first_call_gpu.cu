// What a process pays before its first result on a GPU: fa_create, the first calls, which load kernels, or compile them where there is no
// machine code for the device, and the device memory that code takes. In bf16, one query row over 4096 keys, 4096 rows, and their
// gradients.
//   fa_bench_first_call
#include <cuda_runtime.h>
#include <flashattn.h>
#include <stdio.h>
#include <stdlib.h>
#include <chrono>
#include <initializer_list>

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
void measure(const char* what, const F& f) {
    const double before = free_mb();
    const auto begin = std::chrono::steady_clock::now();
    f();
    check(cudaDeviceSynchronize() == cudaSuccess, what);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    printf("%-32s %9.4f s  %7.1f MB\n", what, took.count(), before - free_mb());
}
void* device_memory(size_t bytes) {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes) == cudaSuccess && cudaMemset(p, 0, bytes) == cudaSuccess, "no memory");
    return p;
}

}  // namespace

int main() {
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
        measure("questions", [&] { check(fa_explain(handle, &d, FA_OP_FORWARD, text, sizeof text) == FA_OK, fa_last_error(handle)); });
        for (const char* which : {"first", "second"}) {
            snprintf(name, sizeof name, "%s forward, %lld rows", which, (long long)rows);
            measure(name, [&] { check(fa_forward_ex(handle, &d, &forward) == FA_OK, fa_last_error(handle)); });
        }
        if (rows < kRows) continue;
        for (const char* which : {"first", "second"}) {
            snprintf(name, sizeof name, "%s backward, %lld rows", which, (long long)rows);
            measure(name, [&] { check(fa_backward(handle, &d, &backward) == FA_OK, fa_last_error(handle)); });
        }
    }
    return fa_destroy(handle) == FA_OK ? 0 : 1;
}
