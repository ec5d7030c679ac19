// Random descriptors and args through the checks: nothing crashes, every refusal has a sentence, and what is accepted keeps what the
// checks promise to backends.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include "checked.h"
#include "backend/move.h"
#include "core/pointers.h"
#include "core/tensor.h"
#include "random_struct.h"

namespace {

constexpr int kRounds = 60000;  // for each operation
constexpr uint64_t kSeed = 20240611;

using Wide = __int128;

// Bytes that a tensor reaches over, in arithmetic that cannot overflow.
Wide reach(const std::vector<int64_t>& extent, const int64_t* stride, int64_t element) {
    Wide last = 0;
    for (size_t i = 0; i < extent.size(); i++) {
        if (extent[i] == 0) return 0;
        last += Wide(extent[i] - 1) * stride[i];
    }
    return (last + 1) * element;
}

bool distinct(const std::vector<int64_t>& extent, const int64_t* stride) {
    std::vector<int64_t> all = {0};
    for (size_t i = 0; i < extent.size(); i++) {
        std::vector<int64_t> next;
        if (Wide(all.size()) * extent[i] > 4000) return true;  // too many to count
        for (const int64_t at : all) {
            for (int64_t x = 0; x < extent[i]; x++) next.push_back(at + x * stride[i]);
        }
        all = next;
    }
    std::sort(all.begin(), all.end());
    return std::adjacent_find(all.begin(), all.end()) == all.end();
}

int64_t bytes_of(int32_t dtype) {
    int64_t bytes = 0;
    EXPECT_EQ(fa_dtype_unit(dtype, nullptr, &bytes), FA_OK) << dtype;
    return bytes;
}
int64_t units_of(int32_t dtype, int64_t dim) {
    int64_t elements = 1;
    EXPECT_EQ(fa_dtype_unit(dtype, &elements, nullptr), FA_OK) << dtype;
    EXPECT_EQ(dim % elements, 0);
    return dim / elements;
}

void expect_tensor(const char* name, const std::vector<int64_t>& extent, const int64_t* stride, int64_t element, bool output) {
    SCOPED_TRACE(name);
    for (size_t i = 0; i < extent.size(); i++) ASSERT_GE(stride[i], 0);
    ASSERT_LE(reach(extent, stride, element), Wide(INT64_MAX));
    // Whoever multiplies a stride that is not stepped along must not overflow.
    const bool empty = std::count(extent.begin(), extent.end(), 0) > 0;
    for (size_t i = 0; i < extent.size(); i++) ASSERT_TRUE(stride[i] <= 1 || (!empty && extent[i] > 1));
    ASSERT_TRUE(!output || distinct(extent, stride));
}

std::vector<int64_t> query_extent(const fa::Problem& problem, int64_t dim) {
    return {problem.packed_q() ? 1 : problem.d.batch, problem.packed_q() ? problem.d.total_q : problem.d.seqlen_q, problem.d.heads_q, dim};
}

std::vector<int64_t> key_extent(const fa::Problem& problem, int64_t heads, int64_t units) {
    if (problem.paged()) return {problem.d.num_pages, problem.d.page_size, heads, units};
    const int64_t batch = problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch;
    return {problem.packed_k() ? 1 : batch, problem.packed_k() ? problem.d.total_k : problem.d.seqlen_k, heads, units};
}

// extent: of the values.
void expect_factors(const fa::Problem& problem, uint64_t factor, uint64_t shift, int32_t dtype, const int64_t* block, const int64_t* stride,
                    std::vector<int64_t> extent) {
    const bool known = dtype == FA_F32 || dtype == FA_F16 || dtype == FA_BF16 || dtype == FA_E4M3 || dtype == FA_E8M0;
    ASSERT_TRUE(known) << dtype;
    ASSERT_TRUE(block[0] >= 1 && block[1] >= 1 && block[1] <= extent[3]);
    ASSERT_TRUE(!problem.has(shift) || (problem.has(factor) && dtype != FA_E8M0));
    if (!problem.has(factor)) return;
    extent[1] = extent[1] / block[0] + (extent[1] % block[0] != 0), extent[3] = (extent[3] + block[1] - 1) / block[1];
    expect_tensor("factors", extent, stride, bytes_of(dtype), false);
}

void expect_tail(const char* name, const std::vector<int64_t>& extent, int32_t dtype, const int64_t* stride, const fa::Problem& problem,
                 bool output) {
    ASSERT_TRUE(problem.d.dim_tail >= 1 && problem.d.dim_tail < problem.d.dim_qk);
    ASSERT_TRUE(dtype >= FA_F32 && dtype <= FA_BF16);
    ASSERT_EQ(stride[3], 1);
    expect_tensor(name, extent, stride, bytes_of(dtype), output);
}

void expect_queries(const fa::Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    ASSERT_GE(d.heads_q, 1);
    for (const int64_t size : {d.batch, d.heads_q, d.seqlen_q, d.total_q}) ASSERT_TRUE(size >= 0 && size <= INT32_MAX);
    ASSERT_LE(Wide(d.batch) * d.heads_q * d.seqlen_q, Wide(1) << 56);
}

void expect_keys(const fa::Problem& problem, bool output) {
    const fa_attention_desc_t& d = problem.d;
    for (const int32_t dtype : {d.k_dtype, d.v_dtype}) ASSERT_TRUE(dtype >= FA_F32 && dtype != FA_E8M0 && dtype != FA_BIT);
    ASSERT_EQ(problem.group * problem.kv_heads, d.heads_q);
    ASSERT_TRUE(d.heads_k >= 1 && problem.kv_heads % d.heads_k == 0);
    if (output && problem.v_in_k()) ASSERT_EQ(d.heads_v, 0);
    else ASSERT_TRUE(d.heads_v >= 1 && problem.kv_heads % d.heads_v == 0);
    ASSERT_FALSE(problem.packed_k() && (problem.paged() || problem.has(FA_OPERAND_KV_BATCH_IDX)));
    ASSERT_EQ(d.k_stride[3], 1);
    ASSERT_EQ(d.v_stride[3], 1);
    expect_tensor("k", key_extent(problem, d.heads_k, units_of(d.k_dtype, problem.k_dims())), d.k_stride, bytes_of(d.k_dtype), output);
    expect_tensor("v", key_extent(problem, d.heads_v, units_of(d.v_dtype, problem.v_dims())), d.v_stride, bytes_of(d.v_dtype), output);
    if (problem.has(FA_OPERAND_K_TAIL))
        expect_tail("k_tail", key_extent(problem, d.heads_k, d.dim_tail), d.k_tail_dtype, d.k_tail_stride, problem, output);
    std::vector<int64_t> factors = key_extent(problem, d.heads_k, problem.k_dims());
    if (problem.packed_k()) factors[0] = d.batch;
    expect_factors(problem, FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT, d.k_descale_dtype, d.k_descale_block, d.k_descale_stride, factors);
    factors[2] = d.heads_v, factors[3] = problem.v_dims();
    if (!problem.v_in_k())
        expect_factors(problem, FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT, d.v_descale_dtype, d.v_descale_block, d.v_descale_stride,
                       factors);
    if (!problem.paged()) return;
    ASSERT_GE(d.page_size, 1);
    ASSERT_TRUE(!problem.slots() || d.seqlen_k == d.list_max);
    if (!problem.has(FA_OPERAND_PAGE_TABLE)) return;
    ASSERT_GE(problem.pages_per_row * d.page_size, d.seqlen_k);
    ASSERT_LT((problem.pages_per_row - 1) * d.page_size, d.seqlen_k);
    const bool one_row = problem.pages_per_row == 0 || (problem.has(FA_OPERAND_KV_BATCH_IDX) ? d.kv_batch : d.batch) <= 1;
    ASSERT_EQ(d.page_table_stride == 0, one_row);
}

void expect_outputs(const fa::Problem& problem) {
    ASSERT_TRUE(problem.d.o_dtype >= FA_F32 && problem.d.o_dtype <= FA_E5M2);
    ASSERT_EQ(problem.d.o_stride[3], 1);
    expect_tensor("o", query_extent(problem, problem.d.dim_v), problem.d.o_stride, bytes_of(problem.d.o_dtype), true);
    const std::vector<int64_t> q = query_extent(problem, 1);
    expect_tensor("lse", {q[0], q[2], q[1]}, problem.d.lse_stride, 4, true);
}

void expect_forward(const fa::Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    ASSERT_TRUE(d.q_dtype >= FA_F32 && d.q_dtype <= FA_E5M2);
    ASSERT_TRUE(d.bias_dtype >= FA_F32 && d.bias_dtype <= FA_BF16);
    ASSERT_TRUE(d.dim_qk >= 1 && d.dim_qk <= 1024 && d.dim_v >= 1 && d.dim_v <= 1024);
    ASSERT_TRUE(std::isfinite(d.scale * 1.442695f) && (d.flags & FA_SCALE_EXPLICIT));
    ASSERT_TRUE(std::isfinite(d.softcap) && d.softcap >= 0);
    ASSERT_TRUE(d.dropout_p >= 0 && d.dropout_p < 1);
    ASSERT_TRUE(d.num_splits >= 0 && d.split_size >= 0 && !(d.num_splits && d.split_size));
    const bool positions = (d.flags & (FA_CAUSAL | FA_WINDOW)) || d.chunk > 0 || problem.has(FA_OPERAND_ALIBI);
    ASSERT_TRUE(!positions || d.alignment != FA_ALIGN_UNSET);
    ASSERT_EQ(d.alignment == FA_ALIGN_EXPLICIT, problem.has(FA_OPERAND_CAUSAL_OFFSET));
    for (const int64_t far : {d.window_left, d.window_right, d.chunk, d.split_size}) ASSERT_TRUE(far >= -1 && far <= int64_t(1) << 40);
    expect_tensor("q", query_extent(problem, problem.q_dims()), d.q_stride, bytes_of(d.q_dtype), false);
    if (problem.has(FA_OPERAND_Q_TAIL))
        expect_tail("q_tail", query_extent(problem, d.dim_tail), d.q_tail_dtype, d.q_tail_stride, problem, false);
    std::vector<int64_t> factors = query_extent(problem, problem.q_dims());
    factors[0] = d.batch;
    expect_factors(problem, FA_OPERAND_Q_DESCALE, 0, d.q_descale_dtype, d.q_descale_block, d.q_descale_stride, factors);
    const std::vector<int64_t> pairs = {d.batch, d.heads_q, d.seqlen_q, d.seqlen_k};
    for (const int64_t* period : {d.bias_period, d.mask_period})
        for (int i = 0; i < 2; i++) ASSERT_TRUE(period[i] <= pairs[size_t(i)] && (period[i] >= 1 || pairs[size_t(i)] == 0));
    ASSERT_TRUE(!problem.has(FA_OPERAND_BIAS_SCALE) || problem.has(FA_OPERAND_BIAS));
    expect_tensor("bias", {d.bias_period[0], d.bias_period[1], d.seqlen_q, d.seqlen_k}, d.bias_stride, bytes_of(d.bias_dtype), false);
    ASSERT_TRUE(d.mask_keys >= 0 && d.mask_keys <= INT32_MAX && (d.mask_dtype == 0 || d.mask_dtype == FA_BIT));
    const int64_t columns = d.mask_keys > 0 && d.seqlen_k > 0 ? d.mask_keys : d.seqlen_k,
                  bytes = d.mask_dtype == FA_BIT ? (columns + 7) / 8 : columns;
    expect_tensor("mask", {d.mask_period[0], d.mask_period[1], d.seqlen_q, bytes}, d.mask_stride, 1, false);
    ASSERT_TRUE(d.list_rows >= 1 && d.list_keys >= 1 && d.list_max >= 0 && d.heads_q % d.list_heads == 0);
    ASSERT_TRUE(d.key_range_max >= 1 && d.key_range_max <= INT32_MAX);
    const std::vector<int64_t> rows = query_extent(problem, 1);
    expect_tensor("key_ranges", {rows[0], d.heads_q, rows[1], d.key_range_max}, d.key_range_stride, 8, false);
    if (problem.has(FA_OPERAND_SCORES)) expect_tensor("scores", pairs, d.scores_stride, 4, true);
}

void expect_promises(const fa::Problem& problem, int32_t op) {
    if (op != FA_OP_APPEND_KV) expect_queries(problem);
    const bool attends = op == FA_OP_FORWARD || op == FA_OP_BACKWARD;
    if (attends || op == FA_OP_APPEND_KV) expect_keys(problem, op == FA_OP_APPEND_KV);
    if (op == FA_OP_FORWARD || op == FA_OP_MERGE) expect_outputs(problem);
    if (attends) expect_forward(problem);
    if (op == FA_OP_ROTARY)
        expect_tensor("x", query_extent(problem, problem.d.dim_qk), problem.d.q_stride, bytes_of(problem.d.q_dtype), false);
}

// An address that is never read: anywhere, aligned or not.
void* address(Random& random) {
    switch (random.below(12)) {
        case 0: return nullptr;
        case 1: return reinterpret_cast<void*>(random.word());
        case 2: return reinterpret_cast<void*>(~uintptr_t(0) - uintptr_t(random.below(4096)));
        default: return reinterpret_cast<void*>(uintptr_t(1 + random.below(64)) * (random.one_in(2) ? 256 : uint64_t(1) << 32));
    }
}

// An array that will be read, with just the entries that it must have.
class Arrays {
  public:
    const int32_t* make(Random& random, int64_t count, int64_t bound) {
        if (random.one_in(8)) return nullptr;
        kept_.emplace_back(new int32_t[size_t(count)]);
        int32_t* const to = kept_.back().get();
        for (int64_t i = 0; i < count; i++)
            to[i] =
                int32_t(random.one_in(30) ? nasty(random) : random.below(std::min<int64_t>(std::max<int64_t>(bound, 0), INT32_MAX) + 1));
        return to;
    }

