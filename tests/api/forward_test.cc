// Every field of fa_forward_args_t, spoiled.
#include <cmath>
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, F = FA_UNSUPPORTED_FIELD;

using A = fa_forward_args_t&;

Rule<Forward> row(void (*good)(Forward*), const char* says, void (*spoil)(fa_forward_args_t&), fa_status_t status = I) {
    return {good, [spoil](Forward& call) { spoil(call.a); }, status, says, ""};
}

// An array of the call, with one entry changed. It lives in no snapshot: reading it is all that may happen.
template <class T>
const T* changed(const T* from, size_t count, size_t at, T value) {
    static std::deque<std::vector<T>> kept;
    kept.emplace_back(from, from + count);
    kept.back()[at] = value;
    return kept.back().data();
}

#define AT(good, field, element, optional) POINTER(good, fa_forward_args_t, field, element, optional)
const std::vector<Pointer<Forward>> pointers = {AT(plain, q, 4, false),
                                                AT(plain, k, 4, false),
                                                AT(plain, v, 4, false),
                                                AT(plain, o, 4, false),
                                                AT(padded, lse, 4, true),
                                                AT(padded, bias, 2, true),
                                                AT(padded, bias_scale, 4, true),
                                                AT(padded, mask, 1, true),
                                                AT(padded, key_ranges, 4, true),
                                                AT(listed, key_list, 4, true),
                                                AT(listed, key_list_count, 4, true),
                                                AT(listed, full_list, 4, true),
                                                AT(listed, full_list_count, 4, true),
                                                AT(padded, alibi_slopes, 4, true),
                                                AT(padded, sinks, 4, true),
                                                AT(padded, causal_offset, 4, true),
                                                AT(packed, cu_seqlens_q, 4, true),
                                                AT(packed, cu_seqlens_k, 4, true),
                                                AT(padded, seqused_q, 4, true),
                                                AT(padded, seqused_k, 4, true),
                                                AT(padded, leftpad_k, 4, true),
                                                AT(padded, kv_batch_idx, 4, true),
                                                AT(paged, page_table, 4, true),
                                                AT(padded, q_descale, 4, true),
                                                AT(padded, k_descale, 4, true),
                                                AT(padded, v_descale, 4, true),
                                                AT(padded, o_scale, 4, true),
                                                AT(scaled, q_tail, 4, true),
                                                AT(scaled, k_tail, 2, true),
                                                AT(scaled, k_shift, 2, true),
                                                AT(scaled, v_shift, 2, true),
                                                AT(padded, scores, 4, true),
                                                AT(padded, rng_state, 8, true),
                                                AT(paged, device_status, 4, true)};

std::vector<Rule<Forward>> overlaps() {
    std::vector<Rule<Forward>> rules = all_of<Forward>(
        {shared(AT(plain, o, 4, false), pointers), shared(AT(padded, o, 1, false), pointers), shared(AT(packed, o, 4, false), pointers),
         shared(AT(paged, o, 4, false), pointers), shared(AT(padded, lse, 4, true), pointers), shared(AT(packed, lse, 4, true), pointers),
         shared(AT(padded, scores, 4, true), pointers)});
    const std::vector<Rule<Forward>> partial = {
        row(plain, "o is 0x", [](A a) { a.o = moved(const_cast<void*>(a.q), 4 * 191); }),  // its first element on q's last
        row(plain, "o is 0x", [](A a) { a.o = moved(const_cast<void*>(a.k), 64); }),
        row(packed, "lse is 0x", [](A a) { a.lse = static_cast<float*>(moved(const_cast<void*>(a.q), 96)); }),
        row(plain, "workspace is 0x", [](A a) { a.workspace = a.o, a.workspace_size = 256; }),
        row(plain, "workspace is 0x", [](A a) { a.workspace = const_cast<void*>(a.k), a.workspace_size = 256; }),
    };
    rules.insert(rules.end(), partial.begin(), partial.end());
    return rules;
}

std::vector<Rule<Forward>> beyond() {
    return {
        row(plain, "q is 0x", [](A a) { a.q = reinterpret_cast<const void*>(~uintptr_t(0) - 63); }),
        row(plain, "o is 0x", [](A a) { a.o = reinterpret_cast<void*>(~uintptr_t(0) - 15); }),
        row(plain, "workspace is 0x",
            [](A a) {
                a.workspace = reinterpret_cast<void*>(~uintptr_t(255));
                a.workspace_size = 4096;
            }),
    };
}

std::vector<Rule<Forward>> rest() {
    return {
        row(
            plain, "flags is 0x2:", [](A a) { a.flags = 2; }, F),
        row(
            plain, "flags is 0xffffffff:", [](A a) { a.flags = ~0u; }, F),
        row(plain, "stream is 0x", [](A a) { a.stream = a.o; }),
        row(padded, "dropout_seed is 5 and dropout_offset is 0: expected 0 with FA_OPERAND_RNG_STATE", [](A a) { a.dropout_seed = 5; }),
        row(padded, "dropout_seed is 0 and dropout_offset is 6:", [](A a) { a.dropout_offset = 6; }),
        row(padded, "dropout_row is -1:", [](A a) { a.dropout_row = -1; }),
        row(padded, "dropout_key is -6:", [](A a) { a.dropout_key = -6; }),
        row(padded, "dropout_head is -1:", [](A a) { a.dropout_head = -1; }),
        row(padded, "dropout_heads is -2:", [](A a) { a.dropout_heads = -2; }),
        row(padded, "bias_scale[3] is nan: expected a finite number",
            [](A a) { a.bias_scale = changed(a.bias_scale, 4, 3, std::nanf("")); }),
        row(padded, "o_scale[0] is nan:", [](A a) { a.o_scale = changed(a.o_scale, 1, 0, std::nanf("")); }),
        row(padded, "o_scale[0] is inf:", [](A a) { a.o_scale = changed<float>(a.o_scale, 1, 0, INFINITY); }),
        row(plain, "workspace is (nil) and workspace_size is 4096:", [](A a) { a.workspace_size = 4096; }),
        row(plain, "workspace is 0x", [](A a) { a.workspace = a.o; }),
        row(plain, "workspace is 0x", [](A a) { a.workspace = moved(a.o, 8), a.workspace_size = 64; }),
        row(plain, "workspace_size is 18446744073709551615:", [](A a) { a.workspace = a.o, a.workspace_size = UINT64_MAX; }),
        row(
            plain, "workspace_size is 1:",
            [](A a) {
                alignas(256) static char one[256];
                a.workspace = one;
                a.workspace_size = 1;
            },
            FA_WORKSPACE_TOO_SMALL),
    };
}

