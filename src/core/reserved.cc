#include "core/reserved.h"
#include <stddef.h>
#include <string.h>

namespace fa {
namespace {

struct Bits {
    uint64_t bits;
    const char* what;
};
constexpr Bits kOperandsLater[] = {
    {FA_OPERAND_DEVICE_STATUS, "a status word in device memory"},
};

enum class Reader { attention, keys };  // operations that read a field: forward and backward; those and append_kv

// A field that acts under an operand alone (0: under none). what: its feature, which no backend has; NULL: some have it.
struct Field {
    const char* name;
    uint32_t offset, bytes, element;
    uint64_t operands;
    Reader reader;
    const char* what;
};
#define FIELD(name) #name, offsetof(fa_attention_desc_t, name), sizeof(fa_attention_desc_t::name), alignof(decltype(fa_attention_desc_t::name))
constexpr uint64_t kTails = FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL, kLists = FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST;
constexpr Field kFields[] = {
    {FIELD(dim_tail), kTails, Reader::keys, nullptr},
    {FIELD(q_tail_dtype), FA_OPERAND_Q_TAIL, Reader::attention, nullptr},
    {FIELD(k_tail_dtype), FA_OPERAND_K_TAIL, Reader::keys, nullptr},
    {FIELD(q_tail_stride), FA_OPERAND_Q_TAIL, Reader::attention, nullptr},
    {FIELD(k_tail_stride), FA_OPERAND_K_TAIL, Reader::keys, nullptr},
    {FIELD(q_descale_dtype), FA_OPERAND_Q_DESCALE, Reader::attention, nullptr},
    {FIELD(k_descale_dtype), FA_OPERAND_K_DESCALE, Reader::keys, nullptr},
    {FIELD(v_descale_dtype), FA_OPERAND_V_DESCALE, Reader::keys, nullptr},
    {FIELD(q_descale_block), FA_OPERAND_Q_DESCALE, Reader::attention, nullptr},
    {FIELD(k_descale_block), FA_OPERAND_K_DESCALE, Reader::keys, nullptr},
    {FIELD(v_descale_block), FA_OPERAND_V_DESCALE, Reader::keys, nullptr},
    {FIELD(bias_dtype), FA_OPERAND_BIAS, Reader::attention, nullptr},
    {FIELD(bias_period), FA_OPERAND_BIAS, Reader::attention, nullptr},
    {FIELD(mask_dtype), FA_OPERAND_MASK, Reader::attention, nullptr},
    {FIELD(mask_period), FA_OPERAND_MASK, Reader::attention, nullptr},
    {FIELD(mask_keys), FA_OPERAND_MASK, Reader::attention, nullptr},
    {FIELD(key_range_max), FA_OPERAND_KEY_RANGES, Reader::attention, nullptr},
    {FIELD(key_range_stride), FA_OPERAND_KEY_RANGES, Reader::attention, nullptr},
    {FIELD(list_space), kLists, Reader::attention, "lists of slots"},
    {FIELD(list_max), kLists, Reader::attention, nullptr},
    {FIELD(list_rows), kLists, Reader::attention, nullptr},
    {FIELD(list_keys), kLists, Reader::attention, nullptr},
    {FIELD(list_heads), kLists, Reader::attention, nullptr},
    {FIELD(list_stride), kLists, Reader::attention, nullptr},
    {FIELD(list_count_stride), kLists, Reader::attention, nullptr},
    {FIELD(alibi_batch_stride), FA_OPERAND_ALIBI, Reader::attention, nullptr},
    {FIELD(total_k), FA_OPERAND_CU_SEQLENS_K, Reader::keys, nullptr},
    {FIELD(kv_batch), FA_OPERAND_KV_BATCH_IDX, Reader::keys, nullptr},
    {FIELD(page_size), FA_OPERAND_PAGE_TABLE, Reader::keys, nullptr},
    {FIELD(num_pages), FA_OPERAND_PAGE_TABLE, Reader::keys, nullptr},
    {FIELD(page_table_stride), FA_OPERAND_PAGE_TABLE, Reader::keys, nullptr},
};

// Where a field's first element lies that is not 0; NULL: all are.
const char* first_value(const fa_attention_desc_t& d, const Field& f) {
    const char* const begin = reinterpret_cast<const char*>(&d) + f.offset;
    uint32_t word, at = 0;
    for (; at < f.bytes; at += 4) {
        memcpy(&word, begin + at, 4);
        if (word != 0) return begin + at / f.element * f.element;
    }
    return nullptr;
}

fa_status_t later(const char* field, long long value, const char* what, Message* m) {
    return fail(m, FA_UNSUPPORTED, "%s is %lld: no backend has %s yet, expected 0", field, value, what);
}

fa_status_t check_field(const fa_attention_desc_t& d, const Field& f, Message* m) {
    const char* const at = first_value(d, f);
    if (!at) return FA_OK;
    int32_t narrow;
    int64_t value;
    if (f.element == 8) memcpy(&value, at, 8);
    else value = (memcpy(&narrow, at, 4), narrow);
    char name[40];
    if (f.bytes == f.element) snprintf(name, sizeof name, "%s", f.name);
    else snprintf(name, sizeof name, "%s[%d]", f.name, int((at - reinterpret_cast<const char*>(&d) - f.offset) / f.element));
    if (f.operands != 0 && !(d.operands & f.operands))
        return fail(m, FA_INVALID_ARGUMENT, "%s is %lld: expected 0 without %s", name, ll(value), operand_name(f.operands));
    return f.what ? later(name, ll(value), f.what, m) : FA_OK;
}

}  // namespace

fa_status_t check_reserved(const fa_attention_desc_t& d, int32_t op, Message* m) {
    if (!reads_keys(op)) return FA_OK;
    for (const Bits& row : kOperandsLater) {
        const uint64_t set = d.operands & row.bits;
        if (set) return fail(m, FA_UNSUPPORTED, "operands is 0x%llx: no backend has %s yet, expected no %s", llu(d.operands), row.what, operand_name(set));
    }
    if ((attends(op) && d.strided & FA_STRIDED_Q_TAIL && !(d.operands & FA_OPERAND_Q_TAIL)) ||
        (d.strided & FA_STRIDED_K_TAIL && !(d.operands & FA_OPERAND_K_TAIL)))
        return fail(m, FA_INVALID_ARGUMENT, "strided is 0x%x: expected no FA_STRIDED_Q_TAIL or _K_TAIL without the tail's operand", d.strided);
    for (const Field& f : kFields)
        if (f.reader == Reader::keys || attends(op)) FA_TRY(check_field(d, f, m));
    return FA_OK;
}

fa_status_t check_reserved(const fa_rotary_args_t& a, Message* m) {
    if (a.flags & FA_ROTARY_OF_K) return fail(m, FA_UNSUPPORTED, "flags is 0x%x: no backend rotates by k's descriptor yet, expected no FA_ROTARY_OF_K", a.flags);
    return FA_OK;
}

fa_status_t check_reserved(const fa_append_kv_args_t& a, Message* m) {
    if (a.device_status)
        return fail(m, FA_INVALID_ARGUMENT, "device_status is %p: expected NULL without its operand", static_cast<const void*>(a.device_status));
    return FA_OK;
}

uint64_t reserved_operands() {
    uint64_t all = 0;
    for (const Bits& row : kOperandsLater) all |= row.bits;
    return all;
}

bool is_reserved_field(size_t offset) {
    for (const Field& f : kFields)
        if (f.offset == offset) return f.what != nullptr;
    return false;
}

}  // namespace fa