  private:
    std::vector<std::unique_ptr<int32_t[]>> kept_;
};

constexpr int64_t kFewSequences = 8, kFewEntries = 1000, kGoodHeads = 4;  // of heads, the good calls have factors for so many
bool readable(const fa::Problem& problem) {
    const int64_t rows = problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch;
    return problem.d.batch <= kFewSequences && problem.d.seqlen_q <= kFewEntries && rows <= kFewEntries &&
           problem.pages_per_row <= kFewEntries && problem.d.page_table_stride <= kFewEntries;
}

int64_t table_entries(const fa::Problem& problem) {
    const int64_t rows = problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch;
    return rows > 0 ? (rows - 1) * problem.d.page_table_stride + problem.pages_per_row : 0;
}

// Ranges and lists: where they are not few, none.
void pick_masks(Random& random, const fa::Problem& problem, bool host, Arrays& arrays, fa_forward_args_t* args) {
    const auto pick = [&](const int32_t*& field, const fa::Tensor& tensor, int64_t bound) {
        if (!field) return;
        const int64_t entries = int64_t(fa::span(tensor) / 4);
        if (!host) field = static_cast<int32_t*>(address(random));
        else field = entries <= kFewEntries * kFewSequences ? arrays.make(random, entries, bound) : nullptr;
    };
    const fa::Tensor list = fa::key_list_tensor(problem, "list", nullptr), count = fa::key_list_count_tensor(problem, "count", nullptr);
    pick(args->key_ranges, fa::key_range_tensor(problem, "key_ranges", nullptr), problem.d.seqlen_k);
    pick(args->key_list, list, problem.d.seqlen_k), pick(args->full_list, list, problem.d.seqlen_k);
    pick(args->key_list_count, count, problem.d.list_max), pick(args->full_list_count, count, problem.d.list_max);
}

int32_t check(Random& random, const fa::Problem& problem, Forward& call, fa::Message* message) {
    const bool host = readable(problem);
    Arrays arrays;
    fa_forward_args_t& a = call.a;
    const auto pick = [&](auto& field) {
        if (random.one_in(3) || field) field = static_cast<std::remove_reference_t<decltype(field)>>(address(random));
    };
    pick(a.q), pick(a.k), pick(a.v), pick(a.o), pick(a.bias), pick(a.stream), pick(a.workspace);
    if (random.one_in(2)) a.stream = a.workspace = nullptr;
    for (float** to : {&a.lse, &a.scores}) *to = *to ? static_cast<float*>(address(random)) : nullptr;
    a.o_scale = nullptr;
    if (problem.d.heads_q > kGoodHeads) a.bias_scale = nullptr;
    pick_masks(random, problem, host, arrays, &a);
    const auto ints = [&](const int32_t*& field, int64_t count, int64_t bound) {
        if (field) field = host ? arrays.make(random, count, bound) : static_cast<int32_t*>(address(random));
    };
    ints(a.cu_seqlens_q, problem.d.batch + 1, problem.d.total_q);
    ints(a.cu_seqlens_k, problem.d.batch + 1, problem.d.total_k);
    ints(a.seqused_q, problem.d.batch, problem.d.seqlen_q);
    ints(a.seqused_k, problem.d.batch, problem.d.seqlen_k);
    ints(a.leftpad_k, problem.d.batch, problem.d.seqlen_k);
    ints(a.kv_batch_idx, problem.d.batch, problem.d.kv_batch);
    ints(a.page_table, table_entries(problem), problem.d.num_pages);
    fa_forward_args_t out = a;
    fa::Regions regions;
    return fa::check_forward(problem, &out, host, &regions, message);
}

int32_t check(Random& random, const fa::Problem& problem, Backward& call, fa::Message* message) {
    const bool host = readable(problem);
    Arrays arrays;
    BackwardArgs& a = call.a;
    const auto pick = [&](auto& field) {
        if (random.one_in(3)) field = static_cast<std::remove_reference_t<decltype(field)>>(address(random));
    };
    pick(a.f.q), pick(a.f.k), pick(a.f.v), pick(a.f.o), pick(a.dout), pick(a.dq), pick(a.dk), pick(a.dv), pick(a.dbias), pick(a.dsinks);
    for (int64_t* stride : {a.dout_stride, a.dq_stride, a.dk_stride, a.dv_stride})
        if (random.one_in(6)) stride[random.below(4)] = nasty(random), stride[3] = 1;
    if (random.one_in(4)) a.dlse_stride[random.below(3)] = nasty(random);
    if (random.one_in(4)) a.dbias_stride[random.below(4)] = nasty(random);
    if (random.one_in(8)) a.flags ^= 1u << random.below(4);
    if (problem.d.heads_q > kGoodHeads) a.f.bias_scale = nullptr;
    pick_masks(random, problem, host, arrays, &a.f);
    const auto ints = [&](const int32_t*& field, int64_t count, int64_t bound) {
        if (field) field = host ? arrays.make(random, count, bound) : static_cast<int32_t*>(address(random));
    };
    ints(a.f.cu_seqlens_q, problem.d.batch + 1, problem.d.total_q);
    ints(a.f.cu_seqlens_k, problem.d.batch + 1, problem.d.total_k);
    ints(a.f.seqused_q, problem.d.batch, problem.d.seqlen_q);
    ints(a.f.seqused_k, problem.d.batch, problem.d.seqlen_k);
    ints(a.f.leftpad_k, problem.d.batch, problem.d.seqlen_k);
    fa::CheckedBackward out{call.args(), {}};
    fa::Regions regions;
    const fa_status_t status = fa::check_backward(problem, &out, host, &regions, message);
    if (status != FA_OK) return status;
    const std::vector<int64_t> q = query_extent(problem, 1),
                               pairs = {problem.d.bias_period[0], problem.d.bias_period[1], problem.d.seqlen_q, problem.d.seqlen_k};
    expect_tensor("dout", query_extent(problem, problem.d.dim_v), out.dout_stride, 1, false);
    expect_tensor("dlse", {q[0], q[2], q[1]}, out.dlse_stride, 4, false);
    expect_tensor("dq", query_extent(problem, problem.d.dim_qk), out.dq_stride, 1, out.dq != nullptr);
    expect_tensor("dk", key_extent(problem, problem.d.heads_k, problem.d.dim_qk), out.dk_stride, 1, out.dk != nullptr);
    expect_tensor("dv", key_extent(problem, problem.d.heads_v, problem.d.dim_v), out.dv_stride, 1, out.dv != nullptr);
    expect_tensor("dbias", pairs, out.dbias_stride, 4, false);
    return FA_OK;
}

int32_t check(Random& random, const fa::Problem& problem, Merge& call, fa::Message* message) {
    const bool host = readable(problem);
    Arrays arrays;
    fa_merge_args_t& a = call.a;
    if (random.one_in(2)) a.parts = nasty(random);
    if (random.one_in(3)) a.o_parts_stride[random.below(5)] = nasty(random), a.o_parts_stride[4] = 1;
    if (random.one_in(3)) a.lse_parts_stride[random.below(4)] = nasty(random);
    if (random.one_in(2)) a.o = address(random);
    if (random.one_in(2)) a.lse = static_cast<float*>(address(random));
    a.o_scale = nullptr;
    if (a.cu_seqlens_q) a.cu_seqlens_q = host ? arrays.make(random, problem.d.batch + 1, problem.d.total_q) : nullptr;
    if (a.seqused_q) a.seqused_q = host ? arrays.make(random, problem.d.batch, problem.d.seqlen_q) : nullptr;
    fa_merge_args_t out = a;
    fa::Regions regions;
    const fa_status_t status = fa::check_merge(problem, &out, host, &regions, message);
    if (status != FA_OK) return status;
    const std::vector<int64_t> q = query_extent(problem, problem.d.dim_v);
    expect_tensor("o_parts", {a.parts, q[0], q[1], q[2], q[3]}, out.o_parts_stride, 4, false);
    expect_tensor("lse_parts", {a.parts, q[0], q[2], q[1]}, out.lse_parts_stride, 4, false);
    return FA_OK;
}

int32_t check(Random& random, const fa::Problem& problem, Append& call, fa::Message* message) {
    Arrays arrays;
    fa_append_kv_args_t& a = call.a;
    if (random.one_in(3)) a.seqlen_new = nasty(random);
    if (random.one_in(3)) a.total_new = nasty(random);
    if (random.one_in(4)) a.k_new_stride[random.below(4)] = nasty(random), a.k_new_stride[3] = 1;
    if (random.one_in(4)) a.rotary_dim = nasty(random);
    if (random.one_in(4)) a.max_position = nasty(random);
    if (random.one_in(4)) a.flags ^= 1u << random.below(4);
    if (random.one_in(3)) a.k = address(random);
    if (random.one_in(3)) a.k_descale = static_cast<float*>(address(random));
    const bool host =
        readable(problem) && a.seqlen_new <= kFewEntries && a.total_new <= kFewEntries && a.seqlen_new >= 0 && a.total_new >= 0;
    const auto ints = [&](const int32_t*& field, int64_t count, int64_t bound) {
        if (field) field = host ? arrays.make(random, count, bound) : nullptr;
    };
    ints(a.cu_seqlens_new, problem.d.batch + 1, a.total_new);
    ints(a.seqused_new, problem.d.batch, a.seqlen_new);
    ints(a.positions, !host ? 0 : a.cu_seqlens_new ? a.total_new : problem.d.batch * a.seqlen_new, problem.d.seqlen_k);
    ints(a.seqused_k, problem.d.batch, problem.d.seqlen_k);
    ints(a.leftpad_k, problem.d.batch, problem.d.seqlen_k);
    ints(a.kv_batch_idx, problem.d.batch, problem.d.kv_batch);
    ints(a.page_table, table_entries(problem), problem.d.num_pages);
    fa_append_kv_args_t out = a;
    fa::Regions regions;
    const fa_status_t status = fa::check_append_kv(problem, &out, host, &regions, message);
    if (status != FA_OK) return status;
    const std::vector<int64_t> rows = {out.cu_seqlens_new ? 1 : problem.d.batch, out.cu_seqlens_new ? a.total_new : a.seqlen_new};
    expect_tensor("k_new", {rows[0], rows[1], problem.d.heads_k, problem.d.dim_qk}, out.k_new_stride, bytes_of(problem.d.q_dtype), false);
    expect_tensor("v_new", {rows[0], rows[1], problem.d.heads_v, problem.d.dim_v}, out.v_new_stride, bytes_of(problem.d.q_dtype), false);
    return FA_OK;
}

int32_t check(Random& random, const fa::Problem& problem, Rotary& call, fa::Message* message) {
    const bool host = readable(problem) && problem.d.total_q <= kFewEntries;
    Arrays arrays;
    fa_rotary_args_t& a = call.a;
    if (random.one_in(3)) a.out_stride[random.below(4)] = nasty(random), a.out_stride[3] = 1;
    if (random.one_in(3)) a.out = address(random);
    if (random.one_in(4)) a.rotary_dim = nasty(random);
    if (random.one_in(4)) a.max_position = nasty(random);
    const auto ints = [&](const int32_t*& field, int64_t count, int64_t bound) {
        if (field) field = host ? arrays.make(random, count, bound) : nullptr;
    };
    ints(a.cu_seqlens, problem.d.batch + 1, problem.d.total_q);
    ints(a.seqused, problem.d.batch, problem.d.seqlen_q);
    ints(a.positions, !host ? 0 : problem.packed_q() ? problem.d.total_q : problem.d.batch * problem.d.seqlen_q, a.max_position);
    ints(a.position_offset, problem.d.batch, 3);
    fa_rotary_args_t out = a;
    fa::Regions regions;
    const fa_status_t status = fa::check_rotary(problem, &out, host, &regions, message);
    if (status == FA_OK) expect_tensor("out", query_extent(problem, problem.d.dim_qk), out.out_stride, bytes_of(problem.d.q_dtype), true);
    return status;
}

void expect_sentence(fa_status_t status, const fa::Message& message) {
    if (status == FA_OK) {
        EXPECT_STREQ(message.text, "");
        return;
    }
    EXPECT_TRUE(status == FA_INVALID_ARGUMENT || status == FA_UNSUPPORTED || status == FA_UNSUPPORTED_FIELD) << status;
    EXPECT_NE(strstr(message.text, "expected"), nullptr) << message.text;
    EXPECT_LT(strlen(message.text), sizeof message.text - 1) << message.text;
    EXPECT_FALSE(tells_an_empty_range(message.text)) << message.text;
}

// fa_extent of any pointer of these args, which it does not follow.
template <class Args>
void expect_extent(Random& random, const fa_attention_desc_t& desc, int32_t op, const Args& args) {
    const fa::Pointers pointers = fa::pointers_of<Args>();
    const uint32_t field = random.one_in(20) ? uint32_t(random.word()) : pointers.list[random.below(pointers.count)].offset;
    uint64_t bytes = 0;
    const fa_status_t status = fa_extent(&desc, op, &args, field, &bytes);
    fa::Message m{};
    snprintf(m.text, sizeof m.text, "%s", status == FA_OK ? "" : fa_last_error(nullptr));
    expect_sentence(status, m);
    EXPECT_LE(bytes, uint64_t(INT64_MAX));
}
void expect_extent(Random& random, const fa_attention_desc_t& desc, int32_t op, const BackwardArgs& args) {
    expect_extent<fa_backward_args_t>(random, desc, op, args);
}

template <class Call>
void fuzz(const std::vector<void (*)(Call*)>& goods) {
    int accepted = 0, called = 0;
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Random r(kSeed + uint64_t(round));
        Call call;
        r.pick(goods)(&call);
        for (int64_t i = r.below(5); i > 0; i--) spoil_field(r, &call.d, nasty);
        fa::Problem p;
        fa::Message m{};
        const fa_status_t status = fa::resolve(&call.d, Call::op, &p, &m);
        expect_sentence(status, m);
        if (status != FA_OK) continue;
        accepted++;
        expect_promises(p, Call::op);
        const fa_status_t checked = check(r, p, call, &m);
        expect_sentence(checked, m);
        expect_extent(r, call.d, Call::op, call.a);
        called += checked == FA_OK;
    }
    EXPECT_GT(accepted, kRounds / 10);
    EXPECT_GT(called, kRounds / 200);
}

}  // namespace

