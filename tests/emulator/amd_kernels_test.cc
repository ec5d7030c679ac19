// Every kernel for the matrix instructions that FLASHATTN_EMU_MATRIX names: chosen, as fa_explain says, and right by the oracle, in its
// plain loop and with what only the general one serves.
#include <gtest/gtest.h>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include "gpu/simt/kernel_rows.h"
#include "gpu/transposed/rows.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

enum class Work { plain, score_mods, unaligned, pages };

using fa::gpu::TransposedBackwardRow;
using fa::gpu::TransposedRow;
bool has_mfma(const std::string& matrix) { return matrix.rfind("mfma", 0) == 0; }
bool has_wmma(const std::string& matrix) { return matrix == "wmma_gfx11" || matrix == "wmma_gfx12"; }

// With queries of a type and heads of a width, and with k and v of q's type, or of 8 bits: those of wide heads have no queries of f16 then.
std::set<std::string> listed_kernels(const std::string& matrix, int32_t dtype, int64_t width, bool bytes) {
    std::set<std::string> names;
    const auto insert = [&](const char* family, const auto& rows) {
        for (const TransposedRow& row : rows)
            if (row.dims == width) names.insert(family + std::to_string(row.tile_rows * row.row_warps) + "x" + std::to_string(row.dims));
    };
    if (bytes && (dtype == FA_F32 || (width > 128 && dtype == FA_F16))) return names;
    if (has_mfma(matrix)) {
        if (bytes) insert("fwd_mfma_byte_", fa::gpu::kMfmaByteRows);
        else if (dtype == FA_F32) insert("fwd_mfma_", fa::gpu::kMfmaF32Rows);
        else insert("fwd_mfma_", fa::gpu::kMfmaRows);
    } else if (has_wmma(matrix)) {
        if (bytes) insert("fwd_wmma_byte_", fa::gpu::kWmmaByteRows);
        else if (dtype != FA_F32) insert("fwd_wmma_", fa::gpu::kWmmaRows);
    }
    return names;
}

std::set<std::string> listed_backward_kernels(const std::string& matrix, int32_t dtype, int64_t width, bool) {
    std::set<std::string> names;
    const auto insert = [&](const char* family, const auto& rows) {
        for (const TransposedBackwardRow& row : rows)
            if (row.dims == width)
                for (const char* kind : {"_", "_plain_"}) names.insert(std::string(family) + kind + std::to_string(row.dims));
    };
    if (has_mfma(matrix)) {
        if (dtype == FA_F32) insert("bwd_mfma", fa::gpu::kMfmaF32BackwardRows);
        else insert("bwd_mfma", fa::gpu::kMfmaBackwardRows);
    } else if (has_wmma(matrix) && dtype != FA_F32) {
        insert("bwd_wmma", fa::gpu::kWmmaBackwardRows);
    }
    return names;
}

std::string kernel_of(const Handle& handle, const fa_attention_desc_t& d, int32_t operation = FA_OP_FORWARD) {
    char text[512];
    if (fa_explain(handle, &d, operation, text, sizeof text) != FA_OK) return handle.error();
    const std::string words = text;
    const size_t begin = words.find("kernel ") + 7;
    return words.substr(begin, words.find(' ', begin) - begin);
}

// By the type of q and the width of heads.
class AmdKernels : public testing::TestWithParam<std::tuple<int32_t, int64_t>> {
  protected:
    const Handle handle = make_handle();
    const int32_t type = std::get<0>(GetParam());
    const int64_t width = std::get<1>(GetParam());
    std::set<std::string> listed, met;
    // CDNA 2 takes subnormal numbers of 16 bits for 0: no kernel of its matrix cores is for f16, of which too many are.
    bool flushes = false;

