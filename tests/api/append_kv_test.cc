// fa_append_kv: the fields of its args, and of the descriptor those that it reads.
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;

using Spoil = void (*)(Append&);

Rule<Append> row(void (*good)(Append*), const char* says, Spoil spoil, fa_status_t status = I) { return {good, spoil, status, says, ""}; }
Rule<Append> described(void (*good)(Append*), const char* says, Spoil spoil, fa_status_t status = I) {
    return {good, spoil, status, says, "", true};
}

std::vector<Rule<Append>> descriptor() {
    return {
        described(
            append_paged, "operands is 0xa7800030:", [](Append& call) { call.d.operands |= 1u << 31; }, F),
        described(append_packed, "operands is 0x200000: expected no FA_OPERAND_CU_SEQLENS_K",
                  [](Append& call) { call.d.operands = FA_OPERAND_CU_SEQLENS_K, call.d.total_k = 8; }),
        described(append_packed, "q_dtype is not set:", [](Append& call) { call.d.q_dtype = 0; }),
        described(
            append_packed, "q_dtype is e4m3: expected FA_F32, FA_F16 or FA_BF16", [](Append& call) { call.d.q_dtype = FA_E4M3; }, U),
        described(
            append_packed, "k_dtype is 7:", [](Append& call) { call.d.k_dtype = 7; }, F),
        described(append_packed, "batch is -1:", [](Append& call) { call.d.batch = -1; }),
        described(append_packed, "heads_q is 0:", [](Append& call) { call.d.heads_q = call.d.heads_k = 0; }),
        described(append_packed, "heads_k is 3:", [](Append& call) { call.d.heads_k = 3; }),
        described(append_packed, "heads_k is -1:", [](Append& call) { call.d.heads_q = 0, call.d.heads_k = -1; }),
        described(append_packed, "seqlen_k is -1:", [](Append& call) { call.d.seqlen_k = -1; }),
        described(append_packed, "dim_qk is 0:", [](Append& call) { call.d.dim_qk = 0; }),
        described(
            append_packed, "dim_v is 1025:", [](Append& call) { call.d.dim_v = 1025; }, U),
        described(append_packed, "total_k is 8: expected 0 without", [](Append& call) { call.d.total_k = 8; }),
        described(append_packed, "kv_batch is 2: expected 0 without", [](Append& call) { call.d.kv_batch = 2; }),
        described(append_paged, "page_size is 0:", [](Append& call) { call.d.page_size = 0; }),
        described(append_packed, "k_stride[3] is 1: expected 0 without FA_STRIDED_K", [](Append& call) { call.d.k_stride[3] = 1; }),
        described(append_packed, "k_stride is {0, 16, 8, 1}:",
                  [](Append& call) {
                      const int64_t s[4] = {0, 16, 8, 1};
                      call.d.strided = FA_STRIDED_K;
                      memcpy(call.d.k_stride, s, sizeof s);
                  }),
        described(append_paged, "v_stride is {8, 8, 4, 1}:",
                  [](Append& call) {
                      const int64_t s[4] = {8, 8, 4, 1};
                      call.d.strided = FA_STRIDED_V;
                      memcpy(call.d.v_stride, s, sizeof s);
                  }),
        described(append_packed, "k_descale_stride[0] is 1: expected 0 without", [](Append& call) { call.d.k_descale_stride[0] = 1; }),
        described(append_paged, "v_descale_stride[1] is -1:", [](Append& call) { call.d.v_descale_stride[1] = -1; }),
    };
}

#define AT(good, field, element, optional) POINTER(good, fa_append_kv_args_t, field, element, optional)
const std::vector<Pointer<Append>> pointers = {
    AT(append_paged, k_new, 4, false),       AT(append_packed, v_new, 2, false),    AT(append_packed, k, 4, false),
    AT(append_packed, v, 4, false),          AT(append_paged, seqused_k, 4, true),  AT(append_paged, leftpad_k, 4, true),
    AT(append_paged, kv_batch_idx, 4, true), AT(append_paged, page_table, 4, true), AT(append_paged, device_status, 4, true),
    AT(append_paged, k_descale, 4, true),    AT(append_paged, v_descale, 4, true),  AT(append_scaled, k_tail, 4, true),
    AT(append_scaled, k_shift, 2, true)};
