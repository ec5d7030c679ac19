// The transport over NCCL on a real device: its functions by themselves. Where no device is, every test says so and is skipped.
#include <flashattn_cp_nccl.h>
#include <gtest/gtest.h>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace test {
namespace {

int devices() {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

// Keeps a stream's work from going on until it is opened, or for 20 seconds.
class Gate {
  public:
    void close(cudaStream_t stream) {
        ASSERT_EQ(cudaSuccess, cudaLaunchHostFunc(
                                   stream,
                                   [](void* gate) {
                                       for (int i = 0; i < 20000 && !static_cast<Gate*>(gate)->open_; i++)
                                           std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                   },
                                   this));
    }
    void open() { open_ = true; }

  private:
    std::atomic<bool> open_{false};
};

// One rank, whose messages are to itself.
class OneRank : public testing::Test {
  protected:
    void SetUp() override {
        if (devices() == 0) GTEST_SKIP() << "no CUDA device";
        int device = 0;
        ASSERT_EQ(ncclSuccess, ncclCommInitAll(&comm_, 1, &device));
        ASSERT_EQ(FA_OK, fa_cp_nccl_open(comm_, &transport_));
        ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        ASSERT_EQ(cudaSuccess, cudaMalloc(&memory_, 4 * kBytes));
        ASSERT_EQ(cudaSuccess, cudaMemset(memory_, 0, 4 * kBytes));
        ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    }
    void TearDown() override {
        if (transport_.user) fa_cp_nccl_close(&transport_);
        if (comm_) ncclCommDestroy(comm_);
        if (stream_) cudaStreamDestroy(stream_);
        cudaFree(memory_);
    }
    char* part(int i) const { return static_cast<char*>(memory_) + i * kBytes; }
    bool all(int i, char value) {
        std::vector<char> got(kBytes);
        EXPECT_EQ(cudaSuccess, cudaMemcpy(got.data(), part(i), kBytes, cudaMemcpyDeviceToHost));
        for (const char byte : got)
            if (byte != value) return false;
        return true;
    }
    // Parts 0 and 1 into parts 2 and 3.
    fa_status_t start(uint64_t* ticket) {
        const fa_cp_message_t messages[] = {{0, FA_CP_SEND, kBytes, part(0), 1},
                                            {0, FA_CP_RECEIVE, kBytes, part(2), 1},
                                            {0, FA_CP_SEND, kBytes, part(1), 2},
                                            {0, FA_CP_RECEIVE, kBytes, part(3), 2}};
        return transport_.start(transport_.user, messages, 4, ticket);
    }

    static constexpr size_t kBytes = size_t(5) << 20;
    ncclComm_t comm_ = nullptr;
    fa_cp_transport_t transport_ = FA_CP_TRANSPORT_INIT;
    cudaStream_t stream_ = nullptr;
    void* memory_ = nullptr;
};

TEST_F(OneRank, MessagesComeBetweenTheWorkOfTheStream) {
    for (int repeat = 0; repeat < 3; repeat++) {
        const char first = char(1 + repeat), second = char(101 + repeat);
        Gate gate;
        uint64_t ticket = 0;
        ASSERT_EQ(FA_OK, transport_.enter(transport_.user, stream_));
        if (repeat > 0) gate.close(stream_);  // the first time NCCL connects, and may wait for the device
        ASSERT_EQ(cudaSuccess, cudaMemsetAsync(part(0), first, kBytes, stream_));
        ASSERT_EQ(cudaSuccess, cudaMemsetAsync(part(1), second, kBytes, stream_));
        ASSERT_EQ(FA_OK, start(&ticket));  // with all of that still to come
        ASSERT_EQ(FA_OK, transport_.wait(transport_.user, ticket, 1000));
        ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(part(0), part(3), kBytes, cudaMemcpyDeviceToDevice, stream_));
        ASSERT_EQ(FA_OK, transport_.leave(transport_.user));
        if (repeat > 0) {
            EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream_));
        }
        gate.open();
        ASSERT_EQ(FA_OK, transport_.synchronize(transport_.user, 10000));
        EXPECT_TRUE(all(2, first) && all(3, second) && all(0, second));
    }
}

TEST_F(OneRank, Gathers) {
    uint64_t ticket = 0;
    ASSERT_EQ(FA_OK, transport_.enter(transport_.user, stream_));
    ASSERT_EQ(cudaSuccess, cudaMemsetAsync(part(0), 7, kBytes, stream_));
    ASSERT_EQ(FA_OK, transport_.all_gather(transport_.user, part(0), part(1), kBytes, &ticket));
    ASSERT_EQ(FA_OK, transport_.wait(transport_.user, ticket, 1000));
    ASSERT_EQ(FA_OK, transport_.synchronize(transport_.user, 10000));
    EXPECT_TRUE(all(1, 7));
    for (const size_t bytes : {size_t(48), size_t(3) << 20, (size_t(1) << 19) + 1}) {  // the room holds half a MiB
        std::vector<unsigned char> from(bytes), to(bytes);
        for (size_t i = 0; i < bytes; i++) from[i] = static_cast<unsigned char>(i * 7 + i / 251);
        ASSERT_EQ(FA_OK, transport_.gather_host(transport_.user, from.data(), to.data(), bytes, 10000));
        EXPECT_EQ(from, to);
    }
    ASSERT_EQ(FA_OK, transport_.leave(transport_.user));
}

TEST_F(OneRank, WaitsNoLongerThanItsLimit) {
    Gate gate;
    ASSERT_EQ(FA_OK, transport_.enter(transport_.user, stream_));
    gate.close(stream_);
    EXPECT_EQ(FA_TIMEOUT, transport_.synchronize(transport_.user, 50));
    ASSERT_EQ(FA_OK, transport_.leave(transport_.user));
    EXPECT_EQ(FA_TIMEOUT, transport_.synchronize(transport_.user, 50));
    gate.open();
    EXPECT_EQ(FA_OK, transport_.synchronize(transport_.user, 10000));
}

TEST_F(OneRank, ACallOnAnotherStreamComesBehindTheLast) {
    Gate gate;
    cudaStream_t other;
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    ASSERT_EQ(FA_OK, transport_.enter(transport_.user, stream_));
    gate.close(stream_);
    ASSERT_EQ(FA_OK, transport_.leave(transport_.user));
    ASSERT_EQ(FA_OK, transport_.enter(transport_.user, other));
    ASSERT_EQ(FA_OK, transport_.leave(transport_.user));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(other));
    gate.open();
    EXPECT_EQ(FA_OK, transport_.synchronize(transport_.user, 10000));
    EXPECT_EQ(cudaSuccess, cudaStreamQuery(other));
    cudaStreamDestroy(other);
}

TEST_F(OneRank, AnAbortedTransportGivesStatuses) {
    uint64_t ticket = 0;
    unsigned char byte = 0;
    transport_.abandon(transport_.user);
    ASSERT_EQ(FA_OK, transport_.enter(transport_.user, stream_));
    EXPECT_EQ(FA_PEER_FAILED, start(&ticket));
    EXPECT_EQ(FA_PEER_FAILED, transport_.all_gather(transport_.user, part(0), part(1), 1, &ticket));
    EXPECT_EQ(FA_PEER_FAILED, transport_.gather_host(transport_.user, &byte, &byte, 1, 1000));
    EXPECT_EQ(FA_PEER_FAILED, transport_.synchronize(transport_.user, 1000));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
}

}  // namespace
}  // namespace test
