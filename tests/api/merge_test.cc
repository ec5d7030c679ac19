// fa_merge: the fields of its args, and of the descriptor those that it reads.
#include <cmath>
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;

Rule<Merge> row(void (*good)(Merge*), const char* says, void (*spoil)(Merge&), fa_status_t status = I) {
    return {good, spoil, status, says, ""};
}
Rule<Merge> described(void (*good)(Merge*), const char* says, void (*spoil)(Merge&), fa_status_t status = I) {
    return {good, spoil, status, says, "", true};
}

std::vector<Rule<Merge>> descriptor() {
    return {
        described(
            merge_padded, "flags is 0x40:", [](Merge& call) { call.d.flags = 0x40; }, F),
        described(
            merge_padded, "o_dtype is 9:", [](Merge& call) { call.d.o_dtype = 9; }, F),
        described(merge_padded, "o_dtype is i8:", [](Merge& call) { call.d.o_dtype = FA_I8; }),
        described(merge_packed, "q_dtype is not set:", [](Merge& call) { call.d.q_dtype = 0; }),
        described(merge_padded, "batch is -1:", [](Merge& call) { call.d.batch = -1; }),
        described(merge_padded, "heads_q is 0:", [](Merge& call) { call.d.heads_q = call.d.heads_k = 0; }),
        described(merge_padded, "seqlen_q is -3:", [](Merge& call) { call.d.seqlen_q = -3; }),
        described(merge_padded, "kv_batch is -1:", [](Merge& call) { call.d.kv_batch = -1; }),
        described(merge_padded, "page_size is -1:", [](Merge& call) { call.d.page_size = -1; }),
        described(merge_padded, "seqlen_k is -3:", [](Merge& call) { call.d.seqlen_k = -3; }),
        described(merge_padded, "dim_v is 0:", [](Merge& call) { call.d.dim_v = call.d.dim_qk = 0; }),
        described(
            merge_padded, "dim_v is 1025:", [](Merge& call) { call.d.dim_v = 1025; }, U),
        described(merge_padded, "total_q is 6: expected 0 without", [](Merge& call) { call.d.total_q = 6; }),
        described(merge_packed, "total_q is -6:", [](Merge& call) { call.d.total_q = -6; }),
        described(merge_padded, "o_stride[3] is 1: expected 0 without FA_STRIDED_O", [](Merge& call) { call.d.o_stride[3] = 1; }),
        described(merge_padded, "o_stride is {0, 16, 4, 1}:",
                  [](Merge& call) {
                      const int64_t s[4] = {0, 16, 4, 1};
                      call.d.strided = FA_STRIDED_O;
                      memcpy(call.d.o_stride, s, sizeof s);
                  }),
        described(merge_padded, "lse_stride is {0, 0, 0}:", [](Merge& call) { call.d.strided = FA_STRIDED_LSE; }),
    };
}

#define AT(good, field, element, optional) POINTER(good, fa_merge_args_t, field, element, optional)
const std::vector<Pointer<Merge>> pointers = {AT(merge_padded, o_parts, 4, false),     AT(merge_padded, lse_parts, 4, false),
                                              AT(merge_packed, o, 4, false),           AT(merge_padded, lse, 4, true),
                                              AT(merge_padded, sinks, 4, true),        AT(merge_padded, o_scale, 4, true),
                                              AT(merge_packed, cu_seqlens_q, 4, true), AT(merge_padded, seqused_q, 4, true)};

std::vector<Rule<Merge>> overlaps() {
    return all_of<Merge>({shared(AT(merge_padded, o, 1, false), pointers), shared(AT(merge_packed, o, 4, false), pointers),
                          shared(AT(merge_padded, lse, 4, true), pointers), shared(AT(merge_packed, lse, 4, true), pointers)});
}

// Without any operand.
void merge_plain(Merge* call) {
    merge_packed(call);
    call->a.flags = 0;
    call->d.operands = 0;
    call->d.total_q = 0;
    call->a.lse = nullptr;
    call->a.cu_seqlens_q = nullptr;
}

