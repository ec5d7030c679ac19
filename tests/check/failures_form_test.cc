// Known failures of masks, parameters, layouts and formats. Names carry the ids of docs/failures.md.
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <map>
#include "check/counting.h"
#include "support/random_case.h"

namespace test {
namespace {

// Keys that each row of the first head counts, by LSE.
std::vector<int64_t> counts(const Handle& handle, Case& test_case) {
    Rng rng(131);
    EXPECT_EQ(count(handle, test_case, rng), "");
    std::vector<int64_t> per_row;
    for (int64_t i = 0; i < test_case.d.seqlen_q; i++)
        per_row.push_back(std::llround(std::exp(double(test_case.a.lse[test_case.reading().lse(0, 0, i)]))));
    return per_row;
}

using Counts = std::vector<int64_t>;

// Written out by hand: libraries disagree about where the diagonal lies.
TEST(Failures, F60_both_causal_alignments) {
    const Handle handle = make_handle();
    auto run = [&](int64_t rows, int64_t keys, int32_t alignment) {
        Case c = counting_shape(1, 1, rows, keys);
        causal(c, alignment);
        return counts(handle, c);
    };
    EXPECT_EQ(run(3, 5, FA_ALIGN_TOP_LEFT), (Counts{1, 2, 3}));
    EXPECT_EQ(run(3, 5, FA_ALIGN_BOTTOM_RIGHT), (Counts{3, 4, 5}));
    EXPECT_EQ(run(5, 3, FA_ALIGN_TOP_LEFT), (Counts{1, 2, 3, 3, 3}));
    EXPECT_EQ(run(5, 3, FA_ALIGN_BOTTOM_RIGHT), (Counts{0, 0, 1, 2, 3}));
    EXPECT_EQ(run(1, 7, FA_ALIGN_BOTTOM_RIGHT), (Counts{7}));
}

TEST(Failures, F61_windows_are_inclusive) {
    const Handle handle = make_handle();
    for (const int64_t left : {0, 1, 5, 63, 64, 65}) {
        Case c = counting_shape(1, 1, 150, 150);
        window(c, left, 0, FA_ALIGN_TOP_LEFT);
        const Counts got = counts(handle, c);
        for (int64_t i = 0; i < 150; i++) ASSERT_EQ(got[size_t(i)], std::min(i, left) + 1) << "row " << i << ", window " << left;
    }
    // A window that reaches back to the first key is causal attention, to the bit.
    Rng rng(132);
    Case plain = shaped({1, 2, 2, 150, 150, 16, 16}), windowed = shaped({1, 2, 2, 150, 150, 16, 16});
    causal(plain, FA_ALIGN_TOP_LEFT);
    window(windowed, 149, 0, FA_ALIGN_TOP_LEFT);
    for (Case* c : {&plain, &windowed}) {
        Rng same(133);
        c->bind(rng);
        c->fill_normal(same);
        ASSERT_EQ(c->run(handle), FA_OK);
    }
    EXPECT_EQ(bytes_of(plain.o), bytes_of(windowed.o));
}

// Every parameter that is accepted changes the result on a case made for it.
TEST(Failures, F62_F63_F64_every_parameter_acts) {
    const Handle handle = make_handle();
    auto run = [&](const std::function<void(Case&)>& change, const std::function<void(Case&)>& fill) {
        Rng place(134), data(135);
        Case c = shaped({2, 4, 2, 20, 90, 8, 8});
        c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        change(c);
        c.bind(place);
        c.fill_normal(data);
        fill(c);
        EXPECT_EQ(run_and_check(handle, c), "");
        return bytes_of(c.o);
    };
    const auto nothing = [](Case&) {};
    const std::vector<unsigned char> base = run(nothing, nothing);
    const std::map<std::string, std::function<void(Case&)>> changes = {
        {"causal", [](Case& test_case) { test_case.d.flags = FA_CAUSAL; }},
        {"alignment", [](Case& test_case) { test_case.d.flags = FA_CAUSAL, test_case.d.alignment = FA_ALIGN_TOP_LEFT; }},
        {"window_left", [](Case& test_case) { window(test_case, 9, -1, FA_ALIGN_BOTTOM_RIGHT); }},
        {"window_right", [](Case& test_case) { window(test_case, -1, 9, FA_ALIGN_BOTTOM_RIGHT); }},
        {"chunk", [](Case& test_case) { test_case.d.chunk = 13; }},
        {"scale", [](Case& test_case) { test_case.d.flags = FA_SCALE_EXPLICIT, test_case.d.scale = 0.3f; }},
        {"scale 0", [](Case& test_case) { test_case.d.flags = FA_SCALE_EXPLICIT; }},
        {"softcap", [](Case& test_case) { test_case.d.softcap = 2; }},
        {"dropout_p", [](Case& test_case) { test_case.d.dropout_p = 0.25f; }},
        {"seed", [](Case& test_case) { test_case.d.dropout_p = 0.25f, test_case.a.dropout_seed = 1; }},
        {"offset", [](Case& test_case) { test_case.d.dropout_p = 0.25f, test_case.a.dropout_offset = 1; }},
        {"heads_k", [](Case& test_case) { test_case.d.heads_k = 1; }},
        {"o_dtype", [](Case& test_case) { test_case.d.o_dtype = FA_BF16; }}};
    std::map<std::vector<unsigned char>, std::string> seen = {{base, "nothing"}};
    for (const auto& [name, change] : changes) {
        const auto [other, fresh] = seen.emplace(run(change, nothing), name);
        EXPECT_TRUE(fresh) << name << " gives the same as " << other->second;
    }
    const auto with = [](uint32_t operand) {
        return [operand](Case& test_case) {
            test_case.d.operands |= operand;
            if (operand == FA_OPERAND_BIAS) dense_pairs(test_case.d, test_case.d.bias_stride);
            if (operand == FA_OPERAND_MASK) dense_pairs(test_case.d, test_case.d.mask_stride);
        };
    };
    const std::pair<uint32_t, std::function<void(Case&)>> operands[] = {
        {FA_OPERAND_BIAS,
         [](Case& test_case) { test_case.set_bias([](int64_t, int64_t, int64_t i, int64_t j) { return double((i + j) % 3); }); }},
        {FA_OPERAND_MASK,
         [](Case& test_case) { test_case.set_mask([](int64_t, int64_t, int64_t i, int64_t j) { return (i + j) % 3 > 0; }); }},
        {FA_OPERAND_ALIBI,
         [](Case& test_case) {
             for (int h = 0; h < 4; h++) test_case.alibi.as<float>()[h] = 0.5f;
         }},
        {FA_OPERAND_SINKS, [](Case& test_case) {
             for (int h = 0; h < 4; h++) test_case.sinks.as<float>()[h] = 2;
         }}};
    for (const auto& [operand, fill] : operands) {
        const auto [other, fresh] = seen.emplace(run(with(operand), fill), "operand " + std::to_string(operand));
        EXPECT_TRUE(fresh) << operand << " gives the same as " << other->second;
    }
}

// Dense strides for the first `axes` of a tensor whose rows have `innermost` elements, and the largest that there is wherever nobody steps:
// along one index, and in a tensor without elements.
void lay_far(const oracle::Tensor& tensor, int axes, int64_t innermost, int64_t* stride) {
    const bool empty = tensor.extent() == 0;
    for (int axis = axes - 1; axis >= 0; axis--) {
        const int64_t count = tensor.count[size_t(axis)];
        stride[axis] = empty || count == 1 ? std::numeric_limits<int64_t>::max() : innermost;
        innermost *= count;
    }
}

struct Laid {
    const oracle::Tensor& tensor;
    int64_t* stride;
};
void lay_far_rows(std::initializer_list<Laid> all) {
    for (const Laid& x : all) {
        lay_far(x.tensor, 3, x.tensor.count[3], x.stride);
        x.stride[3] = 1;
    }
}

Case far_case(const Shape& shape, int32_t dtype) {
    Case c = shaped(shape, dtype);
    const bool narrow = oracle::size_of(dtype) == 1;
    c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI;
    if (narrow) c.d.operands |= FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_SCORES;
    c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
    const oracle::Reading r = c.reading();
    lay_far_rows({{r.q_tensor, c.d.q_stride}, {r.k_tensor, c.d.k_stride}, {r.v_tensor, c.d.v_stride}, {r.o_tensor, c.d.o_stride}});
    lay_far(r.lse_tensor, 3, 1, c.d.lse_stride);
    c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
    for (int64_t* stride : {c.d.bias_stride, c.d.mask_stride}) lay_far(r.bias_tensor, 4, 1, stride);
    if (c.d.batch <= 1) c.d.alibi_batch_stride = std::numeric_limits<int64_t>::max();
    if (!narrow) return c;
    lay_far(r.scores_tensor, 4, 1, c.d.scores_stride);
    lay_far(r.q_factors.tensor, 3, 1, c.d.q_descale_stride);
    for (int64_t* stride : {c.d.k_descale_stride, c.d.v_descale_stride}) lay_far(r.k_factors.tensor, 3, 1, stride);
    return c;
}

Case one_page() {
    Case c = shaped({1, 1, 1, 3, 5, 8, 8});
    c.d.operands |= FA_OPERAND_PAGE_TABLE;
    c.d.page_size = 8, c.d.num_pages = 1, c.d.page_table_stride = std::numeric_limits<int64_t>::max();
    c.metadata.page_table = {0};
    lay_far(c.reading().k_tensor, 3, 8, c.d.k_stride);
    c.d.k_stride[3] = 1, c.d.strided = FA_STRIDED_K;
    return c;
}

// A sanitizer sees who multiplies them.
TEST(Failures, F79_strides_that_nobody_steps_along) {
    const Handle handle = make_handle();
    Rng rng(137);
    const Shape shapes[] = {{1, 1, 1, 1, 1, 8, 8},  {1, 2, 1, 40, 70, 32, 32}, {2, 1, 1, 1, 70, 32, 32}, {2, 4, 2, 3, 1, 8, 8},
                            {1, 1, 1, 40, 0, 8, 8}, {2, 2, 1, 0, 70, 8, 8},    {0, 2, 1, 3, 5, 8, 8}};
    Case page = one_page();
    page.bind(rng);
    page.fill_normal(rng);
    EXPECT_EQ(run_and_check(handle, page), "");
    for (const int32_t dtype : {FA_F32, FA_BF16, FA_E4M3})
        for (const Shape& shape : shapes) {
            Case c = far_case(shape, dtype);
            c.bind(rng);
            c.fill_normal(rng);
            c.set_descales(rng, 1);
            c.set_bias([&](auto...) { return rng.normal(); });
            c.set_mask([&](auto...) { return rng.chance(0.9); });
            for (int64_t n = 0; n < c.alibi.bytes() / 4; n++) c.alibi.as<float>()[n] = 0.1f;
            ASSERT_EQ(run_and_check(handle, c), "");
            if (oracle::size_of(dtype) == 1) continue;
            BackwardCase b(std::move(c));
            const oracle::BackwardReading r = b.reading();
            lay_far_rows(
                {{r.q_tensor, b.a.dq_stride}, {r.k_tensor, b.a.dk_stride}, {r.v_tensor, b.a.dv_stride}, {r.o_tensor, b.a.dout_stride}});
            lay_far(r.lse_tensor, 3, 1, b.a.dlse_stride);
            lay_far(r.bias_tensor, 4, 1, b.a.dbias_stride);
            b.gives_dlse = true;
            b.bind(rng);
            b.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, b), "");
        }
}

