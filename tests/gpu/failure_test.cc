// What a device can fail at: no memory left, a launch that is refused, a fault that ends it. Each gives its status and a sentence, and
// leaves the handle usable as far as the device is.
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class DeviceFailures : public Gpu {};

// All of the device's memory but less than a megabyte.
class AllMemory {
  public:
    AllMemory() {
        for (size_t bytes = size_t(1) << 36; bytes >= size_t(1) << 19; bytes /= 2) {
            void* p = nullptr;
            while (cudaMalloc(&p, bytes) == cudaSuccess) taken_.push_back(p);
            cudaGetLastError();
        }
    }
    AllMemory(const AllMemory&) = delete;
    AllMemory& operator=(const AllMemory&) = delete;
    ~AllMemory() {
        for (void* p : taken_) cudaFree(p);
    }

  private:
    std::vector<void*> taken_;
};

// Scratch memory of some ten megabytes, and tensors of as much.
Case needy() {
    Case c = shaped({8, 16, 2, 1, 4096, 64, 128});
    c.d.num_splits = 16;
    return c;
}

TEST_F(DeviceFailures, NoMemoryLeft) {
    const Handle handle = make_handle(), host = make_handle(FA_MEMORY_HOST);
    Rng rng(251);
    Case c = needy();
    c.d.num_splits = 32;
    c.bind(rng);
    c.fill_normal(rng);
    Moved<fa_forward_args_t> moved_args = moved(c);
    moved_args.upload();
    {
        const AllMemory taken;
        EXPECT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OUT_OF_MEMORY);
        EXPECT_NE(handle.error().find("scratch memory"), std::string::npos) << handle.error();
        EXPECT_EQ(c.run(host), FA_OUT_OF_MEMORY);
        EXPECT_NE(host.error(), "");
        void* p = &p;
        EXPECT_EQ(fa_malloc(handle, 64 << 20, &p), FA_OUT_OF_MEMORY);
        EXPECT_EQ(p, nullptr);
    }
    ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
    cuda(cudaDeviceSynchronize());
    moved_args.fetch();
    EXPECT_EQ(check_against_oracle(c, FA_F32), "");
    EXPECT_EQ(c.run(host), FA_OK) << host.error();
    EXPECT_EQ(check_against_oracle(c, FA_F32), "");
}

// In a process of its own: calls load their kernels, until no memory is left for one.
void find_no_memory_for_kernels() {
    cuda(cudaSetDevice(0));
    Rng rng(253);
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16, FA_F32})
        for (const int64_t dim : {64, 96, 128, 192, 256, 512})
            for (const int64_t rows : {1, 16, 200})
                for (const bool masked : {false, true}) {
                    cases.push_back(shaped({1, 2, 2, rows, 256, dim, dim}, dtype));
                    cases.back().d.num_splits = 1;
                    if (masked) causal(cases.back(), FA_ALIGN_BOTTOM_RIGHT);
                }
    std::vector<Moved<fa_forward_args_t>> calls;
    for (Case& c : cases) {
        c.bind(rng);
        c.fill_normal(rng);
        calls.push_back(moved(c));
        calls.back().upload();
    }
    const Handle handle = make_handle();
    const AllMemory taken;
    fa_status_t status = FA_OK;
    for (size_t i = 0; i < cases.size() && status == FA_OK; i++) status = fa_forward_ex(handle, &cases[i].d, &calls[i].device);
    fprintf(stderr, "%s: %s\n", fa_status_name(status), handle.error().c_str());
    exit(0);
}

TEST_F(DeviceFailures, NoMemoryForKernels) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(find_no_memory_for_kernels(), testing::ExitedWithCode(0), "FA_OUT_OF_MEMORY: fwd_");
}

