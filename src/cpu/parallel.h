// Threads. The only place that knows OpenMP; everything else sees "run these workers".
#pragma once
#include <flashattn.h>

namespace fa {
namespace cpu {

struct Threads {
    fa_parallel_for_fn parallel_for;  // the caller's pool, or NULL for OpenMP
    void* user;
    int64_t wanted;  // 0: as many as the process may use
};

// How many workers a call with `items` pieces of work totalling `flops` should use: one when the work is smaller than waking a team,
// when already inside a parallel region, or in a forked child (libgomp hangs there once the parent has run a team).
int64_t worker_count(const Threads& threads, int64_t items, double flops);

// Runs body(arg, 0) … body(arg, workers − 1).
void run_workers(const Threads& threads, int64_t workers, void (*body)(void* arg, int64_t worker), void* arg);

// Hardware threads that this process may run on.
int64_t available_threads();

}  // namespace cpu
}  // namespace fa
