// A process to which the system refuses threads, or stacks for them (OMP_STACKSIZE, set by whoever starts this): calls go on with those
// that there are. An OpenMP runtime on its own ends the process.
//
//     hardening_refused LIMIT     how many threads the system allows in all; 0: as many as usual
#include <flashattn.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include "process.h"

namespace {

constexpr int kSkipped = 77;
constexpr int64_t kHeads = 8, kRows = 200, kDim = 32;

std::vector<float> result_of(int64_t pool, int64_t threads) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    fa_handle_t handle;
    std::vector<float> in(size_t(kHeads * kRows * kDim)), out(in.size());
    for (size_t i = 0; i < in.size(); i++) in[i] = std::sin(float(i));
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.batch = 1;
    d.heads_q = kHeads;
    d.seqlen_q = d.seqlen_k = kRows;
    d.dim_qk = kDim;
    fa_status_t status = fa_create(&handle, &info);
    if (status == FA_OK) status = fa_param_set(handle, FA_PARAM_THREAD_POOL, pool);
    if (status == FA_OK) status = fa_param_set(handle, FA_PARAM_THREADS, threads);
    for (int i = 0; i < 3 && status == FA_OK; i++) status = fa_forward(handle, &d, in.data(), in.data(), in.data(), out.data());
    if (status != FA_OK) {
        printf("pool %d, %d threads: %s\n", int(pool), int(threads), fa_last_error(handle));
        exit(1);
    }
    fa_destroy(handle);
    return out;
}

}  // namespace

int main(int, char** arguments) {
    const rlim_t limit = rlim_t(atoi(arguments[1]));
    if (limit > 0) {
        // The limit is a user's, and does not bind root: be somebody who runs nothing else.
        if (getuid() != 0 || setgid(64123) != 0 || setuid(64123) != 0) return kSkipped;
        const rlimit both = {limit, limit};
        if (setrlimit(RLIMIT_NPROC, &both) != 0) return kSkipped;
    }
    const std::vector<float> expected = result_of(FA_POOL_OWN, 1);
    for (const int64_t pool : {FA_POOL_AUTO, FA_POOL_OPENMP, FA_POOL_OWN})
        for (const int64_t threads : {0, 2, 6, 3, 6}) {
            if (result_of(pool, threads) != expected) return printf("pool %d, %d threads: other bits\n", int(pool), int(threads)), 1;
            if (limit > 0 && hardening::os_threads() > int(limit)) return printf("%d threads\n", hardening::os_threads()), 1;
        }
    return 0;
}
