// Known failures of offsets, counts and lengths beyond 16, 31 and 32 bits. Names carry the ids of docs/failures.md.
#include <gtest/gtest.h>
#include "check/counting.h"

namespace test {
namespace {

// q, k, v, o and LSE in address space that has no memory behind it but where rows lie.
struct SparseCase {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    SparseBuffer q, k, v, o, lse;

    SparseCase(const fa_attention_desc_t& desc, const fa_forward_args_t& args) : SparseCase(oracle::Reading(desc, args)) {}
    explicit SparseCase(const oracle::Reading& reading)
        : d(reading.d),
          a(reading.a),
          q(bytes(reading.q_tensor, reading.q_dtype)),
          k(bytes(reading.k_tensor, reading.k_dtype)),
          v(bytes(reading.v_tensor, reading.k_dtype)),
          o(bytes(reading.o_tensor, reading.o_dtype)),
          lse(bytes(reading.lse_tensor, FA_F32)) {
        a.q = q.as<void>(), a.k = k.as<void>(), a.v = v.as<void>(), a.o = o.as<void>(), a.lse = lse.as<float>();
    }
    static uint64_t bytes(const oracle::Tensor& tensor, int32_t dtype) { return uint64_t(tensor.extent() * oracle::size_of(dtype)); }
    bool mapped() const { return a.q && a.k && a.v && a.o && a.lse; }

    std::string run(const Handle& handle) {
        const oracle::Reading r(d, a);
        Rng rng(101);
        for (int64_t b = 0; b < d.batch; b++) {
            for (int64_t h = 0; h < d.heads_q; h++)
                for (int64_t i = 0; i < r.rows(b); i++)
                    for (int64_t e = 0; e < d.dim_qk; e++) oracle::store(q.as<void>(), r.q(b, h, i) + e, r.q_dtype, rng.normal());
            for (int64_t h = 0; h < r.heads_k; h++)
                for (int64_t j = 0; j < r.keys(b); j++) {
                    for (int64_t e = 0; e < d.dim_qk; e++) oracle::store(k.as<void>(), r.k(b, h, j) + e, r.k_dtype, rng.normal());
                    for (int64_t e = 0; e < r.dim_v; e++) oracle::store(v.as<void>(), r.v(b, h, j) + e, r.k_dtype, rng.normal());
                }
        }
        on_fault_print(describe(d));
        if (fa_forward_ex(handle, &d, &a) != FA_OK) return handle.error();
        const oracle::Attention want = oracle::attention(r);
        const std::string fault = oracle::compare_o(r, want, probability_dtype(handle, d)).fault;
        return fault.empty() ? oracle::compare_lse(r, want).fault : fault;
    }
};

// Terabytes of host memory that hardly exist can be read in place, not copied to a device.
#define SPARSE_MEMORY_OR_SKIP(mapped)                                                                  \
    do {                                                                                               \
        if (!testing_the_cpu()) GTEST_SKIP() << "sparse host memory cannot be copied to this backend"; \
        if (!(mapped)) GTEST_SKIP() << "no address space for a sparse mapping";                        \
    } while (0)

#define EXPECT_SPARSE_RIGHT(handle, c)                     \
    do {                                                   \
        SPARSE_MEMORY_OR_SKIP((c).mapped());               \
        EXPECT_EQ((c).run(handle), "") << describe((c).d); \
    } while (0)

fa_attention_desc_t base(int32_t dtype) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = dtype, d.operands = FA_OPERAND_LSE, d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
    d.batch = 3, d.heads_q = 4, d.heads_k = 2, d.seqlen_q = 3, d.seqlen_k = 5, d.dim_qk = 9, d.dim_v = 7;
    return d;
}

void set(int64_t (&stride)[4], int64_t batch, int64_t row, int64_t head) {
    stride[0] = batch, stride[1] = row, stride[2] = head, stride[3] = 1;
}
void set(int64_t (&stride)[3], int64_t batch, int64_t head, int64_t row) { stride[0] = batch, stride[1] = head, stride[2] = row; }

// Each of the three axes in turn lies further apart than 32 bits can say.
TEST(Failures, F03_F06_strides_beyond_32_bits) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_F16, FA_E4M3})
        for (int far = 0; far < 3; far++) {
            fa_attention_desc_t d = base(dtype);
            const int64_t s[3] = {far == 0 ? kFar : 4096, far == 1 ? kFar : 16, far == 2 ? kFar : 1024};
            set(d.q_stride, s[0], s[1], s[2]), set(d.k_stride, s[0], s[1], s[2]), set(d.v_stride, s[0], s[1], s[2]);
            set(d.o_stride, s[0], s[1], s[2]), set(d.lse_stride, s[0], s[2], s[1]);
            SparseCase c(d, FA_FORWARD_ARGS_INIT);
            EXPECT_SPARSE_RIGHT(handle, c);
        }
}

