// fa_append_kv against its oracle: every cache type, layout, way to say where a token goes, rotation and quantisation.
#include <gtest/gtest.h>
#include <algorithm>
#include <numeric>
#include "support/handle.h"
#include "support/random_case.h"
#include "support/writes.h"
#include "support/shaped.h"

namespace test {
namespace {

class RandomAppend {
  public:
    explicit RandomAppend(uint64_t seed) : rng(seed) {
        shape();
        slots();
        pages();
        cache();
        tokens();
        rotation();
    }

    std::string run(const Handle& handle) {
        Watched watched;
        watched.watch(k).watch(v).watch(k_tail).watch(k_descale).watch(v_descale).watch(k_shift).watch(v_shift);
        const std::vector<oracle::Write> want = oracle::append_kv(d, a);
        on_fault_print("append: " + describe(d));
        const fa_status_t status = fa_append_kv(handle, &d, &a);
        if (status != FA_OK) return "fa_append_kv: " + handle.error() + "\n" + describe(d);
        std::string fault = watched.check(want);
        if (!fault.empty() && a.flags & FA_APPEND_DYNAMIC_SCALE) fault += " (dynamic scale)";
        return fault.empty() ? "" : fault + "\n" + describe(d);
    }

  private:
    Rng rng;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    std::vector<int32_t> fresh, cu, left, used, index;  // per sequence: tokens that come, their packed begins, …
    std::vector<Buffer> metadata;
    Buffer k, v, k_tail, k_new, v_new, k_descale, v_descale, k_shift, v_shift, cos, sin;
    int64_t dim_v = 0, heads_k = 0, heads_v = 0;

    bool has(uint64_t operand) const { return (d.operands & operand) != 0; }
    bool v_in_k() const { return (d.flags & FA_V_IN_K) != 0; }
    const int32_t* keep(const std::vector<int32_t>& values) {
        metadata.push_back(ints(rng, values));
        return metadata.back().as<int32_t>();
    }

    int32_t cache_type() {
        if (rng.chance(0.35)) return rng.pick<int32_t>({FA_Q4_0, FA_Q4_1, FA_Q5_0, FA_Q5_1, FA_Q8_0});
        return rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2, FA_I8, FA_E2M1, FA_I4, FA_U4, FA_U4});
    }
    static int64_t whole_units(int64_t dim, int32_t dtype) {
        const int64_t elements = oracle::elements_of(dtype);
        return (dim + elements - 1) / elements * elements;
    }

    void shape() {
        metadata.reserve(16);
        d.q_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
        if (rng.chance(0.7)) d.k_dtype = cache_type();
        d.batch = rng.between(0, 4), d.seqlen_k = rng.between(0, 40);
        if (rng.chance(0.12)) d.flags |= FA_V_IN_K;
        else if (rng.chance(0.4)) d.v_dtype = cache_type();
        heads_k = heads_v = d.heads_q = rng.between(1, 3);
        if (rng.chance(0.3)) d.heads_k = heads_k, d.heads_q = 2 * heads_k;
        if (!v_in_k() && rng.chance(0.2)) d.heads_v = heads_v = rng.between(1, 3), d.heads_k = heads_k, d.heads_q = rng.chance(0.3) ? 0 : 6;
        d.dim_qk = rng.chance(0.95) ? rng.between(1, 70) : rng.between(1, 1024);
        const int32_t k_dtype = d.k_dtype ? d.k_dtype : d.q_dtype, v_dtype = d.v_dtype ? d.v_dtype : k_dtype;
        if (rng.chance(0.4)) d.dim_v = rng.between(1, v_in_k() ? d.dim_qk : 70);
        dim_v = d.dim_v ? d.dim_v : d.dim_qk;
        d.dim_qk = whole_units(d.dim_qk, k_dtype), dim_v = whole_units(dim_v, v_dtype);
        if (d.dim_v || dim_v != d.dim_qk) d.dim_v = dim_v;
        if (rng.chance(0.2)) {
            const int64_t tail = rng.between(1, 40);
            d.operands |= FA_OPERAND_K_TAIL | (rng.chance(0.5) ? FA_OPERAND_Q_TAIL : 0);
            d.dim_tail = tail, d.dim_qk = std::min<int64_t>(d.dim_qk, 512) + tail;
            if (v_in_k()) dim_v = std::min(dim_v, d.dim_qk - tail);
            d.dim_v = dim_v;
            if (rng.chance(0.6)) d.k_tail_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
        } else if (rng.chance(0.05) && d.dim_qk > 1) {
            d.operands |= FA_OPERAND_Q_TAIL, d.dim_tail = 1;  // an append has no q
        }
    }

