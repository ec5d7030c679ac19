// Calls without a row, of as many sequences or heads as a descriptor may name, with any operand: they end at once. What is looked at of an
// array is bounded by its own entries, and where those are many it has memory for each.
#include <ctime>
#include "core/operands.h"
#include "core/pointers.h"
#include "rules.h"

namespace {

constexpr uint64_t kMostBytes = 8 << 20;
constexpr double kMostSeconds = 0.5;  // of the processor, for what takes microseconds, or a millisecond where arrays have a million entries

struct Shape {
    int64_t batch, heads, keys;
    bool pairs;  // of operands, too
};

// What an operand does not go without.
uint64_t with_companions(uint64_t operands) {
    const struct {
        uint64_t one, other;
    } needs[] = {{FA_OPERAND_BIAS_SCALE, FA_OPERAND_BIAS},
                 {FA_OPERAND_KEY_LIST_COUNT, FA_OPERAND_KEY_LIST},
                 {FA_OPERAND_FULL_LIST_COUNT, FA_OPERAND_FULL_LIST},
                 {FA_OPERAND_K_SHIFT, FA_OPERAND_K_DESCALE},
                 {FA_OPERAND_V_SHIFT, FA_OPERAND_V_DESCALE}};
    for (const auto& need : needs)
        if (operands & need.one) operands |= need.other;
    return operands;
}

fa_attention_desc_t without_rows(const Shape& shape, uint64_t operands) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = shape.batch, d.heads_q = shape.heads, d.dim_qk = 8, d.seqlen_k = shape.keys, d.operands = operands;
    d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1;  // all keys are one
    if (operands & FA_OPERAND_CU_SEQLENS_Q) d.seqlen_q = 1000;
    if (operands & (FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL)) d.dim_tail = 2;
    if (operands & FA_OPERAND_K_TAIL) d.strided |= FA_STRIDED_K_TAIL, d.k_tail_stride[3] = 1;
    if (operands & (FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST)) d.list_max = 3;
    if (operands & FA_OPERAND_PAGE_TABLE) d.page_size = d.num_pages = 1;
    if (operands & FA_OPERAND_KV_BATCH_IDX) d.kv_batch = 1;
    if (operands & FA_OPERAND_CU_SEQLENS_K) d.total_k = shape.keys;
    if (operands & FA_OPERAND_ALIBI) d.alignment = FA_ALIGN_BOTTOM_RIGHT;
    if (operands & FA_OPERAND_CAUSAL_OFFSET) d.alignment = FA_ALIGN_EXPLICIT;
    return d;
}

class Empty : public testing::Test {
  protected:
    // Whether the call could be made: it is allowed, and its arrays are not large.
    bool try_forward(const Shape& shape, uint64_t operands, int32_t op) {
        const fa_attention_desc_t d = without_rows(shape, operands);
        if (fa_supports(handle_, &d, op) != FA_OK || fa_supports(handle_, &d, FA_OP_FORWARD) != FA_OK) return false;
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        for (const fa::Pointer& pointer : fa::pointers_of<fa_forward_args_t>()) {
            uint64_t bytes = 0;
            EXPECT_EQ(fa_extent(&d, FA_OP_FORWARD, &a, pointer.offset, &bytes), FA_OK) << fa_last_error(nullptr);
            if (bytes > kMostBytes) return false;
            // Also where nothing lies behind it: a pointer is what makes the checks look.
            const bool operand = pointer.offset >= offsetof(fa_forward_args_t, lse);
            if (operand && !(d.operands >> (pointer.offset - offsetof(fa_forward_args_t, lse)) / sizeof(void*) & 1)) continue;
            void* memory = zeros_.data();
            if (pointer.offset == offsetof(fa_forward_args_t, device_status)) memory = &status_word_;
            memcpy(reinterpret_cast<char*>(&a) + pointer.offset, &memory, sizeof memory);
        }
        fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
        b.forward = &a;
        expect_quick(operands, [&] { return op == FA_OP_FORWARD ? fa_forward_ex(handle_, &d, &a) : fa_backward(handle_, &d, &b); });
        return true;
    }

    template <class Call>
    void expect_quick(uint64_t operands, const Call& call) {
        const clock_t begin = clock();
        EXPECT_EQ(call(), FA_OK) << fa_last_error(handle_);
        EXPECT_LT(double(clock() - begin) / CLOCKS_PER_SEC, kMostSeconds) << "operands 0x" << std::hex << operands;
    }

    Handle handle_;
    std::vector<uint64_t> zeros_ = std::vector<uint64_t>(kMostBytes / 8);
    uint32_t status_word_ = 0;
};

TEST_F(Empty, AnyOperandCostsNothing) {
    constexpr int64_t kMost = INT32_MAX, kMany = 1 << 20;
    uint64_t seen[2] = {};
    for (const Shape& s : {Shape{kMost, 4, 0, true}, Shape{kMost, 4, 100, true}, Shape{1, kMost, 0, false}, Shape{kMany, kMany, 0, false},
                           Shape{kMany, kMany, 100, false}})
        for (int i = 0; i < fa::kOperands; i++)
            for (int j = i; j < (s.pairs ? fa::kOperands : i + 1); j++)
                for (const int32_t op : {FA_OP_FORWARD, FA_OP_BACKWARD}) {
                    const uint64_t operands =
                        with_companions(uint64_t(1) << i | uint64_t(1) << j) | (op == FA_OP_BACKWARD ? FA_OPERAND_LSE : 0);
                    if (try_forward(s, operands, op)) seen[op == FA_OP_BACKWARD] |= operands;
                    if (HasFatalFailure() || HasFailure()) return;
                }
    // A new operand comes by here, or this says so. The backward's are those that it does not refuse.
    EXPECT_EQ(seen[0], fa::kAllOperands);
    EXPECT_EQ(seen[1], fa::kAllOperands & ~(FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE | FA_OPERAND_O_SCALE | FA_OPERAND_Q_DESCALE |
                                            FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT |
                                            FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL));
}

TEST_F(Empty, AnyArrayOfTheOtherCallsCostsNothing) {
    const int32_t* const zeros = reinterpret_cast<const int32_t*>(zeros_.data());
    const float angles[4] = {};
    for (const Shape& s : {Shape{INT32_MAX, INT32_MAX / 2, 0, false}, Shape{1 << 20, 1 << 20, 0, false}}) {
        fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
        d.q_dtype = FA_F32, d.batch = s.batch, d.heads_q = s.heads, d.dim_qk = 8;
        fa_rotary_args_t r = FA_ROTARY_ARGS_INIT;
        r.max_position = 1, r.rotary_dim = 2, r.cos = r.sin = angles, r.positions = zeros;
        if (s.batch <= 1 << 20) r.position_offset = zeros;
        d.heads_q = s.batch > 1 << 20 ? 1 << 24 : s.heads;
        expect_quick(0, [&] { return fa_rotary(handle_, &d, &r); });
        fa_append_kv_args_t p = FA_APPEND_KV_ARGS_INIT;
        p.positions = zeros;
        if (s.batch <= 1 << 20) p.seqused_new = p.cu_seqlens_new = zeros;
        expect_quick(0, [&] { return fa_append_kv(handle_, &d, &p); });
        fa_merge_args_t m = FA_MERGE_ARGS_INIT;
        m.parts = 1 << 20;
        expect_quick(0, [&] { return fa_merge(handle_, &d, &m); });
        uint8_t keep;
        expect_quick(0, [&] { return fa_dropout_mask(.5f, 1, 2, 0, 0, int64_t(1) << 31, 0, 0, &keep); });
    }
}

}  // namespace
