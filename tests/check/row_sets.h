// What the tests of key ranges and of key lists compare: a case with its data, its kernel, and its gradients.
#pragma once
#include <gtest/gtest.h>
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {

inline Case filled(const fa_attention_desc_t& desc) {
    Case c;
    c.d = desc;
    Rng rng(7);
    c.bind(rng);
    c.fill_normal(rng);
    return c;
}

// What fa_explain calls the kernel of a call: bits are compared with those of the same one.
inline std::string kernel_name(const Handle& handle, const fa_attention_desc_t& desc, int32_t op) {
    char text[FA_TEXT_MAX];
    EXPECT_EQ(fa_explain(handle, &desc, op, text, sizeof text), FA_OK) << handle.error();
    const std::string words = text;
    const size_t at = words.find("kernel ");
    return words.substr(at, words.find_first_of(" ,", at + strlen("kernel ")) - at);
}

inline std::vector<std::vector<unsigned char>> gradients(const Handle& handle, Case test_case) {
    BackwardCase b(std::move(test_case));
    b.c.d.flags |= FA_DETERMINISTIC;
    EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
    Rng rng(8);
    b.bind(rng);
    b.fill_normal(rng);
    EXPECT_EQ(b.run(handle), FA_OK) << handle.error();
    return {bytes_of(b.dq), bytes_of(b.dk), bytes_of(b.dv)};
}

}  // namespace test