    // Where no kernel is listed, other families have the calls.
    void begin(std::set<std::string> (*list)(const std::string& matrix, int32_t dtype, int64_t width, bool bytes), bool bytes) {
        const char* const matrix = getenv("FLASHATTN_EMU_MATRIX");
        ASSERT_TRUE(matrix);
        flushes = strcmp(matrix, "mfma_gfx90a") == 0;
        const bool none = flushes && type == FA_F16;
        if (!none) listed = list(matrix, type, width, bytes);
        ASSERT_TRUE(none || type == FA_F32 || width > 128 || !listed.empty());
    }
    // Is the call's kernel one of the listed ones, which it is to be? Where none is, it has that of a SIMT family.
    bool meets(const std::string& kernel, const char* simt, const Case& c) {
        if (listed.count(kernel) > 0) return met.insert(kernel), true;
        EXPECT_EQ(kernel.rfind(simt, 0), 0u) << kernel;
        EXPECT_TRUE(listed.empty()) << kernel << " takes " << c.describe();
        return false;
    }
    static void modify_scores(Case& c) { c.d.softcap = 3.f, c.d.operands |= FA_OPERAND_MASK, dense_pairs(c.d, c.d.mask_stride); }
    static void fill(Case& c, Work work, Rng& rng) {
        c.bind(rng);
        c.fill_normal(rng);
        if (c.d.operands & FA_OPERAND_K_DESCALE) c.set_descales(rng, 1.0 / 40);
        if (work == Work::score_mods) c.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.7); });
    }
    // Forwards of every kind of work meet all listed kernels and are right; store(case) says how k and v are stored.
    template <class Store>
    void check_forward(uint64_t seed, Store store) {
        Rng rng{derive(seed, uint64_t(type + 16 * width))};
        for (const int64_t rows : {5, 300})
            for (const Work work : {Work::plain, Work::score_mods, Work::unaligned, Work::pages}) {
                const int64_t dim = work == Work::unaligned ? width - 3 : width;
                Case c = shaped({1, 2, 1, rows, 150, dim, dim}, type);
                store(c);
                causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (work == Work::score_mods) modify_scores(c);
                if (work == Work::pages) paged(c, 48);
                const std::string kernel = kernel_of(handle, c.d);
                if (!meets(kernel, "fwd_simt_", c)) continue;
                fill(c, work, rng);
                EXPECT_EQ(run_and_check(handle, c), "") << kernel << ", " << c.describe();
            }
        EXPECT_EQ(met, listed);
    }
};

TEST_P(AmdKernels, AreAllChosenAndRight) {
    ASSERT_NO_FATAL_FAILURE(begin(listed_kernels, false));
    check_forward(251, [](Case&) {});
}

// k and v of 8 bits, with factors of heads.
TEST_P(AmdKernels, OfBytesAreAllChosenAndRight) {
    if (width < 128) return;  // narrower heads have those of 128
    ASSERT_NO_FATAL_FAILURE(begin(listed_kernels, true));
    const int32_t types[] = {FA_E4M3, FA_I8, FA_E5M2};
    int turn = width > 128 ? 8 : 0;
    check_forward(253, [&](Case& c) {
        c.d.k_dtype = types[turn++ % 3];
        c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
    });
}

// Gradients of heads of whole widths and of odd ones, over more tiles than one, with a group of two heads.
TEST_P(AmdKernels, OfTheBackwardAreAllChosenAndRight) {
    ASSERT_NO_FATAL_FAILURE(begin(listed_backward_kernels, false));
    Rng rng{derive(252, uint64_t(type + 16 * width))};
    for (const Work work : {Work::plain, Work::score_mods, Work::unaligned})
        for (const bool is_causal : {true, false}) {
            const int64_t dim = work == Work::unaligned ? width - 3 : width;
            Case c = shaped({1, 2, 1, 150, 170, dim, dim}, type);
            if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            else if (work != Work::plain) continue;
            if (work == Work::score_mods) modify_scores(c);
            const std::string kernel = kernel_of(handle, c.d, FA_OP_BACKWARD);
            if (!meets(kernel, "bwd_simt_", c)) continue;
            fill(c, work, rng);
            BackwardCase b(std::move(c));
            ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            b.bind(rng);
            b.fill_normal(rng);
            EXPECT_EQ(run_and_check(handle, b), "") << kernel;
        }
    EXPECT_EQ(met, listed);
}

