// Small random calls that run, in memory of exactly the size that the descriptor says: under AddressSanitizer, whatever the checks let
// through must stay within it. Without it, the sentences and the statuses are still checked.
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include "calls.h"
#include "core/check.h"
#include "core/tensor.h"
#include "random_struct.h"

namespace {

constexpr uint64_t kSeed = 20240613;

int64_t small(Random& random) {
    static const std::vector<int64_t> values = {0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 33, 65, 100, -1};
    return random.pick(values);
}

// Blocks with nothing before or after them.
class Exact {
  public:
    ~Exact() {
        for (void* block : blocks_) free(block);
    }
    void* make(const fa::Tensor& tensor) {
        const size_t bytes = size_t(fa::span(tensor));
        void* const to = malloc(bytes);
        memset(to, 0, bytes);
        blocks_.push_back(to);
        return to;
    }
    template <class T>
    void give(T*& field, const fa::Tensor& tensor) {
        field = static_cast<T*>(make(tensor));
    }
    // Entries within [low, high], a few beyond.
    void ints(Random& random, const int32_t*& field, const fa::Tensor& tensor, int64_t low, int64_t high) {
        int32_t* const to = static_cast<int32_t*>(make(tensor));
        for (uint64_t i = 0; i < fa::span(tensor) / 4; i++)
            to[i] = int32_t(random.one_in(60) ? high + 1 : low + (high > low ? random.below(high - low + 1) : 0));
        field = to;
    }
    // Pairs, of which a row's ascend where it has but one, or where most are empty.
    void ranges(Random& random, const int32_t*& field, const fa::Tensor& tensor, int64_t keys) {
        int32_t* const to = static_cast<int32_t*>(make(tensor));
        for (uint64_t i = 0; i < fa::span(tensor) / 4; i++)
            if (tensor.extent[3] == 1 || random.one_in(9)) to[i] = int32_t(random.below(keys + 2));
        field = to;
    }
    void ascending(Random& random, const int32_t*& field, int64_t batch, int64_t longest, int64_t total) {
        int32_t* const to = static_cast<int32_t*>(make(fa::array_of("cu", nullptr, 4, batch + 1)));
        int64_t at = 0;
        for (int64_t b = 0; b <= batch; b++) {
            to[b] = int32_t(at);
            at = std::min(total, at + random.below(longest + 1));
        }
        if (random.one_in(20)) to[random.below(batch + 1)] = int32_t(small(random));
        field = to;
    }

