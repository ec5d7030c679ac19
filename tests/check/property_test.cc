// Laws that hold without any reference: what may change a result, and what may not change a bit of it.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

struct Bits {
    std::vector<unsigned char> o, lse, scores;
    bool operator==(const Bits& other) const { return o == other.o && lse == other.lse && scores == other.scores; }
};

Bits run_bits(const Handle& handle, Case& test_case) {
    EXPECT_EQ(test_case.run(handle), FA_OK) << handle.error() << "\n" << test_case.describe();
    return {bytes_of(test_case.o), bytes_of(test_case.lse), bytes_of(test_case.scores)};
}

// One row of o and its LSE.
std::vector<unsigned char> row_bits(const Case& test_case, int64_t b, int64_t h, int64_t i) {
    const oracle::Reading r = test_case.reading();
    const int64_t size = oracle::size_of(r.o_dtype);
    const unsigned char* o = test_case.o.as<unsigned char>() + r.o(b, h, i) * size;
    const unsigned char* lse = reinterpret_cast<const unsigned char*>(test_case.lse.as<float>() + r.lse(b, h, i));
    std::vector<unsigned char> bits(o, o + r.dim_v * size);
    bits.insert(bits.end(), lse, lse + 4);
    return bits;
}

// Big enough for several tiles and workers.
Case big_case(Rng& rng, int32_t dtype = FA_F32) {
    Case c = shaped({2, 4, 2, 150, 400, 32, 24}, dtype);
    c.bind(rng);
    c.fill_normal(rng);
    return c;
}

TEST(Bits, SameForAnyNumberOfThreads) {
    if (!testing_the_cpu()) GTEST_SKIP() << "threads belong to the CPU backend";
    const Handle handle = make_handle();
    Rng rng(41);
    auto same = [&](Case& test_case) {
        ASSERT_TRUE(handle.set_threads(1));
        const Bits one = run_bits(handle, test_case);
        for (const int64_t threads : {2, 3, 8}) {
            ASSERT_TRUE(handle.set_threads(threads));
            ASSERT_TRUE(run_bits(handle, test_case) == one) << threads << " threads\n" << test_case.describe();
        }
    };
    Case big = big_case(rng);
    same(big);
    for (const int32_t splits : {2, 5}) {
        big.d.num_splits = splits;
        same(big);
    }
    for (uint64_t n = 0; n < 300; n++) {
        Case c = random_case(derive(41, n));
        same(c);
    }
}

// Backwards, then on threads of its own: both serve as a program's thread pool.
fa_status_t backwards(void*, int64_t n, void (*body)(void*, int64_t), void* arg) {
    for (int64_t i = n; i-- > 0;) body(arg, i);
    return FA_OK;
}
fa_status_t on_threads(void*, int64_t n, void (*body)(void*, int64_t), void* arg) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < n; i++) threads.emplace_back(body, arg, i);
    for (std::thread& thread : threads) thread.join();
    return FA_OK;
}

TEST(Bits, SameOnAnyThreadPool) {
    if (!testing_the_cpu()) GTEST_SKIP() << "parallel_for belongs to the CPU backend";
    Rng rng(42);
    Case c = big_case(rng);
    c.d.num_splits = 3;
    const Bits expected = run_bits(make_handle(), c);
    for (const fa_parallel_for_fn pool : {&backwards, &on_threads}) {
        fa_create_info_t info = FA_CREATE_INFO_INIT;
        info.parallel_for = pool;
        const Handle handle = make_handle(info);
        for (const int64_t threads : {1, 4}) {
            ASSERT_TRUE(handle.set(FA_PARAM_THREADS, threads));
            EXPECT_TRUE(run_bits(handle, c) == expected);
        }
    }
}

// o and LSE, grouped heads, deterministic or not: a forward always is.
TEST(Failures, F46_F49_F51_same_bits_every_time) {
    const Handle handle = make_handle();
    Rng rng(43);
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case c = big_case(rng, dtype);
        const Bits first = run_bits(handle, c);
        for (int n = 0; n < 20; n++) ASSERT_TRUE(run_bits(handle, c) == first);
        c.d.flags |= FA_DETERMINISTIC;
        ASSERT_TRUE(run_bits(make_handle(), c) == first);
    }
    Case small = shaped({1, 4, 2, 5, 70, 8, 8});
    small.bind(rng);
    small.fill_normal(rng);
    const Bits first = run_bits(handle, small);
    for (int n = 0; n < 500; n++) ASSERT_TRUE(run_bits(handle, small) == first);
}