// Given or not as the caller likes.
const std::vector<Pointer<Append>> free_pointers = {AT(append_packed, cu_seqlens_new, 4, false), AT(append_paged, seqused_new, 4, false),
                                                    AT(append_packed, positions, 4, false), AT(append_paged, cos, 4, false),
                                                    AT(append_paged, sin, 4, false)};

std::vector<Rule<Append>> overlaps() {
    std::vector<Rule<Append>> rules;
    for (const auto& others : {pointers, free_pointers}) {
        const std::vector<Rule<Append>> part =
            all_of<Append>({shared(AT(append_packed, k, 4, false), others), shared(AT(append_packed, v, 4, false), others),
                            shared(AT(append_paged, k, 1, false), others), shared(AT(append_paged, v, 1, false), others),
                            shared(AT(append_paged, k_descale, 4, false), others), shared(AT(append_paged, v_descale, 4, false), others)});
        rules.insert(rules.end(), part.begin(), part.end());
    }
    return rules;
}

std::vector<Rule<Append>> pairs() {
    static char somewhere[8];
    return {
        row(append_paged, "cos is (nil) and sin is 0x", [](Append& call) { call.a.cos = nullptr; }),
        row(append_paged, "cos is 0x", [](Append& call) { call.a.sin = nullptr; }),
        row(append_paged, "stream is 0x", [](Append& call) { call.a.stream = somewhere; }),
        row(append_paged, "workspace is 0x", [](Append& call) { call.a.workspace = somewhere; }),
        row(append_paged, "workspace is (nil) and workspace_size is 256:", [](Append& call) { call.a.workspace_size = 256; }),
    };
}

// v within k comes with it.
void within_k(Append* call) {
    append_packed(call);
    call->d.flags = FA_V_IN_K;
    call->d.v_dtype = 0;
    call->d.dim_v = 4;
    call->a.v = nullptr;
    call->a.v_new = nullptr;
    memset(call->a.v_new_stride, 0, sizeof call->a.v_new_stride);
}

std::vector<Rule<Append>> of_v_within_k() {
    static char somewhere[8];
    return {
        row(within_k, "v is 0x", [](Append& call) { call.a.v = somewhere; }),
        row(within_k, "v_new is 0x", [](Append& call) { call.a.v_new = somewhere; }),
        row(within_k, "v_new_stride[3] is 1: expected 0 with FA_V_IN_K", [](Append& call) { call.a.v_new_stride[3] = 1; }),
        row(within_k, "v_descale is 0x", [](Append& call) { call.a.v_descale = somewhere; }),
        row(within_k, "operands is 0x0: expected FA_OPERAND_K_DESCALE with FA_APPEND_DYNAMIC_SCALE",
            [](Append& call) { call.a.flags = FA_APPEND_DYNAMIC_SCALE, call.d.k_dtype = FA_E5M2; }),
    };
}

