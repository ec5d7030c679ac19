// The library's own pool on a machine with more CPUs than this one may have, and a system that refuses threads: both are made up here, by
// functions that the linker puts in the place of the system's.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include "process.h"
#include "workload.h"

namespace {

// Which CPUs the system says that the calling thread may run on: these, so many.
thread_local int first_cpu = 0, cpus = 8;
std::atomic<int> most_threads{1000}, refusals{0};  // that may be started from now on; that were not
std::mutex bound_mutex;
std::multiset<int> bound;  // first CPU of each set that a thread was bound to

// What a program's thread-local variables may take of a thread's stack.
thread_local volatile char much[400 << 10];

}  // namespace

extern "C" {
int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

int __wrap_sched_getaffinity(pid_t, size_t, cpu_set_t* set) {
    CPU_ZERO(set);
    for (int i = 0; i < cpus; i++) CPU_SET(first_cpu + i, set);
    return 0;
}

int __wrap_sched_setaffinity(pid_t, size_t, const cpu_set_t* set) {
    int first = 0;
    while (!CPU_ISSET(first, set)) first++;
    const std::lock_guard<std::mutex> lock(bound_mutex);
    bound.insert(first);
    return 0;
}

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* arg) {
    if (most_threads == 0) {
        refusals++;
        return EAGAIN;
    }
    const int error = __real_pthread_create(thread, attributes, body, arg);
    if (error == 0) most_threads--;
    return error;
}
}

namespace hardening {
namespace {

constexpr int64_t kRows = 800;

// One call, which gives the same bits as ever.
void expect_right() {
    static const std::vector<float> expected = reference(Op::forward, kRows);
    const fa_handle_t handle = make_handle();
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, FA_POOL_OWN), FA_OK);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 100), FA_OK);  // OpenMP's maximum is this machine's
    Workload w(Op::forward, kRows);
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_TRUE(w.result() == expected);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

// Runs the body in a process that has no thread yet but its first.
template <class Body>
void on_a_new_machine(const Body& body) {
    EXPECT_EQ(exit_of_child([&] {
                  body();
                  return int(::testing::Test::HasFailure());
              }),
              0);
}

TEST(Machine, HasOneThreadForEachCpu) {
    on_a_new_machine([] {
        much[0] = 1;
        for (int i = 0; i < 3; i++) expect_right();
        EXPECT_EQ(pool_threads(), 7);
        cpus = 16;
        expect_right();
        EXPECT_EQ(pool_threads(), 15);
        cpus = 4;
        expect_right();
        EXPECT_EQ(pool_threads(), 15) << "they stay, asleep";
    });
}

TEST(Machine, ManyCallersHaveNoMore) {
    on_a_new_machine([] {
        std::vector<std::thread> callers;
        for (int i = 0; i < 12; i++)
            callers.emplace_back([] {
                for (int round = 0; round < 20; round++) expect_right();
            });
        for (std::thread& t : callers) t.join();
        EXPECT_LE(pool_threads(), 7);
    });
}

TEST(Machine, RefusedThreadsAreDoneWithout) {
    on_a_new_machine([] {
        most_threads = 0;
        const auto begin = std::chrono::steady_clock::now();
        expect_right();
        EXPECT_EQ(pool_threads(), 0);
        EXPECT_EQ(refusals, 1) << "what one call was refused, it does not ask for again";
        expect_right();
        const bool at_once = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(900);
        EXPECT_TRUE(refusals == 1 || !at_once) << "nor does the next, at once";
    });
}

TEST(Machine, AFewThreadsAreBetterThanNone) {
    on_a_new_machine([] {
        most_threads = 3;
        for (int i = 0; i < 3; i++) expect_right();
        EXPECT_EQ(pool_threads(), 3);
    });
}

TEST(Machine, ThreadsRunWhereTheirCallerMay) {
    on_a_new_machine([] {
        for (const int first : {0, 4, 0}) {
            std::multiset<int> seen;
            for (int i = 0; i < 200 && seen.empty(); i++) {  // a call waits for no thread, so that one alone may have none
                std::thread([first] {
                    first_cpu = first;
                    cpus = 4;
                    expect_right();
                }).join();
                const std::lock_guard<std::mutex> lock(bound_mutex);
                seen.swap(bound);
            }
            EXPECT_GE(seen.size(), 1u) << "no thread had a job that began on CPU " << first;
            EXPECT_EQ(seen.count(first), seen.size());
        }
    });
}

}  // namespace
}  // namespace hardening
