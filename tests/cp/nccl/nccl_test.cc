// The transport over NCCL on real devices: with one, its functions by themselves; with several, every method against the oracle, and a rank
// that does not come. Where no device is, every test says so and is skipped.
#include <flashattn_cp_nccl.h>
#include <gtest/gtest.h>
#include <atomic>
#include <chrono>
#include <thread>
#include "../problems.h"

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

// Ranks are threads, each with a device.
class Ranks : public testing::TestWithParam<Way> {
  protected:
    void SetUp() override {
        if (devices() < 2) GTEST_SKIP() << "fewer than two CUDA devices";
        ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id_));
    }
    // Over a communicator that is made anew for each call.
    Spread over_nccl(Spread s) {
        s.ranks = std::min(devices(), way_needs_a_divisor(s) ? (devices() < 4 ? 2 : 4) : 3);
        EXPECT_EQ(ncclSuccess, ncclGetUniqueId(&id_));
        comms_.assign(size_t(s.ranks), nullptr);
        const int ranks = s.ranks;
        s.own_devices = true;
        s.open = [this, ranks](int32_t rank, fa_handle_t, fa_cp_transport_t* transport) {
            EXPECT_EQ(cudaSuccess, cudaSetDevice(rank));
            EXPECT_EQ(ncclSuccess, ncclCommInitRank(&comms_[size_t(rank)], ranks, id_, rank));
            return fa_cp_nccl_open(comms_[size_t(rank)], transport);
        };
        s.close = [this](int32_t rank, fa_cp_transport_t* transport) {
            if (rank == silent_) {  // it is there, and says nothing
                std::this_thread::sleep_for(std::chrono::seconds(4));
                transport->abandon(transport->user);
            }
            fa_cp_nccl_close(transport);
            ncclCommDestroy(comms_[size_t(rank)]);
        };
        return s;
    }
    static bool way_needs_a_divisor(const Spread& s) { return s.desc.method == FA_CP_METHOD_ULYSSES; }
    ncclUniqueId id_;
    std::vector<ncclComm_t> comms_;
    int32_t silent_ = -1;
};

TEST_P(Ranks, AgreeWithTheOracle) {
    const Way way = GetParam();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        Case c = problem(derive(27, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, false);
        Rng rng(derive(28, seed));
        Spread s = over_nccl(spread_of(way, c, rng));
        s.again = true;
        ASSERT_EQ("", spread_and_check(c, s)) << way.name << ", seed " << seed << ", " << s.ranks << " ranks";
    }
}

TEST_P(Ranks, GradientsAgreeWithTheOracle) {
    const Way way = GetParam();
    const Handle handle = make_handle();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        Rng rng(derive(31, seed));
        BackwardCase b(problem(derive(30, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, true));
        b.c.p_dtype = probability_dtype(handle, b.c.d);
        ASSERT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
        b.wants_dbias = false, b.gives_dlse = rng.chance(0.3);
        b.bind(rng);
        b.fill_normal(rng);
        ASSERT_EQ("", spread_and_check_backward(handle, b, over_nccl(spread_of(way, b.c, rng)))) << way.name << ", seed " << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Nccl, Ranks, testing::ValuesIn(kWays), name_of_way);

TEST_P(Ranks, ARankThatDoesNotComeIsAStatus) {
    Rng rng(3);
    Case c = shaped({1, 8, 8, 64, 64, 16, 16}, FA_BF16);
    fill(c, rng);
    Spread s = over_nccl(by_rows(2, GetParam().method, GetParam().layout));
    s.timeout_ms = 2000;
    const int last = s.ranks - 1;
    s.change = [last](int32_t rank, fa_attention_desc_t&, fa_cp_desc_t&, fa_forward_args_t& a) {
        if (rank == last) a.struct_size = 0;  // it is refused, and tells the others
    };
    StandIn room(s.ranks);
    const std::vector<RankResult> told = run_spread(c, s, room);
    for (int r = 0; r < last; r++) EXPECT_EQ(FA_PEER_FAILED, told[size_t(r)].status) << told[size_t(r)].error;
    Spread silent = over_nccl(by_rows(2, GetParam().method, GetParam().layout));
    silent.timeout_ms = 2000;
    silent.silent_rank = silent_ = last;
    const std::vector<RankResult> waited = run_spread(c, silent, room);
    for (int r = 0; r < last; r++) EXPECT_EQ(FA_TIMEOUT, waited[size_t(r)].status) << waited[size_t(r)].error;
}

}  // namespace
}  // namespace test