// Packed rows that begin behind the 2^31st element: row number times stride must not be a 32-bit product.
TEST(Failures, F04_F07_packed_rows_beyond_32_bits) {
    const Handle handle = make_handle();
    const int32_t cu[] = {600'000'000, 600'000'003, 600'000'005, 600'000'008};
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        fa_attention_desc_t d = base(dtype);
        d.strided = 0;
        d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
        d.total_q = d.total_k = cu[3];
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.cu_seqlens_q = a.cu_seqlens_k = cu;
        SparseCase c(d, a);
        EXPECT_SPARSE_RIGHT(handle, c);
    }
}

// Pages that lie further apart than 32 bits can say, and page ids times their stride.
TEST(Failures, F36_pages_beyond_32_bits) {
    const Handle handle = make_handle();
    fa_attention_desc_t d = base(FA_F32);
    d.operands |= FA_OPERAND_PAGE_TABLE;
    d.strided = FA_STRIDED_K | FA_STRIDED_V;
    d.page_size = 2, d.num_pages = 40;
    set(d.k_stride, kFar / 4, 64, 16), set(d.v_stride, kFar / 4, 64, 16);
    const int32_t table[] = {39, 0, 17, 38, 1, 16, 37, 2, 15};
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.page_table = table;
    SparseCase c(d, a);
    EXPECT_SPARSE_RIGHT(handle, c);
}

TEST(Failures, F36_forty_thousand_pages) {
    const Handle handle = make_handle();
    Rng rng(102);
    Case c = shaped({2, 1, 1, 2, 32769, 1, 4});
    paged(c, 1);
    EXPECT_EQ(count(handle, c, rng), "");
}

// Appending to a cache whose sequences are 2^33 elements apart writes there and nowhere else.
TEST(Failures, F06_append_to_a_far_sequence) {
    const Handle handle = make_handle();
    fa_attention_desc_t d = base(FA_F32);
    d.strided = FA_STRIDED_K | FA_STRIDED_V;
    d.operands = FA_OPERAND_SEQUSED_K;
    set(d.k_stride, kFar, 18, 9), set(d.v_stride, kFar, 14, 7);
    const oracle::Reading r(d, FA_FORWARD_ARGS_INIT);
    SparseBuffer k(uint64_t(r.k_tensor.extent() * 4)), v(uint64_t(r.v_tensor.extent() * 4));
    SPARSE_MEMORY_OR_SKIP(k.as<void>() && v.as<void>());
    std::vector<float> k_new(3 * 2 * 2 * 9), v_new(3 * 2 * 2 * 7);
    Rng rng(103);
    for (std::vector<float>* values : {&k_new, &v_new})
        for (float& x : *values) x = float(rng.normal());
    const int32_t used[] = {0, 3, 2};
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.k_new = k_new.data(), a.v_new = v_new.data(), a.seqlen_new = 2, a.k = k.as<void>(), a.v = v.as<void>(), a.seqused_k = used;
    ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
    EXPECT_EQ(oracle::compare(oracle::append_kv(d, a)).fault, "");
    int64_t touched = 0;
    for (int64_t b = 0; b < 3; b++)
        for (int64_t n = 0; n < 5 * 18; n++) touched += k.as<float>()[b * kFar + n] != 0;
    EXPECT_EQ(touched, 3 * 2 * 2 * 9);
}

// ---- long sequences

