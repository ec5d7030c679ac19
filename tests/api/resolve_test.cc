// What zero means: the resolved problem and the resolved args that a backend gets.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "checked.h"

namespace {

using Strides = std::vector<int64_t>;

Strides four(const int64_t* s) { return {s, s + 4}; }
Strides three(const int64_t* s) { return {s, s + 3}; }

fa::Problem resolved(const fa_attention_desc_t& desc, int32_t op = FA_OP_FORWARD) {
    fa::Problem p;
    fa::Message m{};
    EXPECT_EQ(fa::resolve(&desc, op, &p, &m), FA_OK) << m.text;
    return p;
}

fa_attention_desc_t minimal() {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F16;
    d.batch = 2;
    d.heads_q = 6;
    d.seqlen_q = 5;
    d.seqlen_k = 7;
    d.dim_qk = 48;
    return d;
}

using Bytes = std::vector<int64_t>;

// The size of each region of a good call, negative for an output.
template <class Call, class Args>
Bytes regions_of(void (*good)(Call*), fa_status_t (*check)(const fa::Problem&, Args*, bool, fa::Regions*, fa::Message*)) {
    Call call;
    good(&call);
    fa::Message m{};
    fa::Regions regions;
    Args args = args_of(call);
    EXPECT_EQ(check(resolved(call.d, Call::op), &args, true, &regions, &m), FA_OK) << m.text;
    Bytes bytes;
    for (int i = 0; i < regions.count; i++) {
        const fa::Region& r = regions.region[i];
        bytes.push_back(int64_t(r.end - r.begin) * (r.output ? -1 : 1));
    }
    return bytes;
}

}  // namespace

TEST(Resolve, Defaults) {
    const fa::Problem p = resolved(minimal());
    EXPECT_EQ(p.d.heads_k, 6);
    EXPECT_EQ(p.group, 1);
    EXPECT_EQ(p.d.dim_v, 48);
    EXPECT_EQ(p.d.k_dtype, FA_F16);
    EXPECT_EQ(p.d.o_dtype, FA_F16);
    EXPECT_EQ(p.d.bias_dtype, FA_F32);
    EXPECT_EQ(p.d.scale, float(1.0 / std::sqrt(48.0)));
    EXPECT_EQ(p.d.flags, uint32_t(FA_SCALE_EXPLICIT));
    EXPECT_EQ(p.pages_per_row, 0);
    EXPECT_EQ(four(p.d.q_stride), (Strides{5 * 288, 288, 48, 1}));
    EXPECT_EQ(four(p.d.k_stride), (Strides{7 * 288, 288, 48, 1}));
    EXPECT_EQ(four(p.d.v_stride), (Strides{7 * 288, 288, 48, 1}));
    EXPECT_EQ(four(p.d.o_stride), (Strides{5 * 288, 288, 48, 1}));
    EXPECT_EQ(three(p.d.lse_stride), (Strides{30, 5, 1}));
}

TEST(Resolve, EightBitQueriesGiveBf16) {
    fa_attention_desc_t d = minimal();
    d.q_dtype = FA_E4M3;
    EXPECT_EQ(resolved(d).d.o_dtype, FA_BF16);
    EXPECT_EQ(resolved(d).d.k_dtype, FA_E4M3);
    d.q_dtype = FA_E5M2;
    EXPECT_EQ(resolved(d).d.o_dtype, FA_BF16);
    d.o_dtype = FA_E5M2;
    EXPECT_EQ(resolved(d).d.o_dtype, FA_E5M2);
}

TEST(Resolve, GroupsShareAHead) {
    fa_attention_desc_t d = minimal();
    d.heads_k = 2;
    d.dim_v = 16;
    const fa::Problem p = resolved(d);
    EXPECT_EQ(p.group, 3);
    EXPECT_EQ(four(p.d.k_stride), (Strides{7 * 96, 96, 48, 1}));
    EXPECT_EQ(four(p.d.v_stride), (Strides{7 * 32, 32, 16, 1}));
    EXPECT_EQ(four(p.d.o_stride), (Strides{5 * 96, 96, 16, 1}));
}