  private:
    std::vector<void*> blocks_;
};

int64_t list_blocks(const fa::Problem& problem) {
    return problem.slots() ? problem.d.num_pages * problem.d.page_size
                           : (problem.d.seqlen_k + problem.d.list_keys - 1) / problem.d.list_keys;
}
fa::Tensor per_sequence(const fa::Problem& problem) { return fa::array_of("array", nullptr, 4, problem.d.batch); }

void place(Random& random, const fa::Problem& problem, Exact& exact, Forward& call) {
    const fa_attention_desc_t& d = problem.d;
    fa_forward_args_t& a = call.a;
    a = FA_FORWARD_ARGS_INIT;
    exact.give(a.q, fa::q_tensor(problem, "q", nullptr));
    exact.give(a.k, fa::k_tensor(problem, nullptr));
    if (!problem.v_in_k()) exact.give(a.v, fa::v_tensor(problem, nullptr));
    exact.give(a.o, fa::o_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_LSE)) exact.give(a.lse, fa::lse_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_DEVICE_STATUS)) exact.give(a.device_status, fa::array_of("device_status", nullptr, 4, 1));
    if (problem.has(FA_OPERAND_SCORES)) exact.give(a.scores, fa::score_tensor(problem, "scores", nullptr, 4, d.scores_stride));
    if (problem.has(FA_OPERAND_BIAS))
        exact.give(a.bias, fa::pair_tensor(problem, "bias", nullptr, fa::element_size(d.bias_dtype), d.bias_stride, d.bias_period));
    if (problem.has(FA_OPERAND_BIAS_SCALE)) exact.give(a.bias_scale, fa::array_of("bias_scale", nullptr, 4, d.heads_q));
    if (problem.has(FA_OPERAND_MASK)) exact.give(a.mask, fa::mask_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_KEY_RANGES))
        exact.ranges(random, a.key_ranges, fa::key_range_tensor(problem, "key_ranges", nullptr), d.seqlen_k);
    if (problem.has(FA_OPERAND_KEY_LIST))
        exact.ints(random, a.key_list, fa::key_list_tensor(problem, "key_list", nullptr), -1, list_blocks(problem) - 1);
    if (problem.has(FA_OPERAND_FULL_LIST))
        exact.ints(random, a.full_list, fa::key_list_tensor(problem, "full_list", nullptr), -1, list_blocks(problem) - 1);
    const fa::Tensor counts = fa::key_list_count_tensor(problem, "counts", nullptr);
    if (problem.has(FA_OPERAND_KEY_LIST_COUNT)) exact.ints(random, a.key_list_count, counts, 0, d.list_max);
    if (problem.has(FA_OPERAND_FULL_LIST_COUNT)) exact.ints(random, a.full_list_count, counts, 0, d.list_max);
    if (problem.has(FA_OPERAND_ALIBI))
        exact.give(a.alibi_slopes, fa::table_of("alibi", nullptr, 4, d.batch, d.heads_q, d.alibi_batch_stride));
    if (problem.has(FA_OPERAND_SINKS)) exact.give(a.sinks, fa::array_of("sinks", nullptr, 4, d.heads_q));
    if (problem.has(FA_OPERAND_CAUSAL_OFFSET)) exact.ints(random, a.causal_offset, per_sequence(problem), -9, 9);
    if (problem.has(FA_OPERAND_CU_SEQLENS_Q)) exact.ascending(random, a.cu_seqlens_q, d.batch, d.seqlen_q, d.total_q);
    if (problem.has(FA_OPERAND_CU_SEQLENS_K)) exact.ascending(random, a.cu_seqlens_k, d.batch, d.seqlen_k, d.total_k);
    if (problem.has(FA_OPERAND_SEQUSED_Q)) exact.ints(random, a.seqused_q, per_sequence(problem), 0, problem.packed_q() ? 0 : d.seqlen_q);
    if (problem.has(FA_OPERAND_SEQUSED_K)) exact.ints(random, a.seqused_k, per_sequence(problem), 0, problem.packed_k() ? 0 : d.seqlen_k);
    if (problem.has(FA_OPERAND_LEFTPAD_K)) exact.ints(random, a.leftpad_k, per_sequence(problem), 0, random.one_in(2) ? 0 : 1);
    if (problem.has(FA_OPERAND_KV_BATCH_IDX)) exact.ints(random, a.kv_batch_idx, per_sequence(problem), 0, d.kv_batch - 1);
    if (problem.has(FA_OPERAND_PAGE_TABLE)) exact.ints(random, a.page_table, fa::page_table_tensor(problem, nullptr), 0, d.num_pages - 1);
    if (problem.has(FA_OPERAND_Q_DESCALE)) exact.give(a.q_descale, fa::q_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_K_DESCALE)) exact.give(a.k_descale, fa::k_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_V_DESCALE) && !problem.v_in_k()) exact.give(a.v_descale, fa::v_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_K_SHIFT)) exact.give(a.k_shift, fa::k_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_V_SHIFT) && !problem.v_in_k()) exact.give(a.v_shift, fa::v_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_Q_TAIL)) exact.give(a.q_tail, fa::q_tail_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_K_TAIL)) exact.give(a.k_tail, fa::k_tail_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_O_SCALE)) exact.give(a.o_scale, fa::array_of("o_scale", nullptr, 4, 1));
    if (problem.has(FA_OPERAND_RNG_STATE)) exact.give(a.rng_state, fa::array_of("rng_state", nullptr, 8, 2));
}

