#include "parallel.h"
#include <omp.h>
#include <sched.h>
#include <unistd.h>
#include <atomic>

namespace fa {
namespace cpu {
namespace {

// Work for one thread, in flops of f32 tiles, from which a second one pays. Measured on two cores of a Granite Rapids, [1,4,n,64]: a team
// that still spins from the call before costs 1 µs, and pays from 0.3 to 1 MFLOP on; one that fell asleep costs 20 µs, and pays from 2.4
// to 3 MFLOP on (AMX tiles, of eight times the speed: from 10 to 17 when it spins). At the limit, some 20 µs of work, a call gains a fifth
// where the team spins and loses as much where it sleeps.
constexpr double kSmallWork = 2e6;

// Process that ran the first OpenMP team of this library, 0 before.
std::atomic<int> team_owner{0};

}  // namespace

int64_t available_threads() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

// Threads of every team, unless a call has more workers.
static int64_t team_size(const Threads& threads) {
    const int64_t most = threads.wanted != 0 ? threads.wanted : omp_get_max_threads(), allowed = available_threads();
    return most < allowed ? most : allowed;
}

int64_t worker_count(const Threads& threads, int64_t items, double flops) {
    if (items <= 1) return 1;
    int64_t n = threads.wanted;
    if (!threads.parallel_for) {
        const int owner = team_owner.load(std::memory_order_relaxed);
        if (owner != 0 && owner != getpid()) return 1;
        if (n == 0) {
            if (flops < kSmallWork || omp_in_parallel()) return 1;
            n = team_size(threads);
        }
    } else if (n == 0) {
        n = flops < kSmallWork ? 1 : available_threads();
    }
    return n < items ? n : items;
}

void run_workers(const Threads& threads, int64_t workers, void (*body)(void*, int64_t), void* arg) {
    if (workers <= 1) return body(arg, 0);
    if (threads.parallel_for) {
        threads.parallel_for(threads.user, workers, body, arg);
        return;
    }
    team_owner.store(getpid(), std::memory_order_relaxed);
    // Every team has the same size, also where some threads find nothing to do: libgomp ends the threads that a smaller team does not need,
    // and starts others for the next larger one, which takes hundreds of microseconds with 16 of them.
    const int64_t all = team_size(threads), team = workers < all ? all : workers;
    // The runtime may give fewer threads than asked for; the loop then hands several workers to one.
#pragma omp parallel for num_threads(static_cast<int>(team)) schedule(static, 1)
    for (int64_t i = 0; i < workers; i++) body(arg, i);
}

}  // namespace cpu
}  // namespace fa
