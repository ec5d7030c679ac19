// Chooses the pool and the number of workers of a call by its work in flops, and runs them.
#include "cpu/driver/parallel.h"
#include <atomic>
#include "backend/thread_state.h"
#include "cpu/driver/openmp.h"
#include "cpu/driver/pool.h"
#include "os/machine.h"
#include "spec/shape.h"

namespace fa {
namespace cpu {
namespace {

// Work for one thread, in flops of f32 tiles, from which a second one pays. Measured on two cores of a Granite Rapids, [1,4,n,64]:
// a team that still spins from the call before costs 1 µs, and pays from 0.3 to 1 MFLOP on; one that fell asleep costs 20 µs, and
// pays from 2.4 to 3 MFLOP on (AMX tiles, of eight times the speed: from 10 to 17 when it spins). At the limit, some 20 µs of work,
// a call gains a fifth where the team spins and loses as much where it sleeps. The same with the library's own pool on two cores of
// a Zen 3, which pays from 1 MFLOP on where it spins and from 4 where it sleeps; a team that sleeps there pays from 13 on.
constexpr double kSmallWork = 2e6;

// The most threads of a call; those of every OpenMP team, unless a call has more workers.
int64_t team_size(const Threads& threads) { return min_of(threads.wanted != 0 ? threads.wanted : openmp_limit(), os::available_cpus()); }

// What other people's threads are given to run.
struct CallerBodies {
    void (*body)(void*, int64_t);
    void* arg;
    alignas(64) std::atomic<int64_t> ran;
};

void run_body(void* arg, int64_t i) {
    CallerBodies& bodies = *static_cast<CallerBodies*>(arg);
    const InLibrary here;
    bodies.body(bodies.arg, i);
    bodies.ran.fetch_add(1, std::memory_order_relaxed);
}

fa_status_t run_callers(const Threads& threads, int64_t n, CallerBodies& bodies, Message* message) {
    const fa_status_t status = threads.parallel_for(threads.user, n, run_body, &bodies);
    if (status != FA_OK) return fail(message, status, "parallel_for returned status %d: the outputs are undefined", int(status));
    const int64_t ran = bodies.ran.load(std::memory_order_relaxed);
    if (ran == n) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT,
                "parallel_for returned FA_OK and ran %lld of %lld bodies: expected all of them; the outputs are undefined", (long long)ran,
                (long long)n);
}

}  // namespace

int64_t pool_of(const Threads& threads) {
    if (threads.pool != FA_POOL_AUTO) return threads.pool;
    return threads.parallel_for ? FA_POOL_CALLER : FA_POOL_OWN;
}

const char* pool_name(int64_t pool) {
    return pool == FA_POOL_OPENMP ? "OpenMP" : pool == FA_POOL_CALLER ? "parallel_for" : "the library's pool";
}

int64_t worker_limit(const Threads& threads, int64_t items, double flops) {
    const int64_t pool = pool_of(threads);
    if (items <= 1 || (threads.wanted == 0 && flops < kSmallWork)) return 1;
    int64_t n = threads.wanted;
    if (n == 0 && pool == FA_POOL_CALLER) n = os::available_cpus();
    else if (n == 0 || pool == FA_POOL_OWN) n = team_size(threads);
    // A team's threads stand ready all or none; of the pool's, each is woken for itself.
    const double worth = flops / (kSmallWork / 2);
    if (threads.wanted == 0 && pool == FA_POOL_OWN && worth < double(n)) n = int64_t(worth);
    return min_of(n, items);
}

int64_t worker_count(const Threads& threads, int64_t items, double flops) {
    const int64_t pool = pool_of(threads);
    if (items <= 1 || (threads.wanted == 0 && flops < kSmallWork)) return 1;
    if (pool == FA_POOL_OPENMP && (!openmp_usable() || inside_openmp_region())) return 1;
    if (pool == FA_POOL_OWN && threads.wanted == 0 && inside_openmp_region()) return 1;
    return worker_limit(threads, items, flops);
}

fa_status_t run_workers(const Threads& threads, int64_t workers, void (*body)(void*, int64_t), void* arg, Message* message) {
    if (workers <= 1) {
        body(arg, 0);
        return FA_OK;
    }
    const int64_t pool = pool_of(threads);
    if (pool == FA_POOL_OWN) {
        run_pool(workers, body, arg);
        return FA_OK;
    }
    CallerBodies bodies;
    bodies.body = body;
    bodies.arg = arg;
    bodies.ran = 0;
    if (pool == FA_POOL_CALLER) return run_callers(threads, workers, bodies, message);
    // Every team has the same size, also where some threads find nothing to do: libgomp ends the threads that a smaller team does
    // not need, and starts others for the next larger one, which takes hundreds of microseconds with 16 of them.
    run_team(max_of(workers, team_size(threads)), threads.openmp_stack_bytes, workers, run_body, &bodies);
    return FA_OK;
}

}  // namespace cpu
}  // namespace fa
