// fa_rotary: the fields of its args, and of the descriptor those that it reads.
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD, U = FA_UNSUPPORTED;

using Spoil = void (*)(Rotary&);

Rule<Rotary> row(void (*good)(Rotary*), const char* says, Spoil spoil, fa_status_t status = I) { return {good, spoil, status, says, ""}; }
Rule<Rotary> described(void (*good)(Rotary*), const char* says, Spoil spoil, fa_status_t status = I) {
    return {good, spoil, status, says, "", true};
}

void strides(int64_t* to, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t s[4] = {a, b, c, d};
    memcpy(to, s, sizeof s);
}

std::vector<Rule<Rotary>> descriptor() {
    return {
        described(
            rotary_padded, "strided is 0x100:", [](Rotary& call) { call.d.strided = 0x100; }, F),
        described(rotary_padded, "q_dtype is not set:", [](Rotary& call) { call.d.q_dtype = 0; }),
        described(
            rotary_padded, "q_dtype is e5m2: expected FA_F32, FA_F16 or FA_BF16", [](Rotary& call) { call.d.q_dtype = FA_E5M2; }, U),
        described(rotary_padded, "batch is -1:", [](Rotary& call) { call.d.batch = -1; }),
        described(rotary_padded, "heads_q is 0:", [](Rotary& call) { call.d.heads_q = 0; }),
        described(rotary_padded, "seqlen_q is -1:", [](Rotary& call) { call.d.seqlen_q = -1; }),
        described(rotary_padded, "dim_qk is 0:", [](Rotary& call) { call.d.dim_qk = 0; }),
        described(
            rotary_padded, "dim_qk is 1026:", [](Rotary& call) { call.d.dim_qk = 1026; }, U),
        described(rotary_padded, "total_q is 6: expected 0 without", [](Rotary& call) { call.d.total_q = 6; }),
        described(rotary_padded, "q_stride[0] is 96: expected 0 without", [](Rotary& call) { call.d.q_stride[0] = 96; }),
        described(rotary_padded,
                  "q_stride[1] is -32:", [](Rotary& call) { call.d.strided = FA_STRIDED_Q, strides(call.d.q_stride, 96, -32, 8, 1); }),
    };
}

#define AT(good, field, element, optional) POINTER(good, fa_rotary_args_t, field, element, optional)
const std::vector<Pointer<Rotary>> pointers = {AT(rotary_padded, x, 4, false),         AT(rotary_padded, out, 4, false),
                                               AT(rotary_padded, cos, 4, false),       AT(rotary_padded, sin, 4, false),
                                               AT(rotary_packed, cu_seqlens, 4, true), AT(rotary_padded, seqused, 4, true)};
// Given or not as the caller likes.
const std::vector<Pointer<Rotary>> free_pointers = {AT(rotary_packed, positions, 4, false), AT(rotary_padded, position_offset, 4, false)};

std::vector<Rule<Rotary>> overlaps() {
    // On x itself it would be in place.
    const std::vector<Pointer<Rotary>> others(pointers.begin() + 1, pointers.end());
    const std::vector<Rule<Rotary>> partial = {
        row(rotary_padded, "out is 0x", [](Rotary& call) { call.a.out = moved(const_cast<void*>(call.a.x), 32); }),
        row(rotary_padded, "out is 0x",
            [](Rotary& call) { call.a.out = const_cast<void*>(call.a.x), strides(call.a.out_stride, 8, 16, 48, 1); }),
    };
    return all_of<Rotary>({shared(AT(rotary_padded, out, 4, false), others), shared(AT(rotary_padded, out, 4, false), free_pointers),
                           shared(AT(rotary_packed, out, 2, false), others), shared(AT(rotary_packed, out, 2, false), free_pointers),
                           partial});
}

// Without any operand.
void rotary_plain(Rotary* call) {
    rotary_padded(call);
    call->d.operands = 0;
    call->a.seqused = nullptr;
    call->a.position_offset = nullptr;
}