std::vector<Rule<Append>> numbers() {
    static uint32_t somewhere[2];
    return {
        row(
            append_paged, "flags is 0x8:", [](Append& call) { call.a.flags = 8; }, F),
        row(append_paged, "seqlen_new is -1:", [](Append& call) { call.a.seqlen_new = -1; }),
        row(append_paged, "seqlen_new is 2147483648:", [](Append& call) { call.a.seqlen_new = int64_t(1) << 31; }),
        row(append_packed, "total_new is -1:", [](Append& call) { call.a.total_new = -1; }),
        row(append_paged, "total_new is 3: expected 0 without cu_seqlens_new", [](Append& call) { call.a.total_new = 3; }),
        row(append_paged, "k_new_stride[1] is -16:", [](Append& call) { call.a.k_new_stride[1] = -16, call.a.k_new_stride[3] = 1; }),
        row(
            append_paged, "k_new_stride[3] is 2:", [](Append& call) { call.a.k_new_stride[3] = 2; }, U),
        row(append_packed, "k_new_stride[0] is 9: expected 0, packed",
            [](Append& call) { call.a.k_new_stride[0] = 9, call.a.k_new_stride[3] = 1; }),
        row(append_paged, "v_new_stride[3] is 0:", [](Append& call) { call.a.v_new_stride[0] = 16; }),
        row(append_paged, "v_new is 2 x 2 x 2 x 4 elements",
            [](Append& call) { call.a.v_new_stride[2] = INT64_MAX, call.a.v_new_stride[3] = 1; }),
        row(append_paged, "seqlen_new is 2147483647: expected batch * seqlen_new * heads_k",
            [](Append& call) {
                call.d.batch = call.d.heads_k = call.d.heads_q = call.a.seqlen_new = INT32_MAX, call.d.operands = 0,
                call.d.page_size = call.d.num_pages = call.d.kv_batch = 0, call.d.seqlen_k = 0, memset(call.d.k_descale_stride, 0, 32),
                memset(call.d.v_descale_stride, 0, 32);
            }),
        row(append_packed, "positions is 4611686014132420609 elements",
            [](Append& call) {
                call.d.batch = call.a.seqlen_new = INT32_MAX, call.d.heads_q = call.d.heads_k = 1;
                call.a.cu_seqlens_new = nullptr, call.a.total_new = 0, call.a.k_new_stride[3] = call.a.v_new_stride[3] = 1;
            }),
        row(append_paged, "rotary_begin is 5: expected 4 or less", [](Append& call) { call.a.rotary_begin = 5; }),
        row(append_packed, "rotary_begin is 2: expected 0 without cos", [](Append& call) { call.a.rotary_begin = 2; }),
        row(append_scaled, "v_shift is 0x", [](Append& call) { call.a.v_shift = somewhere; }),
        row(append_packed, "device_status is 0x", [](Append& call) { call.a.device_status = somewhere; }),
        row(append_paged, "max_position is -1:", [](Append& call) { call.a.max_position = -1; }),
        row(append_paged, "rotary_dim is 0: expected 2 or more", [](Append& call) { call.a.rotary_dim = 0; }),
        row(append_paged, "rotary_dim is 3: expected an even", [](Append& call) { call.a.rotary_dim = 3; }),
        row(append_paged, "rotary_dim is 10: expected 8 or less", [](Append& call) { call.a.rotary_dim = 10; }),
        row(append_packed, "max_position is 5: expected 0 without cos", [](Append& call) { call.a.max_position = 5; }),
        row(append_packed, "rotary_dim is 4: expected 0 without cos", [](Append& call) { call.a.rotary_dim = 4; }),
        row(append_packed, "flags is 0x100: expected no FA_ROTARY_INTERLEAVED", [](Append& call) { call.a.flags = FA_ROTARY_INTERLEAVED; }),
        row(append_packed, "k_dtype and v_dtype are f32 and f32: expected e4m3, e5m2, i8 or a type of 4 bits with FA_APPEND_DYNAMIC_SCALE",
            [](Append& call) { call.a.flags = FA_APPEND_DYNAMIC_SCALE; }),
        row(append_packed, "operands is 0x0: expected FA_OPERAND_V_DESCALE with FA_APPEND_DYNAMIC_SCALE",
            [](Append& call) { call.a.flags = FA_APPEND_DYNAMIC_SCALE, call.d.k_dtype = FA_F32, call.d.v_dtype = FA_E4M3; }),
        row(append_packed, "operands is 0x0: expected FA_OPERAND_K_DESCALE with FA_APPEND_DYNAMIC_SCALE",
            [](Append& call) { call.a.flags = FA_APPEND_DYNAMIC_SCALE, call.d.k_dtype = FA_E5M2; }),
        row(append_packed, "operands is 0x10: expected FA_OPERAND_V_DESCALE with FA_APPEND_DYNAMIC_SCALE",
            [](Append& call) {
                call.a.flags = FA_APPEND_DYNAMIC_SCALE, call.d.k_dtype = FA_E4M3, call.d.operands = FA_OPERAND_K_DESCALE;
                call.a.k_descale = call.memory.make<float>(20);
            }),
        row(
            append_scaled, "k_descale_block[0] is 2: expected one row", [](Append& call) { call.d.k_descale_block[0] = 2; }, U),
        row(
            append_scaled, "v_dtype is e4m3: expected u4 with FA_OPERAND_V_SHIFT",
            [](Append& call) { call.d.operands |= FA_OPERAND_V_SHIFT, call.d.v_descale_dtype = FA_F32; }, U),
        row(append_paged, "k_descale_stride is {4, 0, 1, 1}:", [](Append& call) { call.d.k_descale_stride[1] = 0; }),
        row(append_paged, "v_descale_stride is {2, 2, 1, 1}:", [](Append& call) { call.d.v_descale_stride[0] = 2; }),
    };
}

