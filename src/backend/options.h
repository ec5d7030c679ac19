// The options of a call, and what a kernel family implements of them. A call with an operand or an option that a family does not list goes
// to the general kernel: so a new one is right from the first day, and a fast path takes it by naming it.
#pragma once
#include <flashattn.h>
#include <stddef.h>
#include "backend/storage_types.h"
#include "spec/numerics.h"

namespace fa {

// May a kernel multiply with the scale, other factors and powers of two in any order? Others work as the formulas are written.
constexpr float kSmallScale = 0x1p-20f;
FA_FN bool mild_scale(float scale) { return scale == 0.f || (fabsf(scale) >= kSmallScale && fabsf(scale) <= 1.f / kSmallScale); }

constexpr uint32_t kAllFlags = 0
#define FA_FLAG(name) | FA_##name
#include "backend/flags.def"
    ;

// One bit for each: a flag of the descriptor is its own (FA_CAUSAL …), a field that is an option has one of those above.
namespace option {
enum Index {
#define FA_FIELD(field)
#define FA_OPTION(field, used) k_##field,
#include "backend/options.def"
    kEnd
};
static_assert(kEnd <= 32, "the upper half of 64 bits has one for each");
#define FA_FIELD(field)
#define FA_OPTION(field, used) constexpr uint64_t field = uint64_t(1) << (32 + k_##field);
#include "backend/options.def"

// All options together that modify scores, that say which keys of a band a row sees, and that say how the work is cut up and what rounding
// it may have.
constexpr uint64_t score_mods = 0
#define FA_FIELD(field)
#define FA_OPTION(field, used)
#define FA_SCORE_MOD(field, used) | field
#include "backend/options.def"
    ;
constexpr uint64_t bands = FA_CAUSAL | FA_WINDOW | chunk;
// What factors of k and v are beside an f32 one for each sequence and head, and those of q too.
constexpr uint64_t kv_factors = k_descale_dtype | v_descale_dtype | k_descale_block | v_descale_block | k_descale_stride | v_descale_stride;
constexpr uint64_t factors = kv_factors | q_descale_dtype | q_descale_block | q_descale_stride;
constexpr uint64_t schedule = FA_DETERMINISTIC | num_splits | split_size | reserve_units | precision;
}  // namespace option

// The operands that say where a sequence begins, how long it is and on which key its rows stand.
constexpr uint64_t kSequenceOperands = FA_OPERAND_CAUSAL_OFFSET | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_Q |
                                       FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX;

// Masks as data, which come to tiles as words of 64 keys (backend/row_keys.h).
constexpr uint64_t kRowSetOperands =
    FA_OPERAND_KEY_RANGES | FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;

// The operands and options of the calls that a kernel family implements.
struct Implements {
    uint64_t operands, options;
};

namespace options_def {
struct Place {
    size_t offset, bytes;
};
constexpr Place kFields[] = {
#define FA_FIELD(field) {offsetof(fa_attention_desc_t, field), sizeof(fa_attention_desc_t::field)},
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
};
constexpr size_t covered() {
    size_t end = 0;
    for (const Place& field : kFields) end = field.offset == end ? end + field.bytes : sizeof(fa_attention_desc_t) + 1;
    return end;
}
static_assert(covered() == sizeof(fa_attention_desc_t), "options.def lacks a field of the descriptor, or has them in another order");
}  // namespace options_def

// Those of a resolved descriptor. How its scale was given is no option.
static inline uint64_t options_of(const fa_attention_desc_t& d) {
    const auto is_f32 = [](int32_t dtype) { return dtype == 0 || dtype == FA_F32; };
    const auto has_blocks = [](const int64_t block[2], int64_t dims) { return block[0] > 1 || block[1] < dims; };
    // Do single rows have factors of their own? Of pages, the pages.
    const auto has_factors_of_rows = [](const int64_t stride[4], bool paged) { return stride[1] != 0 || (stride[0] != 0 && paged); };
    const bool paged = (d.operands & FA_OPERAND_PAGE_TABLE) != 0 || d.list_space == FA_LIST_SLOTS;
    // Does a bias or a mask repeat along sequences or heads in any other way than by a stride of 0?
    const auto repeats_pairs = [&](const int64_t period[2], const int64_t stride[4]) {
        return (period[0] < d.batch && stride[0] != 0) || (period[1] < d.heads_q && stride[1] != 0);
    };
    uint64_t options = d.flags & ~uint32_t(FA_SCALE_EXPLICIT);
#define FA_FIELD(field)
#define FA_OPTION(field, used) options |= (used) ? option::field : 0;
#include "backend/options.def"
    return options;
}

}  // namespace fa
