// Pools of threads: each gives the same bits, and the library's own is one for the process.
#include <fenv.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include "process.h"
#include "workload.h"

namespace hardening {
namespace {

constexpr int64_t kPoolRows = 400;  // worth several threads

int usable_cpus() {
    cpu_set_t set;
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

fa_status_t in_turn(void*, int64_t n, void (*body)(void*, int64_t), void* arg) {
    for (int64_t i = 0; i < n; i++) body(arg, i);
    return FA_OK;
}

fa_handle_t handle_of_pool(int64_t pool) {
    const fa_handle_t handle = make_handle([](fa_create_info_t& info) { info.parallel_for = in_turn; });
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, pool), FA_OK) << fa_last_error(handle);
    return handle;
}

std::string explained(fa_handle_t handle) {
    const Workload w(Op::forward, kPoolRows);
    char text[4096];
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 2), FA_OK);
    EXPECT_EQ(fa_explain(handle, &w.desc, FA_OP_FORWARD, text, sizeof text), FA_OK);
    return text;
}

TEST(Pools, AreChosenByParameter) {
    const fa_handle_t with = handle_of_pool(FA_POOL_AUTO), without = make_handle();
    EXPECT_TRUE(holds(explained(with), "2 threads of parallel_for"));
    const std::string own = usable_cpus() > 1 ? "2 threads of the library's pool" : "1 thread";
    EXPECT_TRUE(holds(explained(without), own));
    for (const fa_handle_t handle : {with, without}) {
        EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, FA_POOL_OPENMP), FA_OK);
        EXPECT_TRUE(holds(explained(handle), "2 threads of OpenMP"));
        EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, FA_POOL_OWN), FA_OK);
        EXPECT_TRUE(holds(explained(handle), own));
    }
    EXPECT_EQ(fa_param_set(with, FA_PARAM_THREAD_POOL, FA_POOL_CALLER), FA_OK);
    EXPECT_EQ(fa_param_set(without, FA_PARAM_THREAD_POOL, FA_POOL_CALLER), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(without), "thread_pool is 3, the caller's: expected a parallel_for, given to fa_create"));
    int64_t pool = 0;
    EXPECT_EQ(fa_param_get(without, FA_PARAM_THREAD_POOL, &pool), FA_OK);
    EXPECT_EQ(pool, FA_POOL_OWN) << "a refused value changes nothing";
    EXPECT_EQ(fa_destroy(with), FA_OK);
    EXPECT_EQ(fa_destroy(without), FA_OK);
}

TEST(Pools, GiveTheSameBits) {
    for (const Op op : kEveryOp) {
        const std::vector<float> expected = reference(op, kPoolRows);
        for (const int64_t pool : {FA_POOL_AUTO, FA_POOL_OPENMP, FA_POOL_OWN, FA_POOL_CALLER}) {
            const fa_handle_t handle = handle_of_pool(pool);
            for (const int64_t threads : {0, 2, 5}) {
                EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, threads), FA_OK);
                Workload w(op, kPoolRows);
                EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
                EXPECT_EQ(w.result(), expected) << name_of(op) << ", pool " << pool << ", " << threads << " threads";
            }
            EXPECT_EQ(fa_destroy(handle), FA_OK);
        }
    }
}

// Neither the caller's rounding counts, nor that of whoever started a pool's threads.
TEST(Pools, RoundToNearest) {
    for (const int64_t pool : {FA_POOL_OPENMP, FA_POOL_OWN, FA_POOL_CALLER}) {
        const fa_handle_t handle = handle_of_pool(pool);
        EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 2), FA_OK);
        const std::vector<float> expected = reference(Op::forward, kPoolRows);
        Workload w(Op::forward, kPoolRows);
        ASSERT_EQ(fesetround(FE_UPWARD), 0);
        for (int i = 0; i < 50; i++) {
            EXPECT_EQ(w.run(handle), FA_OK);
            EXPECT_TRUE(w.result() == expected) << "pool " << pool;
            EXPECT_EQ(fegetround(), FE_UPWARD);
        }
        ASSERT_EQ(fesetround(FE_TONEAREST), 0);
        EXPECT_EQ(fa_destroy(handle), FA_OK);
    }
}

// A program's team has its own rounding, too, on each of its threads.
TEST(Pools, TeamsKeepTheirRounding) {
    const fa_handle_t handle = handle_of_pool(FA_POOL_OPENMP);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 2), FA_OK);
    Workload w(Op::forward, kPoolRows);
    EXPECT_EQ(w.run(handle), FA_OK);
    int kept = 0;
#pragma omp parallel num_threads(2)
    fesetround(FE_DOWNWARD);
    EXPECT_EQ(w.run(handle), FA_OK);