std::vector<Rule<Merge>> args() {
    static char somewhere[8];
    return {
        row(
            merge_padded, "flags is 0x4:", [](Merge& call) { call.a.flags = 4; }, F),
        row(merge_padded, "parts is -1:", [](Merge& call) { call.a.parts = -1; }),
        row(merge_padded, "parts is 2147483648:", [](Merge& call) { call.a.parts = int64_t(1) << 31; }),
        row(merge_padded, "o_parts_stride[0] is -96:", [](Merge& call) { call.a.o_parts_stride[0] = -96, call.a.o_parts_stride[4] = 1; }),
        row(merge_padded, "o_parts_stride[4] is 0:", [](Merge& call) { call.a.o_parts_stride[0] = 96; }),
        row(
            merge_padded, "o_parts_stride[4] is 2:", [](Merge& call) { call.a.o_parts_stride[4] = 2; }, U),
        row(merge_packed, "o_parts_stride[1] is 96: expected 0, packed",
            [](Merge& call) { call.a.o_parts_stride[1] = 96, call.a.o_parts_stride[4] = 1; }),
        row(merge_padded, "o_parts is 3 x 2 x 3 x 4 x 4 elements",
            [](Merge& call) { call.a.o_parts_stride[0] = INT64_MAX / 2, call.a.o_parts_stride[4] = 1; }),
        row(merge_padded, "o_parts is 2147483647 x", [](Merge& call) { call.a.parts = INT32_MAX, call.d.batch = 1 << 30; }),
        row(merge_padded, "lse_parts_stride[3] is -1:", [](Merge& call) { call.a.lse_parts_stride[3] = -1; }),
        row(merge_packed, "lse_parts_stride[1] is 1: expected 0, packed", [](Merge& call) { call.a.lse_parts_stride[1] = 1; }),
        row(merge_padded, "lse_parts is 3 x 2 x 4 x 3 elements", [](Merge& call) { call.a.lse_parts_stride[2] = INT64_MAX / 2; }),
        row(merge_padded, "lse is 0x", [](Merge& call) { call.d.operands &= ~uint32_t(FA_OPERAND_LSE); }),
        row(merge_padded, "stream is 0x", [](Merge& call) { call.a.stream = somewhere; }),
        row(merge_padded, "workspace is 0x", [](Merge& call) { call.a.workspace = somewhere; }),
        row(merge_padded, "workspace is (nil) and workspace_size is 1:", [](Merge& call) { call.a.workspace_size = 1; }),
        row(merge_padded, "o_dtype is e4m3: expected FA_F32 with FA_MERGE_ACCUMULATE",
            [](Merge& call) { call.a.flags = FA_MERGE_ACCUMULATE; }),
        row(merge_packed, "operands is 0x100000: expected FA_OPERAND_LSE with FA_MERGE_ACCUMULATE",
            [](Merge& call) { call.d.operands = FA_OPERAND_CU_SEQLENS_Q, call.a.lse = nullptr; }),
    };
}

std::vector<Rule<Merge>> contents() {
    static const int32_t decreasing[] = {0, 3, 2}, beyond[] = {0, 2, 7}, too_long[] = {0, 4, 4}, negative[] = {-1, 2, 5};
    static const int32_t used[] = {4, 0};
    static const float nan[] = {std::nanf("")};
    return {
        row(merge_packed, "cu_seqlens_q[2] is 2: expected 3 to 6", [](Merge& call) { call.a.cu_seqlens_q = decreasing; }),
        row(merge_packed, "cu_seqlens_q[2] is 7: expected 2 to 6", [](Merge& call) { call.a.cu_seqlens_q = beyond; }),
        row(merge_packed, "cu_seqlens_q[1] is 4: expected 3 or less", [](Merge& call) { call.a.cu_seqlens_q = too_long; }),
        row(merge_packed, "cu_seqlens_q[0] is -1:", [](Merge& call) { call.a.cu_seqlens_q = negative; }),
        row(merge_padded, "seqused_q[0] is 4: expected 0 to 3", [](Merge& call) { call.a.seqused_q = used; }),
        row(merge_packed, "operands is 0x100101: expected no FA_OPERAND_O_SCALE with FA_MERGE_ACCUMULATE",
            [](Merge& call) { call.d.operands |= FA_OPERAND_O_SCALE, call.a.o_scale = call.memory.make<float>(1, 1.0f); }),
        row(merge_padded, "o_scale[0] is nan:", [](Merge& call) { call.a.o_scale = nan; }),
    };
}

}  // namespace

std::vector<Rule<Merge>> merge_rules() { return all_of<Merge>({descriptor(), missing(pointers), args(), contents(), overlaps()}); }

TEST(MergeArgs, GoodCallsWork) {
    Handle h;
    for (const auto good : {merge_padded, merge_packed}) check_good(h, good);
}

TEST(MergeArgs, DescriptorIsChecked) { check_rules(descriptor()); }
TEST(MergeArgs, MissingPointersAreRefused) { check_rules(missing(pointers)); }
TEST(MergeArgs, PointersWithoutTheirOperandAreRefused) { check_rules(uninvited(pointers, merge_plain)); }
TEST(MergeArgs, MisalignedPointersAreRefused) { check_rules(misaligned(pointers)); }
TEST(MergeArgs, ArgsAreChecked) { check_rules(args()); }
TEST(MergeArgs, ContentsOfArraysAreChecked) { check_rules(contents()); }
TEST(MergeArgs, OverlapsAreRefused) { check_rules(overlaps()); }

// What a merge does not read may stay as the forward left it, and q's side may be left out altogether.
TEST(MergeArgs, WhatIsNotReadIsIgnored) {
    Handle h;
    Merge c;
    merge_padded(&c);
    c.d.q_dtype = 0;
    c.d.dim_qk = 0;
    c.d.heads_k = 3;
    c.d.scale = NAN;
    c.d.flags = FA_CAUSAL;
    c.d.bias_stride[0] = 5;
    c.d.num_splits = -5;
    c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_PAGE_TABLE | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_RNG_STATE;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(MergeArgs, NoPartsNeedNoPointers) {
    Handle h;
    Merge c;
    merge_padded(&c);
    c.a.parts = 0;
    c.a.o_parts = c.a.lse_parts = nullptr;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

// Parts may be broadcast, as any input.
TEST(MergeArgs, PartsMayShareMemory) {
    Handle h;
    Merge c;
    merge_padded(&c);
    c.a.o_parts_stride[4] = 1;
    c.a.lse_parts_stride[3] = 1;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}