// v within k is k with fewer dims; an append has none of its own.
TEST(Resolve, VWithinK) {
    fa_attention_desc_t d = minimal();
    d.flags = FA_V_IN_K;
    d.heads_k = 2;
    d.dim_v = 16;
    d.k_dtype = FA_E5M2;
    d.operands = FA_OPERAND_K_DESCALE;
    d.k_descale_stride[1] = 3;
    const fa::Problem p = resolved(d), append = resolved(d, FA_OP_APPEND_KV);
    EXPECT_EQ(p.d.v_dtype, FA_E5M2);
    EXPECT_EQ(p.d.heads_v, 2);
    EXPECT_EQ(four(p.d.v_stride), (Strides{7 * 96, 96, 48, 1}));
    EXPECT_TRUE(p.has(FA_OPERAND_V_DESCALE));
    EXPECT_EQ(p.d.v_descale_stride[1], 3);
    EXPECT_EQ(append.d.heads_v, 0);
    EXPECT_FALSE(append.has(FA_OPERAND_V_DESCALE));
}

TEST(Resolve, AnExplicitScaleStays) {
    fa_attention_desc_t d = minimal();
    d.flags = FA_SCALE_EXPLICIT;
    EXPECT_EQ(resolved(d).d.scale, 0.0f);
}

TEST(Resolve, PackedStrides) {
    fa_attention_desc_t d = minimal();
    d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    d.total_q = 9;
    d.total_k = 11;
    const fa::Problem p = resolved(d);
    EXPECT_EQ(four(p.d.q_stride), (Strides{0, 288, 48, 1}));
    EXPECT_EQ(four(p.d.k_stride), (Strides{0, 288, 48, 1}));
    EXPECT_EQ(three(p.d.lse_stride), (Strides{0, 9, 1}));
}

// No packed sequence is longer than the total: a careless maximum costs nothing. Only the scores output has that many rows.
TEST(Resolve, PackedMaximaAreBoundedByTheTotals) {
    fa_attention_desc_t d = minimal();
    d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    d.total_q = 9;
    d.total_k = 11;
    d.seqlen_q = d.seqlen_k = INT32_MAX;
    EXPECT_EQ(resolved(d).d.seqlen_q, 9);
    EXPECT_EQ(resolved(d).d.seqlen_k, 11);
    d.seqlen_q = d.seqlen_k = 20;
    d.operands |= FA_OPERAND_SCORES;
    const int64_t strides[4] = {2400, 400, 20, 1};
    memcpy(d.scores_stride, strides, sizeof strides);
    EXPECT_EQ(resolved(d).d.seqlen_q, 20);
    EXPECT_EQ(resolved(d).d.seqlen_k, 20);
}

TEST(Resolve, PagedStrides) {
    fa_attention_desc_t d = minimal();
    d.operands = FA_OPERAND_PAGE_TABLE;
    d.page_size = 3;
    d.num_pages = 100;
    fa::Problem p = resolved(d);
    EXPECT_EQ(p.pages_per_row, 3);
    EXPECT_EQ(p.d.page_table_stride, 3);
    EXPECT_EQ(four(p.d.k_stride), (Strides{3 * 288, 288, 48, 1}));
    d.page_table_stride = 50;
    EXPECT_EQ(resolved(d).d.page_table_stride, 50);
}

// Row and key numbers are added to these: what reaches past all keys is brought near, which changes nothing.
TEST(Resolve, WideWindowsAreBroughtNear) {
    fa_attention_desc_t d = minimal();
    d.flags = FA_WINDOW;
    d.alignment = FA_ALIGN_TOP_LEFT;
    d.window_left = INT64_MAX;
    d.window_right = -1;
    d.chunk = INT64_MAX;
    d.split_size = INT64_MAX;
    const fa::Problem p = resolved(d);
    EXPECT_EQ(p.d.window_left, int64_t(1) << 40);
    EXPECT_EQ(p.d.window_right, -1);
    EXPECT_EQ(p.d.chunk, int64_t(1) << 40);
    EXPECT_EQ(p.d.split_size, int64_t(1) << 40);
}

