// A thread that comes with settings of its own: how it rounds, what it does with subnormal numbers, which exceptions end it. Results are
// those of any other thread, and the thread has back what it came with.
#include <errno.h>
#include <fenv.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "isa.h"
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

// Registers that no C function may leave otherwise than it found them, those that none here should, and what the system keeps of a thread.
struct Thread {
    uint64_t floats[2] = {};  // MXCSR, or FPCR and FPSR
    uint64_t x87[2] = {};     // control word; its registers' tags, which calls of MMX would leave full
    bool backwards = false;   // string instructions
    int error = errno;
    sigset_t blocked;
    cpu_set_t cpus;

    Thread() {
        memset(&blocked, 0, sizeof blocked), memset(&cpus, 0, sizeof cpus);
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        sched_getaffinity(0, sizeof cpus, &cpus);
#if defined(__x86_64__)
        uint32_t csr;
        __asm__ volatile("stmxcsr %0" : "=m"(csr));
        floats[0] = csr;
        struct {
            uint32_t control, status, tags, pointers[4];
        } unit;
        __asm__ volatile("fnstenv %0\n fldcw %0" : "=m"(unit));
        x87[0] = unit.control & 0xffff, x87[1] = unit.tags & 0xffff;
        uint64_t flags;
        __asm__ volatile("pushfq\n popq %0" : "=r"(flags));
        backwards = flags & 0x400;
#elif defined(__aarch64__)
        __asm__ volatile("mrs %0, fpcr\n mrs %1, fpsr" : "=r"(floats[0]), "=r"(floats[1]));
#endif
    }
    std::string difference(const Thread& before) const {
        if (floats[0] != before.floats[0] || floats[1] != before.floats[1]) return "floating-point control or flags";
        if (memcmp(x87, before.x87, sizeof x87) != 0) return "the x87 unit";
        if (backwards) return "the direction of string instructions";
        if (error != before.error) return "errno";
        if (memcmp(&blocked, &before.blocked, sizeof blocked) != 0) return "the signal mask";
        return memcmp(&cpus, &before.cpus, sizeof cpus) == 0 ? "" : "the affinity";
    }
};

struct Setting {
    const char* name;
    void (*set)();
};
#if defined(__x86_64__)
template <uint32_t bits, uint32_t cleared = 0>
void set_control() {
    uint32_t csr;
    __asm__ volatile("stmxcsr %0" : "=m"(csr));
    csr = (csr & ~cleared) | bits;
    __asm__ volatile("ldmxcsr %0" ::"m"(csr) : "memory");
}
#elif defined(__aarch64__)
template <uint64_t bits>
void set_control() {
    uint64_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    __asm__ volatile("msr fpcr, %0" ::"r"(now | bits) : "memory");
}
#endif
const Setting kSettings[] = {
    {"rounds up", [] { fesetround(FE_UPWARD); }},
    {"rounds down", [] { fesetround(FE_DOWNWARD); }},
    {"rounds towards zero", [] { fesetround(FE_TOWARDZERO); }},
#if defined(__x86_64__)
    {"takes subnormal numbers for zero", set_control<0x8040>},
    {"ends at any exception, rounding included", set_control<0, 0x1f80>},
    {"computes in 24 bits on its x87 unit",
     [] {
         const uint16_t control = 0x007f;
         __asm__ volatile("fldcw %0" ::"m"(control));
     }},
#elif defined(__aarch64__)
    {"takes subnormal numbers for zero", set_control<1 << 24 | 1 << 19>},
    {"has one NaN", set_control<1 << 25>},
    {"knows no infinities of f16", set_control<1 << 26>},
#endif
};

// Are all upper halves of vector registers zero, as SSE code wants them? The processor says which state is not the initial one. GCC clears
// them in optimised code, which sanitized builds are not.
bool upper_halves_are_clear() {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(0xd, 1, &a, &b, &c, &d) || !(a & 4)) return true;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
    return !(a & 4);
#else
    return true;
#endif
}