void place(Random& random, const fa::Problem& problem, Exact& exact, Backward& call) {
    Forward f;
    place(random, problem, exact, f);
    const fa_attention_desc_t& d = problem.d;
    BackwardArgs a;
    a.f = f.a;
    a.f.scores = nullptr;
    const bool accumulate = random.one_in(3);
    a.flags = accumulate ? uint32_t(FA_BACKWARD_ACCUMULATE) : 0;
    const auto like = [&](fa::Tensor tensor, int32_t dtype) {
        tensor.element = accumulate ? 4 : fa::element_size(dtype);
        return tensor;
    };
    fa::Tensor dout = fa::o_tensor(problem, nullptr);
    dout.element = fa::element_size(d.q_dtype);
    exact.give(a.dout, dout);
    if (random.one_in(2)) exact.give(a.dlse, fa::lse_tensor(problem, nullptr));
    if (!random.one_in(4)) exact.give(a.dq, like(fa::q_tensor(problem, "q", nullptr), d.q_dtype));
    if (!random.one_in(4)) exact.give(a.dk, like(fa::k_tensor(problem, nullptr), d.k_dtype));
    if (!random.one_in(4)) exact.give(a.dv, like(fa::v_tensor(problem, nullptr), d.v_dtype));
    if (problem.has(FA_OPERAND_BIAS) && random.one_in(2))
        exact.give(a.dbias, fa::pair_tensor(problem, "dbias", nullptr, 4, d.bias_stride, d.bias_period));
    if (problem.has(FA_OPERAND_SINKS) && random.one_in(2)) exact.give(a.dsinks, fa::array_of("dsinks", nullptr, 4, d.heads_q));
    call.a = a;
}

void place(Random& random, const fa::Problem& problem, Exact& exact, Merge& call) {
    const fa_attention_desc_t& d = problem.d;
    fa_merge_args_t& a = call.a;
    a = FA_MERGE_ARGS_INIT;
    a.flags = d.o_dtype == FA_F32 && problem.has(FA_OPERAND_LSE) && random.one_in(2) ? uint32_t(FA_MERGE_ACCUMULATE) : 0;
    a.parts = random.below(4);
    const int64_t rows = problem.packed_q() ? d.total_q : d.batch * d.seqlen_q;
    exact.give(a.o_parts, fa::array_of("o_parts", nullptr, 4, a.parts * rows * d.heads_q * d.dim_v));
    exact.give(a.lse_parts, fa::array_of("lse_parts", nullptr, 4, a.parts * rows * d.heads_q));
    exact.give(a.o, fa::o_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_LSE)) exact.give(a.lse, fa::lse_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_SINKS)) exact.give(a.sinks, fa::array_of("sinks", nullptr, 4, d.heads_q));
    if (problem.has(FA_OPERAND_O_SCALE)) exact.give(a.o_scale, fa::array_of("o_scale", nullptr, 4, 1));
    if (problem.has(FA_OPERAND_CU_SEQLENS_Q)) exact.ascending(random, a.cu_seqlens_q, d.batch, d.seqlen_q, d.total_q);
    if (problem.has(FA_OPERAND_SEQUSED_Q)) exact.ints(random, a.seqused_q, per_sequence(problem), 0, problem.packed_q() ? 0 : d.seqlen_q);
}

