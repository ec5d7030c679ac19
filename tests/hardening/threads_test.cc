// Threads: one handle serves one call at a time, different handles do not disturb each other, and a caller's pool is used.
//
// A second call is made while the first is inside, with no sleeping and no luck: from a callback of the first.
#include <atomic>
#include <functional>
#include <thread>
#include "workload.h"

namespace hardening {
namespace {

using Callback = std::function<void()>;

void on_line(void* user, int32_t, const char*) { (*static_cast<Callback*>(user))(); }

fa_handle_t handle_that_calls(Callback& callback, int32_t level) {
    return make_handle([&](fa_create_info_t& info) {
        info.log = on_line;
        info.log_user = &callback;
        info.log_level = level;
    });
}

void expect_turned_away(fa_handle_t handle) {
    Workload w(Op::forward);
    int64_t backend = 0;
    EXPECT_EQ(w.run(handle), FA_INVALID_STATE);
    EXPECT_TRUE(holds(fa_last_error(handle), "another call on this handle has not returned"));
    EXPECT_EQ(w.result(), std::vector<float>(w.result().size(), -1.f));
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_INVALID_STATE);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 1), FA_INVALID_STATE);
    EXPECT_EQ(fa_explain(handle, nullptr, 0, nullptr, 0), FA_INVALID_STATE);
}

TEST(OneHandle, SecondThreadIsTurnedAway) {
    fa_handle_t handle = nullptr;
    int inside = 0;
    Callback from_another_thread = [&] {
        if (handle == nullptr) return;  // still in fa_create
        inside++;
        std::thread([&] { expect_turned_away(handle); }).join();
    };
    handle = handle_that_calls(from_another_thread, FA_LOG_DEBUG);
    Workload w(Op::forward);
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(inside, 1);
    EXPECT_STREQ(fa_last_error(handle), "");
    EXPECT_EQ(w.result(), reference(Op::forward));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(OneHandle, FirstCallKeepsItsMessage) {
    fa_handle_t handle = nullptr;
    int inside = 0;
    Callback from_another_thread = [&] {
        inside++;
        std::thread([&] { expect_turned_away(handle); }).join();
    };
    handle = handle_that_calls(from_another_thread, FA_LOG_ERROR);
    EXPECT_EQ(fa_param_set(handle, 4711, 0), FA_INVALID_ARGUMENT);
    EXPECT_EQ(inside, 1);
    EXPECT_TRUE(holds(fa_last_error(handle), "key is 4711"));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST(OneHandle, CallbackMayNotCallBack) {
    fa_handle_t handle = nullptr;
    int inside = 0;
    Callback same_thread = [&] {
        if (handle == nullptr) return;
        inside++;
        expect_turned_away(handle);
    };
    handle = handle_that_calls(same_thread, FA_LOG_DEBUG);
    Workload w(Op::forward);
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(inside, 1);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

// A caller's pool: backwards, each body on a thread of its own.
struct ReenteringPool {
    fa_handle_t handle = nullptr;
    std::atomic<int> calls{0}, bodies{0};

    static fa_status_t run(void* user, int64_t n, void (*body)(void*, int64_t), void* arg) {
        ReenteringPool& pool = *static_cast<ReenteringPool*>(user);
        pool.calls++;
        for (int64_t i = n - 1; i >= 0; i--) {
            std::thread([&] {
                expect_turned_away(pool.handle);
                body(arg, i);
                pool.bodies++;
            }).join();
        }
        return FA_OK;
    }
};

TEST(ParallelFor, CallersPoolDoesTheWork) {
    ReenteringPool pool;
    pool.handle = make_handle([&](fa_create_info_t& info) {
        info.parallel_for = ReenteringPool::run;
        info.parallel_user = &pool;
    });
    for (const int threads : {2, 3}) {
        ASSERT_EQ(fa_param_set(pool.handle, FA_PARAM_THREADS, threads), FA_OK);
        pool.calls = pool.bodies = 0;
        Workload w(Op::forward, 200);
        EXPECT_EQ(w.run(pool.handle), FA_OK) << fa_last_error(pool.handle);
        EXPECT_GE(pool.calls, 1);
        EXPECT_GE(pool.bodies, 2);
        EXPECT_EQ(w.result(), reference(Op::forward, 200));
    }
    EXPECT_EQ(fa_destroy(pool.handle), FA_OK);
}

TEST(ManyHandles, EightThreadsGiveEqualBits) {
    constexpr int kThreads = 8, kRounds = 5;
    constexpr int64_t kRows = 400;  // enough work for a team of OpenMP threads in each
    std::vector<std::vector<float>> expected;
    for (const Op op : kEveryOp) expected.push_back(reference(op, kRows));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < kThreads; t++) {
        threads.emplace_back([&] {
            const fa_handle_t handle = make_handle();
            for (int round = 0; round < kRounds; round++) {
                for (const Op op : kEveryOp) {
                    Workload w(op, kRows);
                    if (w.run(handle) != FA_OK || w.result() != expected[static_cast<size_t>(op)]) wrong++;
                }
            }
            if (fa_destroy(handle) != FA_OK) wrong++;
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
}

TEST(ManyHandles, EachThreadHasItsOwnMessage) {
    EXPECT_EQ(fa_alibi_slopes(-1, 0, nullptr), FA_INVALID_ARGUMENT);
    std::thread([] {
        EXPECT_STREQ(fa_last_error(nullptr), "");
        EXPECT_EQ(fa_create(nullptr, nullptr), FA_INVALID_ARGUMENT);
        EXPECT_TRUE(holds(fa_last_error(nullptr), "handle is NULL"));
    }).join();
    EXPECT_TRUE(holds(fa_last_error(nullptr), "heads is -1"));
}

}  // namespace
}  // namespace hardening