// The order of the formula, on paper: cap, then bias, then ALiBi. One row, two keys, v = {0, 1}: o = σ(s1 − s0).
TEST(Failures, F64_softcap_comes_before_bias) {
    const Handle handle = make_handle();
    Rng rng(136);
    Case c = shaped({1, 1, 1, 1, 2, 1, 1});
    c.d.flags = FA_SCALE_EXPLICIT, c.d.scale = 2, c.d.softcap = 3, c.d.alignment = FA_ALIGN_TOP_LEFT;
    c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_ALIBI;
    dense_pairs(c.d, c.d.bias_stride);
    c.bind(rng);
    c.set_q([](auto...) { return 1.0; });
    c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return j ? 2.0 : 0.5; });
    c.set_v([](int64_t, int64_t, int64_t j, int64_t) { return double(j); });
    c.set_bias([](int64_t, int64_t, int64_t, int64_t j) { return j ? 4.0 : 5.0; });
    *c.alibi.as<float>() = 0.25f;
    ASSERT_EQ(c.run(handle), FA_OK);
    const double s0 = 3 * std::tanh(1 / 3.0) + 5, s1 = 3 * std::tanh(4 / 3.0) + 4 - 0.25;
    EXPECT_NEAR(*c.o.as<float>(), 1 / (1 + std::exp(s0 - s1)), 1e-6);
    EXPECT_NEAR(*c.lse.as<float>(), std::log(std::exp(s0) + std::exp(s1)), 1e-6);
}