void place(Random& random, const fa::Problem& problem, Exact& exact, Append& call) {
    const fa_attention_desc_t& d = problem.d;
    fa_append_kv_args_t& a = call.a;
    a = FA_APPEND_KV_ARGS_INIT;
    a.seqlen_new = random.below(4);
    if (random.one_in(2)) {
        a.total_new = random.below(6);
        exact.ascending(random, a.cu_seqlens_new, d.batch, a.seqlen_new, a.total_new);
    }
    const int64_t rows = a.cu_seqlens_new ? a.total_new : d.batch * a.seqlen_new;
    exact.give(a.k_new, fa::array_of("k_new", nullptr, fa::element_size(d.q_dtype), rows * d.heads_k * d.dim_qk));
    if (!problem.v_in_k()) exact.give(a.v_new, fa::array_of("v_new", nullptr, fa::element_size(d.q_dtype), rows * d.heads_v * d.dim_v));
    exact.give(a.k, fa::k_tensor(problem, nullptr));
    if (!problem.v_in_k()) exact.give(a.v, fa::v_tensor(problem, nullptr));
    if (!a.cu_seqlens_new && random.one_in(3)) exact.ints(random, a.seqused_new, per_sequence(problem), 0, a.seqlen_new);
    if (random.one_in(2)) exact.ints(random, a.positions, fa::array_of("positions", nullptr, 4, rows), -1, d.seqlen_k - 1);
    if (problem.has(FA_OPERAND_SEQUSED_K)) exact.ints(random, a.seqused_k, per_sequence(problem), 0, d.seqlen_k / 2);
    if (problem.has(FA_OPERAND_LEFTPAD_K)) exact.ints(random, a.leftpad_k, per_sequence(problem), 0, random.one_in(2) ? 0 : 1);
    if (problem.has(FA_OPERAND_KV_BATCH_IDX)) exact.ints(random, a.kv_batch_idx, per_sequence(problem), 0, d.kv_batch - 1);
    if (problem.has(FA_OPERAND_PAGE_TABLE)) exact.ints(random, a.page_table, fa::page_table_tensor(problem, nullptr), 0, d.num_pages - 1);
    if (problem.has(FA_OPERAND_K_DESCALE)) exact.give(a.k_descale, fa::k_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_V_DESCALE) && !problem.v_in_k()) exact.give(a.v_descale, fa::v_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_K_SHIFT)) exact.give(a.k_shift, fa::k_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_V_SHIFT) && !problem.v_in_k()) exact.give(a.v_shift, fa::v_descale_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_K_TAIL)) exact.give(a.k_tail, fa::k_tail_tensor(problem, nullptr));
    if (problem.has(FA_OPERAND_DEVICE_STATUS)) exact.give(a.device_status, fa::array_of("device_status", nullptr, 4, 1));
    if (problem.has(FA_OPERAND_K_DESCALE) && (problem.has(FA_OPERAND_V_DESCALE) || problem.v_in_k()) && random.one_in(2))
        a.flags |= FA_APPEND_DYNAMIC_SCALE;
    if (d.dim_qk < 2 || random.one_in(2)) return;
    a.rotary_dim = 2 * (1 + random.below(d.dim_qk / 2));
    a.max_position = std::max<int64_t>(d.seqlen_k - random.below(2), 0);
    exact.give(a.cos, fa::array_of("cos", nullptr, 4, a.max_position * a.rotary_dim / 2));
    exact.give(a.sin, fa::array_of("sin", nullptr, 4, a.max_position * a.rotary_dim / 2));
}

void place(Random& random, const fa::Problem& problem, Exact& exact, Rotary& call) {
    const fa_attention_desc_t& d = problem.d;
    fa_rotary_args_t& a = call.a;
    a = FA_ROTARY_ARGS_INIT;
    a.rotary_dim = 2 * (1 + random.below(d.dim_qk / 2 + 1));
    a.max_position = 1 + random.below(2 * d.seqlen_q + 1);
    exact.give(a.x, fa::q_tensor(problem, "x", nullptr));
    if (random.one_in(2)) exact.give(a.out, fa::q_tensor(problem, "out", nullptr));
    else a.out = const_cast<void*>(a.x);
    exact.give(a.cos, fa::array_of("cos", nullptr, 4, a.max_position * a.rotary_dim / 2));
    exact.give(a.sin, fa::array_of("sin", nullptr, 4, a.max_position * a.rotary_dim / 2));
    if (random.one_in(2))
        exact.ints(random, a.positions, fa::array_of("positions", nullptr, 4, problem.packed_q() ? d.total_q : d.batch * d.seqlen_q), 0,
                   a.max_position - 1);
    if (random.one_in(2)) exact.ints(random, a.position_offset, per_sequence(problem), 0, 2);
    if (problem.has(FA_OPERAND_CU_SEQLENS_Q)) exact.ascending(random, a.cu_seqlens, d.batch, d.seqlen_q, d.total_q);
    if (problem.has(FA_OPERAND_SEQUSED_Q)) exact.ints(random, a.seqused, per_sequence(problem), 0, problem.packed_q() ? 0 : d.seqlen_q);
}