TEST(FuzzDescriptor, Forward) { fuzz<Forward>({plain, padded, listed, slotted, packed, paged, scaled}); }
TEST(FuzzDescriptor, Merge) { fuzz<Merge>({merge_padded, merge_packed}); }
TEST(FuzzDescriptor, Append) { fuzz<Append>({append_paged, append_packed, append_scaled}); }
TEST(FuzzDescriptor, Backward) { fuzz<Backward>({backward_plain, backward_padded, backward_packed}); }
TEST(FuzzDescriptor, Rotary) { fuzz<Rotary>({rotary_padded, rotary_packed, rotary_of_k}); }

// Whatever is accepted becomes loops that stay within the tensors, in arithmetic that does not overflow.
TEST(FuzzDescriptor, Convert) {
    int accepted = 0;
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Random r(kSeed + uint64_t(round));
        fa_conversion_t c = any_conversion(r, nasty);
        c.x = address(r), c.out = address(r);
        if (r.one_in(20)) (r.one_in(2) ? c.x_dtype : c.out_dtype) = int32_t(nasty(r));
        if (r.one_in(20)) c.flags = uint64_t(nasty(r));
        fa::Message m{};
        const fa_status_t status = fa::check_convert(&c, 1, &m);
        expect_sentence(status, m);
        if (status != FA_OK) continue;
        accepted++;
        for (const int64_t* stride : {c.x ? c.x_stride : c.out_stride, c.out_stride}) {
            for (int i = 0; i < 4; i++) ASSERT_GE(stride[i], 0);
            ASSERT_EQ(stride[3], 1);
        }
        const fa::Move move = fa::move_of(c);
        if (move.words == 0) continue;
        Wide words = 1, from = 0, to = 0;
        for (int i = 0; i < 4; i++) {
            words *= move.size[i];
            from += Wide(move.size[i] - 1) * move.from_stride[i], to += Wide(move.size[i] - 1) * move.to_stride[i];
        }
        ASSERT_EQ(words, Wide(move.words));
        ASSERT_LE(to, Wide(INT64_MAX));
        ASSERT_TRUE(!move.from || from <= Wide(INT64_MAX));
    }
    EXPECT_GT(accepted, kRounds / 100);
}