TEST(Failures, F65_alibi_for_any_number_of_heads) {
    const Handle handle = make_handle();
    for (const int64_t heads : {1, 2, 3, 5, 6, 7, 8, 12, 20, 33}) {
        Rng rng(137);
        Case c = shaped({2, heads, 1, 9, 40, 4, 4});
        c.d.operands |= FA_OPERAND_ALIBI;
        c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(fa_alibi_slopes(heads, 0, c.alibi.as<float>()), FA_OK);
        EXPECT_TRUE(c.alibi.intact());
        int64_t power = 1;
        while (2 * power <= heads) power *= 2;
        for (int64_t h = 0; h < heads; h++) {
            const double exponent = h < power ? double(h + 1) / double(power) : double(2 * (h - power) + 1) / double(2 * power);
            EXPECT_NEAR(c.alibi.as<float>()[h], std::exp2(-8 * exponent), 1e-7) << heads << " heads, head " << h;
        }
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// One k and v for all, by stride 0, at lengths one beyond a multiple of a vector.
TEST(Failures, F66_broadcast_keys) {
    const Handle handle = make_handle();
    Rng rng(138);
    for (const int64_t keys : {1, 33, 65, 129})
        for (int axis = 0; axis < 3; axis++)
            for (const int32_t dtype : {FA_F32, FA_BF16}) {
                Case c = shaped({2, 4, 2, 5, keys, 8, 8}, dtype);
                c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
                const int64_t dense[4] = {keys * 16, 16, 8, 1};
                for (int n = 0; n < 4; n++) c.d.k_stride[n] = c.d.v_stride[n] = n == axis ? 0 : dense[n];
                c.bind(rng);
                c.fill_normal(rng);
                ASSERT_EQ(run_and_check(handle, c), "");
            }
}

// Bases that are aligned to an element and no more, rows too.
TEST(Failures, F68_unaligned_bases_and_rows) {
    const Handle handle = make_handle();
    Rng rng(139);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2})
        for (const int64_t shift : {1, 2, 3, 5}) {
            const int64_t size = oracle::size_of(dtype);
            Case c = shaped({1, 2, 1, 20, 70, 16, 16}, dtype);
            c.d.o_dtype = dtype;
            c.d.operands |= FA_OPERAND_MASK;
            c.d.mask_stride[2] = 71, c.d.mask_stride[3] = 1;
            c.bind(rng);
            // The same tensors, `shift` elements into larger buffers.
            Buffer q(c.q.bytes() + shift * size, Buffer::Guard::before), k(c.k.bytes() + shift * size, Buffer::Guard::before);
            Buffer v(c.v.bytes() + shift * size, Buffer::Guard::before), o(c.o.bytes() + shift * size, Buffer::Guard::before);
            c.fill_normal(rng);
            c.set_mask([&](int64_t, int64_t, int64_t i, int64_t j) { return (i * j) % 5 < 3; });
            memcpy(q.as<char>() + shift * size, c.q.as(), size_t(c.q.bytes()));
            memcpy(k.as<char>() + shift * size, c.k.as(), size_t(c.k.bytes()));
            memcpy(v.as<char>() + shift * size, c.v.as(), size_t(c.v.bytes()));
            c.a.q = q.as<char>() + shift * size, c.a.k = k.as<char>() + shift * size, c.a.v = v.as<char>() + shift * size;
            c.a.o = o.as<char>() + shift * size;
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const oracle::Reading r = c.reading();
            ASSERT_EQ(oracle::compare_o(r, oracle::attention(r), c.p_dtype).fault, "") << c.describe();
        }
}