std::vector<Rule<Append>> contents() {
    static const int32_t decreasing[] = {1, 0, 3}, beyond[] = {0, 2, 4}, too_long[] = {0, 3, 3}, one_two[] = {1, 2}, four[] = {4, 3},
                         three[] = {0, 3}, six[] = {2, 6}, minus[] = {-1, 3}, idx[] = {3, 0}, slot5[] = {5, -1, 0},
                         slot_minus2[] = {0, 1, -2}, early[] = {2, 0, 1, 2}, rotated[] = {2, 3, 1, 2}, none[] = {0, 0},
                         table[] = {-1, -1, -1, -1, 0, -1, -1, 5, -7}, used5[] = {2, 3};
    return {
        row(append_packed, "cu_seqlens_new[1] is 0: expected 1 to 3", [](Append& call) { call.a.cu_seqlens_new = decreasing; }),
        row(append_packed, "cu_seqlens_new[2] is 4: expected 2 to 3", [](Append& call) { call.a.cu_seqlens_new = beyond; }),
        row(append_packed, "cu_seqlens_new[1] is 3: expected 2 or less", [](Append& call) { call.a.cu_seqlens_new = too_long; }),
        row(append_paged, "seqused_new[0] is 3: expected 0 to 2", [](Append& call) { call.a.seqused_new = idx; }),
        row(append_packed, "seqused_new[1] is 2: expected 0 to 1", [](Append& call) { call.a.seqused_new = one_two; }),
        row(append_paged, "seqlen_k is 5: expected 6 or more", [](Append& call) { call.a.seqused_k = four; }),
        row(append_paged, "seqused_k[1] is 6: expected 0 to 5", [](Append& call) { call.a.seqused_k = six; }),
        row(append_paged, "seqused_k[0] is -1:", [](Append& call) { call.a.seqused_k = minus; }),
        row(append_paged, "leftpad_k[1] is 6: expected 0 to 3", [](Append& call) { call.a.leftpad_k = six; }),
        row(append_paged, "leftpad_k[0] is -1:", [](Append& call) { call.a.leftpad_k = minus; }),
        row(append_paged, "kv_batch_idx[0] is 3: expected 0 to 2", [](Append& call) { call.a.kv_batch_idx = idx; }),
        row(append_packed, "positions[0] is 5: expected -1 to 4", [](Append& call) { call.a.positions = slot5; }),
        row(append_packed, "positions[2] is -2: expected -1 to 4", [](Append& call) { call.a.positions = slot_minus2; }),
        row(append_paged, "leftpad_k[1] is 3: expected 1 or less, the slot of a rotated token",
            [](Append& call) { call.a.positions = rotated, call.a.leftpad_k = three; }),
        row(append_paged, "page_table[7] is 5: expected 0 to 4", [](Append& call) { call.a.page_table = table; }),
        row(append_paged, "page_table[6] is -1:", [](Append& call) { call.a.positions = early, call.a.leftpad_k = none; }),
        row(append_paged, "max_position is 3: expected 4 or more", [](Append& call) { call.a.max_position = 3, call.a.seqused_k = used5; }),
    };
}

}  // namespace