    // Which slots the tokens go to: behind the used ones, behind the left padding, or anywhere, each at most once.
    void slots() {
        const bool lengths = rng.chance(0.7), padded = rng.chance(0.3), anywhere = rng.chance(0.3);
        a.seqlen_new = rng.between(0, std::min<int64_t>(d.seqlen_k, 9));
        std::vector<int32_t> positions;
        cu.push_back(int32_t(rng.between(0, 2)));
        const bool packed = rng.chance(0.35);
        for (int64_t b = 0; b < d.batch; b++) {
            const int64_t room = packed ? rng.between(0, a.seqlen_new) : a.seqlen_new;
            cu.push_back(cu.back() + int32_t(room));
            fresh.push_back(int32_t(room));
            used.push_back(int32_t(rng.between(0, d.seqlen_k - room)));
            left.push_back(int32_t(rng.between(0, lengths || anywhere ? used.back() : d.seqlen_k - room)));
        }
        a.total_new = packed ? cu.back() + rng.between(0, 2) : 0;
        if (packed) a.cu_seqlens_new = keep(cu);
        if (rng.chance(0.3)) {
            for (int32_t& n : fresh) n = int32_t(rng.between(0, n));
            a.seqused_new = keep(fresh);
        }
        if (lengths) d.operands |= FA_OPERAND_SEQUSED_K, a.seqused_k = keep(used);
        if (padded) d.operands |= FA_OPERAND_LEFTPAD_K, a.leftpad_k = keep(left);
        if (!anywhere) return;
        positions.assign(size_t(packed ? a.total_new : d.batch * a.seqlen_new), 1 << 30);  // unread ones hold nonsense
        for (int64_t b = 0; b < d.batch; b++) {
            std::vector<int32_t> free(size_t(d.seqlen_k - (padded ? left[size_t(b)] : 0)));
            std::iota(free.begin(), free.end(), padded ? left[size_t(b)] : 0);
            for (int64_t t = 0; t < fresh[size_t(b)]; t++) {
                int32_t& slot = positions[size_t(packed ? cu[size_t(b)] + t : b * a.seqlen_new + t)];
                if (free.empty() || rng.chance(0.2)) {
                    slot = -1;
                    continue;
                }
                const size_t n = size_t(rng.between(0, int64_t(free.size()) - 1));
                slot = free[n];
                free.erase(free.begin() + int64_t(n));
            }
        }
        a.positions = keep(positions);
    }

    int64_t owners() const { return has(FA_OPERAND_KV_BATCH_IDX) ? d.kv_batch : d.batch; }

    void pages() {
        if (rng.chance(0.3)) {
            d.operands |= FA_OPERAND_KV_BATCH_IDX;
            d.kv_batch = d.batch + rng.between(0, 2) + (d.batch == 0);
            index.resize(size_t(d.kv_batch));
            std::iota(index.begin(), index.end(), 0);
            for (size_t n = index.size(); n > 1; n--) std::swap(index[n - 1], index[size_t(rng.between(0, int64_t(n) - 1))]);
            index.resize(size_t(d.batch));
            a.kv_batch_idx = keep(index);
        }
        if (!rng.chance(0.4)) return;
        d.operands |= FA_OPERAND_PAGE_TABLE;
        d.page_size = rng.pick<int64_t>({1, 2, 3, 5, 16, 64});
        const int64_t columns = (d.seqlen_k + d.page_size - 1) / d.page_size;
        d.num_pages = owners() * columns + 1;
        std::vector<int32_t> table(size_t(owners() * columns));
        std::iota(table.begin(), table.end(), 1);
        for (size_t n = table.size(); n > 1; n--) std::swap(table[n - 1], table[size_t(rng.between(0, int64_t(n) - 1))]);
        a.page_table = keep(table);
    }