// The call on a thread with this setting: what it changed there, or "".
template <class Call>
std::string on_thread_that(const Setting& setting, const Call& call) {
    fenv_t usual;
    fegetenv(&usual);
    feclearexcept(FE_ALL_EXCEPT);
    setting.set();
    errno = 77;
    const Thread before;
    call();
    const bool clear = upper_halves_are_clear();
    const Thread after;
    fesetenv(&usual);
    const std::string difference = after.difference(before);
    return !difference.empty() ? difference : clear ? "" : "the upper halves of vector registers";
}

class CallersThread : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    void SetUp() override {
        if (!testing_the_cpu()) GTEST_SKIP() << "no arithmetic of the calling thread";
        FA_USE_ISA(handle, GetParam());
    }
    // Every setting, and then the outputs' bytes. Plans are made within it: a new descriptor each time.
    template <class Call, class Bits>
    void expect_the_same(const Call& call, const Bits& bits, const std::string& what) {
        for (const Setting& setting : kSettings) {
            ASSERT_TRUE(handle.set(FA_PARAM_THREADS, handle.get(FA_PARAM_THREADS)));  // forgets plans
            fa_status_t status = FA_OK;
            ASSERT_EQ(on_thread_that(setting, [&] { status = call(); }), "") << "a thread that " << setting.name << ": " << what;
            ASSERT_EQ(status, FA_OK) << handle.error();
            bits(setting.name);
        }
    }
};

// Of all sizes down to subnormal numbers, and infinities.
TEST_P(CallersThread, ForwardsAreAnyThreads) {
    for (uint64_t n = 0; n < 60; n++) {
        Case c = random_case(derive(471, n));
        Rng rng(derive(472, n));
        c.set_v([&](int64_t, int64_t, int64_t, int64_t) {
            return rng.chance(0.01) ? kInf : rng.normal() * rng.pick<double>({1, 1e-30, 1e-39});
        });
        ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
        const auto o = bytes_of(c.o), lse = bytes_of(c.lse), scores = bytes_of(c.scores);
        expect_the_same([&] { return fa_forward_ex(handle, &c.d, &c.a); },
                        [&](const char* name) {
                            ASSERT_TRUE(bytes_of(c.o) == o && bytes_of(c.lse) == lse && bytes_of(c.scores) == scores)
                                << "a thread that " << name << ": " << c.describe();
                        },
                        c.describe());
    }
}

// Whole tiles, of every type that has kernels of its own.
TEST_P(CallersThread, TilesAreAnyThreads) {
    for (const int32_t q : {FA_F32, FA_F16, FA_BF16})
        for (const int32_t kv : {q, int32_t(FA_E4M3), int32_t(FA_I8), int32_t(FA_Q8_0), int32_t(FA_Q4_1)})
            for (const int64_t rows : {1, 6, 70}) {
                Case c = shaped({1, 2, 1, rows, 100, 64, 64}, q);
                c.d.k_dtype = kv;
                if (kv == FA_Q8_0) c.d.precision = FA_PRECISION_NATIVE;
                Rng rng(derive(473, uint64_t(rows)));
                c.bind(rng);
                c.fill_normal(rng);
                ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                const auto o = bytes_of(c.o), lse = bytes_of(c.lse);
                expect_the_same([&] { return fa_forward_ex(handle, &c.d, &c.a); },
                                [&](const char* name) {
                                    ASSERT_TRUE(bytes_of(c.o) == o && bytes_of(c.lse) == lse)
                                        << "a thread that " << name << ": " << c.describe();
                                },
                                c.describe());
            }
}

