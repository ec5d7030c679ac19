// fa_extent says of each pointer what the checks of a call measure, and fa_backend_supports what a handle says.
#include <set>
#include <thread>
#include "checked.h"
#include "core/pointers.h"
#include "rules.h"

namespace {

template <class Args>
uintptr_t word(const Args& args, size_t offset) {
    uintptr_t value;
    memcpy(&value, reinterpret_cast<const char*>(&args) + offset, sizeof value);
    return value;
}

// Each region of a good call belongs to a pointer of its args, which must have that extent, given or not. Takes those pointers from
// `unseen`.
template <class Args, class Call, class Checked>
void check_extents(void (*good)(Call*), std::set<std::string>* unseen,
                   fa_status_t (*check)(const fa::Problem&, Checked*, bool, fa::Regions*, fa::Message*)) {
    Call call;
    good(&call);
    Checked checked = args_of(call);
    const Args args = checked;
    fa::Problem p;
    fa::Message m{};
    fa::Regions regions;
    ASSERT_EQ(fa::resolve(&call.d, Call::op, &p, &m), FA_OK) << m.text;
    ASSERT_EQ(check(p, &checked, true, &regions, &m), FA_OK) << m.text;
    int found = 0;
    for (const fa::Pointer& pointer : fa::pointers_of<Args>()) {
        for (int i = 0; i < regions.count; i++) {
            const fa::Region& r = regions.region[i];
            if (r.begin != word(args, pointer.offset)) continue;
            uint64_t bytes = 0;
            EXPECT_EQ(fa_extent(&call.d, Call::op, &args, pointer.offset, &bytes), FA_OK) << fa_last_error(nullptr);
            EXPECT_EQ(bytes, r.end - r.begin) << pointer.name;
            unseen->erase(pointer.name);
            found++;
        }
    }
    EXPECT_GE(found, 3);
}

// A pointer that an args struct has and no check looks at would be read where a device cannot, or beyond its end: each is seen in some good
// call.
template <class Args>
std::set<std::string> pointers() {
    std::set<std::string> names;
    for (const fa::Pointer& pointer : fa::pointers_of<Args>()) names.insert(pointer.name);
    return names;
}
using Names = std::set<std::string>;

TEST(Extent, IsWhatTheCallTouches) {
    Names forward = pointers<fa_forward_args_t>(), backward = pointers<fa_backward_args_t>(), merge = pointers<fa_merge_args_t>(),
          append = pointers<fa_append_kv_args_t>(), rotary = pointers<fa_rotary_args_t>();
    for (const auto good : {plain, padded, listed, slotted, packed, paged})
        check_extents<fa_forward_args_t>(good, &forward, fa::check_forward);
    for (const auto good : {backward_plain, backward_padded, backward_packed})
        check_extents<fa_backward_args_t>(good, &backward, fa::check_backward);
    for (const auto good : {merge_padded, merge_packed}) check_extents<fa_merge_args_t>(good, &merge, fa::check_merge);
    for (const auto good : {append_paged, append_packed}) check_extents<fa_append_kv_args_t>(good, &append, fa::check_append_kv);
    for (const auto good : {rotary_padded, rotary_packed}) check_extents<fa_rotary_args_t>(good, &rotary, fa::check_rotary);
    EXPECT_EQ(forward, (Names{"q_tail", "k_tail", "k_shift", "v_shift"}));
    EXPECT_EQ(append, (Names{"k_tail", "k_shift", "v_shift"}));
    EXPECT_EQ(backward, Names{});
    EXPECT_EQ(merge, Names{});
    EXPECT_EQ(rotary, Names{});
}

TEST(Extent, OfARotationOfK) {
    Rotary c;
    rotary_of_k(&c);
    uint64_t bytes = 0;
    EXPECT_EQ(fa_extent(&c.d, FA_OP_ROTARY, &c.a, offsetof(fa_rotary_args_t, x), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 160);
}

TEST(Extent, NeedsNoPointers) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16, d.batch = 2, d.heads_q = 8, d.heads_k = 2, d.seqlen_q = 3, d.seqlen_k = 5, d.dim_qk = 16;
    d.operands = FA_OPERAND_LSE;
    const fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    const auto extent = [&](size_t offset) {
        uint64_t bytes = 77;
        EXPECT_EQ(fa_extent(&d, FA_OP_FORWARD, &f, uint32_t(offset), &bytes), FA_OK) << fa_last_error(nullptr);
        return bytes;
    };
    EXPECT_EQ(extent(offsetof(fa_forward_args_t, q)), 2u * 3 * 8 * 16 * 2);
    EXPECT_EQ(extent(offsetof(fa_forward_args_t, k)), 2u * 5 * 2 * 16 * 2);
    EXPECT_EQ(extent(offsetof(fa_forward_args_t, lse)), 2u * 3 * 8 * 4);
    EXPECT_EQ(extent(offsetof(fa_forward_args_t, bias)), 0u) << "an operand that is off";
    const fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    uint64_t bytes = 0;
    EXPECT_EQ(fa_extent(&d, FA_OP_BACKWARD, &b, offsetof(fa_backward_args_t, dk), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 5 * 2 * 16 * 2);
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.seqlen_new = 4;
    EXPECT_EQ(fa_extent(&d, FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, v_new), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 4 * 2 * 16 * 2);
}

TEST(Extent, OfVWithinK) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.flags = FA_V_IN_K, d.q_dtype = FA_E4M3, d.batch = 2, d.heads_q = 8, d.heads_k = 1, d.seqlen_q = 3, d.seqlen_k = 5, d.dim_qk = 48,
    d.dim_v = 32;
    d.operands = FA_OPERAND_K_DESCALE, d.k_descale_stride[1] = 1;
    const fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.seqlen_new = 4;
    const auto extent = [&](int32_t op, const void* args, size_t offset) {
        uint64_t bytes = 77;
        d.q_dtype = op == FA_OP_FORWARD ? FA_E4M3 : FA_F16;
        EXPECT_EQ(fa_extent(&d, op, args, uint32_t(offset), &bytes), FA_OK) << fa_last_error(nullptr);
        return bytes;
    };
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k)), 2u * 5 * 48);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k_descale)), 5u * 4);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, v)), 0u);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, v_descale)), 0u);
    d.operands = 0, d.k_descale_stride[1] = 0;
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, k)), 2u * 5 * 48 * 2);
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, v)), 0u);
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, v_new)), 0u);
}