std::vector<Rule<Append>> append_rules() {
    return all_of<Append>({descriptor(), missing(pointers), misaligned(free_pointers), pairs(), numbers(), contents(), overlaps()});
}

TEST(AppendArgs, GoodCallsWork) {
    Handle h;
    for (const auto good : {append_paged, append_packed, append_scaled, within_k}) check_good(h, good);
}

TEST(AppendArgs, DescriptorIsChecked) { check_rules(descriptor()); }
TEST(AppendArgs, MissingPointersAreRefused) { check_rules(missing(pointers)); }
TEST(AppendArgs, PointersWithoutTheirOperandAreRefused) { check_rules(uninvited(pointers, append_packed)); }
TEST(AppendArgs, MisalignedPointersAreRefused) {
    check_rules(misaligned(pointers));
    check_rules(misaligned(free_pointers));
}
TEST(AppendArgs, VWithinKComesWithIt) { check_rules(of_v_within_k()); }
TEST(AppendArgs, PairsAreChecked) { check_rules(pairs()); }
TEST(AppendArgs, NumbersAreChecked) { check_rules(numbers()); }
TEST(AppendArgs, ContentsOfArraysAreChecked) { check_rules(contents()); }
TEST(AppendArgs, OverlapsAreRefused) { check_rules(overlaps()); }

// The forward's own descriptor serves, with all that an append does not read; and the query side may be left out.
TEST(AppendArgs, WhatIsNotReadIsIgnored) {
    Handle h;
    Append c;
    append_packed(&c);
    c.d.heads_q = 0;
    c.d.o_dtype = FA_E4M3;
    c.d.flags = FA_CAUSAL;
    c.d.softcap = -1.0f;
    c.d.mask_stride[0] = 5;
    c.d.total_q = 7;
    c.d.strided = FA_STRIDED_O | FA_STRIDED_LSE;
    c.d.operands = FA_OPERAND_BIAS | FA_OPERAND_LSE | FA_OPERAND_O_SCALE | FA_OPERAND_CU_SEQLENS_Q;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(AppendArgs, EdgesAreAccepted) {
    Handle h;
    Append c;
    append_packed(&c);
    c.a.cu_seqlens_new = c.a.positions = nullptr;
    c.a.total_new = 0;
    c.a.k_new = c.memory.make<uint16_t>(160);
    c.a.v_new = c.memory.make<uint16_t>(80);
    c.a.seqlen_new = 5;  // from slot 0 to the last
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    c.a.seqlen_new = 6;
    EXPECT_EQ(c.run(h), I);
    c.a.seqlen_new = 0;
    c.a.k_new = c.a.v_new = nullptr;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(AppendArgs, AnglesForTheLastSlotSuffice) {
    Handle h;
    Append c;
    append_paged(&c);
    c.a.max_position = 4;  // slot 3 without padding
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    Append without_padding;
    append_packed(&without_padding);
    without_padding.a.cos = c.a.cos;
    without_padding.a.sin = c.a.sin;
    without_padding.a.rotary_dim = 4;
    without_padding.a.max_position = 5;
    EXPECT_EQ(without_padding.run(h), FA_OK) << fa_last_error(h);
}

// Without seqused_k and positions, tokens start at the left padding.
TEST(AppendArgs, TokensStartAtTheLeftPadding) {
    Handle h;
    Append c;
    append_packed(&c);
    c.a.positions = nullptr;
    c.d.operands = FA_OPERAND_LEFTPAD_K;
    c.a.leftpad_k = c.memory.array<int32_t>({3, 4});
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    c.a.leftpad_k = c.memory.array<int32_t>({4, 4});
    EXPECT_EQ(c.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("seqlen_k is 5: expected 6 or more"), 0u) << fa_last_error(h);
}
