// OpenMP's threads as a pool, without the ways in which its runtimes end the process or hang: threads that the system refuses, and
// teams in a child of fork(). A build without OpenMP has the stubs at the end.
#include "cpu/driver/openmp.h"
#ifdef _OPENMP
#include <omp.h>
#include <atomic>
#include "os/clock.h"
#include "os/process.h"
#include "os/thread.h"

namespace fa {
namespace cpu {
namespace {

// The process that first asked the runtime anything, 0 before. Its children must not: GNU's hangs there in a team after a team of
// the parent's, LLVM's at any question when a thread of the parent was about to ask its first one.
std::atomic<int> owner{0};
std::atomic<int64_t> last_limit{INT64_MAX};

// How long a thread makes do with the team that it has, once the system has refused it one.
constexpr int64_t kRefused = 1000 * 1000 * 1000;

// The calling thread's team: the runtime keeps its threads for the next region, if that has as many.
struct Team {
    int64_t size;
    int64_t last;  // its thread of the highest number, which is the first to go when another region is smaller
    int64_t refused_until;
};
thread_local Team team{1, 0, 0};

// The runtimes end the process where they are refused a thread. So threads of our own try first, and those of a team start while no
// other team of this library does.
void start_team(int64_t size, uint64_t stack_bytes) {
    const os::OneAtATime starting;
    Team& mine = team;
    mine.size = 1 + os::granted_threads(size - 1, stack_bytes);
    mine.refused_until = mine.size < size ? os::monotonic_ns() + kRefused : 0;
    const int threads = int(mine.size);
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() == omp_get_num_threads() - 1) mine.last = os::this_thread();
}

// The calling thread's team, of `size` threads if they can be had. A program whose own regions are smaller has ended some since the
// last call.
const Team& team_of(int64_t size, uint64_t stack_bytes) {
    const bool refused = size > team.size && team.refused_until != 0 && os::monotonic_ns() < team.refused_until;
    if ((size != team.size && !refused) || (team.size > 1 && !os::alive(team.last))) start_team(size, stack_bytes);
    return team;
}

}  // namespace

bool built_with_openmp() { return true; }

bool openmp_usable() {
    const int self = os::process_id();
    int asked = owner.load(std::memory_order_relaxed);
    return asked == self || (asked == 0 && (owner.compare_exchange_strong(asked, self, std::memory_order_relaxed) || asked == self));
}

int64_t openmp_limit() {
    if (!openmp_usable()) return last_limit.load(std::memory_order_relaxed);
    const int64_t limit = omp_get_max_threads();
    last_limit.store(limit, std::memory_order_relaxed);
    return limit;
}

bool inside_openmp_region() { return openmp_usable() && omp_in_parallel(); }

void run_team(int64_t size, uint64_t stack_bytes, int64_t n, void (*body)(void*, int64_t), void* arg) {
    const int threads = int(team_of(size, stack_bytes).size);
    if (threads == 1) {
        for (int64_t i = 0; i < n; i++) body(arg, i);
        return;
    }
    // The runtime may give fewer threads than asked for; the loop then hands several bodies to one.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t i = 0; i < n; i++) body(arg, i);
}

}  // namespace cpu
}  // namespace fa

#else

namespace fa {
namespace cpu {

bool built_with_openmp() { return false; }
int64_t openmp_limit() { return INT64_MAX; }
bool inside_openmp_region() { return false; }
bool openmp_usable() { return false; }
void run_team(int64_t, uint64_t, int64_t n, void (*body)(void*, int64_t), void* arg) {
    for (int64_t i = 0; i < n; i++) body(arg, i);
}

}  // namespace cpu
}  // namespace fa

#endif
