// Known failures of 8-bit queries, keys and values. Names carry the ids of docs/failures.md.
#include <gtest/gtest.h>
#include <cmath>
#include <vector>
#include "support/shaped.h"

namespace test {
namespace {

// 8-bit inputs at every length: none much worse than its neighbours, nor beyond the contract's limits.
TEST(Failures, F72_eight_bit_inputs_at_every_length) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_E4M3, FA_E5M2})
        for (int64_t keys = 1; keys <= 1023; keys += keys < 200 ? 1 : 13) {
            Rng rng(derive(141, uint64_t(keys)));
            Case c = shaped({1, 1, 1, 4, keys, 16, 16}, dtype);
            c.d.o_dtype = FA_F32;
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, c), "");
            const oracle::Pairs pairs = oracle::pair_o(c.reading(), oracle::attention(c.reading()));
            const int32_t p_dtype = c.p_dtype;
            ASSERT_LE(oracle::relative_norm(pairs.got, pairs.want), oracle::norm_limit(p_dtype)) << keys;
        }
}

// With permission Hopper multiplies P of 8 bits, too.
constexpr int32_t kPrecisions[] = {FA_PRECISION_DEFAULT, FA_PRECISION_NATIVE};
// Head dimensions that have kernels of their own: on the CPU, whose sums in f64 would take half a minute, 256 dims have the loop of 128.
std::vector<int64_t> dims_of_kernels() { return testing_the_cpu() ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{64, 128, 256}; }

// Values whose mean is not 0, 8-bit: sums over many keys that are kept in few bits lose a part of every one, with one sign.
TEST(Failures, F72_eight_bit_sums_over_many_keys) {
    const Handle handle = make_handle();
    for (const int32_t precision : kPrecisions)
        for (const int64_t dim : dims_of_kernels())
            for (const int64_t keys : {1024, 16384}) {
                Rng rng(derive(146, uint64_t(keys)));
                Case c = shaped({1, 1, 1, 128, keys, dim, dim}, FA_E4M3);
                c.d.precision = precision;
                c.d.o_dtype = FA_F32, c.d.num_splits = 1;
                c.bind(rng);
                c.fill_normal(rng);
                c.set_v([&](int64_t, int64_t, int64_t, int64_t) { return 1 + rng.normal(); });
                ASSERT_EQ(run_and_check(handle, c, 31), "");
                const oracle::Pairs pairs = oracle::pair_o(c.reading(), oracle::attention(c.reading(), {false, 31}));
                EXPECT_LE(oracle::relative_norm(pairs.got, pairs.want), c.p_of_8_bits ? 2e-2 : 2e-3) << dim << " " << keys;
            }
}

// Scores that rise from block to block, in either direction and now and then by a jump: weights measured from an earlier maximum would
// be beyond the largest 8-bit number, 448, at every step.
TEST(Failures, F72_weights_beyond_eight_bits) {
    const Handle handle = make_handle();
    for (const int32_t precision : kPrecisions)
        for (const int64_t dim : dims_of_kernels())
            for (const double slope : {0.02, -0.02, 0.3, -0.3}) {
                Rng rng(derive(148, uint64_t(dim)));
                Case c = shaped({1, 2, 1, 200, 1300, dim, dim}, FA_E4M3);
                c.d.precision = precision;
                c.d.o_dtype = FA_F32, c.d.num_splits = 1, c.d.scale = 1, c.d.flags |= FA_SCALE_EXPLICIT;
                c.bind(rng);
                c.fill_normal(rng);
                // k has the key's number in digits of base 16; the rows go up by `slope` with each key, some three times as steeply.
                c.set_k([&](int64_t, int64_t, int64_t j, int64_t e) { return e < 3 ? double(j >> 4 * e & 15) : 0; });
                c.set_q([&](int64_t, int64_t, int64_t i, int64_t e) {
                    return e < 3 ? std::ldexp(slope, int(4 * e)) * (i % 5 == 0 ? 3 : 1) : 0;
                });
                ASSERT_EQ(run_and_check(handle, c), "") << slope;
                const oracle::Pairs pairs = oracle::pair_o(c.reading(), oracle::attention(c.reading()));
                for (const double o : pairs.got) ASSERT_TRUE(std::isfinite(o)) << slope;
                if (std::fabs(slope) < 0.1) {
                    EXPECT_LE(oracle::relative_norm(pairs.got, pairs.want), c.p_of_8_bits ? 4e-2 : 2e-3) << dim << " " << slope;
                }
            }
}

