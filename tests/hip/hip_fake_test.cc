// The module against a runtime that pretends to have GPUs (fake_runtime.cc; the test's environment puts it before the real one): which code
// it loads for which device, by which names it finds its kernels, what it launches, and what becomes of failures.
#include <flashattn.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <sstream>
#include "api/calls.h"
#include "modules/folder.h"

namespace {

class Fake : public testing::Test {
  protected:
    void SetUp() override { setenv("FAKE_LOG", log_.c_str(), 1); }
    ~Fake() override {
        fa_destroy(handle);
        unlink(log_.c_str());
    }
    fa_status_t create(const char* gpus, int32_t device = 0, int32_t backend = FA_BACKEND_HIP) {
        setenv("FAKE_GPUS", gpus, 1);
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.backend = backend;
        info.backend_dir = HIP_MODULE_DIR;
        info.device = device;
        fa_destroy(handle);
        handle = nullptr;
        return fa_create(&handle, &info);
    }
    // What the runtime was told to do since the last time.
    std::string log() const {
        std::ostringstream text;
        text << std::ifstream(log_).rdbuf();
        unlink(log_.c_str());
        return text.str();
    }
    fa_handle_t handle = nullptr;

  private:
    const std::string log_ = "/tmp/flashattn-fake-hip-" + std::to_string(getpid());
};

TEST_F(Fake, EachDeviceGetsItsCode) {
    const char* const gpus = "gfx90a:sramecc+:xnack-,gfx1030,gfx90a:sramecc-:xnack+,gfx1030";
    EXPECT_EQ(create(gpus, 0), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(log(), "load gfx90a:sramecc+:xnack-\n");
    for (const int32_t device : {2, 1, 3, 0}) EXPECT_EQ(create(gpus, device), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(log(), "load gfx90a:sramecc-:xnack+\nload gfx1030\nload gfx1030\n") << "once for each device";
}

// An integrated GPU that nobody compiles for stands beside a good one: the good one works.
TEST_F(Fake, DeviceWithoutCode) {
    const char* const gpus = "gfx90a:sramecc+:xnack-,gfx1036,gfx9,gfx90a1";
    for (const int32_t device : {1, 2, 3}) {
        EXPECT_EQ(create(gpus, device), FA_BACKEND_INCOMPATIBLE);
        const std::string arch = device == 1 ? "gfx1036" : device == 2 ? "gfx9" : "gfx90a1";
        EXPECT_EQ(std::string(fa_last_error(nullptr)),
                  "this build of the hip backend has no code for Fake (" + arch + "): no code");
    }
    EXPECT_EQ(create(gpus, 0), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(create(gpus, 4), FA_NO_DEVICE);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "device is 4: the hip backend has 4");
}

TEST_F(Fake, AutoPassesOverWhatHasNoCode) {
    int64_t backend = 0;
    EXPECT_EQ(create("gfx1036", 0, FA_BACKEND_AUTO), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_OK);
    EXPECT_EQ(backend, FA_BACKEND_CPU);
    char text[2048] = "";
    EXPECT_EQ(fa_explain(handle, nullptr, 0, text, sizeof text), FA_OK);
    EXPECT_NE(std::string(text).find("passed over hip: this build of the hip backend has no code for Fake (gfx1036)"),
              std::string::npos)
        << text;
    EXPECT_EQ(create("gfx1030", 0, FA_BACKEND_AUTO), FA_OK);
    EXPECT_EQ(fa_param_get(handle, FA_INFO_BACKEND, &backend), FA_OK);
    EXPECT_EQ(backend, FA_BACKEND_HIP);
}

// The names by which the host's text knows its kernels are those in the device's code, of every kernel and target.
TEST_F(Fake, EveryKernelIsFound) {
    std::string gpus = HIP_TARGETS;
    const int count = 1 + int(std::count(gpus.begin(), gpus.end(), ','));
    for (int device = 0; device < count; device++) {
        ASSERT_EQ(create(gpus.c_str(), device), FA_OK) << fa_last_error(nullptr);
        log();
        std::string all;
        for (const int64_t dim : {64, 128, 256})
            for (const int64_t rows : {1, 200}) {
                Forward f;
                plain(&f);
                f.d.dim_qk = f.d.dim_v = dim;
                f.d.seqlen_q = rows;
                f.d.num_splits = 2;
                f.d.seqlen_k = 512;
                f.d.operands = FA_OPERAND_SCORES;
                f.d.scores_stage = FA_SCORES_PROBABILITY;
                f.d.scores_stride[3] = 1;
                f.d.scores_stride[2] = 512;
                f.d.scores_stride[1] = 512 * rows;
                f.d.scores_stride[0] = 512 * rows * 4;
                f.a.scores = reinterpret_cast<float*>(int64_t(1) << 40);  // never touched: nothing runs
                f.a.q = reinterpret_cast<float*>(int64_t(1) << 41);
                f.a.k = reinterpret_cast<float*>(int64_t(1) << 42);
                f.a.v = reinterpret_cast<float*>(int64_t(1) << 43);
                f.a.o = reinterpret_cast<float*>(int64_t(1) << 44);
                EXPECT_EQ(f.run(handle), FA_OK) << fa_last_error(handle);
                all += log();
            }
        Merge merge;
        merge_padded(&merge);
        EXPECT_EQ(merge.run(handle), FA_OK) << fa_last_error(handle);
        Append append;
        append_paged(&append);
        EXPECT_EQ(append.run(handle), FA_OK) << fa_last_error(handle);
        Rotary rotary;
        rotary_padded(&rotary);
        EXPECT_EQ(rotary.run(handle), FA_OK) << fa_last_error(handle);
        all += log();
        for (const char* kernel : {"forward_simtILi4ELi4EE", "forward_simtILi1ELi4EE", "forward_simtILi4ELi8EE",
                                   "forward_simtILi1ELi8EE", "forward_simtILi2ELi16EE", "forward_simtILi1ELi16EE", "merge_splits", "merge_split_rows",
                                   "merge_split_states", "write_scores", "merge_rows", "append_rows", "rotate_rows"})
            EXPECT_NE(all.find(kernel), std::string::npos) << kernel << " was not launched:\n" << all;
    }
}

// A row of a grid has fewer than 2^32 threads.
TEST_F(Fake, MoreBlocksThanARowOfTheGridHolds) {
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);
    Rotary r;
    rotary_padded(&r);
    r.d = FA_ATTENTION_DESC_INIT;
    r.d.q_dtype = FA_F16;
    r.d.batch = 3;
    r.d.heads_q = 32;
    r.d.seqlen_q = 8 << 20;  // a block takes 8
    r.d.dim_qk = 8;
    r.a.max_position = INT32_MAX;
    r.a.seqused = nullptr;
    r.a.position_offset = nullptr;
    memset(r.a.out_stride, 0, sizeof r.a.out_stride);
    r.a.x = r.a.out = reinterpret_cast<void*>(int64_t(1) << 40);
    log();
    ASSERT_EQ(r.run(handle), FA_OK) << fa_last_error(handle);
    EXPECT_NE(log().find(std::to_string(3 * 32ll << 20) + " x 128"), std::string::npos);
    r.d.batch = 1;
    r.d.heads_q = 8;
    r.d.seqlen_q = (int64_t(1) << 31) - 1;  // a prime
    EXPECT_EQ(r.run(handle), FA_DEVICE_ERROR);
    EXPECT_EQ(std::string(fa_last_error(handle)), "rotate_rows: error");
}

TEST_F(Fake, DriverThatDoesNotStart) {
    setenv("FAKE_FAULT", "driver", 1);
    EXPECT_EQ(create("gfx90a"), FA_BACKEND_INCOMPATIBLE);
    EXPECT_EQ(std::string(fa_last_error(nullptr)), "the AMD driver does not start: error");
    EXPECT_EQ(create("gfx90a", 0, FA_BACKEND_AUTO), FA_OK);
    unsetenv("FAKE_FAULT");
}

TEST_F(Fake, FailuresHaveTheirStatus) {
    setenv("FAKE_FAULT", "load", 1);
    EXPECT_EQ(create("gfx90a"), FA_BACKEND_INCOMPATIBLE);
    unsetenv("FAKE_FAULT");
    ASSERT_EQ(create("gfx90a"), FA_OK) << fa_last_error(nullptr);

    Forward f;
    plain(&f);
    setenv("FAKE_FAULT", "launch", 1);
    EXPECT_EQ(f.run(handle), FA_DEVICE_ERROR);
    EXPECT_EQ(std::string(fa_last_error(handle)), "fwd_simt: launch failure");
    f.d.num_splits = 2;
    f.d.seqlen_k = 256;
    f.a.k = reinterpret_cast<float*>(int64_t(1) << 42);
    f.a.v = reinterpret_cast<float*>(int64_t(1) << 43);
    setenv("FAKE_FAULT", "malloc", 1);
    EXPECT_EQ(f.run(handle), FA_OUT_OF_MEMORY);
    EXPECT_EQ(std::string(fa_last_error(handle)), "allocating scratch memory: out of memory");
    unsetenv("FAKE_FAULT");
    EXPECT_EQ(f.run(handle), FA_OK) << fa_last_error(handle);
}

}  // namespace
