// Gradients of every method, layout and number of ranks against the oracle, and against one device's bits where that is promised.
#include "problems.h"

namespace test {
namespace {

class BackwardWays : public testing::TestWithParam<Way> {};

void gradients_agree_with_the_oracle(const Way& way, bool device) {
    const Handle handle = make_handle();
    for (uint64_t seed = 1; seed <= 24; seed++) {
        Rng rng(derive(31, seed));
        BackwardCase b(problem(derive(30, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, true));
        b.c.p_dtype = probability_dtype(handle, b.c.d);
        ASSERT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
        b.wants_dq = rng.chance(0.8), b.wants_dk = rng.chance(0.8), b.wants_dv = rng.chance(0.8), b.wants_dbias = false;
        b.gives_dlse = rng.chance(0.3);
        if (rng.chance(0.3)) b.a.flags |= FA_BACKWARD_ACCUMULATE;
        b.bind(rng);
        b.fill_normal(rng);
        Spread s = spread_of(way, b.c, rng);
        if (rng.chance(0.3)) s.gap = 3;
        s.device = device;
        ASSERT_EQ("", spread_and_check_backward(handle, b, s))
            << way.name << ", seed " << seed << ", " << s.ranks << " ranks, block " << s.desc.block << ", chunk " << s.desc.head_chunk;
    }
}

TEST_P(BackwardWays, AgreeWithTheOracleForAnyNumberOfRanks) { gradients_agree_with_the_oracle(GetParam(), false); }
TEST_P(BackwardWays, AgreeInDeviceMemory) { gradients_agree_with_the_oracle(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(Cp, BackwardWays, testing::ValuesIn(kWays), name_of_way);

// Grouped heads and a causal window, and sinks.
BackwardCase grouped(const Handle& handle, Rng& rng, int32_t dtype = FA_BF16) {
    Case c = shaped({1, 16, 8, 320, 320, 32, 32}, dtype);
    window(c, 150, 0, FA_ALIGN_BOTTOM_RIGHT);
    c.d.operands |= FA_OPERAND_SINKS;
    fill(c, rng);
    BackwardCase b(std::move(c));
    EXPECT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
    b.gives_dlse = true;
    b.bind(rng);
    b.fill_normal(rng);
    return b;
}

using Bytes = std::vector<unsigned char>;
std::vector<Bytes> gradients(const BackwardCase& backward) {
    return {bytes_of(backward.dq), bytes_of(backward.dk), bytes_of(backward.dv), bytes_of(backward.dsinks)};
}

TEST(CpBackward, UlyssesHasOneDevicesBits) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Rng rng(7);
        BackwardCase b = grouped(handle, rng, dtype);
        ASSERT_EQ(FA_OK, b.run(handle)) << handle.error();
        const std::vector<Bytes> one = gradients(b);
        for (const int32_t ranks : {2, 4, 8}) {
            StandIn room(ranks);
            for (const RankResult& r : run_spread_backward(b, by_rows(ranks, FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_ZIGZAG), room))
                ASSERT_EQ(FA_OK, r.status) << r.error;
            EXPECT_EQ(one, gradients(b)) << ranks << " ranks";
        }
    }
}

// In host memory large tensors go as messages of their own, from and to where they lie.
TEST(CpBackward, UlyssesMovesLargeTensorsWithoutBuffers) {
    const Handle handle = make_handle();
    Rng rng(11);
    Case c = shaped({1, 2, 2, 560, 560, 256, 256});
    causal(c, FA_ALIGN_TOP_LEFT);
    fill(c, rng);
    BackwardCase b(std::move(c));
    ASSERT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
    b.bind(rng);
    b.fill_normal(rng);
    EXPECT_EQ("", spread_and_check_backward(handle, b, by_rows(2, FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_ZIGZAG)));
    b.a.flags |= FA_BACKWARD_ACCUMULATE;
    b.bind(rng);
    b.fill_normal(rng);
    EXPECT_EQ("", spread_and_check_backward(handle, b, by_rows(2, FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_CONTIGUOUS)));
    StandIn room(2);
    for (const RankResult& r : run_spread(b.c, by_rows(2, FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_ZIGZAG), room)) {
        EXPECT_EQ(FA_OK, r.status) << r.error;
        EXPECT_GT(r.messages, 4u) << "one for each tensor and range, and two of statuses";
    }
    EXPECT_EQ("", check_against_oracle(b.c, b.c.p_dtype));
}

// Each piece of a method draws its part of the whole's mask, on GPUs, too.
TEST(CpBackward, DropoutInDeviceMemory) {
    const Handle handle = make_handle();
    for (const Way& way : kWays)
        for (const int32_t dtype : {FA_F32, FA_BF16}) {
            Rng rng(12);
            Case c = shaped({2, 4, 4, 70, 90, 32, 32}, dtype);
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.d.dropout_p = 0.3f, c.a.dropout_seed = 5, c.a.dropout_offset = 6;
            c.a.dropout_row = 1001, c.a.dropout_key = 77, c.a.dropout_head = 5, c.a.dropout_heads = 40;
            fill(c, rng);
            BackwardCase b(std::move(c));
            ASSERT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
            b.bind(rng);
            b.fill_normal(rng);
            Spread s = by_rows(2, way.method, way.layout);
            s.device = true;
            ASSERT_EQ("", spread_and_check_backward(handle, b, s)) << way.name;
            b.c.p_dtype = probability_dtype(handle, b.c.d);
            ASSERT_EQ("", spread_and_check(b.c, s)) << way.name;
        }
}

TEST(CpBackward, SumsHaveTheSameBitsEveryTime) {
    const Handle handle = make_handle();
    for (const int32_t method : {FA_CP_METHOD_ALL_GATHER, FA_CP_METHOD_RING}) {
        Rng rng(8);
        BackwardCase b = grouped(handle, rng);
        std::vector<Bytes> first;
        for (int repeat = 0; repeat < 3; repeat++) {
            Spread s = by_rows(3, method, FA_CP_LAYOUT_ZIGZAG);
            s.again = repeat == 2;
            StandIn room(3);
            for (const RankResult& r : run_spread_backward(b, s, room)) ASSERT_EQ(FA_OK, r.status) << r.error;
            if (repeat == 0) first = gradients(b);
            EXPECT_EQ(first, gradients(b));
        }
    }
}

TEST(CpBackward, OneRankIsTheCore) {
    const Handle handle = make_handle();
    Rng rng(9);
    BackwardCase b = grouped(handle, rng);
    EXPECT_EQ("", spread_and_check_backward(handle, b, by_rows(1, FA_CP_METHOD_RING, FA_CP_LAYOUT_CONTIGUOUS)));
}

TEST(CpBackward, SendsWhatItExplainsAndHardlyMoreThanTheLeast) {
    constexpr uint64_t kStatuses = 2 * 48;  // of each peer, at the beginning and at the end
    constexpr uint64_t kSinks = 16 * sizeof(float);
    const Handle handle = make_handle();
    for (const Way& way : kWays) {
        Rng rng(10);
        BackwardCase b = grouped(handle, rng);
        StandIn room(4);
        for (const RankResult& r : run_spread_backward(b, by_rows(4, way.method, way.layout), room)) {
            ASSERT_EQ(FA_OK, r.status) << r.error;
            const size_t at = r.explained.find("it sends ");
            ASSERT_NE(std::string::npos, at) << r.explained;
            unsigned long long sent = 0, least = 0;
            ASSERT_EQ(2, sscanf(r.explained.c_str() + at, "it sends %llu bytes, the least is %llu", &sent, &least)) << r.explained;
            EXPECT_EQ(sent + 3 * (kStatuses + kSinks), r.bytes) << way.name << ": " << r.explained;
            EXPECT_LE(double(sent), 1.05 * double(least)) << way.name;
        }
    }
}

// What every rank hears when one of three changes its backward.
std::vector<RankResult> changed(const std::function<void(int32_t, fa_backward_args_t&)>& change) {
    const Handle handle = make_handle();
    Rng rng(11);
    BackwardCase b = grouped(handle, rng);
    Spread s = by_rows(3, FA_CP_METHOD_RING, FA_CP_LAYOUT_ZIGZAG);
    s.change_backward = change;
    StandIn room(3);
    return run_spread_backward(b, s, room);
}

TEST(CpBackward, WhatNoMethodHasIsRefused) {
    static float some[1 << 20];
    alignas(256) static char workspace[256];
    const auto refused = [](fa_status_t status, const char* sentence, const std::function<void(fa_backward_args_t&)>& change) {
        for (const RankResult& r : changed([&](int32_t, fa_backward_args_t& g) { change(g); })) {
            EXPECT_EQ(status, r.status) << fa_status_name(r.status) << ": " << r.error;
            EXPECT_NE(std::string::npos, r.error.find(sentence)) << r.error;
        }
    };
    refused(FA_UNSUPPORTED, "expected NULL on 3 ranks", [](fa_backward_args_t& g) { g.dbias = some; });
    refused(FA_UNSUPPORTED, "workspace is ", [](fa_backward_args_t& g) { g.workspace = workspace, g.workspace_size = 256; });
    refused(FA_INVALID_ARGUMENT, "dout is NULL", [](fa_backward_args_t& g) { g.dout = nullptr; });
    refused(FA_UNSUPPORTED_FIELD, "flags is 0x40000000", [](fa_backward_args_t& g) { g.flags = 1u << 30; });
    refused(FA_INVALID_ARGUMENT, "dq_stride", [](fa_backward_args_t& g) { g.dq_stride[1] = 1, g.dq_stride[2] = 1, g.dq_stride[3] = 1; });
    refused(FA_INVALID_ARGUMENT, "dk_stride", [](fa_backward_args_t& g) { g.dk_stride[0] = -1; });
}

TEST(CpBackward, ARankThatRefusesTellsTheOthers) {
    const std::vector<RankResult> results = changed([](int32_t rank, fa_backward_args_t& g) {
        if (rank == 1) g.dout = nullptr;
    });
    EXPECT_EQ(FA_INVALID_ARGUMENT, results[1].status) << results[1].error;
    for (const size_t other : {0u, 2u}) {
        EXPECT_EQ(FA_PEER_FAILED, results[other].status);
        EXPECT_EQ("rank 1 gave up the call with FA_INVALID_ARGUMENT", results[other].error);
    }
}

TEST(CpBackward, RanksThatAskForOtherGradientsAllSaySo) {
    for (const RankResult& r : changed([](int32_t rank, fa_backward_args_t& g) {
             if (rank == 2) g.dv = nullptr;
         })) {
        EXPECT_EQ(FA_PEERS_DISAGREE, r.status) << r.error;
        EXPECT_NE(std::string::npos, r.error.find("asks for other gradients")) << r.error;
    }
}

TEST(CpBackward, ASilentRankIsATimeoutForEachThatWaitsForIt) {
    const Handle handle = make_handle();
    for (const int32_t method : {FA_CP_METHOD_ALL_GATHER, FA_CP_METHOD_RING, FA_CP_METHOD_ULYSSES})
        for (const int64_t message : {0, 3, 5}) {
            Rng rng(12);
            BackwardCase b = grouped(handle, rng);
            Spread s = by_rows(4, method, FA_CP_LAYOUT_CONTIGUOUS);
            s.timeout_ms = 300;
            s.again = true;  // afterwards the object is of no use
            StandIn room(4);
            room.mute_rank = 1, room.mute_message = message;
            for (const RankResult& r : run_spread_backward(b, s, room))
                EXPECT_EQ(FA_INVALID_STATE, r.status) << fa_status_name(r.status) << ": " << r.error;
        }
}

}  // namespace
}  // namespace test
