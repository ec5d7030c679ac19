// Every allocation of every entry point fails once: the call says so, leaks nothing, and the handle goes on to work.
//
// The linker hands the library's posix_memalign and free to the functions below (--wrap); the library may call no other allocator.
#include <errno.h>
#include <stdlib.h>
#include <functional>
#include <set>
#include "workload.h"

namespace {

struct Allocator {
    bool armed = false;
    int calls = 0;    // since arming
    int fail_at = 0;  // the n-th of them fails; 0: none
    int strangers = 0;
    std::set<void*> live;

    void arm(int n) {
        armed = true;
        calls = strangers = 0;
        fail_at = n;
    }
} allocator;

}  // namespace

extern "C" {

int __real_posix_memalign(void** memory, size_t alignment, size_t bytes);
void __real_free(void* memory);
void* __real_malloc(size_t bytes);
void* __real_calloc(size_t count, size_t bytes);
void* __real_realloc(void* memory, size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);

int __wrap_posix_memalign(void** memory, size_t alignment, size_t bytes) {
    if (allocator.armed && ++allocator.calls == allocator.fail_at) return ENOMEM;
    const int error = __real_posix_memalign(memory, alignment, bytes);
    if (error == 0) allocator.live.insert(*memory);
    return error;
}
void __wrap_free(void* memory) {
    allocator.live.erase(memory);
    __real_free(memory);
}
void* __wrap_malloc(size_t bytes) {
    allocator.strangers++;
    return __real_malloc(bytes);
}
void* __wrap_calloc(size_t count, size_t bytes) {
    allocator.strangers++;
    return __real_calloc(count, bytes);
}
void* __wrap_realloc(void* memory, size_t bytes) {
    allocator.strangers++;
    return __real_realloc(memory, bytes);
}
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
    allocator.strangers++;
    return __real_aligned_alloc(alignment, bytes);
}

}  // extern "C"

namespace hardening {
namespace {

// Fails allocation 1, 2, … of the action until it makes no further one. Returns how many it makes.
int fail_each(const std::function<fa_status_t()>& action, const std::function<std::string()>& error) {
    for (int n = 1;; n++) {
        allocator.arm(n);
        const fa_status_t status = action();
        allocator.armed = false;
        EXPECT_EQ(allocator.strangers, 0);
        if (allocator.calls < n) {
            EXPECT_EQ(status, FA_OK) << error();
            return n - 1;
        }
        EXPECT_EQ(status, FA_OUT_OF_MEMORY) << "allocation " << n << ": " << error();
        EXPECT_TRUE(holds(error(), "no memory for "));
    }
}

TEST(Allocation, CreateFailsCleanly) {
    for (const int32_t backend : {FA_BACKEND_AUTO, FA_BACKEND_CPU}) {
        allocator.live.clear();
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = backend;
        fa_handle_t handle = nullptr;
        const auto create = [&] {
            const fa_status_t status = fa_create(&handle, &info);
            EXPECT_EQ(handle == nullptr, status != FA_OK);
            EXPECT_TRUE(status == FA_OK || allocator.live.empty());
            return status;
        };
        EXPECT_GE(fail_each(create, [] { return fa_last_error(nullptr); }), 2);
        EXPECT_EQ(fa_destroy(handle), FA_OK);
        EXPECT_TRUE(allocator.live.empty());
    }
}

TEST(Allocation, ProbingFailsCleanly) {
    allocator.live.clear();
    fa_device_info_t info;
    info.struct_size = sizeof info;
    int32_t count;
    const auto last = [] { return fa_last_error(nullptr); };
    fail_each([] { return fa_backend_status(FA_BACKEND_CPU, nullptr, 0); }, last);
    fail_each([&] { return fa_device_count(FA_BACKEND_CPU, &count); }, last);
    fail_each([&] { return fa_device_info(FA_BACKEND_CPU, 0, &info); }, last);
    EXPECT_TRUE(allocator.live.empty());
}

class EachOp : public ::testing::TestWithParam<Op> {
  protected:
    void SetUp() override { allocator.live.clear(); }
};

TEST_P(EachOp, FailsCleanlyAndWorksAfterwards) {
    const fa_handle_t handle = make_handle();
    Workload w(GetParam());
    const int made = fail_each([&] { return w.run(handle); }, [&] { return std::string(fa_last_error(handle)); });
    EXPECT_GE(made, w.op() == FA_OP_FORWARD ? 1 : 0);
    EXPECT_STREQ(fa_last_error(handle), "");
    EXPECT_EQ(w.result(), reference(GetParam()));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    EXPECT_TRUE(allocator.live.empty());
}

TEST_P(EachOp, FailureLeavesTheOutputUntouched) {
    const fa_handle_t handle = make_handle();
    Workload w(GetParam());
    allocator.arm(1);
    const fa_status_t status = w.run(handle);
    allocator.armed = false;
    if (status == FA_OUT_OF_MEMORY)
        for (const float x : w.result()) ASSERT_EQ(x, -1.f);
    else ASSERT_EQ(status, FA_OK) << fa_last_error(handle);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST_P(EachOp, NeverAllocatesWithAWorkspace) {
    const fa_handle_t handle = make_handle();
    Workload w(GetParam());
    w.use_workspace(handle);
    allocator.arm(1);
    EXPECT_EQ(w.run(handle), FA_OK) << fa_last_error(handle);
    allocator.armed = false;
    EXPECT_EQ(allocator.calls, 0);
    EXPECT_EQ(w.result(), reference(GetParam()));
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

TEST_P(EachOp, QuestionsDoNotAllocate) {
    const fa_handle_t handle = make_handle();
    const Workload w(GetParam());
    uint64_t bytes;
    int64_t value;
    char text[512];
    allocator.arm(1);
    EXPECT_EQ(fa_supports(handle, &w.desc, w.op()), FA_OK) << fa_last_error(handle);
    EXPECT_EQ(fa_workspace_size(handle, &w.desc, w.op(), &bytes), FA_OK);
    EXPECT_EQ(fa_explain(handle, &w.desc, w.op(), text, sizeof text), FA_OK);
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    EXPECT_EQ(fa_param_set(handle, FA_PARAM_THREADS, 2), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_PARAM_THREADS, &value), FA_OK);
    allocator.armed = false;
    EXPECT_EQ(allocator.calls, 0);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
}

INSTANTIATE_TEST_SUITE_P(Allocation, EachOp, ::testing::ValuesIn(kEveryOp), [](const auto& row) { return name_of(row.param); });

TEST(Allocation, MallocFailsCleanly) {
    allocator.live.clear();
    const fa_handle_t handle = make_handle();
    void* memory = nullptr;
    EXPECT_EQ(fail_each([&] { return fa_malloc(handle, 1000, &memory); }, [&] { return std::string(fa_last_error(handle)); }), 1);
    EXPECT_NE(memory, nullptr);
    EXPECT_EQ(fa_free(handle, memory), FA_OK);
    EXPECT_EQ(fa_malloc(handle, UINT64_MAX, &memory), FA_OUT_OF_MEMORY);
    EXPECT_EQ(memory, nullptr);
    EXPECT_EQ(fa_destroy(handle), FA_OK);
    EXPECT_TRUE(allocator.live.empty());
}

}  // namespace
}  // namespace hardening
