// A field that was left at 0 while an array of the call needs it: the sentence names the field, not an entry of which nothing was wrong.
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT;

template <class Call>
void check_missing(void (*good)(Call*), int64_t fa_attention_desc_t::* field, const char* says) {
    check_rules<Call>({{good, [field](Call& c) { c.d.*field = 0; }, I, says, ""}});
}

TEST(Missing, FieldsOfTheDescriptor) {
    using D = fa_attention_desc_t;
    check_missing(packed, &D::total_q, "total_q is 0: expected 1 or more, since cu_seqlens_q[1] is 2");
    check_missing(packed, &D::total_k, "total_k is 0: expected 1 or more, since cu_seqlens_k[0] is 1");
    check_missing(packed, &D::seqlen_q, "seqlen_q is 0: expected 1 or more, since cu_seqlens_q[1] is 2");
    check_missing(packed, &D::seqlen_k, "seqlen_k is 0: expected 1 or more, since cu_seqlens_k[1] is");
    check_missing(padded, &D::seqlen_q, "seqlen_q is 0: expected 1 or more, since seqused_q[0] is");
    check_missing(padded, &D::seqlen_k, "seqlen_k is 0: expected 1 or more, since seqused_k[0] is");
    check_missing(paged, &D::num_pages, "num_pages is 0: expected 1 or more, since page_table[");
    check_missing(paged, &D::kv_batch, "kv_batch is 0: expected 1 or more");
    check_missing(listed, &D::list_max, "list_max is 0: expected 1 or more, since key_list_count[0] is");
    check_missing(listed, &D::seqlen_k, "seqlen_k is 0: expected 1 or more, since key_list[");
    check_missing(slotted, &D::num_pages, "num_pages is 0: expected 1 or more, since key_list[");
    check_missing(backward_packed, &D::total_q, "total_q is 0: expected 1 or more, since cu_seqlens_q[1] is 2");
    check_missing(merge_packed, &D::total_q, "total_q is 0: expected 1 or more, since cu_seqlens_q[1] is 2");
    check_missing(append_paged, &D::num_pages, "num_pages is 0: expected 1 or more, since page_table[");
    check_missing(append_packed, &D::seqlen_k, "seqlen_k is 0: expected 1 or more, since positions[0] is");
    check_missing(rotary_packed, &D::total_q, "total_q is 0: expected 1 or more, since cu_seqlens[1] is 2");
}

TEST(Missing, FieldsOfTheArgs) {
    check_rules<Append>({{append_packed, [](Append& call) { call.a.total_new = 0; }, I,
                          "total_new is 0: expected 1 or more, since cu_seqlens_new[1] is 2", ""}});
    static const int32_t offsets[] = {0, 0};
    check_rules<Rotary>({{rotary_packed, [](Rotary& call) { call.a.max_position = 0; }, I,
                          "max_position is 0: expected 1 or more, since positions[0] is 4", ""},
                         {rotary_padded, [](Rotary& call) { call.a.position_offset = offsets, call.a.max_position = 1; }, I,
                          "max_position is 1: expected 3 or more, the rows of sequence 0", ""}});
}

// Of k the rotation names k's fields.
TEST(Missing, FieldsOfARotationOfK) {
    static const int32_t starts[] = {0, 2, 4};
    const auto pack = [](int64_t total, int64_t longest) {
        return [=](Rotary& call) {
            call.d.operands = FA_OPERAND_CU_SEQLENS_K, call.d.total_k = total, call.d.seqlen_k = longest, call.a.cu_seqlens = starts;
        };
    };
    check_rules<Rotary>({{rotary_of_k, pack(0, 2), I, "total_k is 0: expected 1 or more, since cu_seqlens[1] is 2", ""},
                         {rotary_of_k, pack(4, 0), I, "seqlen_k is 0: expected 1 or more, since cu_seqlens[1] is 2", ""}});
}

// A bound that leaves one value says whose it is.
TEST(Missing, OneValueIsNoRange) {
    static const int32_t too_far[] = {0, 2, 7}, all[] = {6, 7, 6}, used[] = {1, 0}, starts[] = {0, 0, 3};
    check_rules<Forward>(
        {{packed, [](Forward& call) { call.a.cu_seqlens_q = all; }, I, "cu_seqlens_q[1] is 7: expected 6, since total_q is 6", ""},
         {packed, [](Forward& call) { call.a.cu_seqlens_q = too_far; }, I, "cu_seqlens_q[2] is 7: expected 2 to 6", ""},
         {packed, [](Forward& call) { call.a.cu_seqlens_q = starts, call.a.seqused_q = used; }, I,
          "seqused_q[0] is 1: expected 0, all that its sequence has", ""}});
}

// One dim has no tail, and no pair that turns.
TEST(Missing, OneDimIsNoPair) {
    check_rules<Rotary>({{rotary_padded, [](Rotary& call) { call.d.dim_qk = 1; }, I, "dim_qk is 1: expected 2 or more", ""}});
    check_rules<Forward>(
        {{plain, [](Forward& call) { call.d.dim_qk = call.d.dim_v = 1, call.d.dim_tail = 1, call.d.operands = FA_OPERAND_Q_TAIL; }, I,
          "dim_qk is 1: expected 2 or more", ""}});
}

}  // namespace
