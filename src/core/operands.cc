#include "core/operands.h"
#include <string.h>

namespace fa {

namespace {

enum Index {
#define FA_OPERAND(name, field) k##name,
#include "backend/operands.def"
    kEnd
};
static_assert(kEnd == kOperands, "the list and the count differ");

#define FA_OPERAND(name, field)                                                                                     \
    static_assert(FA_OPERAND_##name == uint64_t(1) << k##name, "bit " #name " is not at its pointer's place");      \
    static_assert(offsetof(fa_forward_args_t, field) == offsetof(fa_forward_args_t, lse) + k##name * sizeof(void*), \
                  #field " is not at its bit's place");
#include "backend/operands.def"

const void* pointer_of(const fa_forward_args_t& args, int index) {
    const void* pointer;
    memcpy(&pointer, reinterpret_cast<const char*>(&args) + offsetof(fa_forward_args_t, lse) + size_t(index) * sizeof pointer,
           sizeof pointer);
    return pointer;
}

}  // namespace

const char* operand_name(uint64_t operand) {
    static const char* const names[] = {
#define FA_OPERAND(name, field) "FA_OPERAND_" #name,
#include "backend/operands.def"
    };
    return names[__builtin_ctzll(operand)];
}

Tensor operand_tensor(const Problem& problem, const fa_forward_args_t& args, int index) {
    const fa_attention_desc_t& d = problem.d;
    const auto per_sequence = [&](const char* name, int64_t more) { return array_of(name, pointer_of(args, index), 4, d.batch + more); };
    switch (index) {
        case kLSE: return lse_tensor(problem, args.lse);
        case kQ_TAIL: return q_tail_tensor(problem, args.q_tail);
        case kK_TAIL: return k_tail_tensor(problem, args.k_tail);
        case kQ_DESCALE: return q_descale_tensor(problem, args.q_descale);
        case kK_DESCALE: return k_descale_tensor(problem, args.k_descale);
        case kV_DESCALE: return v_descale_tensor(problem, args.v_descale);
        case kK_SHIFT: return k_descale_tensor(problem, args.k_shift, "k_shift");
        case kV_SHIFT: return v_descale_tensor(problem, args.v_shift, "v_shift");
        case kO_SCALE: return array_of("o_scale", args.o_scale, 4, 1);
        case kBIAS: return pair_tensor(problem, "bias", args.bias, element_size(d.bias_dtype), d.bias_stride, d.bias_period);
        case kBIAS_SCALE: return array_of("bias_scale", args.bias_scale, 4, d.heads_q);
        case kMASK: return mask_tensor(problem, args.mask);
        case kKEY_RANGES: return key_range_tensor(problem, "key_ranges", args.key_ranges);
        case kKEY_LIST: return key_list_tensor(problem, "key_list", args.key_list);
        case kKEY_LIST_COUNT: return key_list_count_tensor(problem, "key_list_count", args.key_list_count);
        case kFULL_LIST: return key_list_tensor(problem, "full_list", args.full_list);
        case kFULL_LIST_COUNT: return key_list_count_tensor(problem, "full_list_count", args.full_list_count);
        case kALIBI: return table_of("alibi_slopes", args.alibi_slopes, 4, d.batch, d.heads_q, d.alibi_batch_stride);
        case kSINKS: return array_of("sinks", args.sinks, 4, d.heads_q);
        case kCAUSAL_OFFSET: return per_sequence("causal_offset", 0);
        case kCU_SEQLENS_Q: return per_sequence("cu_seqlens_q", 1);
        case kCU_SEQLENS_K: return per_sequence("cu_seqlens_k", 1);
        case kSEQUSED_Q: return per_sequence("seqused_q", 0);
        case kSEQUSED_K: return per_sequence("seqused_k", 0);
        case kLEFTPAD_K: return per_sequence("leftpad_k", 0);
        case kKV_BATCH_IDX: return per_sequence("kv_batch_idx", 0);
        case kPAGE_TABLE: return page_table_tensor(problem, args.page_table);
        case kSCORES: return score_tensor(problem, "scores", args.scores, 4, d.scores_stride);
        case kRNG_STATE: return array_of("rng_state", args.rng_state, 8, 2);
        default: return array_of("device_status", args.device_status, 4, 1);
    }
}

static fa_status_t check_dropout_place(const fa_forward_args_t& args, Message* message) {
    FA_TRY(in_range(message, "dropout_row", args.dropout_row, 0, kMaxSize));
    FA_TRY(in_range(message, "dropout_key", args.dropout_key, 0, kMaxSize));
    FA_TRY(in_range(message, "dropout_head", args.dropout_head, 0, INT64_MAX >> 1));
    return in_range(message, "dropout_heads", args.dropout_heads, 0, kMaxSize);
}

fa_status_t check_operands(const Problem& problem, const fa_forward_args_t& args, uint64_t read, Role lse, Call* call) {
    if (problem.has(FA_OPERAND_RNG_STATE) && (args.dropout_seed != 0 || args.dropout_offset != 0)) {
        return fail(call->message, FA_INVALID_ARGUMENT,
                    "dropout_seed is %llu and dropout_offset is %llu: expected 0 with FA_OPERAND_RNG_STATE",
                    static_cast<unsigned long long>(args.dropout_seed), static_cast<unsigned long long>(args.dropout_offset));
    }
    if (problem.d.dropout_p > 0) FA_TRY(check_dropout_place(args, call->message));
    // Most calls have few of these, and the smallest calls take a microsecond: what is not there is not described.
    uint64_t there = problem.d.operands;
    for (int i = 0; i < kOperands; i++) there |= uint64_t(pointer_of(args, i) != nullptr) << i;
    for (uint64_t rest = there & read; rest != 0; rest &= rest - 1) {
        const int i = __builtin_ctzll(rest);
        const Role role = i == kLSE ? lse : i == kSCORES || i == kDEVICE_STATUS ? Role::output : Role::input;
        FA_TRY(call->with(uint64_t(1) << i, role, operand_tensor(problem, args, i)));
    }
    return FA_OK;
}

}  // namespace fa
