#include "core/belongings.h"
#include <stddef.h>
#include <string.h>

namespace fa {
namespace {

enum class Reader { attention, keys };  // operations that read a field: forward and backward; those and append_kv

// A field that acts under one of these operands alone; under none: it is reserved, and fills a struct up.
struct Field {
    const char* name;
    uint32_t offset, bytes, element;
    uint64_t operands;
    Reader reader;
};
#define FIELD(name) \
    #name, offsetof(fa_attention_desc_t, name), sizeof(fa_attention_desc_t::name), alignof(decltype(fa_attention_desc_t::name))
constexpr uint64_t kTails = FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL, kLists = FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST;
constexpr uint64_t kSlots = uint64_t(1) << 63;  // no operand: what lists of slots read of a cache
constexpr Field kFields[] = {
    {FIELD(dim_tail), kTails, Reader::keys},
    {FIELD(q_tail_dtype), FA_OPERAND_Q_TAIL, Reader::attention},
    {FIELD(k_tail_dtype), FA_OPERAND_K_TAIL, Reader::keys},
    {FIELD(q_tail_stride), FA_OPERAND_Q_TAIL, Reader::attention},
    {FIELD(k_tail_stride), FA_OPERAND_K_TAIL, Reader::keys},
    {FIELD(q_descale_dtype), FA_OPERAND_Q_DESCALE, Reader::attention},
    {FIELD(k_descale_dtype), FA_OPERAND_K_DESCALE, Reader::keys},
    {FIELD(v_descale_dtype), FA_OPERAND_V_DESCALE, Reader::keys},
    {FIELD(q_descale_block), FA_OPERAND_Q_DESCALE, Reader::attention},
    {FIELD(k_descale_block), FA_OPERAND_K_DESCALE, Reader::keys},
    {FIELD(v_descale_block), FA_OPERAND_V_DESCALE, Reader::keys},
    {FIELD(bias_dtype), FA_OPERAND_BIAS, Reader::attention},
    {FIELD(bias_period), FA_OPERAND_BIAS, Reader::attention},
    {FIELD(mask_dtype), FA_OPERAND_MASK, Reader::attention},
    {FIELD(mask_period), FA_OPERAND_MASK, Reader::attention},
    {FIELD(mask_keys), FA_OPERAND_MASK, Reader::attention},
    {FIELD(key_range_max), FA_OPERAND_KEY_RANGES, Reader::attention},
    {FIELD(key_range_stride), FA_OPERAND_KEY_RANGES, Reader::attention},
    {FIELD(list_space), FA_OPERAND_KEY_LIST, Reader::attention},
    {FIELD(list_max), kLists, Reader::attention},
    {FIELD(list_rows), kLists, Reader::attention},
    {FIELD(list_keys), kLists, Reader::attention},
    {FIELD(list_heads), kLists, Reader::attention},
    {FIELD(list_stride), kLists, Reader::attention},
    {FIELD(list_count_stride), kLists, Reader::attention},
    {FIELD(alibi_batch_stride), FA_OPERAND_ALIBI, Reader::attention},
    {FIELD(total_k), FA_OPERAND_CU_SEQLENS_K, Reader::keys},
    {FIELD(kv_batch), FA_OPERAND_KV_BATCH_IDX, Reader::keys},
    {FIELD(page_size), FA_OPERAND_PAGE_TABLE | kSlots, Reader::keys},
    {FIELD(num_pages), FA_OPERAND_PAGE_TABLE | kSlots, Reader::keys},
    {FIELD(page_table_stride), FA_OPERAND_PAGE_TABLE, Reader::keys},
};

// Where a field's first element lies that is not 0; NULL: all are.
const char* first_value(const fa_attention_desc_t& desc, const Field& field) {
    const char* const begin = reinterpret_cast<const char*>(&desc) + field.offset;
    uint32_t word, at = 0;
    for (; at < field.bytes; at += 4) {
        memcpy(&word, begin + at, 4);
        if (word != 0) return begin + at / field.element * field.element;
    }
    return nullptr;
}

fa_status_t check_field(const fa_attention_desc_t& desc, uint64_t operands, const Field& field, Message* message) {
    if (operands & field.operands) return FA_OK;
    const char* const at = first_value(desc, field);
    if (!at) return FA_OK;
    int32_t narrow;
    int64_t value;
    if (field.element == 8) memcpy(&value, at, 8);
    else value = (memcpy(&narrow, at, 4), narrow);
    char name[40];
    if (field.bytes == field.element) snprintf(name, sizeof name, "%s", field.name);
    else snprintf(name, sizeof name, "%s[%d]", field.name, int((at - reinterpret_cast<const char*>(&desc) - field.offset) / field.element));
    if (field.operands == 0)
        return fail(message, FA_UNSUPPORTED_FIELD, "%s is %lld: expected 0, since this version does not use it", name, ll(value));
    return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected 0 without %s", name, ll(value), operand_name(field.operands));
}

}  // namespace

fa_status_t check_belongings(const fa_attention_desc_t& desc, int32_t op, Message* message) {
    if (!reads_keys(op)) return FA_OK;
    if ((attends(op) && desc.strided & FA_STRIDED_Q_TAIL && !(desc.operands & FA_OPERAND_Q_TAIL)) ||
        (desc.strided & FA_STRIDED_K_TAIL && !(desc.operands & FA_OPERAND_K_TAIL)))
        return fail(message, FA_INVALID_ARGUMENT, "strided is 0x%x: expected no FA_STRIDED_Q_TAIL or _K_TAIL without the tail's operand",
                    desc.strided);
    const uint64_t operands = desc.operands | (attends(op) && desc.list_space == FA_LIST_SLOTS ? kSlots : 0);
    for (const Field& f : kFields)
        if (f.reader == Reader::keys || attends(op)) FA_TRY(check_field(desc, operands, f, message));
    return FA_OK;
}

bool is_reserved_field(size_t offset) {
    for (const Field& f : kFields)
        if (f.offset == offset) return f.operands == 0;
    return false;
}

}  // namespace fa
