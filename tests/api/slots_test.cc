// Lists of slots in the descriptor: slots of a cache say which keys there are, and have no positions.
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT, U = FA_UNSUPPORTED;

using D = fa_attention_desc_t&;

Rule<Forward> row(void (*good)(Forward*), fa_status_t status, const char* says, void (*spoil)(D)) {
    return {good, [spoil](Forward& call) { spoil(call.d); }, status, says, "", true};
}

}  // namespace

std::vector<Rule<Forward>> slots() {
    std::vector<Rule<Forward>> all = {
        row(slotted, I, "flags is 0x1: expected no FA_CAUSAL", [](D d) { d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_TOP_LEFT; }),
        row(slotted, I, "flags is 0x2: expected no FA_CAUSAL", [](D d) { d.flags = FA_WINDOW, d.alignment = FA_ALIGN_TOP_LEFT; }),
        row(slotted, I, "chunk is 2: expected 0 with FA_LIST_SLOTS", [](D d) { d.chunk = 2, d.alignment = FA_ALIGN_TOP_LEFT; }),
        row(slotted, I, "dropout_p is 0.5: expected 0 with FA_LIST_SLOTS", [](D d) { d.dropout_p = 0.5f; }),
        row(slotted, I, "list_keys is 16: expected 0 or 1 with FA_LIST_SLOTS", [](D d) { d.list_keys = 16; }),
        row(slotted, I, "page_size is 0: expected 1 or more", [](D d) { d.page_size = 0; }),
        row(slotted, I, "num_pages is -1: expected 0 or more", [](D d) { d.num_pages = -1; }),
        row(slotted, I, "page_table_stride is 9: expected 0 without FA_OPERAND_PAGE_TABLE", [](D d) { d.page_table_stride = 9; }),
        row(slotted, U, "algorithm is 1: expected FA_ALGORITHM_FLASH (0)", [](D d) { d.algorithm = FA_ALGORITHM_STANDARD; }),
        row(plain, I, "list_space is 1: expected 0 without FA_OPERAND_KEY_LIST", [](D d) { d.list_space = FA_LIST_SLOTS; }),
        row(slotted, I, "list_space is 2: expected", [](D d) { d.list_space = 2; }),
    };
    static constexpr uint64_t kRefused[] = {FA_OPERAND_BIAS,         FA_OPERAND_MASK,         FA_OPERAND_KEY_RANGES, FA_OPERAND_FULL_LIST,
                                            FA_OPERAND_ALIBI,        FA_OPERAND_CU_SEQLENS_K, FA_OPERAND_SEQUSED_K,  FA_OPERAND_LEFTPAD_K,
                                            FA_OPERAND_KV_BATCH_IDX, FA_OPERAND_PAGE_TABLE,   FA_OPERAND_SCORES};
    for (const uint64_t& operand : kRefused)
        all.push_back({slotted,
                       [operand](Forward& call) {
                           call.d.operands |= operand, call.d.alignment = FA_ALIGN_TOP_LEFT;
                           if (operand == FA_OPERAND_KV_BATCH_IDX) call.d.kv_batch = 2;
                       },
                       I, "operands is 0x", "with FA_LIST_SLOTS", true});
    return all;
}