// bf16 scores so large that a product rounded once and the same product rounded twice lie hundreds of exponents apart.
TEST(Failures, F70_huge_bf16_scores) {
    const Handle handle = make_handle();
    Rng rng(140);
    for (const double size : {100.0, 3e3, 1e6})
        for (const int32_t dtype : {FA_BF16, FA_F32}) {
            Case c = shaped({1, 2, 2, 40, 150, 64, 16}, dtype);
            c.bind(rng);
            c.fill_normal(rng, size, size);
            ASSERT_EQ(run_and_check(handle, c), "");
            for (int64_t n = 0; n < 2 * 40 * 16; n++) ASSERT_TRUE(std::isfinite(oracle::load(c.o.as(), n, dtype)));
        }
}

TEST(Failures, F74_bf16_and_quantised_caches_one_beyond_a_tile) {
    const Handle handle = make_handle();
    Rng rng(142);
    for (const int32_t kv : {FA_BF16, FA_I8, FA_E4M3})
        for (const int64_t keys : {1, 63, 65, 1025})
            for (const int64_t dim : {1, 31, 33}) {
                Case c = shaped({1, 3, 1, 17, keys, dim, dim}, FA_BF16);
                c.d.k_dtype = kv;
                if (kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
                c.bind(rng);
                c.fill_normal(rng);
                c.set_descales(rng, kv == FA_I8 ? 1.0 / 40 : 1);
                ASSERT_EQ(run_and_check(handle, c, 5), "");
            }
}

// ---- layouts of outputs

// Where LSE lies, said by hand: [batch][heads][rows] and, packed, [heads][total].
TEST(Failures, F28_F29_F30_layout_of_the_lse) {
    const Handle handle = make_handle();
    Rng rng(143);
    Case padded = counting_shape(2, 3, 4, 9);
    causal(padded, FA_ALIGN_TOP_LEFT);
    ASSERT_EQ(count(handle, padded, rng), "");
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 3; h++)
            for (int64_t i = 0; i < 4; i++) EXPECT_NEAR(padded.a.lse[(b * 3 + h) * 4 + i], std::log(double(i + 1)), 1e-6);

    Case packed = counting_shape(2, 3, 4, 9);
    causal(packed, FA_ALIGN_TOP_LEFT);
    packed.d.operands |= FA_OPERAND_CU_SEQLENS_Q;
    packed.d.total_q = 8, packed.metadata.cu_seqlens_q = {1, 3, 7};
    ASSERT_EQ(count(handle, packed, rng), "");
    for (int64_t h = 0; h < 3; h++)
        for (int64_t row = 1; row < 7; row++) EXPECT_NEAR(packed.a.lse[h * 8 + row], std::log(double(row < 3 ? row : row - 2)), 1e-6);
}

