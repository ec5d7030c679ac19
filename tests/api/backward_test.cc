// fa_backward: the fields of its args, and of the descriptor what has no gradient.
#include <limits>
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;

using Good = void (*)(Backward*);
using Spoil = void (*)(Backward&);

Rule<Backward> row(Good good, const char* says, Spoil spoil, fa_status_t status = I) { return {good, spoil, status, says, ""}; }
Rule<Backward> described(Good good, const char* says, Spoil spoil, fa_status_t status = I) { return {good, spoil, status, says, "", true}; }

void strides(int64_t* to, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t s[4] = {a, b, c, d};
    memcpy(to, s, sizeof s);
}

std::vector<Rule<Backward>> descriptor() {
    const Good plain = backward_plain, padded = backward_padded, packed = backward_packed;
    return {
        described(
            plain, "q_dtype is e4m3: expected FA_F32, FA_F16 or FA_BF16 for the backward", [](Backward& call) { call.d.q_dtype = FA_E4M3; },
            U),
        described(
            plain, "k_dtype is i8: expected FA_F32", [](Backward& call) { call.d.k_dtype = FA_I8; }, U),
        described(
            plain, "o_dtype is e5m2: expected FA_F32", [](Backward& call) { call.d.o_dtype = FA_E5M2; }, U),
        described(plain, "operands is 0x0: expected FA_OPERAND_LSE, which the backward reads", [](Backward& call) { call.d.operands = 0; }),
        described(
            plain, "algorithm is 1: expected FA_ALGORITHM_FLASH", [](Backward& call) { call.d.algorithm = FA_ALGORITHM_STANDARD; }, U),
        described(
            plain, "operands is 0x4000000: expected no FA_OPERAND_PAGE_TABLE",
            [](Backward& call) { call.d.operands = FA_OPERAND_PAGE_TABLE; }, U),
        described(
            plain, "operands is 0x2000000: expected no FA_OPERAND_KV_BATCH_IDX",
            [](Backward& call) { call.d.operands = FA_OPERAND_KV_BATCH_IDX; }, U),
        described(
            plain, "operands is 0x8: expected no FA_OPERAND_Q_DESCALE", [](Backward& call) { call.d.operands = FA_OPERAND_Q_DESCALE; }, U),
        described(
            plain, "operands is 0x30: expected no FA_OPERAND_K_DESCALE",
            [](Backward& call) { call.d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE; }, U),
        described(padded, "alignment is not set:", [](Backward& call) { call.d.alignment = 0; }),
        described(padded, "dropout_p is 1:", [](Backward& call) { call.d.dropout_p = 1.0f; }),
        described(padded, "softcap is -1:", [](Backward& call) { call.d.softcap = -1.0f; }),
        described(
            plain, "dim_v is 1025:", [](Backward& call) { call.d.dim_v = 1025; }, U),
        described(
            plain, "k_dtype is q8_0: expected FA_F32", [](Backward& call) { call.d.k_dtype = call.d.v_dtype = FA_Q8_0; }, U),
        described(
            plain, "v_dtype is f16: no backend has another type than k's in the backward yet, expected f32",
            [](Backward& call) { call.d.v_dtype = FA_F16; }, U),
        described(
            plain, "heads_v is 4: no backend has another number than k's in the backward yet, expected 2",
            [](Backward& call) { call.d.heads_v = 4; }, U),
        described(
            plain, "flags is 0x10: no backend has a gradient of v within k yet, expected no FA_V_IN_K",
            [](Backward& call) { call.d.flags = FA_V_IN_K; }, U),
        described(plain, "heads_k is 3:", [](Backward& call) { call.d.heads_k = 3; }),
        described(packed, "total_q is -6:", [](Backward& call) { call.d.total_q = -6; }),
        described(plain, "lse_stride[2] is 1: expected 0 without FA_STRIDED_LSE", [](Backward& call) { call.d.lse_stride[2] = 1; }),
        described(
            plain, "o_stride[3] is 2:", [](Backward& call) { call.d.strided = FA_STRIDED_O, strides(call.d.o_stride, 96, 32, 8, 2); }, U),
        described(plain, "bias_stride[0] is 1: expected 0 without", [](Backward& call) { call.d.bias_stride[0] = 1; }),
    };
}