// A workspace of the asked-for size, full of NaN, changes nothing; nor does a handle's memory after a call that was full of NaN.
TEST(Failures, F41_F50_F58_stale_workspace) {
    const Handle handle = make_handle();
    Rng rng(44);
    for (uint64_t n = 0; n < 200; n++) {
        Case c = random_case(derive(44, n));
        const Bits without = run_bits(handle, c);
        uint64_t bytes = 0;
        ASSERT_EQ(fa_workspace_size(handle, &c.d, FA_OP_FORWARD, &bytes), FA_OK);
        c.use_workspace(bytes, rng);
        ASSERT_TRUE(run_bits(handle, c) == without) << c.describe();
        ASSERT_TRUE(c.workspace.intact());
    }
    Case clean = big_case(rng), dirty = big_case(rng);
    clean.d.num_splits = dirty.d.num_splits = 3;
    dirty.set_v([](auto...) { return NAN; });
    const Bits first = run_bits(handle, clean);
    run_bits(handle, dirty);
    ASSERT_TRUE(run_bits(handle, clean) == first);
}

// With a fixed split size, a sequence has the same bits whatever else is in the batch and however long the others may be.
TEST(Bits, BatchInvarianceWithSplitSize) {
    const Handle handle = make_handle();
    const int64_t rows = 7, keys = 300;
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t split_size : {37, 64, 128}) {
            auto make = [&](int64_t batch, int64_t row_bound, int64_t key_bound) {
                Rng rng(45);
                Case c = shaped({batch, 4, 2, row_bound, key_bound, 32, 32}, dtype);
                causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.d.split_size = split_size;
                c.d.operands |= FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K;
                c.metadata.seqused_q.assign(size_t(batch), int32_t(row_bound)),
                    c.metadata.seqused_k.assign(size_t(batch), int32_t(key_bound));
                c.metadata.seqused_q.back() = int32_t(rows), c.metadata.seqused_k.back() = int32_t(keys);
                c.bind(rng);
                const auto value = [&](int64_t b, int64_t h, int64_t i,
                                       int64_t e) {  // the last sequence is the one that is compared
                    const int64_t salt = b == batch - 1 ? 0 : b + 1;
                    return Rng(derive(uint64_t(salt), uint64_t(h * 4096 + i), uint64_t(e))).normal();
                };
                c.set_q(value), c.set_k(value), c.set_v(value);
                EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
                return c;
            };
            const Case alone = make(1, rows, keys);
            for (const auto& [batch, row_bound, key_bound] : {std::tuple(2, 7, 300), std::tuple(9, 100, 333), std::tuple(3, 7, 5000)}) {
                const Case among = make(batch, row_bound, key_bound);
                for (int64_t h = 0; h < 4; h++)
                    for (int64_t i = 0; i < rows; i++)
                        ASSERT_EQ(row_bits(alone, 0, h, i), row_bits(among, batch - 1, h, i)) << among.describe();
            }
        }
}

TEST(Bits, GroupedHeadsEqualExpandedOnes) {
    const Handle handle = make_handle();
    Rng rng(46);
    for (const int32_t dtype : {FA_F32, FA_F16})
        for (const int64_t group : {2, 3, 8}) {
            Case grouped = shaped({2, 2 * group, 2, 33, 170, 24, 16}, dtype),
                 expanded = shaped({2, 2 * group, 2 * group, 33, 170, 24, 16}, dtype);
            for (Case* c : {&grouped, &expanded}) {
                causal(*c, FA_ALIGN_BOTTOM_RIGHT);
                c->d.num_splits = 1;
                c->bind(rng);
            }
            const auto query = [](int64_t b, int64_t h, int64_t i, int64_t e) {
                return Rng(derive(uint64_t(b * 100 + h), uint64_t(i), uint64_t(e))).normal();
            };
            grouped.set_q(query), grouped.set_k(query), grouped.set_v(query);
            expanded.set_q(query);
            const auto repeated = [&](int64_t b, int64_t h, int64_t j, int64_t e) { return query(b, h / group, j, e); };
            expanded.set_k(repeated), expanded.set_v(repeated);
            EXPECT_TRUE(run_bits(handle, grouped) == run_bits(handle, expanded)) << grouped.describe();
        }
}