TEST_P(CallersThread, GradientsAreAnyThreads) {
    for (uint64_t n = 0; n < 30; n++) {
        BackwardCase b(random_differentiable_case(derive(474, n)));
        b.c.d.flags |= FA_DETERMINISTIC;
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        Rng rng(derive(475, n));
        choose_gradients(rng, b);
        b.a.flags = 0;  // what is accumulated into differs from call to call
        b.bind(rng);
        b.fill_normal(rng, rng.pick<double>({1, 1e-38}));
        ASSERT_EQ(b.run(handle), FA_OK) << handle.error();
        const auto bits = [&] {
            return std::vector{bytes_of(b.dq), bytes_of(b.dk), bytes_of(b.dv), bytes_of(b.dbias), bytes_of(b.dsinks)};
        };
        const auto usual = bits();
        const fa_backward_args_t args = b.args();
        expect_the_same([&] { return fa_backward(handle, &b.c.d, &args); },
                        [&](const char* name) { ASSERT_TRUE(bits() == usual) << "a thread that " << name << ": " << b.describe(); },
                        b.describe());
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, CallersThread, testing::ValuesIn(isas_under_test()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// Functions without a handle or without arithmetic, and calls that are refused.
TEST(CallersThreadOf, EveryFunctionHasItBack) {
    float slopes[6], usual[6];
    uint8_t keep[64], usual_keep[64];
    ASSERT_EQ(fa_alibi_slopes(6, 8, usual), FA_OK);
    ASSERT_EQ(fa_dropout_mask(0.3f, 1, 2, 0, 0, 8, 0, 8, usual_keep), FA_OK);
    for (const Setting& setting : kSettings) {
        fa_attention_desc_t wrong = FA_ATTENTION_DESC_INIT;
        const auto every = [&] {
            fa_handle_t h = nullptr;
            fa_create_info_t info = FA_CREATE_INFO_INIT;
            info.backend = FA_BACKEND_CPU;
            char text[FA_TEXT_MAX];
            int32_t count;
            fa_device_info_t device = {};
            device.struct_size = sizeof device;
            fa_create(&h, &info);
            fa_forward(h, &wrong, nullptr, nullptr, nullptr, nullptr);
            fa_supports(h, &wrong, FA_OP_FORWARD);
            fa_explain(h, nullptr, FA_OP_FORWARD, text, sizeof text);
            fa_param_set(h, FA_PARAM_THREADS, 1);
            fa_destroy(h);
            for (const int32_t backend : {int32_t(FA_BACKEND_CPU), int32_t(FA_BACKEND_CUDA), 77}) {
                fa_backend_status(backend, text, sizeof text);
                fa_device_count(backend, &count);
                fa_device_info(backend, 0, &device);
            }
            fa_backend_supports(FA_BACKEND_CPU, 0, &wrong, FA_OP_FORWARD, text, sizeof text);
            info.backend_dir = "/nowhere";
            info.backend = FA_BACKEND_CUDA;
            fa_create(&h, &info);
            fa_alibi_slopes(6, 8, slopes);
            fa_dropout_mask(0.3f, 1, 2, 0, 0, 8, 0, 8, keep);
        };
        EXPECT_EQ(on_thread_that(setting, every), "") << "a thread that " << setting.name;
        EXPECT_EQ(memcmp(slopes, usual, sizeof usual), 0) << setting.name;
        EXPECT_EQ(memcmp(keep, usual_keep, sizeof usual_keep), 0) << setting.name;
    }
}

// A stack is a multiple of 16, as the ABI has it, and of no more: vectors and tiles want 64.
template <int spare>
__attribute__((noinline)) fa_status_t call_with_stack_moved(const Handle& handle, Case& test_case) {
    volatile char* const moved = static_cast<volatile char*>(__builtin_alloca(16 * spare + 1));
    moved[0] = 0;
    return fa_forward_ex(handle, &test_case.d, &test_case.a);
}
TEST_P(CallersThread, StacksMayBeginAnywhere) {
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t rows : {1, 6, 70}) {
            Case c = shaped({1, 2, 1, rows, 100, 64, 64}, dtype);
            Rng rng(476);
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const auto o = bytes_of(c.o);
            EXPECT_EQ(call_with_stack_moved<1>(handle, c), FA_OK);
            EXPECT_EQ(call_with_stack_moved<2>(handle, c), FA_OK);
            EXPECT_EQ(call_with_stack_moved<3>(handle, c), FA_OK);
            EXPECT_TRUE(bytes_of(c.o) == o);
        }
}

}  // namespace
}  // namespace test
