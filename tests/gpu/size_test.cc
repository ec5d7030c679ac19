// Tensors of more than 2^31 elements, and more work items than a grid's second and third dimension can count.
#include <algorithm>
#include "gpu/gpu.h"

namespace test::gpu {
namespace {

class Sizes : public Gpu {
  protected:
    // Some of the device is taken by others: ask for a tenth more than is needed.
    static bool enough(int64_t bytes) {
        size_t free = 0, total = 0;
        cuda(cudaMemGetInfo(&free, &total));
        return double(free) > 1.1 * double(bytes);
    }
};

#define ENOUGH_MEMORY_OR_SKIP(bytes) \
    if (!enough(bytes)) GTEST_SKIP() << "the device has no " << (bytes) / 1e9 << " GB free"

// A call of one sequence like those in device memory, its elements at `q_at` … of the pattern.
struct Sample {
    Case c;
    Sample(const Shape& shape, int64_t q_at, int64_t k_at) : c(shaped(shape, FA_F16)) {
        Rng rng(241);
        c.bind(rng);
        const auto take = [](const Buffer& to, int64_t at, uint32_t seed) {
            for (int64_t n = 0; n < to.bytes() / 2; n++) oracle::store(to.as(), n, FA_F16, pattern_value(at + n, seed));
        };
        take(c.q, q_at, 1), take(c.k, k_at, 2), take(c.v, k_at, 3);
    }
};

struct Large {
    fa_attention_desc_t d;
    Memory q, k, v, o, lse;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;