#define AT(good, field, element, optional) POINTER(good, fa_backward_args_t, field, element, optional)
#define FORWARD_AT(good, field, element, optional) \
    {good, #field, sizeof(fa_backward_args_t) + offsetof(fa_forward_args_t, field), element, optional, true}
const std::vector<Pointer<Backward>> pointers = {
    FORWARD_AT(backward_padded, q, 2, false),           FORWARD_AT(backward_padded, k, 2, false),
    FORWARD_AT(backward_padded, v, 2, false),           FORWARD_AT(backward_padded, o, 4, false),
    FORWARD_AT(backward_padded, lse, 4, false),         AT(backward_padded, dout, 2, false),
    FORWARD_AT(backward_padded, bias, 2, true),         FORWARD_AT(backward_padded, bias_scale, 4, true),
    FORWARD_AT(backward_padded, mask, 1, true),         FORWARD_AT(backward_padded, alibi_slopes, 4, true),
    FORWARD_AT(backward_padded, sinks, 4, true),        FORWARD_AT(backward_padded, causal_offset, 4, true),
    FORWARD_AT(backward_packed, cu_seqlens_q, 4, true), FORWARD_AT(backward_packed, cu_seqlens_k, 4, true),
    FORWARD_AT(backward_padded, seqused_q, 4, true),    FORWARD_AT(backward_padded, seqused_k, 4, true),
    FORWARD_AT(backward_padded, leftpad_k, 4, true),    FORWARD_AT(backward_padded, rng_state, 8, true)};
// Computed, or read, when they are given.
const std::vector<Pointer<Backward>> free_pointers = {AT(backward_padded, dq, 2, false),  AT(backward_packed, dq, 4, false),
                                                      AT(backward_padded, dk, 2, false),  AT(backward_packed, dk, 4, false),
                                                      AT(backward_padded, dv, 2, false),  AT(backward_packed, dv, 4, false),
                                                      AT(backward_padded, dlse, 4, false)};
const std::vector<Pointer<Backward>> score_gradients = {AT(backward_padded, dbias, 4, true), AT(backward_padded, dsinks, 4, true)};

std::vector<Rule<Backward>> overlaps() {
    std::vector<Rule<Backward>> rules;
    for (const auto& group : {free_pointers, score_gradients})
        for (const Pointer<Backward>& output : group) {
            if (output.input) continue;
            for (const auto& others : {pointers, free_pointers, score_gradients}) {
                const auto more = shared(output, others);
                rules.insert(rules.end(), more.begin(), more.end());
            }
        }
    return rules;
}

std::vector<Rule<Backward>> args() {
    static char somewhere[8];
    const Good plain = backward_plain, padded = backward_padded, packed = backward_packed;
    return {
        row(plain, "forward is NULL: expected the fa_forward_args_t", [](Backward& call) { call.without_forward = true; }),
        row(
            plain, "flags is 0x400:", [](Backward& call) { call.a.flags = 0x400; }, F),
        row(padded, "dropout_seed is 5 and dropout_offset is 0: expected 0 with FA_OPERAND_RNG_STATE",
            [](Backward& call) { call.a.f.dropout_seed = 5; }),
        row(padded, "dropout_seed is 0 and dropout_offset is 6:", [](Backward& call) { call.a.f.dropout_offset = 6; }),
        row(padded, "dropout_key is -6:", [](Backward& call) { call.a.f.dropout_key = -6; }),
        row(plain, "dout_stride[1] is -16:", [](Backward& call) { strides(call.a.dout_stride, 48, -16, 4, 1); }),
        row(plain, "dout_stride[3] is 0:", [](Backward& call) { strides(call.a.dout_stride, 48, 16, 4, 0); }),
        row(packed, "dout_stride[0] is 1: expected 0, packed", [](Backward& call) { strides(call.a.dout_stride, 1, 16, 4, 1); }),
        row(plain, "dlse_stride[2] is -1:", [](Backward& call) { call.a.dlse_stride[2] = -1; }),
        row(
            plain, "dq_stride[3] is 2:", [](Backward& call) { strides(call.a.dq_stride, 192, 64, 16, 2); }, U),
        row(plain, "dq_stride is {0, 32, 8, 1}: expected strides that keep",
            [](Backward& call) { strides(call.a.dq_stride, 0, 32, 8, 1); }),
        row(plain, "dk_stride is {80, 0, 8, 1}:", [](Backward& call) { strides(call.a.dk_stride, 80, 0, 8, 1); }),
        row(plain,
            "dk_stride is {0, 16, 8, 1}:", [](Backward& call) { call.d.strided = FA_STRIDED_K, strides(call.d.k_stride, 0, 16, 8, 1); }),
        row(plain, "dv_stride is {40, 8, 3, 1}:", [](Backward& call) { strides(call.a.dv_stride, 40, 8, 3, 1); }),
        row(packed, "dv_stride[0] is 40: expected 0, packed", [](Backward& call) { strides(call.a.dv_stride, 40, 8, 4, 1); }),
        row(plain, "dq is 2 x 3 x 4 x 8 elements", [](Backward& call) { strides(call.a.dq_stride, INT64_MAX / 2, 32, 8, 1); }),
        row(padded, "dbias_stride[0] is -1:", [](Backward& call) { call.a.dbias_stride[0] = -1; }),
        row(padded, "dbias_stride is {15, 4, 5, 1}: expected strides that keep",
            [](Backward& call) { call.d.bias_period[1] = 2, strides(call.a.dbias_stride, 15, 4, 5, 1); }),
        row(padded, "bias_scale[1] is inf: expected a finite number",
            [](Backward& call) {
                static const float scale[4] = {1, std::numeric_limits<float>::infinity(), 1, 1};
                call.a.f.bias_scale = scale;
            }),
        row(padded, "key_ranges[90] is 1: expected 2 or more",
            [](Backward& call) {
                static std::vector<int32_t> ranges;
                ranges.assign(call.a.f.key_ranges, call.a.f.key_ranges + 96);
                ranges[90] = 1;  // of the last valid row
                call.a.f.key_ranges = ranges.data();
            }),
        row(padded, "dbias_stride is {60, 15, 4, 1}:", [](Backward& call) { strides(call.a.dbias_stride, 60, 15, 4, 1); }),
        row(plain, "stream is 0x", [](Backward& call) { call.a.stream = somewhere; }),
        row(plain, "workspace is 0x", [](Backward& call) { call.a.workspace = somewhere; }),
        row(plain, "workspace is 0x", [](Backward& call) { call.a.workspace = call.a.dq, call.a.workspace_size = 256; }),
        row(plain, "workspace is (nil) and workspace_size is 7:", [](Backward& call) { call.a.workspace_size = 7; }),
        row(
            plain, "workspace_size is 1:",
            [](Backward& call) {
                alignas(256) static char one[256];
                call.a.workspace = one;
                call.a.workspace_size = 1;
            },
            FA_WORKSPACE_TOO_SMALL),
    };
}

std::vector<Rule<Backward>> contents() {
    static const int32_t decreasing[] = {0, 3, 2}, beyond[] = {1, 6, 9}, used[] = {4, 0}, pad[] = {5, 0};
    return {
        row(backward_packed, "cu_seqlens_q[2] is 2: expected 3 to 6", [](Backward& call) { call.a.f.cu_seqlens_q = decreasing; }),
        row(backward_packed, "cu_seqlens_k[2] is 9: expected 6 to 8", [](Backward& call) { call.a.f.cu_seqlens_k = beyond; }),
        row(backward_padded, "seqused_q[0] is 4: expected 0 to 3", [](Backward& call) { call.a.f.seqused_q = used; }),
        row(backward_padded, "leftpad_k[0] is 5: expected 0 to 4", [](Backward& call) { call.a.f.leftpad_k = pad; }),
    };
}

std::vector<Rule<Backward>> without_operands() {
    return all_of<Backward>({uninvited(pointers, backward_plain), uninvited(score_gradients, backward_plain)});
}

}  // namespace