    void stride(uint32_t bit, const oracle::Tensor& tensor, int64_t (&to)[4]) {
        if (!rng.chance(0.4)) return;
        d.strided |= bit;
        random_strides(rng, 3, tensor.count.data(), tensor.count[3], to);
        to[3] = 1;
    }

    void cache() {
        const oracle::Reading dense(d, FA_FORWARD_ARGS_INIT);
        stride(FA_STRIDED_K, dense.k_tensor, d.k_stride);
        if (!v_in_k()) stride(FA_STRIDED_V, dense.v_tensor, d.v_stride);
        if (has(FA_OPERAND_K_TAIL)) stride(FA_STRIDED_K_TAIL, dense.k_tail_tensor, d.k_tail_stride);
        const bool narrow_k = oracle::size_of(dense.k_dtype) == 1, narrow_v = oracle::size_of(dense.v_dtype) == 1;
        if ((narrow_k || narrow_v) && rng.chance(0.5)) a.flags |= FA_APPEND_DYNAMIC_SCALE;
        const bool dynamic = a.flags & FA_APPEND_DYNAMIC_SCALE, dynamic_k = dynamic && narrow_k, dynamic_v = dynamic && narrow_v;
        if (!oracle::is_block(dense.k_dtype))
            factors(narrow_k, dynamic_k, dense.k_dtype, FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT, d.k_descale_dtype, d.k_descale_block);
        if (!oracle::is_block(dense.v_dtype) && !v_in_k())
            factors(narrow_v, dynamic_v, dense.v_dtype, FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT, d.v_descale_dtype, d.v_descale_block);
        const oracle::Reading shaped(d, FA_FORWARD_ARGS_INIT);
        stride_factors(FA_OPERAND_K_DESCALE, dynamic_k, shaped.k_factors.tensor, d.k_descale_stride);
        stride_factors(FA_OPERAND_V_DESCALE, dynamic_v, shaped.v_factors.tensor, d.v_descale_stride);
        const oracle::Reading r(d, FA_FORWARD_ARGS_INIT);
        k = Buffer(r.k_tensor.extent() * oracle::size_of(r.k_dtype), random_side(rng));
        if (!v_in_k()) v = Buffer(r.v_tensor.extent() * oracle::size_of(r.v_dtype), random_side(rng));
        if (has(FA_OPERAND_K_TAIL)) k_tail = Buffer(r.k_tail_tensor.extent() * oracle::size_of(r.k_tail_dtype), random_side(rng));
        a.k = k.as(), a.v = v.as(), a.k_tail = k_tail.as();
        a.k_descale = bind_factors(FA_OPERAND_K_DESCALE, dynamic_k, r.k_factors, 0.01, 0.1, k_descale);
        a.v_descale = bind_factors(FA_OPERAND_V_DESCALE, dynamic_v, r.v_factors, 0.01, 0.1, v_descale);
        a.k_shift = bind_factors(FA_OPERAND_K_SHIFT, dynamic_k, r.k_factors, -1, 1, k_shift);
        a.v_shift = bind_factors(FA_OPERAND_V_SHIFT, dynamic_v, r.v_factors, -1, 1, v_shift);
    }