std::vector<Rule<Rotary>> args() {
    static char somewhere[8];
    return {
        row(
            rotary_padded, "flags is 0x4:", [](Rotary& call) { call.a.flags = 4; }, F),
        row(rotary_padded, "out_stride[0] is -96:", [](Rotary& call) { strides(call.a.out_stride, -96, 32, 8, 1); }),
        row(rotary_padded, "out_stride[3] is 0:", [](Rotary& call) { strides(call.a.out_stride, 96, 32, 8, 0); }),
        row(
            rotary_padded, "out_stride[3] is 2:", [](Rotary& call) { strides(call.a.out_stride, 192, 64, 16, 2); }, U),
        row(rotary_packed, "out_stride[0] is 1: expected 0, packed", [](Rotary& call) { strides(call.a.out_stride, 1, 32, 8, 1); }),
        row(rotary_padded, "out_stride is {0, 32, 8, 1}:", [](Rotary& call) { strides(call.a.out_stride, 0, 32, 8, 1); }),
        row(rotary_padded,
            "out_stride is {96, 0, 8, 1}:", [](Rotary& call) { call.d.strided = FA_STRIDED_Q, strides(call.d.q_stride, 96, 0, 8, 1); }),
        row(rotary_padded, "out is 2 x 3 x 4 x 8 elements", [](Rotary& call) { strides(call.a.out_stride, INT64_MAX / 2, 32, 8, 1); }),
        row(rotary_padded, "max_position is -1:", [](Rotary& call) { call.a.max_position = -1; }),
        row(rotary_padded, "max_position is 2147483648:", [](Rotary& call) { call.a.max_position = int64_t(1) << 31; }),
        row(rotary_padded, "rotary_dim is 0:", [](Rotary& call) { call.a.rotary_dim = 0; }),
        row(rotary_padded, "rotary_dim is 5: expected an even", [](Rotary& call) { call.a.rotary_dim = 5; }),
        row(rotary_padded, "rotary_dim is 10: expected 8 or less", [](Rotary& call) { call.a.rotary_dim = 10; }),
        row(
            rotary_padded, "rotary_begin is -1: expected 0 or more", [](Rotary& call) { call.a.rotary_begin = -1; }, I),
        row(
            rotary_padded, "rotary_begin is 7: expected", [](Rotary& call) { call.a.rotary_begin = 7; }, I),
        row(rotary_padded, "stream is 0x", [](Rotary& call) { call.a.stream = somewhere; }),
        row(rotary_padded, "workspace is 0x", [](Rotary& call) { call.a.workspace = somewhere; }),
        row(rotary_padded, "workspace is (nil) and workspace_size is 7:", [](Rotary& call) { call.a.workspace_size = 7; }),
    };
}

// k's half of the descriptor in the place of q's, under k's names.
std::vector<Rule<Rotary>> of_k() {
    const auto row = [](const char* says, void (*spoil)(fa_attention_desc_t&), fa_status_t status = I) {
        return Rule<Rotary>{rotary_of_k, [spoil](Rotary& call) { spoil(call.d); }, status, says, ""};
    };
    using D = fa_attention_desc_t&;
    return {
        row("heads_k is -1: expected 0 or more", [](D d) { d.heads_k = -1; }),
        row("seqlen_k is -1: expected 0 or more", [](D d) { d.seqlen_k = -1; }),
        row("total_k is -1: expected 0 or more", [](D d) { d.total_k = -1; }),
        row(
            "k_dtype is q8_0: expected FA_F32, FA_F16 or FA_BF16", [](D d) { d.k_dtype = FA_Q8_0; }, U),
        row(
            "k_dtype is e4m3: expected FA_F32, FA_F16 or FA_BF16", [](D d) { d.k_dtype = FA_E4M3; }, U),
        row("k_stride[1] is 16: expected 0 without FA_STRIDED_K", [](D d) { d.k_stride[1] = 16; }),
        row("k_stride[2] is -8: expected 0 or more", [](D d) { d.strided = FA_STRIDED_K, d.k_stride[2] = -8; }),
        row(
            "operands is 0x4000000: expected no FA_OPERAND_PAGE_TABLE with FA_ROTARY_OF_K", [](D d) { d.operands = FA_OPERAND_PAGE_TABLE; },
            U),
        row(
            "operands is 0x2000000: expected no FA_OPERAND_KV_BATCH_IDX", [](D d) { d.operands = FA_OPERAND_KV_BATCH_IDX; }, U),
    };
}