// Subnormal numbers of bf16, which section 13 of the specification lets CDNA 2 take for 0: it does, in q as elsewhere, and the score that a
// large k would make of one is not there.
TEST_P(AmdKernels, TakeSubnormalNumbers) {
    ASSERT_NO_FATAL_FAILURE(begin(listed_kernels, false));
    if (type != FA_BF16 || listed.empty()) GTEST_SKIP();
    Rng rng{254};
    for (const int64_t rows : {5, 300}) {
        Case c = shaped({1, 2, 1, rows, 150, width, width}, type);
        c.d.scale = 32, c.d.flags |= FA_SCALE_EXPLICIT;
        ASSERT_TRUE(meets(kernel_of(handle, c.d), "fwd_simt_", c));
        c.bind(rng);
        c.fill_normal(rng);
        c.set_q([](int64_t, int64_t, int64_t, int64_t dim) { return dim == 0 ? 0x1p-130 : 0.; });
        c.set_k([](int64_t, int64_t, int64_t key, int64_t dim) { return dim == 0 && key == 7 ? 0x1p+126 : 0.; });
        c.set_v([](int64_t, int64_t, int64_t key, int64_t dim) { return dim % 2 ? 1. : double(key + 1) * 0x1p-133; });
        if (flushes) ASSERT_EQ(c.run(handle), FA_OK) << handle.error();  // the oracle keeps them
        else EXPECT_EQ(run_and_check(handle, c), "");
        const uint16_t* const o = c.o.as<uint16_t>();
        EXPECT_EQ(o[1], 0x3F80);                                                             // 1
        EXPECT_LE(o[0] & 0x7FFF, 0x7F);                                                      // subnormal, or 0
        const double all_alike = std::log(150.), one_larger = std::log(149 + std::exp(2.));  // 2^-130 · 2^126 · 32
        EXPECT_NEAR(c.lse.as<float>()[0], flushes ? all_alike : one_larger, 1e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, AmdKernels, testing::Combine(testing::Values(FA_F16, FA_BF16, FA_F32), testing::Values(64, 128, 256)),
                         [](const auto& info) {
                             return oracle::name_of(std::get<0>(info.param)) + ("_" + std::to_string(std::get<1>(info.param)));
                         });

// What no matrix kernel takes: f32 beside keys and values of other types, by the width of heads. Among these calls are probabilities as
// outputs, splits of the keys and gradients of sinks, which have small kernels of their own.
class SimtKernels : public testing::TestWithParam<int64_t> {};

TEST_P(SimtKernels, AreAllChosenAndRight) {
    const Handle handle = make_handle();
    const int64_t width = GetParam();
    std::set<std::string> listed, met;
    for (const fa::gpu::SimtRow& row : fa::gpu::kSimtRows<32>)  // 32: rt::kWideRows of rt_hip.h
        if (row.columns == width) listed.insert("fwd_simt_" + std::to_string(row.rows) + "x" + std::to_string(row.columns));
    Rng rng{derive(254, uint64_t(width))};
    for (const int64_t rows : {5, 40}) {
        Case c = shaped({1, 2, 1, rows, 90, width, width});
        c.d.k_dtype = FA_E4M3;
        if (rows == 5) c.d.num_splits = 2, c.d.operands |= FA_OPERAND_SCORES, dense_pairs(c.d, c.d.scores_stride);
        const std::string kernel = kernel_of(handle, c.d);
        met.insert(kernel);
        c.bind(rng);
        c.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, c), "") << kernel << ", " << c.describe();
    }
    EXPECT_EQ(met, listed);
}

TEST_P(SimtKernels, OfTheBackwardAreAllChosenAndRight) {
    const Handle handle = make_handle();
    const int64_t width = GetParam();
    Rng rng{derive(255, uint64_t(width))};
    Case c = shaped({1, 2, 1, 40, 70, width, width});
    c.d.k_dtype = FA_BF16;
    c.d.operands |= FA_OPERAND_SINKS;
    EXPECT_EQ(kernel_of(handle, c.d, FA_OP_BACKWARD), "bwd_simt_" + std::to_string(width > 128 ? 128 : width));
    c.bind(rng);
    c.fill_normal(rng);
    BackwardCase b(std::move(c));
    ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
    b.bind(rng);
    b.fill_normal(rng);
    EXPECT_EQ(run_and_check(handle, b), "");
}

INSTANTIATE_TEST_SUITE_P(Widths, SimtKernels, testing::Values(64, 128, 256));

}  // namespace
}  // namespace test