    // Of one f32 for each row, or of any kind that the call allows.
    void factors(bool narrow, bool dynamic, int32_t dtype, uint64_t factor, uint64_t shift, int32_t& factor_dtype, int64_t (&block)[2]) {
        if (!dynamic && !rng.chance(narrow ? 0.7 : 0.1)) return;
        d.operands |= factor;
        if (rng.chance(0.4)) return;
        factor_dtype = rng.pick<int32_t>({0, FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E8M0});
        if (!dynamic && rng.chance(0.3)) block[0] = rng.pick<int64_t>({2, 3, 32});
        if (rng.chance(0.7)) block[1] = rng.pick<int64_t>({1, 2, 5, 16, 32, 64});
        if (factor_dtype != FA_E8M0 && (!dynamic || dtype == FA_U4) && rng.chance(0.6)) d.operands |= shift;
    }
    void stride_factors(uint64_t operand, bool dynamic, const oracle::Tensor& tensor, int64_t (&stride)[4]) {
        if (!has(operand)) return;
        random_strides(rng, 4, tensor.count.data(), 1, stride);
        for (int axis = 0; axis < 4 && !dynamic; axis++)
            if (rng.chance(0.3)) stride[axis] = 0;
    }
    void* bind_factors(uint64_t operand, bool dynamic, const oracle::Reading::Factors& factors, double low, double high, Buffer& buffer) {
        if (!has(operand)) return nullptr;
        buffer = Buffer(factors.tensor.extent() * oracle::size_of(factors.dtype), random_side(rng));
        for (int64_t n = 0; n < factors.tensor.extent() && !dynamic; n++)
            oracle::store(buffer.as(), n, factors.dtype, rng.uniform(low, high));
        return buffer.as();
    }

    Buffer draw_tokens(int64_t heads, int64_t dim, int64_t (&given)[4]) {
        const bool packed = a.cu_seqlens_new != nullptr;
        oracle::Tensor t{{packed ? 1 : d.batch, packed ? a.total_new : a.seqlen_new, heads, dim}, {}};
        t.stride = {a.seqlen_new * heads * dim, heads * dim, dim, 1};
        if (rng.chance(0.4)) {
            random_strides(rng, 3, t.count.data(), dim, given);
            given[3] = 1;
            if (packed) given[0] = 0;
            std::copy(given, given + 4, t.stride.begin());
        }
        Buffer buffer(t.extent() * oracle::size_of(d.q_dtype), random_side(rng));
        const double size = rng.pick<double>({1, 1, 1e-3, 1000});
        for (int64_t b = 0; b < d.batch; b++)
            for (int64_t n = 0; n < fresh[size_t(b)]; n++)
                for (int64_t h = 0; h < heads; h++) {
                    const bool zero = rng.chance(0.05);  // a zero row has de-scale 1
                    const int64_t at = packed ? t.at(0, cu[size_t(b)] + n, h) : t.at(b, n, h);
                    for (int64_t e = 0; e < dim; e++) oracle::store(buffer.as(), at + e, d.q_dtype, zero ? 0 : size * rng.normal());
                }
        return buffer;
    }

    void tokens() {
        k_new = draw_tokens(heads_k, d.dim_qk, a.k_new_stride);
        if (!v_in_k()) v_new = draw_tokens(heads_v, dim_v, a.v_new_stride);
        a.k_new = k_new.as(), a.v_new = v_new.as();
    }

    void rotation() {
        if (d.dim_qk < 2 || !rng.chance(0.5)) return;
        a.rotary_dim = 2 * rng.between(1, d.dim_qk / 2);
        if (rng.chance(0.4)) a.rotary_begin = rng.between(0, d.dim_qk - a.rotary_dim);
        a.max_position = d.seqlen_k + 1;
        if (rng.chance(0.5)) a.flags |= FA_ROTARY_INTERLEAVED;
        Angles angles(rng, a.max_position, a.rotary_dim);
        cos = std::move(angles.cos), sin = std::move(angles.sin);
        a.cos = cos.as<float>(), a.sin = sin.as<float>();
    }
};