std::vector<Rule<Rotary>> contents() {
    static const int32_t decreasing[] = {0, 3, 2}, used[] = {1, 4}, position5[] = {4, 0, 1, 2, 5, 0}, minus[] = {4, -1, 1, 2, 3, 0},
                         offset3[] = {3, 0}, offset_minus[] = {0, -1};
    return {
        row(rotary_packed, "cu_seqlens[2] is 2: expected 3 to 6", [](Rotary& call) { call.a.cu_seqlens = decreasing; }),
        row(rotary_padded, "seqused[1] is 4: expected 0 to 3", [](Rotary& call) { call.a.seqused = used; }),
        row(rotary_packed, "positions[4] is 5: expected 0 to 4", [](Rotary& call) { call.a.positions = position5; }),
        row(rotary_packed, "positions[1] is -1: expected 0 to 4", [](Rotary& call) { call.a.positions = minus; }),
        row(rotary_padded, "position_offset[0] is 3: expected 0 to 2", [](Rotary& call) { call.a.position_offset = offset3; }),
        row(rotary_padded, "position_offset[1] is -1: expected 0 to 3", [](Rotary& call) { call.a.position_offset = offset_minus; }),
        row(rotary_padded, "max_position is 2: expected 3 or more",
            [](Rotary& call) { call.a.position_offset = nullptr, call.a.max_position = 2; }),
    };
}

}  // namespace

std::vector<Rule<Rotary>> rotary_rules() {
    return all_of<Rotary>({descriptor(), missing(pointers), misaligned(free_pointers), args(), of_k(), contents(), overlaps()});
}

TEST(RotaryArgs, GoodCallsWork) {
    Handle h;
    for (const auto good : {rotary_padded, rotary_packed, rotary_of_k}) check_good(h, good);
}

TEST(RotaryArgs, DescriptorIsChecked) { check_rules(descriptor()); }
TEST(RotaryArgs, MissingPointersAreRefused) { check_rules(missing(pointers)); }
TEST(RotaryArgs, PointersWithoutTheirOperandAreRefused) { check_rules(uninvited(pointers, rotary_plain)); }
TEST(RotaryArgs, MisalignedPointersAreRefused) {
    check_rules(misaligned(pointers));
    check_rules(misaligned(free_pointers));
}
TEST(RotaryArgs, ArgsAreChecked) { check_rules(args()); }
TEST(RotaryArgs, OfKAreChecked) { check_rules(of_k()); }
TEST(RotaryArgs, ContentsOfArraysAreChecked) { check_rules(contents()); }
TEST(RotaryArgs, OverlapsAreRefused) { check_rules(overlaps()); }

// In place means x's own strides, written out or not.
TEST(RotaryArgs, InPlaceIsAllowed) {
    Handle h;
    Rotary c;
    rotary_padded(&c);
    c.a.out = const_cast<void*>(c.a.x);
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    strides(c.a.out_stride, 96, 32, 8, 1);
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

// One row is checked, no row is not.
TEST(RotaryArgs, PositionsOfFewRows) {
    Handle h;
    Rotary c;
    rotary_packed(&c);
    c.a.cu_seqlens = c.memory.array<int32_t>({0, 0, 1});
    c.a.positions = nullptr;
    c.a.position_offset = c.memory.array<int32_t>({99, 4});
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
    c.a.position_offset = c.memory.array<int32_t>({0, 5});
    EXPECT_EQ(c.run(h), I);
    c.a.position_offset = nullptr;
    c.a.max_position = 1;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(RotaryArgs, NoRowsNeedNoPointers) {
    Handle h;
    Rotary c;
    rotary_packed(&c);
    c.d.total_q = 0;
    c.a.cu_seqlens = c.memory.array<int32_t>({0, 0, 0});
    c.a.max_position = 0;
    c.a.x = nullptr;
    c.a.cos = c.a.sin = nullptr;
    c.a.out = nullptr;
    c.a.positions = nullptr;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}

TEST(RotaryArgs, WhatIsNotReadIsIgnored) {
    Handle h;
    Rotary c;
    rotary_padded(&c);
    c.d.heads_k = 3;
    c.d.dim_v = 2000;
    c.d.o_dtype = FA_E4M3;
    c.d.chunk = -1;
    c.d.kv_batch = 4;
    c.d.operands |= FA_OPERAND_SINKS | FA_OPERAND_PAGE_TABLE | FA_OPERAND_O_SCALE;
    EXPECT_EQ(c.run(h), FA_OK) << fa_last_error(h);
}