// Causal rows stand still when later keys change, and when there are more of them.
TEST(Bits, LaterKeysNeverChangeEarlierRows) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t split_size : {0, 64, 50}) {
            const int64_t rows = 130, keys = 130;
            auto run = [&](uint64_t later_seed, int64_t extra, double later_size) {
                Rng rng(47);
                Case c = shaped({1, 2, 1, rows + extra, keys + extra, 16, 16}, dtype);
                causal(c, FA_ALIGN_TOP_LEFT);
                c.d.split_size = split_size;
                c.d.num_splits = split_size ? 0 : 1;
                c.bind(rng);
                const auto value = [&](int64_t, int64_t h, int64_t j, int64_t e) {
                    const double size = j >= 60 ? later_size : 1;
                    return size * Rng(derive(j >= 60 ? later_seed : 0, uint64_t(h * 1000 + j), uint64_t(e))).normal();
                };
                c.set_q(
                    [&](int64_t, int64_t h, int64_t i, int64_t e) { return Rng(derive(9, uint64_t(h * 1000 + i), uint64_t(e))).normal(); });
                c.set_k(value), c.set_v(value);
                EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
                return c;
            };
            const Case base = run(1, 0, 1);
            for (const auto& [seed, extra, size] :
                 {std::tuple(2, 0, 1.0), std::tuple(3, 0, 300.0), std::tuple(4, 77, 1.0), std::tuple(5, 300, 50.0)}) {
                const Case other = run(uint64_t(seed), extra, size);
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t i = 0; i < 60; i++)
                        ASSERT_EQ(row_bits(base, 0, h, i), row_bits(other, 0, h, i)) << "row " << i << "\n" << other.describe();
            }
        }
}

// Nor when later rows change too, whose scores then outgrow what the tile's earlier rows are measured from.
TEST(Bits, LaterRowsNeverChangeEarlierOnes) {
    const Handle handle = make_handle();
    constexpr int64_t rows = 400, kept = 300;
    for (const int32_t dtype : {FA_F16, FA_BF16})
        for (const auto& [softcap, alibi] : {std::pair(0.f, false), {30.f, false}, {2.f, false}, {0.f, true}}) {
            const auto run = [&, cap = softcap, slopes = alibi](double later_size) {
                Rng rng(48);
                Case c = shaped({1, 1, 1, rows, rows, 16, 16}, dtype);
                causal(c, FA_ALIGN_TOP_LEFT);
                c.d.softcap = cap;
                if (slopes) c.d.operands |= FA_OPERAND_ALIBI;
                c.bind(rng);
                if (slopes) c.alibi.as<float>()[0] = 0.05f;
                const auto values = [&](uint64_t tensor) {
                    return [=](int64_t, int64_t, int64_t i, int64_t e) {
                        const double size = i >= kept ? later_size : 1;
                        return size * Rng(derive(tensor + (size > 1 ? 3 : 0), uint64_t(i), uint64_t(e))).normal();
                    };
                };
                c.set_q(values(1)), c.set_k(values(2)), c.set_v(values(3));
                EXPECT_EQ(run_and_check(handle, c, 7), "");
                return c;
            };
            const Case base = run(1), other = run(40);
            for (int64_t i = 0; i < kept; i++)
                ASSERT_EQ(row_bits(base, 0, 0, i), row_bits(other, 0, 0, i)) << "row " << i << "\n" << other.describe();
        }
}

// Scaling q by a power of two and the scale by its inverse is exact.
TEST(Bits, PowersOfTwoMoveBetweenQAndScale) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16}) {
        std::vector<unsigned char> first;
        for (const float factor : {1.f, 4.f, 0.125f, 0x1p-18f}) {
            if (factor < 0.125f && dtype == FA_F16) continue;  // q would be too small for its type
            Rng rng(48);
            Case c = shaped({1, 2, 2, 20, 90, 16, 16}, dtype);
            c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = 0.3f / factor;
            c.bind(rng);
            c.fill_normal(rng);
            const oracle::Reading r = c.reading();
            for (int64_t n = 0; n < r.q_tensor.extent(); n++)
                oracle::store(c.q.as(), n, dtype, double(factor) * oracle::load(c.q.as(), n, dtype));
            ASSERT_EQ(c.run(handle), FA_OK);
            if (first.empty()) first = bytes_of(c.o);
            EXPECT_EQ(bytes_of(c.o), first) << factor;
        }
    }
}

// ---- laws that hold within rounding

std::vector<double> o_values(const Case& test_case) {
    const oracle::Reading r = test_case.reading();
    return oracle::pair_o(r, oracle::attention(r, {false, 11})).got;
}

TEST(Laws, PermutingKeysChangesNothing) {
    const Handle handle = make_handle();
    Rng rng(51);
    std::vector<int64_t> order(400);
    std::iota(order.begin(), order.end(), 0);
    for (size_t n = order.size(); n > 1; n--) std::swap(order[n - 1], order[size_t(rng.between(0, int64_t(n) - 1))]);
    auto make = [&](bool permuted) {
        Rng same(52);
        Case c = shaped({1, 2, 2, 50, 400, 32, 32});
        c.bind(same);
        const auto value = [&](int64_t, int64_t h, int64_t j, int64_t e) {
            return Rng(derive(uint64_t(h), uint64_t(permuted ? order[size_t(j)] : j), uint64_t(e))).normal();
        };
        c.fill_normal(same);
        c.set_k(value), c.set_v([&](int64_t b, int64_t h, int64_t j, int64_t e) { return value(b, h + 7, j, e); });
        EXPECT_EQ(c.run(handle), FA_OK);
        return c;
    };
    const Case plain = make(false), permuted = make(true);
    EXPECT_LE(oracle::relative_norm(o_values(permuted), o_values(plain)), 2e-6);
}

