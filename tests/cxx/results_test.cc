// Without exceptions each call returns what it gave; this unit lives in one program with units that have them.
#include <flashattn.hpp>
#include <gtest/gtest.h>

#ifndef FLASHATTN_NO_EXCEPTIONS
#error "this unit is compiled with the switch"
#endif

namespace {

TEST(Results, HaveTheValueOrTheSentence) {
    flashattn::HandleOptions options;
    options.backend = FA_BACKEND_CPU;
    auto handle = flashattn::Handle::create(options);
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    EXPECT_EQ(handle->get(FA_INFO_BACKEND).value(), FA_BACKEND_CPU);

    flashattn::Attention a;
    a.batch = 1, a.heads_q = 2, a.seqlen_q = a.seqlen_k = 3, a.dim_qk = 4;
    const std::vector<float> x(24, 3);
    std::vector<float> o(24);
    EXPECT_TRUE(handle->forward(a, x, x, x, o).ok());
    EXPECT_EQ(o, x);
    o.assign(23, 0);
    const flashattn::Status refused = handle->forward(a, x, x, x, o);
    EXPECT_EQ(refused.code(), FA_INVALID_ARGUMENT);
    EXPECT_EQ(refused.message(), "o has 92 bytes: the call would use 96");
    EXPECT_EQ(o, std::vector<float>(23, 0));

    options.backend = 99;
    EXPECT_EQ(flashattn::Handle::create(options).status().code(), FA_UNSUPPORTED_FIELD);
    EXPECT_FALSE(flashattn::alibi_slopes(-1).ok());
}

}  // namespace
