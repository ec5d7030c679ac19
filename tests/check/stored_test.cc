// Keys and values of 8 bits: kernels widen them as they read them, and multiply by their factors wherever that is cheapest.
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include "support/shaped.h"

namespace test {
namespace {

struct StoredTypes {
    int32_t q, kv;
};

class Stored : public testing::TestWithParam<StoredTypes> {
  protected:
    const Handle handle = make_handle();
    const StoredTypes types = GetParam();
    Rng rng{derive(261, uint64_t(types.q * 16 + types.kv))};

    Case make(const Shape& shape) {
        Case c = shaped(shape, types.q);
        c.d.k_dtype = types.kv;
        if (oracle::size_of(types.q) == 1) c.d.o_dtype = FA_F16;  // has every number of 8 bits
        return c;
    }
    static void write_code(const Buffer& buffer, int64_t at, int64_t code) { buffer.as<uint8_t>()[at] = uint8_t(code); }
};

// One key, so that o is v: its 256 columns hold every code. NaN and infinities included.
TEST_P(Stored, EveryCodeOfAValue) {
    for (const int64_t rows : {1, 9, 20, 70})
        for (const int64_t first : {0, 1, 2, 3, 17}) {
            Case c = make({1, 1, 1, rows, 1, 32, 256});
            c.bind(rng);
            c.fill_normal(rng, 0);  // a weight of 1
            for (int64_t e = 0; e < 256; e++) write_code(c.v, c.reading().v(0, 0, 0) + e, e + first);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const oracle::Reading r = c.reading();
            for (int64_t i = 0; i < rows; i++)
                for (int64_t e = 0; e < 256; e++) {
                    const double want = oracle::load(c.v.as(), r.v(0, 0, 0) + e, types.kv),
                                 got = oracle::load(c.o.as(), r.o(0, 0, i) + e, r.o_dtype);
                    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
                        << "code " << (e + first) % 256 << ": " << got << ", not " << want;
                }
        }
}

// q picks one dim of k, which holds another code in every key: LSE over a single key is the score itself.
TEST_P(Stored, EveryCodeOfAKey) {
    for (const int64_t heads : {1, 3, 4})
        for (const int64_t dim : {37, 128, 256}) {
            Case c = make({256, heads, 1, 2, 1, dim, 32});
            c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = 1;
            c.d.heads_q = heads;
            c.bind(rng);
            c.fill_normal(rng);
            const auto chosen = [&](int64_t b, int64_t head, int64_t i) { return (b * 7 + head * 5 + i * 3) % dim; };
            c.set_q([&](int64_t b, int64_t head, int64_t i, int64_t e) { return e == chosen(b, head, i) ? 1.0 : 0.0; });
            const oracle::Reading r = c.reading();
            const auto finite = [&](int64_t code) {
                uint8_t byte = uint8_t(code);
                return std::isfinite(oracle::load(&byte, 0, types.kv));
            };
            for (int64_t b = 0; b < 256; b++)
                for (int64_t e = 0; e < dim; e++) write_code(c.k, r.k(b, 0, 0) + e, finite(b + e) || chosen(b, 0, 0) == e ? b + e : 0);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            for (int64_t b = 0; b < 256; b++)
                for (int64_t head = 0; head < heads; head++)
                    for (int64_t i = 0; i < 2; i++) {
                        bool spoiled = false;  // 0 · NaN
                        for (int64_t e = 0; e < dim; e++) spoiled |= !std::isfinite(oracle::load(c.k.as(), r.k(b, 0, 0) + e, types.kv));
                        const double want = oracle::load(c.k.as(), r.k(b, 0, 0) + chosen(b, head, i), types.kv);
                        const double got = c.a.lse[r.lse(b, head, i)];
                        EXPECT_TRUE(spoiled ? !std::isfinite(got) : std::fabs(got - want) <= 1e-5 * std::fabs(want))
                            << b << ": " << got << ", not " << want;
                    }
        }
}

// Every key and value differs, and so does every dim of q: an element out of place shows.
TEST_P(Stored, LengthsAndWidths) {
    for (const int64_t rows : {1, 16, 17, 33, 70})
        for (const int64_t keys : {1, 15, 63, 64, 65, 127, 128, 129, 300})
            for (const int64_t dim : {rng.pick<int64_t>({8, 30, 63, 64, 100}), int64_t(128), int64_t(256)}) {
                if (dim == 256 && rows * keys > 2000 && rows != 17) continue;
                Case c = make({1, 2, 1, rows, keys, dim, rng.chance(0.8) ? dim : 24});
                if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (rng.chance(0.3)) c.d.num_splits = 2;
                c.bind(rng);
                c.fill_normal(rng);
                EXPECT_EQ(run_and_check(handle, c), "");
            }
}

// What is multiplied by what: one factor for all, for a sequence, for a head; for a key, a page or a query. Of either sign, and 0.
TEST_P(Stored, Factors) {
    constexpr int64_t kBatch = 3, kHeads = 2, kKeys = 140;
    for (const bool natural : {false, true})
        for (const int64_t page : {0, 16})
            for (const int64_t which :
                 {0, 1, 2, 3, 4, 5})  // strides of all, of a head, of a sequence or page and head, of a key, of a query, of a query head
                for (const float factor : {0.25f, 3.f, -0.5f, 0.f, 1e-30f}) {
                    if (natural ? page || factor != -0.5f : page && factor != 3.f) continue;
                    if (which == 5 && oracle::size_of(types.q) > 1) continue;
                    Case c = make({kBatch, 4, kHeads, rng.pick<int64_t>({1, 9, 40}), kKeys, rng.pick<int64_t>({40, 128}), 128});
                    c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | (which >= 4 ? FA_OPERAND_Q_DESCALE : 0);
                    if (page) paged(c, page);
                    if (natural) c.d.softcap = 20;
                    for (auto* stride : {&c.d.k_descale_stride, &c.d.v_descale_stride}) {
                        const int64_t rows = page ? page : kKeys;
                        (*stride)[2] = which >= 1 ? 1 : 0;
                        const bool of_a_key = which == 3 || which == 4;
                        (*stride)[1] = of_a_key ? kHeads : 0;
                        (*stride)[0] = of_a_key ? kHeads * rows : which == 2 ? kHeads : 0;
                    }
                    if (which == 4) c.d.q_descale_stride[1] = 1;
                    if (which == 5) c.d.q_descale_stride[0] = 4, c.d.q_descale_stride[2] = 1;
                    c.d.num_splits = rng.pick<int32_t>({1, 3});
                    c.bind(rng);
                    c.fill_normal(rng, types.kv == FA_I8 ? 0.2 : 1);
                    c.set_descales(rng, 1);
                    for (const Buffer* descale : {&c.k_descale, &c.v_descale})
                        for (int64_t n = 0; n < descale->bytes() / 4; n++) descale->as<float>()[n] *= factor;
                    EXPECT_EQ(run_and_check(handle, c), "") << which << " " << factor;
                }
}

// Factors that are no numbers spoil what attends a key, and no sequence without one.
TEST_P(Stored, FactorsThatAreNoNumbers) {
    for (const bool key : {false, true})
        for (const float factor : {float(NAN), std::numeric_limits<float>::infinity()}) {
            if (key && std::isinf(factor)) continue;  // a score of −inf removes its key
            Case c = make({2, 1, 1, 20, 40, 128, 128});
            c.d.operands |= FA_OPERAND_SEQUSED_K | (key ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE);
            c.metadata.seqused_k = {0, 40};
            c.bind(rng);
            c.fill_normal(rng);
            (key ? c.k_descale : c.v_descale).as<float>()[0] = factor;
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const oracle::Reading r = c.reading();
            for (int64_t b = 0; b < 2; b++)
                for (int64_t i = 0; i < 20; i++)
                    for (int64_t e = 0; e < 128; e++) {
                        const double got = oracle::load(c.o.as(), r.o(b, 0, i) + e, r.o_dtype);
                        EXPECT_TRUE(b == 0 ? got == 0 : !std::isfinite(got)) << b << " " << i << " " << e << ": " << got;
                    }
        }
}

INSTANTIATE_TEST_SUITE_P(Types, Stored,
                         testing::Values(StoredTypes{FA_F16, FA_E4M3}, StoredTypes{FA_F16, FA_E5M2}, StoredTypes{FA_F16, FA_I8},
                                         StoredTypes{FA_BF16, FA_E4M3}, StoredTypes{FA_BF16, FA_E5M2}, StoredTypes{FA_BF16, FA_I8},
                                         StoredTypes{FA_E4M3, FA_E4M3}, StoredTypes{FA_E5M2, FA_I8}),
                         [](const auto& info) {
                             return std::string(oracle::name_of(info.param.q)) + "_" + oracle::name_of(info.param.kv);
                         });

}  // namespace
}  // namespace test