// A row among two hundred and alone: other kernels, with other tiles and other roundings of the weights, but within what each may be off.
TEST(Failures, F72_a_row_of_eight_bits_in_a_prefill_and_alone) {
    const Handle handle = make_handle();
    for (const int32_t precision : kPrecisions)
        for (const int64_t dim : {64, 128, 256}) {
            constexpr int64_t rows = 200;
            std::vector<double> last[2];
            for (const bool alone : {false, true}) {
                Case c = shaped({1, 2, 1, alone ? 1 : rows, 777, dim, dim}, FA_E4M3);
                c.d.precision = precision;
                c.d.o_dtype = FA_F32, c.d.num_splits = 1;
                causal(c, FA_ALIGN_BOTTOM_RIGHT);
                Rng rng(149);
                c.bind(rng);
                const auto value = [](int64_t head, int64_t row, int64_t e) {
                    return Rng(derive(uint64_t(150 + head), uint64_t(row * 256 + e))).normal();
                };
                c.set_q([&](int64_t, int64_t h, int64_t i, int64_t e) { return value(h, alone ? rows - 1 : i, e); });
                c.set_k([&](int64_t, int64_t, int64_t j, int64_t e) { return value(2, j, e); });
                c.set_v([&](int64_t, int64_t, int64_t j, int64_t e) { return value(3, j, e); });
                ASSERT_EQ(run_and_check(handle, c), "");
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t e = 0; e < dim; e++)
                        last[alone].push_back(oracle::load(c.o.as(), c.reading().o(0, h, alone ? 0 : rows - 1) + e, FA_F32));
            }
            EXPECT_LE(oracle::relative_norm(last[0], last[1]), 4e-2) << dim;
        }
}

// Where some weights are made without special functions, a key that is NaN must be so for them, too.
TEST(Failures, F72_a_key_of_eight_bits_that_is_nan) {
    const Handle handle = make_handle();
    for (const int32_t precision : kPrecisions)
        for (const int64_t dim : {64, 128, 256})
            for (const int64_t key : {8, 9, 25, 400}) {
                Rng rng(151);
                Case c = shaped({1, 2, 1, 200, 500, dim, dim}, FA_E4M3);
                c.d.precision = precision;
                c.d.o_dtype = FA_F32, c.d.num_splits = 1, c.d.operands = 0;
                c.bind(rng);
                c.fill_normal(rng);
                c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return j == key ? std::nan("") : rng.normal(); });
                ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                for (int64_t i = 0; i < 2 * 200 * dim; i++)
                    ASSERT_TRUE(std::isnan(oracle::load(c.o.as(), i, FA_F32))) << dim << " " << key << " " << i;
            }
}

// The kernels that multiply 8 bits must not take other sums for an LSE than without one.
TEST(Failures, F72_asking_for_an_lse_changes_no_bit_of_an_eight_bit_output) {
    const Handle handle = make_handle();
    for (const int32_t precision : kPrecisions)
        for (const Shape& shape : {Shape{1, 4, 2, 200, 333, 64, 64}, Shape{1, 4, 2, 200, 333, 128, 128},
                                   Shape{1, 22, 2, 1152, 333, 128, 128}, Shape{1, 4, 2, 200, 333, 256, 256}}) {
            for (const bool is_causal : {false, true}) {
                std::vector<unsigned char> bytes[2];
                for (const bool lse : {false, true}) {
                    Rng rng(147);
                    Case c = shaped(shape, FA_E4M3);
                    c.d.precision = precision;
                    c.d.o_dtype = FA_F32, c.d.num_splits = 1;
                    if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (!lse) c.d.operands = 0;
                    c.bind(rng);
                    c.fill_normal(rng);
                    ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                    bytes[lse] = bytes_of(c.o);
                }
                EXPECT_EQ(bytes[0], bytes[1]) << shape.heads_q << " " << shape.dim_v << " " << is_causal;
            }
        }
}

}  // namespace
}  // namespace test