// Strides that nobody steps along, as large as can be: the problem stays the same.
void spoil_unused(Random& random, const fa::Problem& problem, int32_t op, fa_attention_desc_t* desc) {
    const bool attends = op == FA_OP_FORWARD || op == FA_OP_BACKWARD, keys = attends || op == FA_OP_APPEND_KV;
    const uint32_t strided =
        desc->strided & ((attends || op == FA_OP_ROTARY ? FA_STRIDED_Q : 0) | (keys ? FA_STRIDED_K | FA_STRIDED_V : 0) |
                         (attends || op == FA_OP_MERGE ? FA_STRIDED_O | FA_STRIDED_LSE : 0));
    const auto far = [&](const fa::Tensor& tensor, int dims, int64_t* stride) {
        for (int i = 0; i < dims; i++)
            if ((tensor.empty() || tensor.extent[i] == 1) && i != tensor.absent && random.one_in(2))
                stride[i] = INT64_MAX - random.below(2);
    };
    // Blocks that are the same for all have become one: their strides were stepped along.
    const auto far_factors = [&](const fa::Tensor& tensor, const int64_t* block, int64_t* stride) {
        if (block[0] <= 1 && block[1] == 0) far(tensor, 4, stride);
    };
    if (strided & FA_STRIDED_Q) far(fa::q_tensor(problem, "q", nullptr), 3, desc->q_stride);
    if (strided & FA_STRIDED_K) far(fa::k_tensor(problem, nullptr), 3, desc->k_stride);
    if (attends && desc->strided & FA_STRIDED_Q_TAIL) far(fa::q_tail_tensor(problem, nullptr), 3, desc->q_tail_stride);
    if (keys && desc->strided & FA_STRIDED_K_TAIL) far(fa::k_tail_tensor(problem, nullptr), 3, desc->k_tail_stride);
    if (strided & FA_STRIDED_V) far(fa::v_tensor(problem, nullptr), 3, desc->v_stride);
    if (strided & FA_STRIDED_O) far(fa::o_tensor(problem, nullptr), 3, desc->o_stride);
    if (strided & FA_STRIDED_LSE) far(fa::lse_tensor(problem, nullptr), 3, desc->lse_stride);
    const fa::Tensor pairs = fa::score_tensor(problem, "pairs", nullptr, 1, desc->mask_stride);
    if (problem.has(FA_OPERAND_BIAS)) far(pairs, 4, desc->bias_stride);
    if (problem.has(FA_OPERAND_MASK)) far(pairs, 4, desc->mask_stride);
    if (problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST)) far(fa::key_list_tensor(problem, "list", nullptr), 4, desc->list_stride);
    if (problem.has(FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST_COUNT))
        far(fa::key_list_count_tensor(problem, "count", nullptr), 3, desc->list_count_stride);
    if (problem.has(FA_OPERAND_KEY_RANGES)) far(fa::key_range_tensor(problem, "key_ranges", nullptr), 4, desc->key_range_stride);
    if (problem.has(FA_OPERAND_SCORES)) far(pairs, 4, desc->scores_stride);
    if (problem.has(FA_OPERAND_Q_DESCALE))
        far_factors(fa::q_descale_tensor(problem, nullptr), desc->q_descale_block, desc->q_descale_stride);
    if (problem.has(FA_OPERAND_K_DESCALE))
        far_factors(fa::k_descale_tensor(problem, nullptr), desc->k_descale_block, desc->k_descale_stride);
    if (problem.has(FA_OPERAND_V_DESCALE) && !problem.v_in_k())
        far_factors(fa::v_descale_tensor(problem, nullptr), desc->v_descale_block, desc->v_descale_stride);
    if (problem.has(FA_OPERAND_ALIBI) && problem.d.batch <= 1) desc->alibi_batch_stride = INT64_MAX;
    if (problem.has(FA_OPERAND_PAGE_TABLE) && (problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch) <= 1)
        desc->page_table_stride = INT64_MAX;
}