#pragma omp parallel num_threads(2) reduction(+ : kept)
    {
        kept += fegetround() == FE_DOWNWARD;
        fesetround(FE_TONEAREST);
    }
    EXPECT_EQ(kept, 2);
    EXPECT_EQ(w.result(), reference(Op::forward, kPoolRows));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Pools, OwnIsOneForAllHandles) {
    constexpr int kCallers = 32;
    const int threads = exit_of_child([] {
        std::mutex mutex;
        std::condition_variable all_have_run, counted;
        int ran = 0;
        bool done = false;
        std::vector<std::thread> callers;
        for (int i = 0; i < kCallers; i++)
            callers.emplace_back([&] {
                const fa_handle_t handle = handle_of_pool(FA_POOL_OWN);
                Workload w(Op::forward, kPoolRows);
                for (int round = 0; round < 5; round++) w.run(handle);
                std::unique_lock<std::mutex> lock(mutex);
                if (++ran == kCallers) all_have_run.notify_one();
                counted.wait(lock, [&] { return done; });
                fa_destroy(handle);
            });
        std::unique_lock<std::mutex> lock(mutex);
        all_have_run.wait(lock, [&] { return ran == kCallers; });
        const int found = pool_threads();
        done = true;
        lock.unlock();
        counted.notify_all();
        for (std::thread& t : callers) t.join();
        return found;
    });
    EXPECT_GE(threads, 0);
    EXPECT_LE(threads, usable_cpus() - 1);
}

// Between calls the process costs no CPU: a thread that waited by spinning would have a core, or its share of one.
TEST(Pools, F91_threads_sleep_between_calls) {
    const auto cpu_ms = [] {
        timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return double(t.tv_sec) * 1e3 + double(t.tv_nsec) / 1e6;
    };
    const fa_handle_t handle = make_handle();
    Workload w(Op::forward, kPoolRows);
    double spent = 0;
    for (int i = 0; i < 10; i++) {
        EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
        const double before = cpu_ms();
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        spent += cpu_ms() - before;
    }
    EXPECT_LT(spent, 40) << "in 400 ms of pauses";
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Pools, OwnIsThereAgainInAChild) {
    const fa_handle_t handle = handle_of_pool(FA_POOL_OWN);
    Workload w(Op::forward, kPoolRows);
    const std::vector<float> expected = reference(Op::forward, kPoolRows);
    EXPECT_EQ(w.run(handle), FA_OK);
    EXPECT_EQ(exit_of_child([&] {
                  const fa_handle_t mine = handle_of_pool(FA_POOL_OWN);
                  fa_param_set(mine, FA_PARAM_THREADS, 2);
                  const bool right = w.run(mine) == FA_OK && w.result() == expected && fa_destroy(mine) == FA_OK;
                  return right ? pool_threads() : 100;
              }),
              usable_cpus() > 1 ? 1 : 0);
    EXPECT_EQ(w.run(handle), FA_OK) << "the parent's pool is no worse for it";
    EXPECT_EQ(w.result(), expected);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Pools, OpenMPInAChildIsTheCallerAlone) {
    const fa_handle_t handle = handle_of_pool(FA_POOL_OPENMP);
    Workload w(Op::forward, kPoolRows);
    const std::vector<float> expected = reference(Op::forward, kPoolRows);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 2), FA_OK);
    EXPECT_EQ(w.run(handle), FA_OK);
    EXPECT_EQ(exit_of_child([&] {
                  const fa_handle_t mine = handle_of_pool(FA_POOL_OPENMP);
                  const bool alone = explained(mine).find("1 thread;") != std::string::npos;
                  return int(!alone || w.run(mine) != FA_OK || w.result() != expected || fa_destroy(mine) != FA_OK);
              }),
              0);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

// Forks at any moment of other threads' calls.
TEST(Pools, ForkWhileOthersAreAtWork) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    GTEST_SKIP() << "a child hangs when another thread was inside this sanitizer's allocator";
#endif
#endif
    const std::vector<float> expected = reference(Op::forward, kPoolRows);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0}, started{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; i++)
        callers.emplace_back([&] {
            const fa_handle_t handle = handle_of_pool(FA_POOL_OWN);
            Workload w(Op::forward, kPoolRows);
            for (bool first = true; !stop; first = false) {
                if (w.run(handle) != FA_OK || w.result() != expected) wrong++;
                if (first) started++;
            }
            fa_destroy(handle);
        });
#ifdef __SANITIZE_ADDRESS__
    while (started < 2)
        std::this_thread::yield();  // this sanitizer's allocator keeps its locks over fork(), too: no call after the first allocates
#endif
    Workload mine(Op::forward, kPoolRows);
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(exit_of_child([&] {
                      const fa_handle_t handle = handle_of_pool(FA_POOL_OWN);
                      for (int round = 0; round < 3; round++)
                          if (mine.run(handle) != FA_OK || mine.result() != expected) return 1;
                      return 0;
                  }),
                  0);
    stop = true;
    for (std::thread& t : callers) t.join();
    EXPECT_EQ(wrong, 0);
}

TEST(Pools, OwnThreadsTakeNoSignals) {
    const int taken_elsewhere = exit_of_child([] {
        static std::atomic<int> elsewhere{0};
        static const pid_t main_thread = gettid();
        const fa_handle_t handle = handle_of_pool(FA_POOL_OWN);
        Workload w(Op::forward, kPoolRows);
        w.run(handle);
        signal(SIGUSR1, [](int) {
            if (gettid() != main_thread) elsewhere++;
        });
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        for (int i = 0; i < 20; i++) {  // blocked here, so that any other thread that may would take it
            sigprocmask(SIG_BLOCK, &set, nullptr);
            kill(getpid(), SIGUSR1);
            w.run(handle);
            sigprocmask(SIG_UNBLOCK, &set, nullptr);
        }
        return elsewhere.load();
    });
    EXPECT_EQ(taken_elsewhere, 0);
}

}  // namespace
}  // namespace hardening