// Other operations see only the operands that they read.
TEST(Resolve, OperandsOfOtherOperationsFall) {
    fa_attention_desc_t d = minimal();
    d.operands = FA_OPERAND_LSE | FA_OPERAND_SINKS | FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_K_DESCALE | FA_OPERAND_MASK;
    EXPECT_EQ(resolved(d, FA_OP_MERGE).d.operands, FA_OPERAND_LSE | FA_OPERAND_SINKS | FA_OPERAND_SEQUSED_Q);
    EXPECT_EQ(resolved(d, FA_OP_APPEND_KV).d.operands, FA_OPERAND_SEQUSED_K | FA_OPERAND_K_DESCALE);
    EXPECT_EQ(resolved(d, FA_OP_ROTARY).d.operands, FA_OPERAND_SEQUSED_Q);
}

// A struct from before its last fields were added: what it lacks is zero, and its size is ours.
TEST(Resolve, AShorterStructIsFilledWithZeros) {
    struct {
        uint32_t struct_size = 12, first = 1, second = 2, third = 3;
    } user;
    uint32_t ours[4] = {9, 9, 9, 9};
    fa::Message m{};
    EXPECT_EQ(fa::import_bytes(ours, &user, sizeof ours, 12, "ours", &m), FA_OK);
    EXPECT_EQ(std::vector<uint32_t>(ours, ours + 4), (std::vector<uint32_t>{16, 1, 2, 0}));
}

TEST(Resolve, TheStructHasItsOwnSize) {
    fa_attention_desc_t longer[2] = {minimal(), {}};
    longer[0].struct_size = sizeof longer;
    EXPECT_EQ(resolved(longer[0]).d.struct_size, sizeof(fa_attention_desc_t));
}

