// Runs a number of workers on one of three thread pools: OpenMP's, the library's own (pool.h), or the caller's. Decides how many
// workers a call is worth.
// The backend sees nothing else of threads.
#pragma once
#include "backend/backend.h"

namespace fa {
namespace cpu {

struct Threads {
    fa_parallel_for_fn parallel_for;  // the caller's pool, or NULL
    void* user;
    int64_t wanted;  // 0: as many as the process may use
    int64_t pool;    // FA_POOL_…
    uint64_t openmp_stack_bytes;
};

// The pool that these threads come from: FA_POOL_OPENMP, _OWN or _CALLER.
int64_t pool_of(const Threads& threads);
const char* pool_name(int64_t pool);

// A byte that is read from memory or a far cache takes as long as so many flops of f32 tiles: 25 GB/s a core beside 100 GFLOP/s.
constexpr double kFlopsOfByte = 4;

// How many workers a call should use with `items` pieces of work that take as long as `flops` of f32 tiles: one when waking others
// takes longer; worker_count(): and when already inside a parallel region, or in a forked child where OpenMP would hang.
int64_t worker_limit(const Threads& threads, int64_t items, double flops);
int64_t worker_count(const Threads& threads, int64_t items, double flops);

// Runs body(arg, 0) … body(arg, workers − 1), each of which takes work until none is left: where the pool is the library's own, one
// that comes too late for that is left out. Fails only where the caller's pool does.
fa_status_t run_workers(const Threads& threads, int64_t workers, void (*body)(void* arg, int64_t worker), void* arg, Message* message);

void pause_spinning();  // cpuid.cc: leaves the core to its other hyperthread for a moment

}  // namespace cpu
}  // namespace fa
