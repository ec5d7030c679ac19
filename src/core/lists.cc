#include "core/lists.h"
#include "backend/row_keys.h"
#include "core/belongings.h"

namespace fa {

// Blocks of rows and keys are single ones or multiples of 16, which no tile of a kernel need cut.
static fa_status_t check_list_block(const char* field, int64_t* block, Message* message) {
    FA_TRY(in_range(message, field, *block, 0, kMaxSize));
    if (*block == 0) *block = 1;
    if (*block == 1 || *block % 16 == 0) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "%s is %lld: expected 1 or a multiple of 16", field, ll(*block));
}

// Entries that are slots of a cache: nothing may ask for positions of keys, or say in another way which keys there are. The others' number
// is then that of the entries.
static fa_status_t check_slots(fa_attention_desc_t* desc, int32_t op, Message* message) {
    constexpr uint64_t kNeedPositions = FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_KEY_RANGES |
                                        FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT | FA_OPERAND_ALIBI | FA_OPERAND_CAUSAL_OFFSET |
                                        FA_OPERAND_SCORES,
                       kSayKeys = FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX |
                                  FA_OPERAND_PAGE_TABLE;
    if (op == FA_OP_BACKWARD)
        return fail(message, FA_UNSUPPORTED,
                    "list_space is %d: no backend has a gradient of slots, expected FA_LIST_KEYS (0) for the backward", desc->list_space);
    const uint64_t refused = desc->operands & (kNeedPositions | kSayKeys);
    if (refused)
        return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected no %s with FA_LIST_SLOTS", llu(desc->operands),
                    operand_name(refused));
    if (desc->flags & (FA_CAUSAL | FA_WINDOW))
        return fail(message, FA_INVALID_ARGUMENT,
                    "flags is 0x%x: expected no FA_CAUSAL and no FA_WINDOW with FA_LIST_SLOTS, since slots have no positions", desc->flags);
    if (desc->chunk != 0) return fail(message, FA_INVALID_ARGUMENT, "chunk is %lld: expected 0 with FA_LIST_SLOTS", ll(desc->chunk));
    if (desc->dropout_p != 0)
        return fail(message, FA_INVALID_ARGUMENT, "dropout_p is %g: expected 0 with FA_LIST_SLOTS, since slots have no positions",
                    double(desc->dropout_p));
    if (desc->list_keys != 1)
        return fail(message, FA_INVALID_ARGUMENT, "list_keys is %lld: expected 0 or 1 with FA_LIST_SLOTS", ll(desc->list_keys));
    FA_TRY(in_range(message, "page_size", desc->page_size, 1, kMaxSize));
    desc->seqlen_k = desc->list_max;
    return FA_OK;
}

fa_status_t check_lists(fa_attention_desc_t* desc, int32_t op, Message* message) {
    constexpr uint64_t kLists = FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST;
    const struct {
        uint64_t count, list;
    } pairs[] = {{FA_OPERAND_KEY_LIST_COUNT, FA_OPERAND_KEY_LIST}, {FA_OPERAND_FULL_LIST_COUNT, FA_OPERAND_FULL_LIST}};
    for (const auto& pair : pairs)
        if ((desc->operands & pair.count) && !(desc->operands & pair.list))
            return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected %s with %s", llu(desc->operands),
                        operand_name(pair.list), operand_name(pair.count));
    FA_TRY(in_range(message, "list_max", desc->list_max, 0, kMaxSize));
    FA_TRY(in_range(message, "list_heads", desc->list_heads, 0, kMaxSize));
    FA_TRY(check_list_block("list_rows", &desc->list_rows, message));
    FA_TRY(check_list_block("list_keys", &desc->list_keys, message));
    if (desc->list_heads == 0) desc->list_heads = desc->heads_q;
    if (desc->heads_q % desc->list_heads != 0)
        return fail(message, FA_INVALID_ARGUMENT, "list_heads is %lld: expected a divisor of heads_q, %lld", ll(desc->list_heads),
                    ll(desc->heads_q));
    if (!(desc->operands & kLists)) return FA_OK;
    if (desc->list_space == FA_LIST_SLOTS) FA_TRY(check_slots(desc, op, message));
    if (op == FA_OP_FORWARD && (desc->operands & FA_OPERAND_SCORES))
        return fail(message, FA_UNSUPPORTED,
                    "operands is 0x%llx: no backend writes scores of lists of keys yet, expected no FA_OPERAND_SCORES",
                    llu(desc->operands));
    if (desc->algorithm != FA_ALGORITHM_FLASH)
        return fail(message, FA_UNSUPPORTED, "algorithm is %d: expected FA_ALGORITHM_FLASH (0) with lists of keys", desc->algorithm);
    return FA_OK;
}

// Backends keep a bit for each pair of a block of rows and one of keys.
fa_status_t check_list_bytes(const Problem& problem, Message* message) {
    const KeyLists l = key_lists(problem, nullptr);
    int64_t lists = l.batches * l.list_heads, words;
    if (!__builtin_mul_overflow(lists, l.row_blocks, &lists) && !__builtin_mul_overflow(lists, l.size, &words) && words < INT64_MAX / 64)
        return FA_OK;
    return fail(message, FA_UNSUPPORTED, "list_rows is %lld and list_keys %lld: too many blocks to store a bit for each",
                ll(problem.d.list_rows), ll(problem.d.list_keys));
}

}  // namespace fa