template <class Call>
void fuzz(int rounds, const std::vector<void (*)(Call*)>& goods) {
    fa_handle_t h;
    ASSERT_EQ(fa_create(&h, nullptr), FA_OK);
    int ran = 0;
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Random r(kSeed + uint64_t(round));
        Call call;
        r.pick(goods)(&call);
        for (int64_t i = r.below(4); i > 0; i--) spoil_field(r, &call.d, small);
        fa::Problem p;
        fa::Message m{};
        Exact memory;
        if (fa::resolve(&call.d, Call::op, &p, &m) != FA_OK) continue;
        place(r, p, memory, call);
        spoil_unused(r, p, Call::op, &call.d);
        fa::Problem same;
        ASSERT_EQ(fa::resolve(&call.d, Call::op, &same, &m), FA_OK) << m.text;
        ASSERT_EQ(memcmp(&same, &p, sizeof p), 0);
        const fa_status_t status = call.run(h);
        EXPECT_TRUE(status == FA_OK || status == FA_INVALID_ARGUMENT || status == FA_UNSUPPORTED) << fa_last_error(h);
        EXPECT_EQ(status == FA_OK, fa_last_error(h)[0] == 0);
        EXPECT_FALSE(tells_an_empty_range(fa_last_error(h))) << fa_last_error(h);
        ran += status == FA_OK;
    }
    EXPECT_GT(ran, rounds / 8);
    EXPECT_EQ(fa_destroy(h), FA_OK);
}

}  // namespace

TEST(FuzzCall, Forward) { fuzz<Forward>(30000, {plain, padded, listed, slotted, packed, paged, scaled}); }
TEST(FuzzCall, Backward) { fuzz<Backward>(15000, {backward_plain, backward_padded, backward_packed}); }
TEST(FuzzCall, Merge) { fuzz<Merge>(15000, {merge_padded, merge_packed}); }
TEST(FuzzCall, Append) { fuzz<Append>(20000, {append_paged, append_packed, append_scaled}); }
TEST(FuzzCall, Rotary) { fuzz<Rotary>(15000, {rotary_padded, rotary_packed}); }

int64_t tiny(Random& random) {
    static const std::vector<int64_t> values = {0, 1, 1, 1, 2, 2, 3, 4, 5, 8, 32, 33, -1};
    return random.pick(values);
}

// Memory of exactly what the strides reach, of those that are right.
TEST(FuzzCall, Convert) {
    constexpr int kRounds = 20000;
    fa_handle_t h;
    ASSERT_EQ(fa_create(&h, nullptr), FA_OK);
    int ran = 0;
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); round++) {
        SCOPED_TRACE("round " + std::to_string(round));
        Random r(kSeed + uint64_t(round));
        fa_conversion_t list[3];
        Exact memory;
        for (fa_conversion_t& c : list) {
            c = any_conversion(r, tiny);
            const auto place = [&](const int64_t* stride, int32_t dtype) -> void* {
                int64_t elements = 1, bytes = 0;
                if (fa_dtype_unit(dtype, &elements, &bytes) != FA_OK) return nullptr;
                const fa::Tensor t{"t",
                                   nullptr,
                                   int32_t(bytes),
                                   4,
                                   fa::kNoDim,
                                   false,
                                   {c.size[0], c.size[1], c.size[2], c.size[3] / elements},
                                   {stride[0], stride[1], stride[2], stride[3]}};
                for (int i = 0; i < 4; i++)
                    if (t.extent[i] < 0 || stride[i] < 0) return memory.make(fa::array_of("t", nullptr, 4, 64));  // to be refused
                return memory.make(t);
            };
            // Strides that nobody steps along, as large as can be.
            const bool empty = c.size[0] == 0 || c.size[1] == 0 || c.size[2] == 0 || c.size[3] == 0;
            for (int64_t* stride : {c.x_stride, c.out_stride})
                for (int i = 0; i < 3; i++)
                    if ((empty || c.size[i] == 1) && r.one_in(2)) stride[i] = INT64_MAX - r.below(2);
            c.x = r.one_in(8) ? nullptr : place(c.x_stride, c.x_dtype);
            c.out = place(c.out_stride, c.out_dtype);
        }
        const fa_status_t status = fa_convert(h, list, 1 + r.below(3), 0, nullptr);
        EXPECT_TRUE(status == FA_OK || status == FA_INVALID_ARGUMENT || status == FA_UNSUPPORTED) << fa_last_error(h);
        EXPECT_EQ(status == FA_OK, fa_last_error(h)[0] == 0);
        ran += status == FA_OK;
    }
    EXPECT_GT(ran, kRounds / 50);
    EXPECT_EQ(fa_destroy(h), FA_OK);
}
