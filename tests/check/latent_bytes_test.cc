// Latent attention over caches of 8 bits: e4m3 with factors of blocks of dims, and a tail of 16 bits. Tensors of one problem may lie in
// each other's rows, as records have them; here each is by itself, as a kernel's addresses do not care.
#include <gtest/gtest.h>
#include <cmath>
#include "check/random_seeds.h"
#include "support/latent.h"

namespace test {
namespace {

const LatentForm kForms[] = {{512, 64, 512, 128, FA_F32},  {512, 64, 512, 0, FA_F16},   {384, 48, 320, 128, FA_E8M0},
                             {512, 64, 500, 256, FA_BF16}, {448, 64, 512, 64, FA_E8M0}, {448, 64, 480, 0, FA_F32}};

void in_pages(Case& test_case, int64_t size) {
    paged(test_case, size);
    test_case.d.k_descale_stride[0] = size * test_case.d.k_descale_stride[1];
}

class LatentBytes : public testing::Test {
  protected:
    const Handle handle = make_handle();
    Rng rng{317};
    // On matrix units, of emulated GPUs and NVIDIA's; Hopper's own kernels take some.
    void expect_matrix_units(const Case& test_case) {
        char text[512] = "";
        ASSERT_EQ(fa_explain(handle, &test_case.d, FA_OP_FORWARD, text, sizeof text), FA_OK) << handle.error();
        if (strstr(text, "(wave32)") || strstr(text, "(sm_")) {
            EXPECT_TRUE(strstr(text, "fwd_mma_byte_latent") || strstr(text, "latent_bytes_") || strstr(text, "latent_tokens_")) << text;
        }
    }
    std::string check(Case& test_case, double typical = 0.3) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        test_case.set_descales(rng, typical);
        return run_and_check(handle, test_case);
    }
};

TEST_F(LatentBytes, Decodes) {
    for (const LatentForm& f : kForms)
        for (const int64_t heads : {1, 16, 40})
            for (const int64_t rows : {1, 2, 8})
                for (const int64_t page : {0, 64, 7}) {
                    if (heads == 40 && (rows == 8 || page == 7)) continue;
                    Case c = latent_bytes(f, 2, heads, rows, 150);
                    if (rows > 1) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    c.d.operands |= FA_OPERAND_SEQUSED_K;
                    c.metadata.seqused_k = {150, rng.pick<int32_t>({0, 1, 33, 96})};
                    if (page) in_pages(c, page);
                    expect_matrix_units(c);
                    ASSERT_EQ(check(c), "");
                }
}

// Whole tensors, by the norm: as near as q's type is.
TEST_F(LatentBytes, AreAsExactAsTheirRows) {
    for (const int64_t keys : {200, 1500}) {
        Case c = latent_bytes(kForms[0], 1, 16, 1, keys);
        c.d.num_splits = 1;
        ASSERT_EQ(check(c), "");
        const oracle::Reading r = c.reading();
        const oracle::Pairs pairs = oracle::pair_o(r, oracle::attention(r));
        EXPECT_LE(oracle::relative_norm(pairs.got, pairs.want), oracle::norm_limit(FA_BF16)) << keys;
    }
}

TEST_F(LatentBytes, Options) {
    for (int n = 0; n < 24; n++) {
        Case c = latent_bytes(kForms[n % 6], 2, 24, 3, 170, n % 3 == 2 ? 2 : 1);
        if (n % 4 == 1) window(c, 40, 3, FA_ALIGN_BOTTOM_RIGHT);
        if (n % 4 == 2) c.d.chunk = 50, c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        if (n % 4 == 3) causal(c, FA_ALIGN_TOP_LEFT);
        if (n % 2) c.d.operands |= FA_OPERAND_SINKS;
        if (n % 3 == 0) c.d.num_splits = 3;
        if (n % 3 == 1) c.d.split_size = 64;
        c.d.o_dtype = std::vector<int32_t>{FA_F32, FA_F16, FA_BF16, FA_E4M3}[size_t(n % 4)];
        if (n % 5 == 4) c.d.operands |= FA_OPERAND_O_SCALE;
        if (n % 5 == 3) c.d.operands &= ~FA_OPERAND_LSE;
        c.bind(rng);
        c.fill_normal(rng);
        c.set_descales(rng, 0.3);
        if (n % 5 == 4) *c.o_scale.as<float>() = 0.5f;
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// Rows of k, of the tail and of q that are no whole aligned vectors; factors of many rows.
TEST_F(LatentBytes, AnyAlignment) {
    for (const int64_t extra : {1, 4, 16}) {
        Case c = latent_bytes({500, 60, 500, 0, FA_F32}, 2, 5, 2, 70);
        c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_K_TAIL;
        const auto rows_apart = [&](int64_t (&stride)[4], int64_t heads, int64_t rows, int64_t dims) {
            stride[3] = 1, stride[2] = dims + extra, stride[1] = heads * stride[2], stride[0] = rows * stride[1];
        };
        rows_apart(c.d.q_stride, 5, 2, 560), rows_apart(c.d.k_stride, 1, 70, 500), rows_apart(c.d.k_tail_stride, 1, 70, 60);
        c.d.k_descale_block[0] = 3, c.d.k_descale_stride[0] = 24, c.d.k_descale_stride[1] = 1;
        ASSERT_EQ(check(c), "");
    }
}

// A q that is rounded to bf16 by permission; others, and other types of tails, take the general kernel.
TEST_F(LatentBytes, OtherTypes) {
    for (const int32_t q : {FA_F32, FA_F16, FA_BF16})
        for (const int32_t tail : {FA_F16, FA_BF16})
            for (const int32_t precision : {FA_PRECISION_DEFAULT, FA_PRECISION_NATIVE}) {
                Case c = latent_bytes(kForms[0], 1, 16, 2, 50);
                c.d.q_dtype = q, c.d.k_tail_dtype = tail, c.d.precision = precision;
                ASSERT_EQ(check(c), "");
            }
}

// Rounded to bf16 where factors of f32 have multiplied them, by permission; FA_CASES=n has n of them.
TEST_F(LatentBytes, RoundedByPermission) {
    for (uint64_t n = 0; n < number_from("FA_CASES", 12); n++) {
        Case c = latent_bytes(kForms[0], 1, rng.pick<int64_t>({16, 32, 64, 100, 128}), rng.between(1, 3), rng.between(1, 400));
        c.d.precision = FA_PRECISION_NATIVE;
        ASSERT_EQ(check(c, rng.pick<double>({0.003, 0.05, 0.3, 2})), "");
    }
}

// Factors of any size: of neighbouring keys, and of all.
TEST_F(LatentBytes, FactorsOfAnySize) {
    for (const double spread : {0.0, 3.0, 20.0, 60.0})
        for (const double typical : {0x1p-100, 0x1p-20, 0.3, 0x1p+20, 0x1p+100})
            for (const int form : {0, 0, 4}) {
                const bool zeros = rng.chance(0.5);
                Case c = latent_bytes(kForms[form], 1, 16, 1, 130);
                c.d.k_descale_dtype = FA_F32;
                if (typical * exp2(spread) > 0x1p+120) continue;
                expect_matrix_units(c);
                c.bind(rng);
                c.fill_normal(rng, 0.5 / typical);
                for (int64_t n = 0; n < 130 * (form ? 7 : 4); n++) {
                    const double factor =
                        zeros && rng.chance(0.3) ? 0 : (rng.chance(0.5) ? -1 : 1) * typical * exp2(spread * rng.uniform(-1, 1));
                    oracle::store(c.k_descale.as(), n, FA_F32, factor);
                }
                ASSERT_EQ(run_and_check(handle, c), "") << spread << " " << typical;
            }
}

// Of q, too: dims that are much smaller than others count where those meet zeros.
TEST_F(LatentBytes, QueriesOfAnySize) {
    for (const int form : {0, 4})
        for (const int64_t heads : {16, 24})
            for (const double spread : {10.0, 28.0, 40.0, 90.0}) {
                Case c = latent_bytes(kForms[form], 1, heads, 1, 130);
                c.bind(rng);
                c.fill_normal(rng);
                c.set_descales(rng, 0.3);
                const int64_t dim = c.d.dim_qk;
                for (int64_t h = 0; h < heads; h++) oracle::store(c.q.as(), h * dim + 32 * (h % 12) + 3, FA_BF16, exp2(spread));
                for (int64_t key = 0; key < 130; key++)
                    for (int64_t i = 0; i < 12; i++) c.k.as<uint8_t>()[key * kForms[form].own + 32 * i + 3] = 0;
                ASSERT_EQ(run_and_check(handle, c), "") << spread;
            }
}

// In a key that is attended: in all of its row's outputs.
TEST_F(LatentBytes, NotANumber) {
    for (const bool in_factor : {false, true}) {
        Case c = latent_bytes(kForms[0], 2, 16, 1, 100);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_descales(rng, 0.3);
        if (in_factor) oracle::store(c.k_descale.as(), 4 * 77 + 2, FA_F32, NAN);
        else c.k.as<uint8_t>()[512 * 77 + 300] = 0x7f;
        ASSERT_EQ(run_and_check(handle, c), "");
        EXPECT_TRUE(std::isnan(oracle::load(c.o.as(), 0, FA_BF16)));
        EXPECT_FALSE(std::isnan(oracle::load(c.o.as(), 16 * 512, FA_BF16)));
    }
}

}  // namespace
}  // namespace test
