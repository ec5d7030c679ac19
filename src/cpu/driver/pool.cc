// The library's own thread pool. A caller reserves idle workers, posts its job to each, runs body 0 itself, and takes back what no
// worker has begun. A worker's life is one atomic state word; it spins for a while, then parks on that word.
#include "cpu/driver/pool.h"
#include <atomic>
#include "cpu/driver/parallel.h"
#include "os/clock.h"
#include "os/machine.h"
#include "os/park.h"
#include "os/process.h"
#include "os/thread.h"

namespace fa {
namespace cpu {
namespace {

// Nanoseconds that a thread looks for what it waits for before it sleeps: while the call goes on, whose steps follow each other at
// once, and after it, which is all that the pool takes from other threads. To wake a thread costs 5 to 80 µs. Two cores of a Zen 3,
// decoding of 1024 keys with pauses of 3 ms, where one thread takes 735 µs of processor time: 20 within a call takes 485 µs by the
// clock and 954 of both processors, 100 takes 447 and 927; 5 after it costs as much as 20.
constexpr int64_t kSpinWithin = 100 * 1000, kSpinAfter = 20 * 1000;
// How long the pool makes do with the threads that it has, once the system has refused it one.
constexpr int64_t kRefused = 1000 * 1000 * 1000;
constexpr int64_t kMaxWorkers = os::kMaxCpus - 1;
// Bodies and what they call take less than 32 KB (gcc -fstack-usage), a signal's frame with AVX-512 and tile registers 12 KB; the C
// library puts the program's thread-local variables there too.
constexpr uint64_t kStackBytes = 256 << 10;

struct Worker;

struct PoolJob {
    void (*body)(void*, int64_t);
    void* arg;
    os::CpuSet cpus;               // on which the caller may run
    std::atomic<Worker*> to_wake;  // a list
};

// The caller that moved a worker from kFree to kReserved owns it until it moves it back; all that the worker does is to move it
// from kPosted to kRunning, and then to kDone. So a caller whose worker has not begun takes the job back, and waits for nothing.
enum State : uint32_t { kFree, kReserved, kPosted, kRunning, kAwaited, kDone };

struct alignas(64) Worker {
    std::atomic<uint32_t> state;  // kAwaited: running, and its caller asleep
    std::atomic<bool> asleep;
    PoolJob* job;
    int64_t body;
    std::atomic<Worker*> next;  // of the same call
};

Worker workers[kMaxWorkers];
std::atomic<int64_t> worker_total{0};
std::atomic<int64_t> at_work{0};  // callers, and workers with a job
std::atomic<uint64_t> callers_cpus[os::kMaxCpus / 64];
std::atomic<int> growing{false};  // whose owner has these two
bool watching_forks = false;
int64_t refused_until = 0;

template <class Happened>
bool spin_until(int64_t nanoseconds, const Happened& happened) {
    constexpr int kLooks = 16;  // between two at the clock
    const int64_t end = os::monotonic_ns() + nanoseconds;
    do {
        for (int i = 0; i < kLooks; i++) {
            if (happened()) return true;
            pause_spinning();
        }
    } while (os::monotonic_ns() < end);
    return false;
}

bool begin(Worker& worker, uint32_t* observed) {
    *observed = kPosted;
    return worker.state.compare_exchange_strong(*observed, kRunning, std::memory_order_seq_cst);
}

void await_job(Worker& worker) {
    uint32_t observed;
    if (spin_until(kSpinWithin, [&] { return worker.state.load(std::memory_order_relaxed) != kDone; }) &&
        spin_until(kSpinAfter, [&] { return worker.state.load(std::memory_order_relaxed) == kPosted && begin(worker, &observed); }))
        return;
    // Either the poster sees this flag, or its job is seen here.
    worker.asleep.store(true, std::memory_order_seq_cst);
    while (!begin(worker, &observed)) os::park(worker.state, observed);
    worker.asleep.store(false, std::memory_order_relaxed);
}

// Whoever begins wakes two more: the caller, who has work to do, should not wake a whole machine. It empties the list before it
// takes workers back; one that another call has by then, and this one's list leads to, is woken in vain.
void wake_two(PoolJob& job) {
    for (int woken = 0; woken < 2;) {
        Worker* w = job.to_wake.load(std::memory_order_acquire);
        while (w && !job.to_wake.compare_exchange_weak(w, w->next.load(std::memory_order_relaxed), std::memory_order_acq_rel)) {
        }
        if (!w) return;
        if (!w->asleep.load(std::memory_order_seq_cst)) continue;
        os::unpark(w->state);
        woken++;
    }
}

// Threads start within a call, whose floating-point environment they have from then on.
void* serve(void* arg) {
    Worker& w = *static_cast<Worker*>(arg);
    os::CpuSet cpus{};
    for (;;) {
        await_job(w);
        PoolJob& job = *w.job;
        wake_two(job);
        if (cpus != job.cpus) {  // callers may be bound to parts of the machine
            cpus = job.cpus;
            os::run_thread_on(cpus);
        }
        job.body(job.arg, w.body);
        if (w.state.exchange(kDone, std::memory_order_acq_rel) == kAwaited) os::unpark(w.state);
    }
}

// In a forked child there is no thread but the caller's.
void forget_workers() {
    const int64_t total = worker_total.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < total; i++) {
        workers[i].state.store(kFree, std::memory_order_relaxed);
        workers[i].asleep.store(false, std::memory_order_relaxed);
    }
    worker_total.store(0, std::memory_order_relaxed);
    at_work.store(0, std::memory_order_relaxed);
    growing.store(false, std::memory_order_relaxed);
    refused_until = 0;
}

// Whether there is a worker i, which is started if need be: never more than one for each CPU besides the caller's.
bool have_worker(int64_t i, int64_t cpus) {
    if (i < worker_total.load(std::memory_order_acquire)) return true;
    if (i >= cpus - 1 || i >= kMaxWorkers || growing.exchange(true, std::memory_order_acquire)) return false;
    bool have = i < worker_total.load(std::memory_order_relaxed);
    if (!have && os::monotonic_ns() >= refused_until) {
        watching_forks = watching_forks || os::in_forked_children(forget_workers);
        have = watching_forks && os::start_thread(serve, &workers[i], kStackBytes);
        if (have) worker_total.store(i + 1, std::memory_order_release);
        else refused_until = os::monotonic_ns() + kRefused;
    }
    growing.store(false, std::memory_order_release);
    return have;
}

// How many CPUs callers may run on, this one and those before it.
int64_t cpus_of_callers(os::CpuSet* mine) {
    if (!os::cpus_of_thread(mine)) return os::available_cpus();
    int64_t cpus = 0;
    for (int i = 0; i < os::kMaxCpus / 64; i++) {
        uint64_t known = callers_cpus[i].load(std::memory_order_relaxed);
        if (mine->words[i] & ~known) known = callers_cpus[i].fetch_or(mine->words[i], std::memory_order_relaxed) | mine->words[i];
        cpus += __builtin_popcountll(known);
    }
    return cpus;
}

// Gives the job to up to `wanted` workers that have none. A list of them.
Worker* post(PoolJob& job, int64_t wanted, int64_t cpus) {
    Worker* list = nullptr;
    int64_t posted = 0;
    for (int64_t i = 0; posted < wanted && have_worker(i, cpus); i++) {
        Worker& w = workers[i];
        uint32_t free = kFree;
        if (w.state.load(std::memory_order_relaxed) != kFree) continue;
        if (!w.state.compare_exchange_strong(free, kReserved, std::memory_order_acquire, std::memory_order_relaxed)) continue;
        w.job = &job;
        w.body = ++posted;
        w.next.store(list, std::memory_order_relaxed);
        list = &w;
        w.state.store(kPosted, std::memory_order_seq_cst);
    }
    job.to_wake.store(list, std::memory_order_release);
    wake_two(job);
    at_work.fetch_add(posted, std::memory_order_relaxed);
    return list;
}

void take_back(Worker& worker) {
    uint32_t observed = kPosted;
    if (worker.state.compare_exchange_strong(observed, kFree, std::memory_order_acq_rel)) return;
    if (!spin_until(kSpinWithin, [&] { return worker.state.load(std::memory_order_acquire) == kDone; })) {
        observed = kRunning;
        worker.state.compare_exchange_strong(observed, kAwaited, std::memory_order_acq_rel);
        while (worker.state.load(std::memory_order_acquire) == kAwaited) os::park(worker.state, kAwaited);
    }
    worker.state.store(kFree, std::memory_order_release);
}

}  // namespace

void run_pool(int64_t n, void (*body)(void*, int64_t), void* arg) {
    PoolJob job;
    job.body = body;
    job.arg = arg;
    job.to_wake = nullptr;
    const int64_t cpus = cpus_of_callers(&job.cpus), busy = at_work.fetch_add(1, std::memory_order_relaxed) + 1;
    Worker* const list = post(job, n - 1 < cpus - busy ? n - 1 : cpus - busy, cpus);
    body(arg, 0);
    job.to_wake.store(nullptr, std::memory_order_relaxed);
    int64_t leaving = 1;
    for (Worker* w = list; w; leaving++) {
        Worker* const next = w->next.load(std::memory_order_relaxed);
        take_back(*w);
        w = next;
    }
    at_work.fetch_sub(leaving, std::memory_order_relaxed);
}

}  // namespace cpu
}  // namespace fa
