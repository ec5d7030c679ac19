// The emulator finds what a GPU may let pass: kernels without a needed barrier, waves whose lanes part ways, accesses beyond shared memory.
// Each test runs with waves of 32 and 64 lanes, the threads taken forwards and backwards.
#include <gtest/gtest.h>
#include <algorithm>
#include <vector>
#include "emu/mma_emu.h"

namespace fa {
namespace {

constexpr int kThreads = 128;

struct Params {
    float* out;
};

int* shared_words() { return reinterpret_cast<int*>(rt::shared_memory()); }

template <class Kernel>
std::vector<float> run(Kernel kernel, uint64_t shared = kThreads * 4) {
    std::vector<float> out(kThreads, -1.f);
    EXPECT_EQ(rt::launch<Params>(kernel, 1, kThreads, shared, nullptr, Params{out.data()}), rt::kSuccess);
    return out;
}

void reverse(Params x) {
    shared_words()[rt::thread()] = rt::thread();
    rt::barrier();
    x.out[rt::thread()] = float(shared_words()[kThreads - 1 - rt::thread()]);
}
void reverse_without_barrier(Params x) {
    shared_words()[rt::thread()] = rt::thread();
    x.out[rt::thread()] = float(shared_words()[kThreads - 1 - rt::thread()]);
}

TEST(Lockstep, BarrierHoldsAllBack) {
    const std::vector<float> out = run(reverse);
    for (int i = 0; i < kThreads; i++) EXPECT_EQ(out[size_t(i)], float(kThreads - 1 - i));
}

// The half that runs first reads what nobody has written yet.
TEST(Lockstep, MissingBarrierShowsInEveryOrder) {
    const std::vector<float> right = run(reverse), wrong = run(reverse_without_barrier);
    int differ = 0;
    for (size_t i = 0; i < kThreads; i++) differ += right[i] != wrong[i];
    EXPECT_EQ(differ, kThreads / 2);
    const size_t first = lockstep::backward() ? kThreads - 1 : 0;
    EXPECT_EQ(wrong[first], -1.f) << "shared memory starts as 0xff";
}

// Twice the same memory, for the largest of all threads: a wave that is ahead must not write while others still read.
void fold_twice(Params x, bool barrier_between) {
    for (int round = 1; round <= 2; round++) {
        float value = float(1000 * round + rt::thread());
        for (int w = 8; w > 0; w /= 2) value = std::max(value, rt::shuffle_xor16(value, w));
        if (barrier_between) rt::barrier();
        if (rt::thread() % 16 == 0) shared_words()[rt::thread() / 16] = int(value);
        rt::barrier();
        for (int i = 0; i < kThreads / 16; i++) value = std::max(value, float(shared_words()[i]));
        if (round == 1) x.out[rt::thread()] = value;
    }
}
TEST(Lockstep, WavesRunAheadOfOthersAsFarAsBarriersLetThem) {
    for (const float value : run([](Params x) { fold_twice(x, true); })) EXPECT_EQ(value, float(1000 + kThreads - 1));
    const std::vector<float> wrong = run([](Params x) { fold_twice(x, false); });
    EXPECT_NE(std::count(wrong.begin(), wrong.end(), float(1000 + kThreads - 1)), kThreads);
}

void shuffle(Params x) { x.out[rt::thread()] = rt::shuffle_xor16(float(rt::thread()), 5); }
void votes(Params x) { x.out[rt::thread()] = rt::warp_any(rt::thread() == kThreads - 1) ? 1.f : 0.f; }

TEST(Lockstep, ShufflesStayWithinSixteenLanes) {
    const std::vector<float> out = run(shuffle);
    for (int i = 0; i < kThreads; i++) EXPECT_EQ(out[size_t(i)], float(i ^ 5));
}
TEST(Lockstep, VotesAreOfOneWave) {
    const std::vector<float> out = run(votes);
    for (int i = 0; i < kThreads; i++) EXPECT_EQ(out[size_t(i)], i / lockstep::wave() == (kThreads - 1) / lockstep::wave() ? 1.f : 0.f);
}

void leave_early(Params x) {
    if (rt::thread() >= 40) return;
    rt::barrier();
    x.out[rt::thread()] = 1.f;
}
TEST(Lockstep, WhoHasEndedIsNotWaitedFor) {
    const std::vector<float> out = run(leave_early);
    EXPECT_EQ(std::count(out.begin(), out.end(), 1.f), 40);
}

// In a wave of which some lanes shuffle, the others wait at the barrier for ever.
void diverged(Params x) {
    if (rt::thread() % 2) x.out[rt::thread()] = rt::shuffle_xor16(1.f, 1);
    rt::barrier();
}
void different_operations(Params x) {
    if (rt::thread() % 2) x.out[rt::thread()] = rt::shuffle_xor16(1.f, 1);
    else x.out[rt::thread()] = rt::warp_any(true) ? 1.f : 0.f;
}
TEST(LockstepDeathTest, DivergedWaveIsReported) {
    EXPECT_DEATH(run(diverged), "GPU emulator: a thread waits for others that never come \\(block 0, thread [0-9]+\\)");
}
TEST(LockstepDeathTest, DifferentOperationsAreReported) {
    EXPECT_DEATH(run(different_operations), "GPU emulator: threads meet at different operations \\(block 0, thread [0-9]+\\)");
}

void beyond_shared_memory(Params) { shared_words()[kThreads + rt::thread()] = 1; }
TEST(LockstepDeathTest, AccessBeyondSharedMemoryIsReported) {
    if (std::string(FA_SANITIZE).find("address") == std::string::npos) GTEST_SKIP() << "needs the address sanitizer";
    run(reverse, kThreads * 16);  // a larger block before does not lend its memory
    EXPECT_DEATH(run(beyond_shared_memory), "heap-buffer-overflow");
}

}  // namespace
}  // namespace fa