TEST(Extent, OfFactorsShiftsAndTails) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F16, d.k_dtype = FA_U4, d.v_dtype = FA_E4M3, d.batch = 2, d.heads_q = 8, d.heads_k = 2, d.seqlen_q = 3, d.seqlen_k = 70;
    d.dim_qk = 80, d.dim_v = 48, d.dim_tail = 16, d.k_tail_dtype = FA_F32;
    d.operands = FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT;
    d.k_descale_dtype = FA_F16, d.k_descale_block[0] = 32, d.k_descale_stride[0] = 1000, d.k_descale_stride[1] = 200;  // 3 blocks of rows
    d.k_descale_block[1] = 24, d.k_descale_stride[2] = 10, d.k_descale_stride[3] = 2;                                  // 3 of dims
    d.v_descale_dtype = FA_E8M0, d.v_descale_block[1] = 32, d.v_descale_stride[3] = 5;                                 // 2 for all rows
    const fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.seqlen_new = 4;
    const auto extent = [&](int32_t op, const void* args, size_t offset) {
        uint64_t bytes = 77;
        EXPECT_EQ(fa_extent(&d, op, args, uint32_t(offset), &bytes), FA_OK) << fa_last_error(nullptr);
        return bytes;
    };
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, q)), 2u * 3 * 8 * 64 * 2);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, q_tail)), 2u * 3 * 8 * 16 * 2);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k)), 2u * 70 * 2 * 32);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k_tail)), 2u * 70 * 2 * 16 * 4);
    for (const size_t offset : {offsetof(fa_forward_args_t, k_descale), offsetof(fa_forward_args_t, k_shift)})
        EXPECT_EQ(extent(FA_OP_FORWARD, &f, offset), (1000u + 2 * 200 + 10 + 2 * 2 + 1) * 2);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, v_descale)), 6u);
    EXPECT_EQ(extent(FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, v_shift)), 0u);
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, k_new)), 2u * 4 * 2 * 80 * 2);
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, k_shift)), (1000u + 2 * 200 + 10 + 2 * 2 + 1) * 2);
    EXPECT_EQ(extent(FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, k_tail)), 2u * 70 * 2 * 16 * 4);
}