std::vector<Rule<Forward>> contents() {
    return {
        row(packed, "cu_seqlens_q[2] is 1: expected 2 to 6", [](A a) { a.cu_seqlens_q = changed(a.cu_seqlens_q, 3, 2, 1); }),
        row(packed, "cu_seqlens_q[0] is -1: expected 0 to 6", [](A a) { a.cu_seqlens_q = changed(a.cu_seqlens_q, 3, 0, -1); }),
        row(packed, "cu_seqlens_q[2] is 7: expected 2 to 6", [](A a) { a.cu_seqlens_q = changed(a.cu_seqlens_q, 3, 2, 7); }),
        row(packed, "cu_seqlens_q[2] is 6: expected 5 or less", [](A a) { a.cu_seqlens_q = changed(a.cu_seqlens_q, 3, 2, 6); }),
        row(packed, "cu_seqlens_k[1] is 0: expected 1 to 8", [](A a) { a.cu_seqlens_k = changed(a.cu_seqlens_k, 3, 1, 0); }),
        row(packed, "cu_seqlens_k[0] is -2147483648:", [](A a) { a.cu_seqlens_k = changed(a.cu_seqlens_k, 3, 0, INT32_MIN); }),
        row(packed, "cu_seqlens_k[2] is 9: expected 6 to 8", [](A a) { a.cu_seqlens_k = changed(a.cu_seqlens_k, 3, 2, 9); }),
        row(packed, "cu_seqlens_k[1] is 7: expected 6 or less", [](A a) { a.cu_seqlens_k = changed(a.cu_seqlens_k, 3, 1, 7); }),
        row(packed, "seqused_q[1] is 4: expected 0 to 3", [](A a) { a.seqused_q = changed(a.seqused_q, 2, 1, 4); }),
        row(packed, "seqused_q[0] is -1: expected 0 to 2", [](A a) { a.seqused_q = changed(a.seqused_q, 2, 0, -1); }),
        row(padded, "seqused_q[0] is 4: expected 0 to 3", [](A a) { a.seqused_q = changed(a.seqused_q, 2, 0, 4); }),
        row(padded, "seqused_k[1] is 6: expected 0 to 5", [](A a) { a.seqused_k = changed(a.seqused_k, 2, 1, 6); }),
        row(padded, "seqused_k[0] is -1:", [](A a) { a.seqused_k = changed(a.seqused_k, 2, 0, -1); }),
        row(padded, "leftpad_k[0] is 5: expected 0 to 4", [](A a) { a.leftpad_k = changed(a.leftpad_k, 2, 0, 5); }),
        row(padded, "leftpad_k[1] is -1:", [](A a) { a.leftpad_k = changed(a.leftpad_k, 2, 1, -1); }),
        row(padded, "key_ranges[2] is 1: expected 2 or more, the end of an interval before it",
            [](A a) { a.key_ranges = changed(a.key_ranges, 96, 2, 1); }),
        row(padded, "key_ranges[90] is -9: expected 2 or more", [](A a) { a.key_ranges = changed(a.key_ranges, 96, 90, -9); }),
        row(listed, "key_list_count[3] is 4: expected 0 to 3", [](A a) { a.key_list_count = changed(a.key_list_count, 12, 3, 4); }),
        row(listed, "full_list_count[11] is -1: expected 0 to 3", [](A a) { a.full_list_count = changed(a.full_list_count, 12, 11, -1); }),
        row(listed, "key_list[33] is 5: expected -1 to 4", [](A a) { a.key_list = changed(a.key_list, 36, 33, 5); }),
        row(slotted, "key_list[33] is 10: expected -1 to 9", [](A a) { a.key_list = changed(a.key_list, 36, 33, 10); }),
        row(listed, "full_list[2] is -2: expected -1 to 4", [](A a) { a.full_list = changed(a.full_list, 36, 2, -2); }),
        row(padded, "kv_batch_idx[0] is 3: expected 0 to 2", [](A a) { a.kv_batch_idx = changed(a.kv_batch_idx, 2, 0, 3); }),
        row(padded, "kv_batch_idx[1] is -1:", [](A a) { a.kv_batch_idx = changed(a.kv_batch_idx, 2, 1, -1); }),
        row(paged, "page_table[4] is 5: expected 0 to 4", [](A a) { a.page_table = changed(a.page_table, 9, 4, 5); }),
        row(paged, "page_table[7] is -1: expected 0 to 4", [](A a) { a.page_table = changed(a.page_table, 9, 7, -1); }),
        row(paged, "page_table[8] is -7:", [](A a) { a.seqused_k = changed(a.seqused_k, 2, 0, 5); }),
        row(paged, "page_table[3] is 99:", [](A a) { a.leftpad_k = changed(a.leftpad_k, 2, 1, 1); }),
        row(paged, "kv_batch_idx[1] is 3:", [](A a) { a.kv_batch_idx = changed(a.kv_batch_idx, 2, 1, 3); }),
    };
}

}  // namespace

std::vector<Rule<Forward>> forward_rules() { return all_of<Forward>({missing(pointers), beyond(), rest(), contents(), overlaps()}); }

TEST(ForwardArgs, MissingPointersAreRefused) { check_rules(missing(pointers)); }
TEST(ForwardArgs, PointersWithoutTheirOperandAreRefused) { check_rules(uninvited(pointers, plain)); }
TEST(ForwardArgs, MisalignedPointersAreRefused) { check_rules(misaligned(pointers)); }
TEST(ForwardArgs, TensorsEndWithinTheAddressSpace) { check_rules(beyond()); }
TEST(ForwardArgs, FlagsStreamSeedAndWorkspaceAreChecked) { check_rules(rest()); }
TEST(ForwardArgs, ContentsOfArraysAreChecked) { check_rules(contents()); }
TEST(ForwardArgs, OverlapsAreRefused) { check_rules(overlaps()); }

// The short form is the long form without operands.
TEST(ForwardArgs, PlainForwardIsCheckedAlike) {
    Handle h;
    Forward f;
    plain(&f);
    EXPECT_EQ(fa_forward(h, &f.d, f.a.q, f.a.k, f.a.v, f.a.o), FA_OK) << fa_last_error(h);
    EXPECT_EQ(fa_forward(h, &f.d, f.a.q, f.a.k, nullptr, f.a.o), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("v is NULL"), 0u);
    EXPECT_EQ(fa_forward(h, &f.d, f.a.q, f.a.k, f.a.v, const_cast<void*>(f.a.q)), I);
    f.d.operands = FA_OPERAND_LSE;
    EXPECT_EQ(fa_forward(h, &f.d, f.a.q, f.a.k, f.a.v, f.a.o), I);
}