// All scores equal; columns of v: one, and the first, the middle and the last key alone.
std::string count_long(const Handle& handle, int64_t keys, int32_t dtype) {
    Rng rng(104);
    Case c = shaped({1, 1, 1, 2, keys, 1, 4}, dtype);
    c.d.o_dtype = FA_F32;
    c.bind(rng);
    c.set_q([](auto...) { return 1.0; });
    c.set_k([](auto...) { return 0.0; });
    const int64_t alone[] = {-1, 0, keys / 2, keys - 1};
    c.set_v([&](int64_t, int64_t, int64_t j, int64_t e) { return e == 0 || j == alone[e] ? 1.0 : 0.0; });
    if (c.run(handle) != FA_OK) return handle.error();
    for (int64_t i = 0; i < 2; i++) {
        const float* o = c.o.as<float>() + i * 4;
        if (!(std::fabs(o[0] - 1) <= 4e-6)) return "the weights' sum is " + std::to_string(o[0]);
        for (int e = 1; e < 4; e++)
            if (!(std::fabs(double(o[e]) * double(keys) - 1) <= 1e-4))
                return "key " + std::to_string(alone[e]) + " counts " + std::to_string(double(o[e]) * double(keys));
        const double lse = double(c.lse.as<float>()[i]), want = std::log(double(keys));
        if (!(std::fabs(lse - want) <= 2e-6)) return "LSE is " + std::to_string(lse) + ", expected " + std::to_string(want);
    }
    return "";
}

TEST(Failures, F05_four_million_keys) { EXPECT_EQ(count_long(make_handle(), (int64_t(1) << 22) + 1, FA_F32), ""); }

TEST(Failures, F71_sums_over_a_hundred_thousand_keys) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F16, FA_BF16, FA_E4M3, FA_E5M2}) EXPECT_EQ(count_long(handle, 100'001, dtype), "");
}

TEST(Failures, F08_mask_past_65536_keys) {
    const Handle handle = make_handle();
    for (const int64_t keys : {65535, 65536, 65537, 131'073})
        for (int rule = 0; rule < 5; rule++) {
            Rng rng(105);
            Case c = shaped({1, 1, 1, 3, keys, 1, 32});
            if (rule == 1) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            if (rule == 2) window(c, 65536, -1, FA_ALIGN_BOTTOM_RIGHT);
            if (rule == 3) c.d.num_splits = 3;
            if (rule == 4) c.d.operands |= FA_OPERAND_MASK, dense_pairs(c.d, c.d.mask_stride);
            c.bind(rng);
            if (rule == 4) c.set_mask([&](int64_t, int64_t, int64_t i, int64_t j) { return j >= 65530 || j % (i + 2) == 0; });
            ASSERT_EQ(count_bound(handle, c), "") << c.describe();
        }
}

TEST(Failures, F09_three_hundred_thousand_keys_in_any_batch) {
    const Handle handle = make_handle();
    const int64_t keys = 350'000;
    auto run = [&](int64_t batch) {
        Rng rng(106);
        Case c = shaped({batch, 1, 1, 2, keys, 2, 2});
        c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
        c.d.k_stride[1] = c.d.v_stride[1] = 2, c.d.k_stride[3] = c.d.v_stride[3] = 1;  // one k and v for all sequences
        c.d.split_size = 4096;
        c.bind(rng);
        c.set_q([](int64_t, int64_t, int64_t i, int64_t e) { return 0.5 + double(i + e); });
        Rng data(107);
        for (int64_t n = 0; n < 2 * keys; n++) c.k.as<float>()[n] = float(data.normal()), c.v.as<float>()[n] = float(data.normal());
        EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
        const std::vector<unsigned char> o = bytes_of(c.o);
        return std::vector<unsigned char>(o.end() - 2 * 2 * 4, o.end());
    };
    const std::vector<unsigned char> alone = run(1);
    EXPECT_EQ(run(2), alone);
    EXPECT_EQ(run(5), alone);
}

// ---- many sequences, heads and rows

TEST(Failures, F10_F11_F12_more_than_65535_sequences_heads_and_rows) {
    const Handle handle = make_handle();
    Rng rng(108);
    for (const auto& [batch, heads, rows] :
         {std::tuple(65537, 1, 1), std::tuple(1, 65537, 1), std::tuple(300, 300, 1), std::tuple(1, 1, 65537 * 3)}) {
        Case c = counting_shape(batch, heads, rows, 2);
        ASSERT_EQ(count(handle, c, rng), "") << c.describe();
    }
}

}  // namespace
}  // namespace test
