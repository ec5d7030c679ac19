// The study baselines beyond their numbers, which the random calls and the accuracy lines judge: how they use memory, what they refuse.
#include <gtest/gtest.h>
#include "support/shaped.h"

namespace test {
namespace {

// A matrix of more than half a gigabyte for each head, of which one row of tiles has keys. A backend that cannot hold all heads takes
// them in turns.
TEST(Study, StandardTakesHeadsInTurns) {
    const Handle handle = make_handle();
    Rng rng(231);
    Case c = shaped({2, 2, 1, 32, (1 << 21) + 1, 3, 5});
    c.d.algorithm = FA_ALGORITHM_STANDARD;
    c.d.operands |= FA_OPERAND_SEQUSED_K;
    c.metadata.seqused_k = {70, 3};
    c.d.strided = FA_STRIDED_K | FA_STRIDED_V;  // all keys lie in one place
    c.d.k_stride[0] = 3, c.d.k_stride[3] = 1;
    c.d.v_stride[0] = 5, c.d.v_stride[3] = 1;
    c.bind(rng);
    c.fill_normal(rng);
    EXPECT_EQ(run_and_check(handle, c), "");
}

// flash1 keeps two figures for each row, standard a score for each pair.
TEST(Study, Workspace) {
    const Handle handle = make_handle();
    const auto bytes = [&](int64_t n, int32_t algorithm) {
        Case c = shaped({1, 1, 1, n, n, 64, 64});
        c.d.algorithm = algorithm;
        uint64_t size = 0;
        EXPECT_EQ(fa_workspace_size(handle, &c.d, FA_OP_FORWARD, &size), FA_OK) << handle.error();
        return int64_t(size);
    };
    if (testing_the_cpu()) handle.set(FA_PARAM_THREADS, 1);
    EXPECT_NEAR(double(bytes(8192, FA_ALGORITHM_FLASH1) - bytes(4096, FA_ALGORITHM_FLASH1)), 2 * 4 * 4096, 2048);
    EXPECT_NEAR(double(bytes(8192, FA_ALGORITHM_STANDARD)), 4.0 * 8192 * 8192, 1e6);
}

TEST(Study, Refusals) {
    const Handle handle = make_handle();
    for (const int32_t algorithm : {FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1}) {
        Case c = shaped({1, 1, 1, 70, 200, 8, 8});
        c.d.algorithm = algorithm;
        c.d.num_splits = 1;
        EXPECT_EQ(fa_supports(handle, &c.d, FA_OP_FORWARD), FA_OK) << handle.error();
        c.d.num_splits = 2;
        EXPECT_EQ(fa_supports(handle, &c.d, FA_OP_FORWARD), FA_UNSUPPORTED);
        EXPECT_NE(handle.error().find("num_splits is 2"), std::string::npos) << handle.error();
        c.d.num_splits = 0, c.d.split_size = 64;
        EXPECT_EQ(fa_supports(handle, &c.d, FA_OP_FORWARD), FA_UNSUPPORTED);
        EXPECT_NE(handle.error().find("split_size 64"), std::string::npos) << handle.error();
    }
    const int64_t longest = 2'000'000'000;
    Case c = shaped({1, 1, 1, longest, longest, 1, 1});
    c.d.algorithm = FA_ALGORITHM_STANDARD;
    EXPECT_EQ(fa_supports(handle, &c.d, FA_OP_FORWARD), FA_UNSUPPORTED);
    EXPECT_NE(handle.error().find("seqlen_q 2000000000 times seqlen_k 2000000000"), std::string::npos) << handle.error();
    c.d.algorithm = FA_ALGORITHM_FLASH1;
    EXPECT_EQ(fa_supports(handle, &c.d, FA_OP_FORWARD), FA_OK) << handle.error();
}

}  // namespace
}  // namespace test