    explicit Large(const fa_attention_desc_t& desc, int64_t q_count, int64_t k_count, int64_t rows)
        : d(desc), q(q_count * 2), k(k_count * 2), v(k_count * 2), o(q_count * 2), lse(rows * 4) {
        fill_pattern(q.as<uint16_t>(), q_count, 1, nullptr);
        fill_pattern(k.as<uint16_t>(), k_count, 2, nullptr);
        fill_pattern(v.as<uint16_t>(), k_count, 3, nullptr);
        cuda(cudaMemset(o.as(), 0xff, size_t(o.bytes())));
        a.q = q.as(), a.k = k.as(), a.v = v.as(), a.o = o.as(), a.lse = lse.as<float>();
    }
};

// 16,386 sequences of 2^17 elements of k and of v each: 2^31 and two sequences more.
TEST_F(Sizes, KeysBeyond2To31Elements) {
    const Shape one{1, 8, 8, 1, 128, 128, 128};
    const int64_t batch = 16386, k_one = one.keys * one.heads_k * one.dim_qk, q_one = one.heads_q * one.dim_qk;
    ENOUGH_MEMORY_OR_SKIP(4 * batch * (k_one + q_one));
    const Handle handle = make_handle();
    Shape all = one;
    all.batch = batch;
    Large large(shaped(all, FA_F16).d, batch * q_one, batch * k_one, batch * one.heads_q);
    ASSERT_EQ(fa_forward_ex(handle, &large.d, &large.a), FA_OK) << handle.error();
    cuda(cudaDeviceSynchronize());
    for (const int64_t b : {int64_t(0), int64_t(8191), int64_t(8192), batch - 3, batch - 2, batch - 1}) {
        Sample sample(one, b * q_one, b * k_one);
        cuda(cudaMemcpy(sample.c.o.as(), large.o.as<uint16_t>() + b * q_one, size_t(q_one * 2), cudaMemcpyDefault));
        cuda(cudaMemcpy(sample.c.lse.as(), large.lse.as<float>() + b * one.heads_q, size_t(one.heads_q * 4), cudaMemcpyDefault));
        EXPECT_EQ(check_against_oracle(sample.c, FA_F16), "") << "sequence " << b;
    }
}

// One sequence of 262,146 rows: q and o of 2^31 elements and more, and 64 heads of thousands of tiles.
TEST_F(Sizes, RowsBeyond2To31Elements) {
    constexpr int64_t kRows = 262146, kHeads = 64, kDim = 128, kRow = kHeads * kDim;
    const Shape one{1, kHeads, 8, 1, 64, kDim, kDim}, all{1, kHeads, 8, kRows, 64, kDim, kDim};
    ENOUGH_MEMORY_OR_SKIP(4 * kRows * kRow + 4 * kRows * kHeads);
    const Handle handle = make_handle();
    Large large(shaped(all, FA_F16).d, kRows * kRow, 64 * 8 * kDim, kRows * kHeads);
    ASSERT_EQ(fa_forward_ex(handle, &large.d, &large.a), FA_OK) << handle.error();
    cuda(cudaDeviceSynchronize());
    for (const int64_t i : {int64_t(0), int64_t(131071), int64_t(131072), int64_t(262143), int64_t(262144), kRows - 1}) {
        Sample sample(one, i * kRow, 0);
        cuda(cudaMemcpy(sample.c.o.as(), large.o.as<uint16_t>() + i * kRow, size_t(kRow * 2), cudaMemcpyDefault));
        for (int64_t h = 0; h < kHeads; h++)
            cuda(cudaMemcpy(sample.c.lse.as<float>() + h, large.lse.as<float>() + h * kRows + i, 4, cudaMemcpyDefault));
        EXPECT_EQ(check_against_oracle(sample.c, FA_F16), "") << "row " << i;
    }
}

TEST_F(Sizes, MoreThan65535OfEverything) {
    const Handle handle = make_handle();
    for (const Shape& s : {Shape{70001, 1, 1, 1, 3, 8, 8}, Shape{1, 70001, 1, 1, 3, 8, 8}, Shape{1, 70001, 70001, 1, 3, 8, 8},
                           Shape{1, 1, 1, 4'200'001, 2, 8, 8}, Shape{3, 5, 1, 20'001, 2, 8, 8}}) {
        Rng rng(242);
        Case c = shaped(s);
        c.bind(rng);
        c.fill_normal(rng);
        Moved<fa_forward_args_t> moved_args = moved(c);
        memset(c.o.as(), kPoison, size_t(c.o.bytes())), memset(c.lse.as(), kPoison, size_t(c.lse.bytes()));
        moved_args.upload();
        ASSERT_EQ(fa_forward_ex(handle, &c.d, &moved_args.device), FA_OK) << handle.error();
        cuda(cudaDeviceSynchronize());
        moved_args.fetch();
        EXPECT_EQ(check_against_oracle(c, FA_F32), "") << c.describe();
    }
}

// The calls that go row by row, over 70,001 sequences of three heads.
TEST_F(Sizes, MoreThan65535RowsOfTheOtherCalls) {
    constexpr int64_t kBatch = 70001, kHeads = 3, kDim = 8, kCount = kBatch * kHeads * kDim;
    const Handle handle = make_handle();
    Rng rng(243);
    std::vector<float> x(kCount), y(kCount, NAN), lse(kBatch * kHeads), z(2 * kCount);
    for (std::vector<float>* values : {&x, &lse})
        for (float& value : *values) value = float(rng.normal());
    const std::vector<float> turn = {0.6f, 0.8f};
    const auto up = [](const std::vector<float>& from) {
        Memory to(int64_t(from.size() * 4));
        cuda(cudaMemcpy(to.as(), from.data(), from.size() * 4, cudaMemcpyDefault));
        return to;
    };
    const auto down = [](std::vector<float>& to, const Memory& from) {
        cuda(cudaMemcpy(to.data(), from.as(), to.size() * 4, cudaMemcpyDefault));
    };
    const Memory device_x = up(x), device_y = up(y), device_lse = up(lse), cos = up({turn[0]}), sin = up({turn[1]}), k = up(z), v = up(z);

    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = kBatch, d.heads_q = kHeads, d.seqlen_q = 1, d.seqlen_k = 2, d.dim_qk = kDim;
    fa_rotary_args_t rotary = FA_ROTARY_ARGS_INIT;
    rotary.x = device_x.as(), rotary.out = device_y.as(), rotary.cos = cos.as<float>(), rotary.sin = sin.as<float>();
    rotary.max_position = 1, rotary.rotary_dim = 2;
    ASSERT_EQ(fa_rotary(handle, &d, &rotary), FA_OK) << handle.error();
    down(y, device_y);
    for (int64_t n = 0; n < kCount; n += kDim) {
        ASSERT_FLOAT_EQ(y[size_t(n)], x[size_t(n)] * turn[0] - x[size_t(n + 1)] * turn[1]) << n;
        ASSERT_EQ(y[size_t(n + kDim - 1)], x[size_t(n + kDim - 1)]) << n;
    }

    fa_merge_args_t merge = FA_MERGE_ARGS_INIT;
    merge.parts = 1, merge.o_parts = device_x.as<float>(), merge.lse_parts = device_lse.as<float>(), merge.o = device_y.as();
    cuda(cudaMemset(device_y.as(), 0xff, size_t(device_y.bytes())));
    ASSERT_EQ(fa_merge(handle, &d, &merge), FA_OK) << handle.error();
    down(y, device_y);
    for (int64_t n = 0; n < kCount; n++) ASSERT_FLOAT_EQ(y[size_t(n)], x[size_t(n)]) << n;  // one part is the whole

    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    append.k_new = append.v_new = device_x.as(), append.k = k.as(), append.v = v.as(), append.seqlen_new = 1;
    ASSERT_EQ(fa_append_kv(handle, &d, &append), FA_OK) << handle.error();
    for (const Memory* cache : {&k, &v}) {
        down(z, *cache);
        for (int64_t b = 0; b < kBatch; b++)
            for (int64_t n = 0; n < kHeads * kDim; n++) {
                ASSERT_EQ(z[size_t(2 * b * kHeads * kDim + n)], x[size_t(b * kHeads * kDim + n)]) << b;
                ASSERT_EQ(z[size_t((2 * b + 1) * kHeads * kDim + n)], 0.f) << b;
            }
    }
}

}  // namespace
}  // namespace test::gpu
