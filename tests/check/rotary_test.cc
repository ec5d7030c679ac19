// fa_rotary against its oracle, in every form.
#include <gtest/gtest.h>
#include <algorithm>
#include "support/random_case.h"
#include "support/handle.h"
#include "support/writes.h"

namespace test {
namespace {

class RandomRotary {
  public:
    explicit RandomRotary(uint64_t seed) : rng(seed) {
        shape();
        lengths();
        layout();
        positions();
        if (rng.chance(0.3)) of_k();
    }

    std::string run(const Handle& handle) {
        Watched watched;
        watched.watch(x);
        if (!in_place) watched.watch(out);
        const std::vector<oracle::Write> want = oracle::rotary(d, a);
        on_fault_print("rotary: " + describe(d));
        if (!in_place) x.freeze(true);
        const fa_status_t status = fa_rotary(handle, &d, &a);
        x.freeze(false);
        if (status != FA_OK) return "fa_rotary: " + handle.error() + "\n" + describe(d);
        const std::string fault = watched.check(want);
        return fault.empty() ? "" : fault + (in_place ? " (in place)" : "") + "\n" + describe(d);
    }

  private:
    Rng rng;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
    bool packed = false, in_place = false;
    std::vector<int32_t> cu, used;
    Buffer cu_buffer, used_buffer, x, out, cos, sin, positions_buffer, offset_buffer;

    void shape() {
        d.q_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
        d.batch = rng.between(0, 3), d.heads_q = rng.between(1, 4), d.seqlen_q = rng.between(0, 12);
        d.dim_qk = rng.chance(0.95) ? rng.between(2, 140) : rng.between(2, 1024);
        a.rotary_dim = rng.chance(0.4) ? d.dim_qk / 2 * 2 : 2 * rng.between(1, d.dim_qk / 2);
        if (rng.chance(0.4)) a.rotary_begin = rng.between(0, d.dim_qk - a.rotary_dim);
        a.max_position = rng.between(d.seqlen_q + 1, 40);
        if (rng.chance(0.5)) a.flags |= FA_ROTARY_INTERLEAVED;
    }

    void lengths() {
        packed = rng.chance(0.35);
        cu.push_back(int32_t(rng.between(0, 3)));
        for (int64_t b = 0; b < d.batch; b++) {
            const int64_t room = packed ? rng.between(0, d.seqlen_q) : d.seqlen_q;
            cu.push_back(cu.back() + int32_t(room)), used.push_back(int32_t(rng.between(0, room)));
        }
        cu_buffer = ints(rng, cu), used_buffer = ints(rng, used);
        if (packed)
            d.operands |= FA_OPERAND_CU_SEQLENS_Q, d.total_q = cu.back() + rng.between(0, 3), a.cu_seqlens = cu_buffer.as<int32_t>();
        if (rng.chance(0.3)) d.operands |= FA_OPERAND_SEQUSED_Q, a.seqused = used_buffer.as<int32_t>();
    }

    oracle::Reading reading() const {
        fa_forward_args_t meta = FA_FORWARD_ARGS_INIT;
        meta.cu_seqlens_q = a.cu_seqlens, meta.seqused_q = a.seqused;
        return {d, meta};
    }

    void layout() {
        const oracle::Tensor dense = reading().q_tensor;
        if (rng.chance(0.5)) {
            d.strided = FA_STRIDED_Q;
            random_strides(rng, 3, dense.count.data(), d.dim_qk, d.q_stride);
            d.q_stride[3] = 1;
            if (packed) d.q_stride[0] = 0;
        }
        const oracle::Reading r = reading();
        const int64_t size = oracle::size_of(d.q_dtype);
        x = Buffer(r.q_tensor.extent() * size, random_side(rng));
        for (int64_t b = 0; b < d.batch; b++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t h = 0; h < d.heads_q; h++)
                    for (int64_t e = 0; e < d.dim_qk; e++) oracle::store(x.as(), r.q(b, h, i) + e, d.q_dtype, rng.normal());
        a.x = a.out = x.as();
        in_place = rng.chance(0.4);
        if (in_place) return;
        oracle::Tensor to = r.q_tensor;
        if (rng.chance(0.5)) {
            random_strides(rng, 3, dense.count.data(), d.dim_qk, a.out_stride);
            a.out_stride[3] = 1;
            if (packed) a.out_stride[0] = 0;
            std::copy(a.out_stride, a.out_stride + 4, to.stride.begin());
        }
        out = Buffer(to.extent() * size, random_side(rng));
        a.out = out.as();
    }

    // The same of k: q's half then says something else.
    void of_k() {
        a.flags |= FA_ROTARY_OF_K;
        d.seqlen_k = d.seqlen_q, d.total_k = d.total_q, d.k_dtype = d.q_dtype;
        std::copy(d.q_stride, d.q_stride + 4, d.k_stride);
        d.strided = d.strided & FA_STRIDED_Q ? FA_STRIDED_K : 0;
        d.operands = (packed ? FA_OPERAND_CU_SEQLENS_K : 0) | (d.operands & FA_OPERAND_SEQUSED_Q ? FA_OPERAND_SEQUSED_K : 0);
        if (rng.chance(0.7)) d.heads_k = d.heads_q, d.heads_q = rng.between(1, 9);
        d.seqlen_q = rng.between(0, 99), d.total_q = 7, d.q_dtype = FA_BF16;
        std::fill(d.q_stride, d.q_stride + 4, -1);
    }

    void positions() {
        Angles angles(rng, a.max_position, a.rotary_dim);
        cos = std::move(angles.cos), sin = std::move(angles.sin);
        a.cos = cos.as<float>(), a.sin = sin.as<float>();
        const oracle::Reading r = reading();
        if (rng.chance(0.3)) {
            std::vector<int32_t> list(size_t(packed ? d.total_q : d.batch * d.seqlen_q), 1 << 30);  // unread ones hold nonsense
            for (int64_t b = 0; b < d.batch; b++)
                for (int64_t i = 0; i < r.rows(b); i++)
                    list[size_t(packed ? cu[size_t(b)] + i : b * d.seqlen_q + i)] = int32_t(rng.between(0, a.max_position - 1));
            positions_buffer = ints(rng, list);
            a.positions = positions_buffer.as<int32_t>();
        } else if (rng.chance(0.5)) {
            std::vector<int32_t> list;
            for (int64_t b = 0; b < d.batch; b++) list.push_back(int32_t(rng.between(0, a.max_position - d.seqlen_q)));
            offset_buffer = ints(rng, list);
            a.position_offset = offset_buffer.as<int32_t>();
        }
    }
};

TEST(Rotary, RandomCallsAgreeWithTheOracle) {
    const Handle handle = make_handle();
    for (uint64_t n = 0; n < 3000; n++) ASSERT_EQ(RandomRotary(derive(71, n)).run(handle), "") << "number " << n;
}

}  // namespace
}  // namespace test