// A factor that underflowed would leave NaN for a token's zeros, and for every row that attends it.
TEST(Append, F77_almost_zero_tokens_have_a_factor) {
    const Handle handle = make_handle();
    constexpr int64_t kTokens = 3, kDim = 20;
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int32_t k_dtype : {FA_E4M3, FA_E5M2, FA_I8})
            for (const double size : {1e-45, 3e-43, 1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-30}) {
                fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
                d.q_dtype = dtype, d.k_dtype = k_dtype, d.batch = d.heads_q = 1, d.seqlen_q = 1, d.seqlen_k = kTokens, d.dim_qk = kDim;
                d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
                d.k_descale_stride[1] = d.v_descale_stride[1] = 1;
                alignas(4) unsigned char fresh[kTokens * kDim * 4] = {}, k[kTokens * kDim], v[kTokens * kDim];
                float k_descale[kTokens], v_descale[kTokens];
                for (int64_t e = 0; e < kTokens * kDim; e += 2) oracle::store(fresh, e, dtype, size * double(1 + e % 7) / 7);
                fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
                a.flags = FA_APPEND_DYNAMIC_SCALE;
                a.k_new = a.v_new = fresh, a.seqlen_new = kTokens, a.k = k, a.v = v, a.k_descale = k_descale, a.v_descale = v_descale;
                const std::vector<oracle::Write> want = oracle::append_kv(d, a);
                ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
                ASSERT_EQ(oracle::compare(want).fault, "") << size << " as " << oracle::name_of(k_dtype);
                for (int64_t e = 0; e < kTokens * kDim; e++) {
                    const double stored = oracle::load(k, e, k_dtype) * double(k_descale[e / kDim]);
                    ASSERT_NEAR(stored, oracle::load(fresh, e, dtype), size / 6 + 0x1p-126) << size << " as " << oracle::name_of(k_dtype);
                }
            }
}

// The factor of a block with an infinite value is finite: what is finite beside it becomes 0, and it itself the type's largest value.
TEST(Append, AnInfiniteValueHasAFiniteFactor) {
    const Handle handle = make_handle();
    constexpr int64_t kTokens = 2, kDim = 24;
    for (const int32_t k_dtype : {FA_E4M3, FA_E5M2, FA_I8})
        for (const int64_t block : {int64_t(0), int64_t(8)}) {
            fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
            d.q_dtype = FA_F32, d.k_dtype = k_dtype, d.v_dtype = FA_F32;
            d.batch = d.heads_q = 1, d.seqlen_q = 1, d.seqlen_k = kTokens, d.dim_qk = kDim;
            d.operands = FA_OPERAND_K_DESCALE;
            d.k_descale_block[1] = block;
            const int64_t blocks = block ? kDim / block : 1;
            d.k_descale_stride[1] = blocks, d.k_descale_stride[3] = 1;
            float fresh[kTokens * kDim], v[kTokens * kDim], descale[kTokens * 3];
            alignas(4) unsigned char k[kTokens * kDim];
            for (int64_t e = 0; e < kTokens * kDim; e++) fresh[e] = float(e % 5) - 2;
            fresh[9] = -kInf;
            fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
            a.flags = FA_APPEND_DYNAMIC_SCALE;
            a.k_new = a.v_new = fresh, a.seqlen_new = kTokens, a.k = k, a.v = v, a.k_descale = descale;
            ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
            const int64_t width = kDim / blocks;
            for (int64_t n = 0; n < kTokens * blocks; n++) {
                const bool odd = n == 9 / width;
                EXPECT_EQ(descale[n] == 0x1.fffffep+127f, odd) << n;
                for (int64_t e = n * width; e < (n + 1) * width; e++) {
                    const double stored = oracle::load(k, e, k_dtype);
                    if (e == 9) EXPECT_EQ(stored, -oracle::largest(k_dtype));
                    else if (odd) EXPECT_EQ(stored, 0) << e;
                    else EXPECT_NEAR(stored * double(descale[n]), double(fresh[e]), 0.1) << e;
                }
            }
            EXPECT_EQ(memcmp(v, fresh, sizeof v), 0) << "v has no factors";
        }
}

TEST(Append, RandomCallsAgreeWithTheOracle) {
    const Handle handle = make_handle();
    for (uint64_t n = 0; n < 4000; n++) ASSERT_EQ(RandomAppend(derive(81, n)).run(handle), "") << "number " << n;
}

}  // namespace
}  // namespace test