TEST(Resolve, MergeParts) {
    fa::Message m{};
    fa::Regions regions;
    Merge c;
    merge_padded(&c);
    fa_merge_args_t a;
    ASSERT_EQ(fa::check_merge(resolved(c.d, FA_OP_MERGE), &(a = c.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(Strides(a.o_parts_stride, a.o_parts_stride + 5), (Strides{96, 48, 16, 4, 1}));
    EXPECT_EQ(four(a.lse_parts_stride), (Strides{24, 12, 3, 1}));
    Merge packed;
    merge_packed(&packed);
    ASSERT_EQ(fa::check_merge(resolved(packed.d, FA_OP_MERGE), &(a = packed.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(Strides(a.o_parts_stride, a.o_parts_stride + 5), (Strides{96, 0, 16, 4, 1}));
    EXPECT_EQ(four(a.lse_parts_stride), (Strides{24, 0, 6, 1}));
}

TEST(Resolve, AppendedTokens) {
    fa::Message m{};
    fa::Regions regions;
    Append c;
    append_paged(&c);
    fa_append_kv_args_t a;
    ASSERT_EQ(fa::check_append_kv(resolved(c.d, FA_OP_APPEND_KV), &(a = c.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(four(a.k_new_stride), (Strides{32, 16, 8, 1}));
    EXPECT_EQ(four(a.v_new_stride), (Strides{16, 8, 4, 1}));
    Append packed;
    append_packed(&packed);
    packed.a.seqlen_new = INT32_MAX;
    ASSERT_EQ(fa::check_append_kv(resolved(packed.d, FA_OP_APPEND_KV), &(a = packed.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(four(a.k_new_stride), (Strides{0, 16, 8, 1}));
    EXPECT_EQ(a.seqlen_new, 3);
}

TEST(Resolve, RotaryOutput) {
    fa::Message m{};
    fa::Regions regions;
    Rotary c;
    rotary_padded(&c);
    fa_rotary_args_t a;
    ASSERT_EQ(fa::check_rotary(resolved(c.d, FA_OP_ROTARY), &(a = c.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(four(a.out_stride), (Strides{96, 32, 8, 1}));
}

// Strides that are given come through as they are, each to its own dimension.
TEST(Resolve, LiteralStrides) {
    const auto give = [](int64_t* stride, const Strides& values) { std::copy(values.begin(), values.end(), stride); };
    fa::Message m{};
    fa::Regions regions;
    Merge c;
    merge_padded(&c);
    give(c.a.o_parts_stride, {1000, 400, 100, 10, 1});
    give(c.a.lse_parts_stride, {700, 300, 50, 7});
    fa_merge_args_t a;
    c.a.o_parts = c.a.lse_parts = c.memory.make<float>(3000);
    ASSERT_EQ(fa::check_merge(resolved(c.d, FA_OP_MERGE), &(a = c.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(Strides(a.o_parts_stride, a.o_parts_stride + 5), (Strides{1000, 400, 100, 10, 1}));
    EXPECT_EQ(four(a.lse_parts_stride), (Strides{700, 300, 50, 7}));
    EXPECT_EQ(int64_t(regions.region[0].end - regions.region[0].begin), 4 * (2 * 1000 + 400 + 2 * 100 + 3 * 10 + 3 + 1));
    EXPECT_EQ(int64_t(regions.region[1].end - regions.region[1].begin), 4 * (2 * 700 + 300 + 3 * 50 + 2 * 7 + 1));

    fa_attention_desc_t d = minimal();
    d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
    give(d.q_stride, {90000, 9000, 100, 1});
    give(d.k_stride, {0, 70, 1000, 1});
    give(d.v_stride, {80000, 0, 60, 1});
    give(d.o_stride, {64, 3000, 100000, 1});
    give(d.lse_stride, {3, 100, 7});
    const fa::Problem p = resolved(d);
    EXPECT_EQ(four(p.d.q_stride), (Strides{90000, 9000, 100, 1}));
    EXPECT_EQ(four(p.d.k_stride), (Strides{0, 70, 1000, 1}));
    EXPECT_EQ(four(p.d.v_stride), (Strides{80000, 0, 60, 1}));
    EXPECT_EQ(four(p.d.o_stride), (Strides{64, 3000, 100000, 1}));
    EXPECT_EQ(three(p.d.lse_stride), (Strides{3, 100, 7}));
}

// What nobody steps along has no stride that could overflow, whoever multiplies it: 0, and 1 in the last place.
TEST(Resolve, StridesThatNobodyStepsAlong) {
    constexpr int64_t far = INT64_MAX;
    const auto give = [](int64_t* stride, const Strides& values) { std::copy(values.begin(), values.end(), stride); };
    fa_attention_desc_t d = minimal();
    d.batch = 1, d.heads_q = 1, d.seqlen_q = 5, d.seqlen_k = 1;
    d.operands = FA_OPERAND_BIAS | FA_OPERAND_ALIBI | FA_OPERAND_K_DESCALE | FA_OPERAND_PAGE_TABLE;
    d.alignment = FA_ALIGN_TOP_LEFT;
    d.page_size = 3, d.num_pages = 1, d.page_table_stride = far, d.alibi_batch_stride = far;
    d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
    give(d.q_stride, {far, 50, far, 1});
    give(d.k_stride, {far, 48, far, 1});
    give(d.v_stride, {far, 0, far, 1});
    give(d.o_stride, {far, 60, far, 1});
    give(d.lse_stride, {far, far, 2});
    give(d.bias_stride, {far, far, 4, far});
    give(d.k_descale_stride, {far, 7, far, far});
    fa::Problem p = resolved(d);
    EXPECT_EQ(four(p.d.q_stride), (Strides{0, 50, 0, 1}));
    EXPECT_EQ(four(p.d.k_stride), (Strides{0, 48, 0, 1}));
    EXPECT_EQ(four(p.d.v_stride), (Strides{0, 0, 0, 1}));
    EXPECT_EQ(four(p.d.o_stride), (Strides{0, 60, 0, 1}));
    EXPECT_EQ(three(p.d.lse_stride), (Strides{0, 0, 2}));
    EXPECT_EQ(four(p.d.bias_stride), (Strides{0, 0, 4, 1}));
    EXPECT_EQ(four(p.d.k_descale_stride), (Strides{0, 7, 0, 1}));
    EXPECT_EQ(p.d.page_table_stride, 0);
    EXPECT_EQ(p.d.alibi_batch_stride, 0);
    // Of a tensor without elements, none.
    d = minimal();
    d.seqlen_k = 0, d.strided = FA_STRIDED_K;
    give(d.k_stride, {far, far, far, 1});
    p = resolved(d);
    EXPECT_EQ(four(p.d.k_stride), (Strides{0, 0, 0, 1}));
    EXPECT_EQ(four(p.d.q_stride), (Strides{5 * 288, 288, 48, 1}));

    fa::Message m{};
    fa::Regions regions;
    Rotary c;
    rotary_padded(&c);
    c.d.batch = 1;
    give(c.a.out_stride, {far, 32, 8, 1});
    fa_rotary_args_t a;
    ASSERT_EQ(fa::check_rotary(resolved(c.d, FA_OP_ROTARY), &(a = c.a), true, &regions, &m), FA_OK) << m.text;
    EXPECT_EQ(four(a.out_stride), (Strides{0, 32, 8, 1}));
}

// The last byte of the address space belongs to nobody: its end would be no address.
TEST(Resolve, EndOfTheAddressSpace) {
    fa::Message m{};
    fa::Regions regions;
    Forward f;
    plain(&f);
    fa_forward_args_t a;
    f.a.q = reinterpret_cast<const void*>(~uintptr_t(0) - 768 - 3);
    EXPECT_EQ(fa::check_forward(resolved(f.d), &(a = f.a), false, &regions, &m), FA_OK) << m.text;
    f.a.q = reinterpret_cast<const void*>(~uintptr_t(0) - 768 + 1);
    EXPECT_EQ(fa::check_forward(resolved(f.d), &(a = f.a), false, &regions, &m), FA_INVALID_ARGUMENT);
}

// The bytes of every tensor of a call: what overlap is proven for, and what is copied to a device.
TEST(Resolve, RegionsOfForward) {
    EXPECT_EQ(regions_of(plain, fa::check_forward), (Bytes{768, 640, 320, -384}));
    EXPECT_EQ(regions_of(padded, fa::check_forward),
              (Bytes{192, 240, 120, -96, -96, 4, 240, 16, 120, 384, 32, 16, 8, 8, 8, 8, 8, -480, 16, 96, 8, 8}));
    EXPECT_EQ(regions_of(packed, fa::check_forward), (Bytes{768, 512, 256, -384, -96, 12, 12, 8}));
    EXPECT_EQ(regions_of(paged, fa::check_forward), (Bytes{768, 640, 320, -384, 8, 8, 8, 36, -4}));
    const auto packed_factors = [](Forward* call) {
        packed(call);
        call->d.operands |= FA_OPERAND_Q_DESCALE;
        call->d.q_descale_stride[0] = 100, call->d.q_descale_stride[1] = 4, call->d.q_descale_stride[2] = 1;
        call->a.q_descale = call->memory.make<float>(200, 1.0f);
    };
    // The last factor is that of row 4, head 3 of sequence 1.
    EXPECT_EQ(regions_of<Forward>(packed_factors, fa::check_forward),
              (Bytes{768, 512, 256, -384, -96, 12, 12, 8, 4 * (100 + 4 * 4 + 3 + 1)}));
}

TEST(Resolve, RegionsOfTheOthers) {
    EXPECT_EQ(regions_of(backward_plain, fa::check_backward), (Bytes{768, 640, 320, 384, 96, 384, -768, -640, -320}));
    EXPECT_EQ(regions_of(backward_padded, fa::check_backward),
              (Bytes{384, 320, 160, 384, 96, 150, 16, 120, 384, 32, 16, 8, 8, 8, 8, 16, 192, 96, -384, -320, -160, -16, -300}));
    EXPECT_EQ(regions_of(backward_packed, fa::check_backward), (Bytes{384, 256, 128, 192, 96, 12, 12, 192, -768, -512, -256}));
    EXPECT_EQ(regions_of(merge_padded, fa::check_merge), (Bytes{1152, 288, -96, -96, 16, 4, 8}));
    EXPECT_EQ(regions_of(merge_packed, fa::check_merge), (Bytes{768, 192, -384, -96, 12}));
    EXPECT_EQ(regions_of(append_paged, fa::check_append_kv), (Bytes{256, 128, -160, -80, -80, -80, 40, 40, 8, 8, 8, 8, 36, -4}));
    EXPECT_EQ(regions_of(append_packed, fa::check_append_kv), (Bytes{96, 48, -640, -320, 12, 12}));
    EXPECT_EQ(regions_of(rotary_padded, fa::check_rotary), (Bytes{768, -768, 40, 40, 8, 8}));
    EXPECT_EQ(regions_of(rotary_packed, fa::check_rotary), (Bytes{-384, 40, 40, 24, 12}));
}

TEST(Resolve, TensorsWithoutElementsHaveNoRegion) {
    const auto no_keys = [](Forward* call) {
        plain(call);
        call->d.seqlen_k = 0;
    };
    EXPECT_EQ(regions_of<Forward>(no_keys, fa::check_forward), (Bytes{768, -384}));
}

// A tensor may reach as far as int64 counts bytes, and not one further.
TEST(Resolve, FarthestReach) {
    fa_attention_desc_t d = minimal();
    d.operands = FA_OPERAND_MASK;
    d.mask_stride[0] = INT64_MAX - 1;
    resolved(d);
    d.mask_stride[3] = 1;
    d.mask_stride[0] -= 6;
    resolved(d);
    d.mask_stride[0]++;
    fa::Problem p;
    fa::Message m{};
    EXPECT_EQ(fa::resolve(&d, FA_OP_FORWARD, &p, &m), FA_INVALID_ARGUMENT);
}

// De-scale factors of 8-bit caches are inputs unless they are made here.
TEST(Resolve, GivenScalesAreInputs) {
    const auto given = [](Append* call) {
        append_paged(call);
        call->a.flags = FA_ROTARY_INTERLEAVED;
    };
    EXPECT_EQ(regions_of<Append>(given, fa::check_append_kv), (Bytes{256, 128, -160, -80, 80, 80, 40, 40, 8, 8, 8, 8, 36, -4}));
}

// Arrays in memory that the host cannot read are left alone: these addresses are nobody's.
TEST(Resolve, DeviceMetadataIsNotRead) {
    fa::Message m{};
    fa::Regions regions;
    const auto nowhere = [](uint64_t at) { return reinterpret_cast<int32_t*>(uintptr_t(at) << 20); };
    Forward f;
    paged(&f);
    f.a.seqused_k = nowhere(1);
    f.a.leftpad_k = nowhere(2);
    f.a.kv_batch_idx = nowhere(3);
    f.a.page_table = nowhere(4);
    fa_forward_args_t a;
    EXPECT_EQ(fa::check_forward(resolved(f.d), &(a = f.a), false, &regions, &m), FA_OK) << m.text;

    Append c;
    append_packed(&c);
    c.a.positions = nowhere(1);
    c.a.cu_seqlens_new = nowhere(2);
    fa_append_kv_args_t b;
    EXPECT_EQ(fa::check_append_kv(resolved(c.d, FA_OP_APPEND_KV), &(b = c.a), false, &regions, &m), FA_OK) << m.text;

    Rotary r;
    rotary_packed(&r);
    r.a.positions = nowhere(1);
    r.a.cu_seqlens = nowhere(2);
    fa_rotary_args_t t;
    EXPECT_EQ(fa::check_rotary(resolved(r.d, FA_OP_ROTARY), &(t = r.a), false, &regions, &m), FA_OK) << m.text;

    for (const int32_t* fa_rotary_args_t::* const field : {&fa_rotary_args_t::seqused, &fa_rotary_args_t::position_offset}) {
        Rotary one;
        rotary_padded(&one);
        one.a.seqused = one.a.position_offset = nullptr;
        one.d.operands = field == &fa_rotary_args_t::seqused ? FA_OPERAND_SEQUSED_Q : 0;
        one.a.*field = nowhere(1);
        EXPECT_EQ(fa::check_rotary(resolved(one.d, FA_OP_ROTARY), &(t = one.a), false, &regions, &m), FA_OK) << m.text;
        // Without an array, all lengths are known.
        one.a.*field = nullptr;
        one.d.operands = 0;
        one.a.max_position = 2;
        EXPECT_EQ(fa::check_rotary(resolved(one.d, FA_OP_ROTARY), &(t = one.a), false, &regions, &m), FA_INVALID_ARGUMENT);
    }

    Backward b3;
    backward_packed(&b3);
    b3.a.f.cu_seqlens_q = nowhere(1);
    b3.a.f.cu_seqlens_k = nowhere(2);
    fa::CheckedBackward b4{b3.args(), {}};
    EXPECT_EQ(fa::check_backward(resolved(b3.d, FA_OP_BACKWARD), &b4, false, &regions, &m), FA_OK) << m.text;

    Merge g;
    merge_packed(&g);
    g.a.cu_seqlens_q = nowhere(1);
    fa_merge_args_t e;
    EXPECT_EQ(fa::check_merge(resolved(g.d, FA_OP_MERGE), &(e = g.a), false, &regions, &m), FA_OK) << m.text;
}
