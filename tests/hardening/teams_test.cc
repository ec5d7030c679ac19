// How many threads a call takes: none but the caller's for small work, inside a parallel region and on one CPU; else as many as the
// process may use. The bits are the same each time.
#include <omp.h>
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <thread>
#include "workload.h"

namespace hardening {
namespace {

constexpr int64_t kManyRows = 400;  // 20 MFLOP

// As fa_explain tells it on the calling thread.
int64_t threads_of(fa_handle_t handle, const fa_attention_desc_t& desc) {
    char text[4096];
    EXPECT_EQ(fa_explain(handle, &desc, FA_OP_FORWARD, text, sizeof text), FA_OK) << fa_last_error(handle);
    const std::string all = text;
    const size_t end = all.find(" thread"), begin = all.rfind(' ', end - 1);
    EXPECT_NE(end, std::string::npos) << text;
    return end == std::string::npos ? 0 : std::stoll(all.substr(begin + 1, end - begin));
}

int64_t cpus() {
    cpu_set_t set;
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

// What the calling thread may use.
int64_t usable_threads() { return std::min<int64_t>(cpus(), omp_get_max_threads()); }

struct Called {
    int64_t threads;  // of the same call for many sequences, which no machine has too many threads for
    bool right;
};

// A large call on a new handle.
Called call(int64_t wanted = 0, int64_t pool = FA_POOL_AUTO) {
    const fa_handle_t handle = make_handle();
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREAD_POOL, pool), FA_OK);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, wanted), FA_OK);
    Workload w(Op::forward, kManyRows);
    fa_attention_desc_t many = w.desc;
    many.batch = 1024;
    const int64_t threads = threads_of(handle, many);
    const bool right = w.run(handle) == FA_OK && w.result() == reference(Op::forward, kManyRows);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    return {threads, right};
}

TEST(Teams, LargeWorkTakesAllThatMayBeUsed) {
    const Called alone = call();
    EXPECT_EQ(alone.threads, usable_threads());
    EXPECT_TRUE(alone.right);
    const Called three = call(3);
    EXPECT_EQ(three.threads, std::min(cpus(), int64_t(3))) << "of the library's own there are no more than CPUs";
    EXPECT_TRUE(three.right);
    const Called team = call(3, FA_POOL_OPENMP);
    EXPECT_EQ(team.threads, 3) << "what is asked of OpenMP is not second-guessed";
    EXPECT_TRUE(team.right);
}

TEST(Teams, SmallWorkTakesNone) {
    const fa_handle_t handle = make_handle();
    Workload small(Op::forward, 50);
    EXPECT_EQ(threads_of(handle, small.desc), 1);
    EXPECT_EQ(small.run(handle), FA_OK);
    EXPECT_EQ(small.result(), reference(Op::forward, 50));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

// Its multiply-adds are few, but it reads 4 MB a sequence.
TEST(Teams, ReadingIsWorkToo) {
    const fa_handle_t handle = make_handle();
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16;
    d.batch = 1024;
    d.heads_q = 8;
    d.seqlen_q = 1;
    d.seqlen_k = 1024;
    d.dim_qk = 128;
    EXPECT_EQ(threads_of(handle, d), usable_threads());
    d.batch = 1;
    d.seqlen_k = 32;
    EXPECT_EQ(threads_of(handle, d), 1);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(Teams, InsideARegionEachCallStaysOnItsThread) {
    std::atomic<int> right{0};
#pragma omp parallel num_threads(2)
    {
        const Called inside = call();
        EXPECT_EQ(inside.threads, omp_get_num_threads() == 2 ? 1 : usable_threads());
        if (inside.right) right++;
        const Called team = call(0, FA_POOL_OPENMP);
        EXPECT_EQ(team.threads, inside.threads);
        if (!team.right) right -= 2;
    }
    EXPECT_GE(right, 1);
}

// The runtime gives a nested team fewer threads than were asked for; every share of the work is done all the same.
TEST(Teams, InsideARegionThreadsThatAreAskedForDoNotMatter) {
    std::atomic<int> calls{0}, right{0};
#pragma omp parallel num_threads(2)
    {
        calls++;
        if (call(5).right && call(5, FA_POOL_OPENMP).right) right++;
    }
    EXPECT_EQ(right, calls);
}

TEST(Teams, AffinityIsKept) {
    std::thread([] {
        cpu_set_t all, one;
        ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
        int last = 0;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &all)) last = cpu;
        CPU_ZERO(&one);
        CPU_SET(last, &one);
        ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        const Called narrow = call();
        EXPECT_EQ(narrow.threads, 1);
        EXPECT_TRUE(narrow.right);
        EXPECT_TRUE(call(2).right);
        ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
        EXPECT_EQ(call().threads, usable_threads());
    }).join();
}

TEST(Teams, OpenMPsMaximumIsKept) {
    std::thread([] {  // it belongs to the thread
        omp_set_num_threads(1);
        const Called narrow = call();
        EXPECT_EQ(narrow.threads, 1);
        EXPECT_TRUE(narrow.right);
    })
        .join();
}

// A caller's pool that runs everything at once.
struct Pool {
    std::atomic<int> calls{0};
    std::atomic<int64_t> bodies{0};

    static fa_status_t run(void* user, int64_t n, void (*body)(void*, int64_t), void* arg) {
        Pool& pool = *static_cast<Pool*>(user);
        pool.calls++;
        pool.bodies += n;
        std::vector<std::thread> threads;
        for (int64_t i = 0; i < n; i++) threads.emplace_back(body, arg, i);
        for (std::thread& t : threads) t.join();
        return FA_OK;
    }
};

TEST(Teams, CallersPoolIsAskedForLargeWorkAlone) {
    Pool pool;
    const fa_handle_t handle = make_handle([&](fa_create_info_t& info) {
        info.parallel_for = Pool::run;
        info.parallel_user = &pool;
    });
    Workload small(Op::forward, 50), large(Op::forward, kManyRows);
    EXPECT_EQ(small.run(handle), FA_OK);
    EXPECT_EQ(pool.calls, 0);
    EXPECT_EQ(large.run(handle), FA_OK);
    EXPECT_EQ(large.result(), reference(Op::forward, kManyRows));
    EXPECT_EQ(pool.calls > 0, cpus() > 1) << "its size is its own, whatever OpenMP's is: only the process's CPUs bound it";
    EXPECT_GE(pool.bodies, 2 * pool.calls);
    EXPECT_LE(pool.bodies, cpus() * pool.calls);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

}  // namespace
}  // namespace hardening