std::vector<Rule<Backward>> backward_rules() {
    return all_of<Backward>({missing(pointers), misaligned(free_pointers), without_operands(), args(), contents()});
}

TEST(BackwardArgs, GoodCallsWork) {
    Handle h;
    for (const Good good : {backward_plain, backward_padded, backward_packed}) check_good(h, good);
}

TEST(BackwardArgs, DescriptorIsChecked) { check_rules(descriptor()); }
TEST(BackwardArgs, MissingPointersAreRefused) { check_rules(missing(pointers)); }
TEST(BackwardArgs, PointersWithoutTheirOperandAreRefused) { check_rules(without_operands()); }
TEST(BackwardArgs, MisalignedPointersAreRefused) {
    for (const auto& group : {pointers, free_pointers, score_gradients}) check_rules(misaligned(group));
}
TEST(BackwardArgs, ArgsAreChecked) { check_rules(args()); }
TEST(BackwardArgs, ContentsOfArraysAreChecked) { check_rules(contents()); }
TEST(BackwardArgs, OverlapsAreRefused) { check_rules(overlaps()); }

// The forward's own descriptor serves, with the outputs and the schedule that it had.
TEST(BackwardArgs, WhatIsNotReadIsIgnored) {
    Handle h;
    Backward c;
    backward_padded(&c);
    c.d.operands |= FA_OPERAND_SCORES;
    c.d.scores_stage = FA_SCORES_BIASED;
    c.d.scores_stride[0] = -5;
    c.d.num_splits = 3;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(BackwardArgs, EachGradientIsOptional) {
    Handle h;
    for (const Good good : {backward_plain, backward_padded, backward_packed}) {
        for (int wanted = 0; wanted < 32; wanted++) {
            Backward all, some;
            good(&all);
            good(&some);
            EXPECT_EQ(all.run(h), FA_OK) << fa_last_error(h);
            if (!(wanted & 1)) some.a.dq = nullptr;
            if (!(wanted & 2)) some.a.dk = nullptr;
            if (!(wanted & 4)) some.a.dv = nullptr;
            if (!(wanted & 8)) some.a.dbias = nullptr;
            if (!(wanted & 16)) some.a.dsinks = nullptr;
            EXPECT_EQ(some.run(h), FA_OK) << fa_last_error(h);
            const auto same = [](const void* a, const void* b) { return b == nullptr || memcmp(a, b, 320) == 0; };
            EXPECT_TRUE(same(all.a.dq, some.a.dq) && same(all.a.dk, some.a.dk) && same(all.a.dv, some.a.dv));
            EXPECT_TRUE(!some.a.dsinks || memcmp(all.a.dsinks, some.a.dsinks, 16) == 0);
            EXPECT_TRUE(!some.a.dbias || memcmp(all.a.dbias, some.a.dbias, 300) == 0);
        }
    }
}

// q, k, v as slices of one tensor, and their gradients as slices of another.
TEST(BackwardArgs, InterleavedSlicesAreFine) {
    Handle h;
    Backward c;
    backward_plain(&c);
    c.d.heads_k = 4;
    c.d.dim_v = 8;
    c.d.seqlen_k = 3;
    c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V;
    for (int64_t* s : {c.d.q_stride, c.d.k_stride, c.d.v_stride}) strides(s, 3 * 96, 96, 8, 1);
    float *const qkv = c.memory.make<float>(2 * 3 * 96), *const dqkv = c.memory.make<float>(2 * 3 * 96);
    c.a.f.q = qkv, c.a.f.k = qkv + 32, c.a.f.v = qkv + 64;
    c.a.dq = dqkv, c.a.dk = dqkv + 32, c.a.dv = dqkv + 64;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    c.a.dv = dqkv + 63;
    EXPECT_EQ(c.run(h), I);
}

TEST(BackwardArgs, TensorsWithoutElementsMayBeNull) {
    Handle h;
    Backward c;
    c.d.q_dtype = FA_F32;
    c.d.operands = FA_OPERAND_LSE;
    c.d.heads_q = 2;
    c.d.dim_qk = 4;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    c.d.batch = 2;
    c.d.seqlen_k = 1;
    EXPECT_EQ(c.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("k is NULL"), 0u) << fa_last_error(h);
}