TEST(Laws, LinearInV) {
    const Handle handle = make_handle();
    auto run = [&](double a, double b) {
        Rng rng(53);
        Case c = shaped({1, 2, 1, 40, 200, 16, 16});
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_v([&](int64_t, int64_t h, int64_t j, int64_t e) {
            return a * Rng(derive(1, uint64_t(h * 1000 + j), uint64_t(e))).normal() +
                   b * Rng(derive(2, uint64_t(h * 1000 + j), uint64_t(e))).normal();
        });
        EXPECT_EQ(c.run(handle), FA_OK);
        return o_values(c);
    };
    const std::vector<double> x = run(1, 0), y = run(0, 1), both = run(3, -2);
    std::vector<double> sum;
    for (size_t n = 0; n < x.size(); n++) sum.push_back(3 * x[n] - 2 * y[n]);
    EXPECT_LE(oracle::relative_norm(both, sum), 2e-6);
}

TEST(Laws, AConstantOnAllScoresMovesOnlyTheLse) {
    const Handle handle = make_handle();
    for (const double constant : {-50.0, 8.0, 1000.0}) {
        auto run = [&](double shift) {
            Rng rng(54);
            Case c = shaped({1, 2, 2, 30, 200, 16, 16});
            c.d.operands |= FA_OPERAND_BIAS;
            c.d.bias_stride[2] = 1;  // one value for each row
            c.bind(rng);
            c.fill_normal(rng);
            c.set_bias([&](auto...) { return shift; });
            EXPECT_EQ(c.run(handle), FA_OK);
            return c;
        };
        const Case base = run(0), moved = run(constant);
        EXPECT_LE(oracle::relative_norm(o_values(moved), o_values(base)), 1e-6 + std::fabs(constant) * 0x1p-22);
        for (int64_t n = 0; n < 60; n++)
            EXPECT_NEAR(double(moved.lse.as<float>()[n]) - double(base.lse.as<float>()[n]), constant,
                        1e-5 * std::fmax(1, std::fabs(constant)));
    }
}

// A bias of two heads with factors for six is the bias of six: powers of two leave no rounding. −inf removes its key even by a factor of 0.
TEST(Laws, FactorsAndRepeatsOfABiasAreThoseWrittenOut) {
    const Handle handle = make_handle();
    const float scale[6] = {1, -2, 0.5f, 4, 0, -0.25f};
    const auto written = [](int64_t h, int64_t i, int64_t j) {
        return (i * 7 + j * 3 + h) % 11 == 0 ? -double(INFINITY) : double((i + 5 * j + h) % 9) / 4;
    };
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t rows : {1, 40}) {
            const auto run = [&](bool by_factors) {
                Rng rng(56);
                Case c = shaped({2, 6, 3, rows, 150, 32, 32});
                c.d.q_dtype = dtype;
                c.d.operands |= FA_OPERAND_BIAS | (by_factors ? FA_OPERAND_BIAS_SCALE : 0);
                c.d.bias_period[1] = by_factors ? 2 : 0;
                dense_pairs(c.d, c.d.bias_stride);
                c.bind(rng);
                c.fill_normal(rng);
                c.set_bias([&](int64_t, int64_t h, int64_t i, int64_t j) {
                    const double bias = written(h % 2, i, j);
                    return by_factors || std::isinf(bias) ? bias : double(scale[h]) * bias;
                });
                if (by_factors) std::copy_n(scale, 6, c.bias_scale.as<float>());
                EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
                return o_values(c);
            };
            EXPECT_LE(oracle::relative_norm(run(true), run(false)), dtype == FA_F32 ? 2e-6 : 4e-3);
        }
}

TEST(Laws, OutputsLieBetweenTheValuesTheyAverage) {
    const Handle handle = make_handle();
    Rng rng(55);
    Case c = big_case(rng);
    c.set_v([](int64_t, int64_t, int64_t j, int64_t e) { return 3 + double((j + e) % 2); });
    ASSERT_EQ(c.run(handle), FA_OK);
    for (const double o : o_values(c)) ASSERT_TRUE(o >= 3 - 4e-6 && o <= 4 + 4e-6) << o;
}

}  // namespace
}  // namespace test
