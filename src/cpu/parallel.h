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

// A byte that is read from memory or a far cache takes as long as so many flops of f32 tiles: 25 GB/s a core beside 100 GFLOP/s.
constexpr double kFlopsOfByte = 4;

// How many workers a call should use with `items` pieces of work that take as long as `flops` of f32 tiles: one when waking a team takes
// longer, when already inside a parallel region, or in a forked child (libgomp hangs there once the parent has run a team).
int64_t worker_count(const Threads& threads, int64_t items, double flops);

// Runs body(arg, 0) … body(arg, workers − 1).
void run_workers(const Threads& threads, int64_t workers, void (*body)(void* arg, int64_t worker), void* arg);

// Hardware threads that this process may run on.
int64_t available_threads();

}  // namespace cpu
}  // namespace fa