// Three tensors in one (batch, row, 3, head, dim), and o in the same buffer beside them: byte ranges meet, elements do not.
TEST(ForwardArgs, InterleavedSlicesAreFine) {
    Handle h;
    Forward f;
    plain(&f);
    f.d.heads_k = 4;
    f.d.dim_v = 8;
    f.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
    f.d.seqlen_k = 3;
    for (int64_t* s : {f.d.q_stride, f.d.k_stride, f.d.v_stride, f.d.o_stride}) {
        s[0] = 3 * 4 * 4 * 8;
        s[1] = 4 * 4 * 8;
        s[2] = 8;
        s[3] = 1;
    }
    float* all = f.memory.make<float>(2 * 3 * 4 * 4 * 8);
    f.a.q = all;
    f.a.k = all + 32;
    f.a.v = all + 64;
    f.a.o = all + 96;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
    f.a.o = all + 95;
    EXPECT_EQ(f.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("o is 0x"), 0u) << fa_last_error(h);
}

TEST(ForwardArgs, TensorsWithoutElementsMayBeNull) {
    Handle h;
    Forward f;
    f.d.q_dtype = FA_F32;
    f.d.heads_q = 2;
    f.d.dim_qk = 4;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
    f.d.batch = 2;
    f.d.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_SCORES | FA_OPERAND_Q_DESCALE;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
    f.d.seqlen_q = 1;
    EXPECT_EQ(f.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("q is NULL"), 0u) << fa_last_error(h);
}

// With both a batch and a row stride, a packed row's factor lies at one place only: the rest of [batch][total][heads] is nobody's.
TEST(ForwardArgs, FactorsOfPackedRows) {
    Handle h;
    Forward f;
    packed(&f);
    f.d.operands |= FA_OPERAND_Q_DESCALE;
    const auto run = [&](int64_t batch_stride, int64_t row_stride, int64_t lse_at) {
        const int64_t s[3] = {batch_stride, row_stride, 1};
        memcpy(f.d.q_descale_stride, s, sizeof s);
        float* const shared_by_both = f.memory.make<float>(200, 1.0f);
        f.a.q_descale = shared_by_both;
        f.a.lse = shared_by_both + lse_at;
        return f.run(h);
    };
    EXPECT_EQ(run(100, 4, 8), FA_OK) << fa_last_error(h);  // rows 0 and 1 end before it, rows 2 to 4 of sequence 1 begin at 108
    EXPECT_EQ(run(0, 4, 8), I);
    EXPECT_EQ(run(0, 4, 24), FA_OK) << fa_last_error(h);
    EXPECT_EQ(run(4, 0, 4), I);
    EXPECT_EQ(run(4, 0, 8), FA_OK) << fa_last_error(h);
}

TEST(ForwardArgs, VWithinKHasNoPointer) {
    Handle h;
    Forward f;
    padded(&f);
    f.d.flags |= FA_V_IN_K;
    f.d.operands &= ~FA_OPERAND_V_DESCALE;
    memset(f.d.v_descale_stride, 0, sizeof f.d.v_descale_stride);
    const void* const v = f.a.v;
    const void* const v_descale = f.a.v_descale;
    f.a.v = nullptr, f.a.v_descale = nullptr;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
    f.a.v = v;
    EXPECT_EQ(f.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("v is 0x"), 0u) << fa_last_error(h);
    f.a.v = nullptr, f.a.v_descale = v_descale;
    EXPECT_EQ(f.run(h), I);
    EXPECT_EQ(std::string(fa_last_error(h)).find("v_descale is 0x"), 0u) << fa_last_error(h);
}

// Left padding that takes all keys leaves no page to be read.
TEST(ForwardArgs, PagesOfNoKeysAreNotRead) {
    Handle h;
    Forward f;
    paged(&f);
    f.a.seqused_k = f.memory.array<int32_t>({3, 1});
    f.a.leftpad_k = f.memory.array<int32_t>({3, 1});
    f.a.page_table = f.memory.make<int32_t>(9, -1);
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
}

TEST(ForwardArgs, StreamActsUnderItsFlag) {
    Handle h;
    Forward f;
    plain(&f);
    f.a.flags = FA_ARGS_STREAM;
    EXPECT_EQ(f.run(h), FA_OK) << fa_last_error(h);
}
