// What of a descriptor the methods know. A field or flag that is not named here must have its default: an option that the core learns is
// refused until every method does right by it, and not lost or misread on its way from one rank to another. (Of operands, read.cc has the
// lists.)
#include <stdio.h>
#include "cp/job.h"

namespace fa {
namespace cp {
namespace {

constexpr uint32_t kKnownFlags = FA_CAUSAL | FA_WINDOW | FA_SCALE_EXPLICIT | FA_DETERMINISTIC;

enum Field {
#define FA_FIELD(field) k_##field,
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
};

constexpr bool is_known(Field field) {
    switch (field) {
            // clang-format off: fields that belong together share a line
        case k_struct_size: case k_flags: case k_operands: case k_strided: case k_alignment:
        case k_q_dtype: case k_k_dtype: case k_v_dtype: case k_o_dtype: case k_bias_dtype:
        case k_q_descale_dtype: case k_k_descale_dtype: case k_v_descale_dtype:
        case k_precision: case k_num_splits: case k_split_size: case k_reserve_units:
        case k_scale: case k_softcap: case k_dropout_p: case k_window_left: case k_window_right: case k_chunk:
        case k_batch: case k_heads_q: case k_heads_k: case k_heads_v: case k_dim_qk: case k_dim_v:
        case k_seqlen_q: case k_seqlen_k: case k_total_q: case k_total_k:
        case k_kv_batch: case k_page_size: case k_num_pages: case k_page_table_stride:
        case k_q_descale_block: case k_k_descale_block: case k_v_descale_block:
        case k_q_stride: case k_k_stride: case k_v_stride: case k_o_stride: case k_lse_stride: case k_bias_stride: case k_mask_stride:
        case k_q_descale_stride: case k_k_descale_stride: case k_v_descale_stride: case k_alibi_batch_stride:
            // clang-format on
            return true;
        default: return false;
    }
}

const char* reason(Field field) {
    switch (field) {
        case k_bias_period:
        case k_mask_period: return "since a piece of the problem counts sequences and heads from 0";
        case k_mask_dtype:
        case k_mask_keys: return "since ranks send masks as bytes for all keys";
        default: return "since no method supports it";
    }
}

void write(char (&text)[32], float x) { snprintf(text, sizeof text, "%g", double(x)); }
void write(char (&text)[32], int64_t x) { snprintf(text, sizeof text, "%lld", ll(x)); }
void write(char (&text)[32], uint64_t x) { snprintf(text, sizeof text, "0x%llx", llu(x)); }
void write(char (&text)[32], int32_t x) { write(text, int64_t(x)); }
void write(char (&text)[32], uint32_t x) { write(text, uint64_t(x)); }

template <class T>
fa_status_t check_default(Field field, const char* name, T given, T usual, int32_t ranks, Message* message) {
    if (given == usual) return FA_OK;
    char is[32], expected[32];
    write(is, given);
    write(expected, usual);
    return fail(message, FA_UNSUPPORTED, "%s is %s: expected %s on %d ranks, %s", name, is, expected, ranks, reason(field));
}
template <class T, size_t n>
fa_status_t check_default(Field field, const char* name, const T (&given)[n], const T (&usual)[n], int32_t ranks, Message* message) {
    for (size_t i = 0; i < n; i++) {
        char element[64];
        snprintf(element, sizeof element, "%s[%zu]", name, i);
        FA_TRY(check_default(field, element, given[i], usual[i], ranks, message));
    }
    return FA_OK;
}

}  // namespace

fa_status_t check_known(const fa_attention_desc_t& d, int32_t ranks, Message* m) {
    if (d.flags & FA_V_IN_K)
        return fail(m, FA_UNSUPPORTED, "flags is 0x%x: expected no FA_V_IN_K on %d ranks, which send k and v separately", d.flags, ranks);
    FA_TRY(known_bits(m, "flags", d.flags, kKnownFlags));
    const fa_attention_desc_t usual = FA_ATTENTION_DESC_INIT;
#define FA_FIELD(field) \
    if (!is_known(k_##field)) FA_TRY(check_default(k_##field, #field, d.field, usual.field, ranks, m));
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
    return FA_OK;
}

}  // namespace cp
}  // namespace fa