// o and LSE in any layout, with splits (whose combination has strides of its own) and batches of several packed sequences.
TEST(Failures, F31_F32_F33_F34_F67_strides_of_outputs) {
    const Handle handle = make_handle();
    for (uint64_t n = 0; n < 300; n++) {
        Rng rng(derive(144, n));
        const bool packed = rng.chance(0.5);
        Case c = shaped({3, 4, 2, 6, 150, 8, 5});
        c.d.num_splits = int32_t(rng.between(1, 4));
        if (packed) c.d.operands |= FA_OPERAND_CU_SEQLENS_Q, c.d.total_q = 14, c.metadata.cu_seqlens_q = {1, 6, 6, 12};
        c.d.strided = FA_STRIDED_O | FA_STRIDED_LSE;
        const oracle::Reading r = c.reading();
        random_strides(rng, 3, r.o_tensor.count.data(), 5, c.d.o_stride);
        random_strides(rng, 3, r.lse_tensor.count.data(), 1, c.d.lse_stride);
        c.d.o_stride[3] = 1;
        if (packed) c.d.o_stride[0] = c.d.lse_stride[0] = 0;
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// ---- the rest

// The mask is a function of seed and offset, whether they come in the args or in memory.
TEST(Failures, F53_F54_F55_dropout_state) {
    const Handle handle = make_handle();
    auto run = [&](uint64_t seed, uint64_t offset, bool in_memory) {
        Rng rng(145);
        Case c = shaped({2, 2, 2, 10, 100, 8, 8});
        c.d.dropout_p = 0.5f;
        if (in_memory) c.d.operands |= FA_OPERAND_RNG_STATE;
        c.bind(rng);
        c.fill_normal(rng);
        if (in_memory) c.rng_state.as<uint64_t>()[0] = seed, c.rng_state.as<uint64_t>()[1] = offset;
        else c.a.dropout_seed = seed, c.a.dropout_offset = offset;
        EXPECT_EQ(run_and_check(handle, c), "");
        return bytes_of(c.o);
    };
    const uint64_t high = uint64_t(1) << 40;
    const std::vector<unsigned char> base = run(7, 9, false);
    EXPECT_EQ(run(7, 9, false), base);
    EXPECT_EQ(run(7, 9, true), base);
    for (const auto& [seed, offset] : {std::pair(uint64_t(8), uint64_t(9)), std::pair(uint64_t(7), uint64_t(10)),
                                       std::pair(uint64_t(7) + high, uint64_t(9)), std::pair(uint64_t(7), uint64_t(9) + high)})
        EXPECT_NE(run(seed, offset, false), base);
}

// Scratch memory grows with threads and tiles, not with the square of the length; only the standard algorithm keeps all scores.
TEST(Failures, F59_size_of_the_workspace) {
    const Handle handle = make_handle();
    auto bytes = [&](int64_t n, int32_t algorithm) {
        Case c = shaped({1, 1, 1, n, n, 64, 64});
        c.d.algorithm = algorithm;
        uint64_t size = 0;
        EXPECT_EQ(fa_workspace_size(handle, &c.d, FA_OP_FORWARD, &size), FA_OK) << handle.error();
        return size;
    };
    if (testing_the_cpu()) {  // a GPU keeps sums of more splits, by its number of multiprocessors
        ASSERT_TRUE(handle.set(FA_PARAM_THREADS, 2));
        EXPECT_LE(bytes(8192, FA_ALGORITHM_FLASH), bytes(1024, FA_ALGORITHM_FLASH) + (1 << 20));
        EXPECT_LE(bytes(8192, FA_ALGORITHM_FLASH), uint64_t(8) << 20);
    }
    const uint64_t scores = 4096 * 4096 * 4;
    EXPECT_GE(bytes(4096, FA_ALGORITHM_STANDARD), scores);
    EXPECT_LE(bytes(4096, FA_ALGORITHM_STANDARD), 3 * scores);
}

}  // namespace
}  // namespace test