TEST_F(DeviceFailures, MoreMemoryThanThereIs) {
    const Handle handle = make_handle();
    void* p = &p;
    EXPECT_EQ(fa_malloc(handle, uint64_t(1) << 50, &p), FA_OUT_OF_MEMORY);
    EXPECT_EQ(p, nullptr);
    EXPECT_EQ(fa_malloc(handle, 1 << 20, &p), FA_OK) << handle.error();
    EXPECT_EQ(fa_free(handle, p), FA_OK) << handle.error();
}

// A stream whose capture has been spoilt takes no more work: every launch into it fails.
TEST_F(DeviceFailures, RefusedLaunches) {
    const Handle handle = make_handle();
    const std::vector<std::unique_ptr<Call>> calls = one_of_each(handle);
    for (const auto& call : calls) {
        const Stream spoilt, good;
        call->change();
        const std::vector<unsigned char> before = call->output();
        cuda(cudaStreamBeginCapture(spoilt, cudaStreamCaptureModeGlobal));
        EXPECT_NE(cudaStreamSynchronize(spoilt), cudaSuccess);  // what a capture does not survive
        cudaGetLastError();
        EXPECT_EQ(call->enqueue(handle, spoilt), FA_DEVICE_ERROR) << call->name();
        EXPECT_NE(handle.error().find(": "), std::string::npos) << handle.error();
        cudaGraph_t graph = nullptr;
        EXPECT_NE(cudaStreamEndCapture(spoilt, &graph), cudaSuccess);
        cudaGetLastError();
        EXPECT_NE(call->check(), "") << call->name() << ": a call that failed has written";
        EXPECT_EQ(compare_bits(call->output(), before), "") << call->name();
        ASSERT_EQ(call->enqueue(handle, good), FA_OK) << call->name() << ": " << handle.error();
        good.wait();
        EXPECT_EQ(call->check(), "") << call->name();
    }
}

// In a process of its own: after a fault nothing works on that device until the process ends, and everything says so.
void lose_the_device() {
    const auto expect = [](bool true_, const std::string& what) {
        if (!true_) fprintf(stderr, "%s\n", what.c_str()), _exit(1);
    };
    cuda(cudaSetDevice(0));
    Handle handle = make_handle();
    const std::vector<std::unique_ptr<Call>> calls = one_of_each(handle);
    launch_fault(nullptr);
    expect(cudaDeviceSynchronize() != cudaSuccess, "the fault went unnoticed");
    for (const auto& call : calls) {
        const fa_status_t status = call->enqueue(handle, nullptr);
        expect(status == FA_DEVICE_ERROR && handle.error() != "", call->name() + (": " + std::string(fa_status_name(status))));
    }
    expect(fa_synchronize(handle) == FA_DEVICE_ERROR, "fa_synchronize");
    void* p = nullptr;
    expect(fa_malloc(handle, 1024, &p) == FA_DEVICE_ERROR && !p, "fa_malloc: " + handle.error());
    const Case c = needy();
    expect(fa_supports(handle, &c.d, FA_OP_FORWARD) == FA_OK, "a question that needs no device");
    {
        const Handle gone = std::move(handle);
    }
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA;
    fa_handle_t another = nullptr;
    const fa_status_t status = fa_create(&another, &info);
    expect(status != FA_OK && fa_last_error(nullptr)[0] != 0, "fa_create after a fault");
    fprintf(stderr, "fa_create: %s: %s\n", fa_status_name(status), fa_last_error(nullptr));
    info = FA_CREATE_INFO_INIT;  // AUTO ends at the CPU
    expect(fa_create(&another, &info) == FA_OK, "AUTO");
    int64_t backend = 0;
    fa_param_get(another, FA_INFO_BACKEND, &backend);
    expect(backend == FA_BACKEND_CPU, "AUTO has chosen a device that is lost");
    fa_destroy(another);
    _exit(0);  // without the runtime's own farewell to a device that is gone
}

TEST_F(DeviceFailures, AFaultIsReportedByEveryCall) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";  // a new process: CUDA does not survive a fork
    EXPECT_EXIT(lose_the_device(), testing::ExitedWithCode(0), "fa_create: FA_");
}

}  // namespace
}  // namespace test::gpu