TEST(Extent, OfBlocks) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_BF16, d.k_dtype = FA_Q8_0, d.v_dtype = FA_Q4_1, d.batch = 2, d.heads_q = 8, d.heads_k = 2, d.heads_v = 4;
    d.seqlen_q = 3, d.seqlen_k = 5, d.dim_qk = 96, d.dim_v = 64;
    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    uint64_t bytes = 0;
    EXPECT_EQ(fa_extent(&d, FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 5 * 2 * 3 * 34);
    EXPECT_EQ(fa_extent(&d, FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, v), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 5 * 4 * 2 * 20);
    d.strided = FA_STRIDED_K, d.k_stride[0] = 100, d.k_stride[1] = 7, d.k_stride[2] = 3, d.k_stride[3] = 1;  // of blocks
    EXPECT_EQ(fa_extent(&d, FA_OP_FORWARD, &f, offsetof(fa_forward_args_t, k), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, (100u + 4 * 7 + 3 + 3) * 34);
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.seqlen_new = 4;
    EXPECT_EQ(fa_extent(&d, FA_OP_APPEND_KV, &a, offsetof(fa_append_kv_args_t, v), &bytes), FA_OK) << fa_last_error(nullptr);
    EXPECT_EQ(bytes, 2u * 5 * 4 * 2 * 20);
}

// A block begins with an f16, whatever its size.
TEST(Extent, BlocksAreAlignedToTwoBytes) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.k_dtype = FA_Q5_1, d.batch = d.heads_q = d.seqlen_q = d.seqlen_k = 1, d.dim_qk = 32;
    alignas(4) float q[32] = {}, o[32];
    alignas(8) unsigned char k[32] = {}, v[32] = {};
    const Handle h;
    EXPECT_EQ(fa_forward(h, &d, q, k + 2, v + 6, o), FA_OK) << fa_last_error(h);
    EXPECT_EQ(fa_forward(h, &d, q, k + 1, v, o), FA_INVALID_ARGUMENT);
    EXPECT_NE(strstr(fa_last_error(h), "expected an address that is a multiple of its alignment, 2"), nullptr) << fa_last_error(h);
}

TEST(Extent, RefusesWhatIsNoPointer) {
    Forward f;
    plain(&f);
    uint64_t bytes = 5;
    for (const size_t offset : {size_t(0), size_t(4), offsetof(fa_forward_args_t, q) + 1, offsetof(fa_forward_args_t, stream),
                                offsetof(fa_forward_args_t, dropout_seed), sizeof(fa_forward_args_t), size_t(0xfffffff8u)}) {
        EXPECT_EQ(fa_extent(&f.d, FA_OP_FORWARD, &f.a, uint32_t(offset), &bytes), FA_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(fa_last_error(nullptr)),
                  "field is " + std::to_string(offset) + ": expected the offset of a pointer to a tensor in the args");
    }
    EXPECT_EQ(fa_extent(&f.d, FA_OP_FORWARD, nullptr, 8, &bytes), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_extent(nullptr, FA_OP_FORWARD, &f.a, 8, &bytes), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_extent(&f.d, 9, &f.a, 8, &bytes), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_extent(&f.d, FA_OP_FORWARD, &f.a, 8, nullptr), FA_INVALID_ARGUMENT);
    f.d.heads_k = 3;
    EXPECT_EQ(fa_extent(&f.d, FA_OP_FORWARD, &f.a, 8, &bytes), FA_INVALID_ARGUMENT);
    EXPECT_EQ(bytes, 5u);
}

TEST(BackendSupports, SaysWhatAHandleSays) {
    Handle h;
    Forward f;
    padded(&f);
    char ours[FA_TEXT_MAX], theirs[FA_TEXT_MAX];
    for (const int32_t k_dtype : {0, int32_t(FA_I8), int32_t(FA_Q4_0), 5}) {
        f.d.k_dtype = k_dtype;
        const fa_status_t status = fa_explain(h, &f.d, FA_OP_FORWARD, theirs, sizeof theirs);
        EXPECT_EQ(fa_backend_supports(FA_BACKEND_CPU, 0, &f.d, FA_OP_FORWARD, ours, sizeof ours), status);
        EXPECT_STREQ(ours, theirs);
        EXPECT_STREQ(fa_last_error(nullptr), status == FA_OK ? "" : theirs);
        EXPECT_EQ(fa_backend_supports(FA_BACKEND_AUTO, 0, &f.d, FA_OP_FORWARD, nullptr, 0), status);
    }
    EXPECT_EQ(fa_backend_supports(FA_BACKEND_CPU, 1, &f.d, FA_OP_FORWARD, ours, sizeof ours), FA_NO_DEVICE);
    EXPECT_STREQ(ours, "device is 1: the CPU backend has one device, 0");
    EXPECT_EQ(fa_backend_supports(9, 0, &f.d, FA_OP_FORWARD, ours, 4), FA_UNSUPPORTED_FIELD);
    EXPECT_STREQ(ours, "inf");
}

TEST(BackendSupports, OnManyThreadsAtOnce) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            Forward f;
            plain(&f);
            for (int n = 0; n < 50; n++) EXPECT_EQ(fa_backend_supports(FA_BACKEND_CPU, 0, &f.d, FA_OP_FORWARD, nullptr, 0), FA_OK);
        });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace
