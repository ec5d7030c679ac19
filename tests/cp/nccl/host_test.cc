// flashattn_cp_nccl.h over stand-ins for NCCL and for CUDA's runtime, on the CPU backend: messages travel on threads of their own, beside
// the work, as on devices, and a rank that is silent or breaks a message is a status.
#include <flashattn_cp_nccl.h>
#include <gtest/gtest.h>
#include "../problems.h"
#include "stand_in/comms.h"

namespace test {
namespace {

// Over communicators that are made anew.
Spread over_stand_in(Spread spread, std::vector<ncclComm_t>* comms) {
    *comms = make_comms(spread.ranks);
    spread.open = [comms](int32_t rank, fa_handle_t, fa_cp_transport_t* transport) {
        return fa_cp_nccl_open((*comms)[size_t(rank)], transport);
    };
    spread.close = [comms](int32_t rank, fa_cp_transport_t* transport) {
        fa_cp_nccl_close(transport);
        ncclCommDestroy((*comms)[size_t(rank)]);
    };
    return spread;
}

class NcclWays : public testing::TestWithParam<Way> {};

TEST_P(NcclWays, AgreeWithTheOracle) {
    const Way way = GetParam();
    for (uint64_t seed = 1; seed <= 8; seed++) {
        Case c = problem(derive(27, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, false);
        Rng rng(derive(28, seed));
        std::vector<ncclComm_t> comms;
        Spread s = over_stand_in(spread_of(way, c, rng), &comms);
        s.again = rng.chance(0.5);
        ASSERT_EQ("", spread_and_check(c, s)) << way.name << ", seed " << seed << ", " << s.ranks << " ranks";
    }
}

TEST_P(NcclWays, GradientsAgreeWithTheOracle) {
    const Way way = GetParam();
    const Handle handle = make_handle();
    for (uint64_t seed = 1; seed <= 8; seed++) {
        Rng rng(derive(31, seed));
        BackwardCase b(problem(derive(30, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, true));
        b.c.p_dtype = probability_dtype(handle, b.c.d);
        ASSERT_EQ(FA_OK, b.run_forward(handle)) << handle.error();
        b.wants_dbias = false, b.gives_dlse = rng.chance(0.3);
        b.bind(rng);
        b.fill_normal(rng);
        std::vector<ncclComm_t> comms;
        ASSERT_EQ("", spread_and_check_backward(handle, b, over_stand_in(spread_of(way, b.c, rng), &comms)))
            << way.name << ", seed " << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Cp, NcclWays, testing::ValuesIn(kWays), name_of_way);

Case small() {
    Rng rng(3);
    Case c = shaped({1, 4, 4, 24, 24, 16, 16});
    fill(c, rng);
    return c;
}

TEST(CpNccl, ASilentRankIsATimeout) {
    Case c = small();
    std::vector<ncclComm_t> comms;
    Spread s = over_stand_in(by_rows(3, FA_CP_METHOD_RING, FA_CP_LAYOUT_ZIGZAG), &comms);
    s.timeout_ms = 300;
    s.silent_rank = 1;
    StandIn room(3);
    const std::vector<RankResult> results = run_spread(c, s, room);
    for (const size_t r : {0, 2}) {
        EXPECT_EQ(FA_TIMEOUT, results[r].status) << results[r].error;
        EXPECT_NE(std::string::npos, results[r].error.find("waited 300 ms for the ranks' statuses")) << results[r].error;
    }
}

TEST(CpNccl, ABrokenMessageIsAPeersFailure) {
    Case c = small();
    std::vector<ncclComm_t> comms;
    Spread s = over_stand_in(by_rows(2, FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_ZIGZAG), &comms);
    s.timeout_ms = 20000;
    StandIn room(2);
    cut_messages_of(0);
    const std::vector<RankResult> results = run_spread(c, s, room);
    cut_messages_of(-1);
    for (const RankResult& r : results) EXPECT_EQ(FA_PEER_FAILED, r.status) << r.error;
}

TEST(CpNccl, ARankThatRefusesItsArgumentsTellsTheOthers) {
    Case c = small();
    std::vector<ncclComm_t> comms;
    Spread s = over_stand_in(by_rows(3, FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_ZIGZAG), &comms);
    s.change = [](int32_t rank, fa_attention_desc_t& desc, fa_cp_desc_t&, fa_forward_args_t&) {
        if (rank == 2) desc.algorithm = FA_ALGORITHM_STANDARD;
    };
    StandIn room(3);
    const std::vector<RankResult> results = run_spread(c, s, room);
    EXPECT_EQ(FA_PEER_FAILED, results[0].status) << results[0].error;
    EXPECT_EQ(FA_PEER_FAILED, results[1].status) << results[1].error;
    EXPECT_EQ(FA_UNSUPPORTED, results[2].status) << results[2].error;
}

}  // namespace
}  // namespace test
