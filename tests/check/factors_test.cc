// Factors of any type and block, shifts, tails and types of 4 bits: the schemes that caches use are attention over what they stand for.
#include <gtest/gtest.h>
#include <cmath>
#include "isa.h"
#include "oracle/row.h"
#include "support/shaped.h"

namespace test {
namespace {

// Rows of k and v of a dense layout share factors: so many rows, dims.
struct Blocks2 {
    int64_t rows, dims;
};
int64_t parts(int64_t n, int64_t of) { return of == 0 ? 1 : (n + of - 1) / of; }

void lay_factors(Blocks2 b, int64_t keys, int64_t heads, int64_t dims, int64_t (&block)[2], int64_t (&stride)[4]) {
    block[0] = b.rows, block[1] = b.dims;
    stride[3] = b.dims ? 1 : 0, stride[2] = parts(dims, b.dims), stride[1] = heads * stride[2],
    stride[0] = parts(keys, b.rows ? b.rows : 1) * stride[1];
}

Case stored(const Shape& shape, int32_t k_dtype, int32_t v_dtype, int32_t factor_dtype, Blocks2 of_k, Blocks2 of_v, bool shifted = false) {
    Case c = shaped(shape);
    c.d.k_dtype = k_dtype, c.d.v_dtype = v_dtype, c.d.k_descale_dtype = c.d.v_descale_dtype = factor_dtype;
    c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
    if (shifted) c.d.operands |= FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;
    lay_factors(of_k, shape.keys, shape.heads_k, shape.dim_qk, c.d.k_descale_block, c.d.k_descale_stride);
    lay_factors(of_v, shape.keys, shape.heads_k, shape.dim_v, c.d.v_descale_block, c.d.v_descale_stride);
    return c;
}

void fill(Case& test_case, Rng& rng, double typical) {
    test_case.bind(rng);
    test_case.fill_normal(rng);
    test_case.set_descales(rng, typical);
}

// The same call over f32: what k and v stand for.
Case dequantised(const Case& test_case, Rng& rng) {
    const oracle::Reading r = test_case.reading();
    Case f =
        shaped({test_case.d.batch, test_case.d.heads_q, r.heads_k, test_case.d.seqlen_q, test_case.d.seqlen_k, test_case.d.dim_qk, r.dim_v},
               FA_F32);
    f.d.scale = test_case.d.scale, f.d.flags = test_case.d.flags & ~uint32_t(FA_V_IN_K), f.d.alignment = test_case.d.alignment;
    f.bind(rng);
    std::vector<oracle::Cache> heads;
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (int64_t h = 0; h < r.heads_k; h++) heads.push_back(oracle::load_cache(r, b, h, h));
    const auto cache = [&](int64_t b, int64_t h) -> const oracle::Cache& { return heads[size_t(b * r.heads_k + h)]; };
    std::vector<double> row;
    f.set_q([&](int64_t b, int64_t h, int64_t i, int64_t e) {
        if (e == 0) row = oracle::load_row(r, b, h, i, cache(b, r.k_head(h))).q;
        return row[size_t(e)];
    });
    f.set_k([&](int64_t b, int64_t h, int64_t j, int64_t e) { return cache(b, h).k[size_t(j)][size_t(e)]; });
    f.set_v([&](int64_t b, int64_t h, int64_t j, int64_t e) { return cache(b, h).v[size_t(j)][size_t(e)]; });
    return f;
}

std::vector<double> outputs(const Case& test_case, double factor = 1) {
    std::vector<double> o;
    const oracle::Reading r = test_case.reading();
    for (int64_t n = 0; n < r.o_tensor.extent(); n++) o.push_back(oracle::load(test_case.o.as(), n, r.o_dtype) / factor);
    return o;
}

void expect_dequantised(const Handle& handle, Case& test_case, Rng& rng, double o_scale = 1) {
    ASSERT_EQ(run_and_check(handle, test_case), "");
    Case f = dequantised(test_case, rng);
    ASSERT_EQ(run_and_check(handle, f), "");
    EXPECT_LE(oracle::relative_norm(outputs(test_case, o_scale), outputs(f)), oracle::norm_limit(FA_F32));
}

class Schemes : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{341};
    void SetUp() override { FA_USE_ISA(handle, GetParam()); }
};

TEST_P(Schemes, Mxfp8IsE4m3WithE8m0Factors) {
    for (const int64_t rows : {1, 20})
        for (const Blocks2 of_v : {Blocks2{32, 1}, Blocks2{0, 32}}) {
            Case c = stored({2, 4, 2, rows, 70, 64, 96}, FA_E4M3, FA_E4M3, FA_E8M0, {0, 32}, of_v);
            fill(c, rng, 0.5);
            expect_dequantised(handle, c, rng);
        }
}

// The tensor's second factor goes into the scale and o_scale.
TEST_P(Schemes, Nvfp4IsE2m1WithE4m3Factors) {
    for (const int64_t rows : {1, 20}) {
        Case c = stored({1, 4, 1, rows, 90, 64, 48}, FA_E2M1, FA_E2M1, FA_E4M3, {0, 16}, {0, 16});
        c.d.flags = FA_SCALE_EXPLICIT, c.d.scale = 0.05f;
        c.d.operands |= FA_OPERAND_O_SCALE;
        fill(c, rng, 0.6);
        *c.o_scale.as<float>() = 0.37f;
        expect_dequantised(handle, c, rng, 0.37f);
    }
}

TEST_P(Schemes, KiviIsU4WithF16FactorsAndShifts) {
    for (const int64_t rows : {1, 20}) {
        Case c = stored({1, 6, 2, rows, 100, 64, 128}, FA_U4, FA_U4, FA_F16, {32, 1}, {0, 64}, true);
        fill(c, rng, 0.1);
        expect_dequantised(handle, c, rng);
    }
}

INSTANTIATE_TEST_SUITE_P(Isas, Schemes, testing::ValuesIn(isas_under_test()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

TEST(Factors, BlocksOfQ80AreIntegersWithF16Factors) {
    const Handle handle = make_handle();
    Rng rng(342);
    for (const int64_t rows : {1, 30}) {
        Case q8 = shaped({1, 4, 2, rows, 70, 64, 64}, FA_F32);
        q8.d.k_dtype = q8.d.v_dtype = FA_Q8_0;
        q8.bind(rng);
        q8.fill_normal(rng);
        Case i8 = stored({1, 4, 2, rows, 70, 64, 64}, FA_I8, FA_I8, FA_F16, {0, 32}, {0, 32});
        i8.bind(rng);
        const auto unpack = [](const Buffer& blocks, const Buffer& values, const Buffer& factors) {
            for (int64_t n = 0; n < blocks.bytes() / 34; n++) {
                oracle::store(factors.as(), n, FA_F16, oracle::load_block_word(blocks.as<char>() + 34 * n, 0));
                memcpy(values.as<char>() + 32 * n, blocks.as<char>() + 34 * n + 2, 32);
            }
        };
        unpack(q8.k, i8.k, i8.k_descale);
        unpack(q8.v, i8.v, i8.v_descale);
        memcpy(i8.q.as(), q8.q.as(), size_t(q8.q.bytes()));
        ASSERT_EQ(run_and_check(handle, q8), "");
        ASSERT_EQ(run_and_check(handle, i8), "");
        EXPECT_LE(oracle::relative_norm(outputs(i8), outputs(q8)), oracle::norm_limit(FA_F32));
    }
}

// A tail of k, of q, or of both is the whole copied together; heads may share one.
TEST(Factors, ATailIsAPartOfTheHead) {
    const Handle handle = make_handle();
    Rng rng(343);
    for (const uint64_t tails : {FA_OPERAND_K_TAIL, FA_OPERAND_Q_TAIL, FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL})
        for (const bool v_in_k : {false, true})
            for (const int64_t rows : {1, 30}) {
                Case c = shaped({2, 4, 2, rows, 70, 96, v_in_k ? 80 : 48}, FA_F32);
                c.d.operands |= tails, c.d.dim_tail = 32, c.d.k_dtype = FA_BF16;
                if (tails & FA_OPERAND_K_TAIL) c.d.k_tail_dtype = FA_F16;
                if (v_in_k) c.d.flags |= FA_V_IN_K;
                if (tails & FA_OPERAND_K_TAIL && !v_in_k) {  // one rotary key for both heads
                    c.d.strided |= FA_STRIDED_K_TAIL;
                    c.d.k_tail_stride[0] = 70 * 40, c.d.k_tail_stride[1] = 40, c.d.k_tail_stride[3] = 1;
                }
                c.bind(rng);
                c.fill_normal(rng);
                expect_dequantised(handle, c, rng);
            }
}

// Records of 656 bytes: 512 e4m3, 4 f32 factors, 64 bf16 that are turned; what is appended is what is attended.
struct Record {
    int32_t factor_dtype;
    int64_t own, dims_of_factor, pages, page_size, token_bytes, page_bytes, factor_at, factor_step, tail_at;
};
void run_records(const Record& x, const Handle& handle) {
    Rng rng(344);
    constexpr int64_t kTokens = 70, kHeads = 16;
    const int64_t tail = 64, dim = x.own + tail, factor_size = oracle::size_of(x.factor_dtype);
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.flags = FA_V_IN_K, d.q_dtype = FA_BF16, d.k_dtype = FA_E4M3, d.o_dtype = FA_F32, d.k_descale_dtype = x.factor_dtype;
    d.operands = FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE | FA_OPERAND_PAGE_TABLE;
    d.batch = 1, d.heads_q = kHeads, d.heads_k = 1, d.seqlen_q = 2, d.seqlen_k = kTokens, d.dim_qk = dim, d.dim_v = 512, d.dim_tail = tail;
    d.page_size = x.page_size, d.num_pages = x.pages;
    d.strided = FA_STRIDED_K | FA_STRIDED_K_TAIL;
    const auto set = [](int64_t (&stride)[4], int64_t page, int64_t row) { stride[0] = page, stride[1] = row, stride[3] = 1; };
    set(d.k_stride, x.page_bytes, x.token_bytes), set(d.k_tail_stride, x.page_bytes / 2, x.token_bytes / 2);
    set(d.k_descale_stride, x.page_bytes / factor_size, x.factor_step / factor_size);
    d.k_descale_block[1] = x.dims_of_factor;
    const Buffer cache(x.pages * x.page_bytes, Buffer::Guard::after), fresh(kTokens * dim * 2, Buffer::Guard::after),
        q(2 * kHeads * dim * 2, Buffer::Guard::after), o(2 * kHeads * 512 * 4, Buffer::Guard::after);
    for (int64_t n = 0; n < kTokens * dim; n++) oracle::store(fresh.as(), n, FA_BF16, rng.normal());
    for (int64_t n = 0; n < 2 * kHeads * dim; n++) oracle::store(q.as(), n, FA_BF16, rng.normal());
    std::vector<int32_t> table;
    for (int64_t page = 0; page < x.pages; page++) table.push_back(int32_t(x.pages - 1 - page));

    fa_append_kv_args_t put = FA_APPEND_KV_ARGS_INIT;
    put.flags = FA_APPEND_DYNAMIC_SCALE;
    put.k_new = fresh.as(), put.seqlen_new = kTokens, put.page_table = table.data();
    put.k = cache.as(), put.k_descale = cache.as<char>() + x.factor_at, put.k_tail = cache.as<char>() + x.tail_at;
    const std::vector<oracle::Write> want = oracle::append_kv(d, put);
    ASSERT_EQ(fa_append_kv(handle, &d, &put), FA_OK) << handle.error();
    ASSERT_EQ(oracle::compare(want).fault, "");

    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.q = q.as(), a.k = put.k, a.k_descale = put.k_descale, a.k_tail = put.k_tail, a.o = o.as(), a.page_table = table.data();
    ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
    const oracle::Reading r(d, a);
    EXPECT_EQ(oracle::compare_o(r, oracle::attention(r), probability_dtype(handle, d)).fault, "");
    const oracle::Cache again = oracle::load_cache(r, 0, 0, 0);
    for (int64_t e = 0; e < dim; e++) {  // the last token: e4m3 keeps 4 bits
        const double given = oracle::load(fresh.as(), (kTokens - 1) * dim + e, FA_BF16);
        const double read = again.k[kTokens - 1][size_t(e)];
        ASSERT_NEAR(read, given, std::fabs(given) / 14 + 0.02) << e;
    }
}

TEST(Factors, RecordsOf656Bytes) {
    const Handle handle = make_handle();
    run_records({FA_F32, 512, 128, 2, 64, 656, 64 * 656, 512, 656, 528}, handle);
}
// v reaches into the tail; factors lie behind a page's tokens.
TEST(Factors, RecordsOf584Bytes) {
    const Handle handle = make_handle();
    run_records({FA_E8M0, 448, 64, 2, 64, 576, 64 * 584, 64 * 576, 8, 448}, handle);
}

// Schemes appended with factors of their own: the cache that the oracle writes, and attention near that of the values given.
TEST(Factors, WhatIsAppendedIsAttended) {
    const Handle handle = make_handle();
    const struct {
        int32_t dtype, factor_dtype;
        int64_t dims;
        bool shifted;
        double error;
    } schemes[] = {{FA_E4M3, FA_E8M0, 32, false, 0.06},
                   {FA_E2M1, FA_E4M3, 16, false, 0.25},
                   {FA_U4, FA_F16, 32, true, 0.2},
                   {FA_I4, FA_BF16, 32, false, 0.2},
                   {FA_I8, FA_F32, 0, false, 0.02}};
    for (const auto& x : schemes) {
        Rng rng(345);
        Case c = stored({2, 4, 2, 5, 60, 64, 64}, x.dtype, x.dtype, x.factor_dtype, {0, x.dims}, {0, x.dims}, x.shifted);
        c.bind(rng);
        c.set_q([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
        Case f = shaped({2, 4, 2, 5, 60, 64, 64}, FA_F32);
        f.bind(rng);
        f.fill_normal(rng);
        memcpy(f.q.as(), c.q.as(), size_t(c.q.bytes()));
        fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
        a.flags = FA_APPEND_DYNAMIC_SCALE;
        a.k_new = f.k.as(), a.v_new = f.v.as(), a.seqlen_new = 60, a.k = c.k.as(), a.v = c.v.as();
        a.k_descale = c.k_descale.as(), a.v_descale = c.v_descale.as(), a.k_shift = c.k_shift.as(), a.v_shift = c.v_shift.as();
        const std::vector<oracle::Write> want = oracle::append_kv(c.d, a);
        ASSERT_EQ(fa_append_kv(handle, &c.d, &a), FA_OK) << handle.error();
        ASSERT_EQ(oracle::compare(want).fault, "") << oracle::name_of(x.dtype);
        ASSERT_EQ(run_and_check(handle, c), "");
        ASSERT_EQ(run_and_check(handle, f), "");
        EXPECT_LE(oracle::relative_norm(outputs(c), outputs(f)), x.error) << oracle::name_of(x.dtype);
    }
}

// Types of 4 bits have no NaN: their factor does.
TEST(Factors, AValueThatIsNotFiniteShows) {
    const Handle handle = make_handle();
    for (const int32_t factor_dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E8M0})
        for (const double odd : {kInf, -kInf, double(NAN)}) {
            Rng rng(346);
            Case c = stored({1, 1, 1, 1, 1, 64, 64}, FA_E2M1, FA_E2M1, factor_dtype, {0, 16}, {0, 16});
            c.bind(rng);
            c.set_q([](int64_t, int64_t, int64_t, int64_t) { return 0.5; });
            float fresh[64];
            for (int n = 0; n < 64; n++) fresh[n] = float(n + 1);
            fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
            a.flags = FA_APPEND_DYNAMIC_SCALE;
            a.k_new = fresh, a.seqlen_new = 1, a.k = c.k.as(), a.v = c.v.as(), a.k_descale = c.k_descale.as(),
            a.v_descale = c.v_descale.as();
            float values[64];
            memcpy(values, fresh, sizeof fresh);
            values[20] = float(odd);
            a.v_new = values;
            ASSERT_EQ(fa_append_kv(handle, &c.d, &a), FA_OK) << handle.error();
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            for (int n = 0; n < 64; n++) EXPECT_EQ(std::isnan(c.o.as<float>()[n]), n / 16 == 1) << n;
        }
}

// Every value of a factor's type, over the range in which o is exact: with one key, o is v.
TEST(Factors, EveryFactor) {
    const Handle handle = make_handle();
    for (const int32_t factor_dtype : {FA_E8M0, FA_E4M3, FA_F16, FA_BF16})
        for (const int64_t rows : {1, 40}) {
            Rng rng(347);
            Case c = stored({1, 1, 1, rows, 1, 8, 256}, FA_E4M3, FA_E4M3, factor_dtype, {0, 0}, {0, 1});
            fill(c, rng, 1);
            for (int n = 0; n < 256; n++) {
                oracle::store(c.v.as(), n, FA_E4M3, n % 2 ? 1 : -1.5);
                if (oracle::size_of(factor_dtype) == 1) c.v_descale.as<uint8_t>()[n] = uint8_t(n);
                else c.v_descale.as<uint16_t>()[n] = uint16_t(n << 8 | (n * 37 & 255));
            }
            ASSERT_EQ(run_and_check(handle, c), "") << oracle::name_of(factor_dtype);
            for (int n = 0; n < 256; n++) {
                const double want = (n % 2 ? 1 : -1.5) * oracle::load(c.v_descale.as(), n, factor_dtype), got = double(c.o.as<float>()[n]);
                EXPECT_EQ(std::isnan(want), std::isnan(got)) << n;
                const bool within = std::fabs(want) > 0x1p-80 && std::fabs(want) < 0x1p127;
                EXPECT_TRUE(!within || std::fabs(got - want) <= std::fabs(want) * 0x1p-22) << n << ": " << got << ", " << want;
            }
        }
}

}  // namespace
}  // namespace test
