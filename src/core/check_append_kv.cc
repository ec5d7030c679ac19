#include "core/call.h"
#include "core/check.h"
#include "core/metadata.h"
#include "core/rotation.h"
#include "spec/shape.h"

namespace fa {

static fa_status_t check_rotation(const Problem& problem, const fa_append_kv_args_t& args, Call* call) {
    Message* m = call->message;
    if ((args.cos != nullptr) != (args.sin != nullptr)) {
        return fail(m, FA_INVALID_ARGUMENT, "cos is %p and sin is %p: expected both or neither", static_cast<const void*>(args.cos),
                    static_cast<const void*>(args.sin));
    }
    if (args.cos) {
        FA_TRY(check_rotation_sizes(problem, args.max_position, args.rotary_begin, args.rotary_dim, m));
        FA_TRY(call->perhaps(Role::input, angle_tensor("cos", args.cos, args.max_position, args.rotary_dim)));
        return call->perhaps(Role::input, angle_tensor("sin", args.sin, args.max_position, args.rotary_dim));
    }
    if (args.max_position != 0) return fail(m, FA_INVALID_ARGUMENT, "max_position is %lld: expected 0 without cos", ll(args.max_position));
    if (args.rotary_dim != 0) return fail(m, FA_INVALID_ARGUMENT, "rotary_dim is %lld: expected 0 without cos", ll(args.rotary_dim));
    if (args.rotary_begin != 0) return fail(m, FA_INVALID_ARGUMENT, "rotary_begin is %lld: expected 0 without cos", ll(args.rotary_begin));
    if (args.flags & FA_ROTARY_INTERLEAVED) {
        return fail(m, FA_INVALID_ARGUMENT, "flags is 0x%x: expected no FA_ROTARY_INTERLEAVED without cos", args.flags);
    }
    return FA_OK;
}

// What factors that are computed must be: of whole rows or parts of them, each by itself, and beside a type that has none.
static fa_status_t check_dynamic(const Problem& problem, const fa_append_kv_args_t& args, bool is_k, Call* call) {
    Message* m = call->message;
    const int32_t dtype = is_k ? problem.d.k_dtype : problem.d.v_dtype;
    const uint64_t shift = is_k ? FA_OPERAND_K_SHIFT : FA_OPERAND_V_SHIFT;
    const char letter = is_k ? 'k' : 'v';
    const int64_t rows = is_k ? problem.d.k_descale_block[0] : problem.d.v_descale_block[0];
    if (rows > 1)
        return fail(m, FA_UNSUPPORTED, "%c_descale_block[0] is %lld: expected one row with FA_APPEND_DYNAMIC_SCALE", letter, ll(rows));
    if (problem.has(shift) && dtype != FA_U4)
        return fail(m, FA_UNSUPPORTED, "%c_dtype is %s: expected u4 with %s and FA_APPEND_DYNAMIC_SCALE", letter, fa_dtype_name(dtype),
                    operand_name(shift));
    FA_TRY(check_distinct(is_k ? k_descale_tensor(problem, args.k_descale) : v_descale_tensor(problem, args.v_descale), m));
    return check_distinct(is_k ? k_descale_tensor(problem, args.k_shift, "k_shift") : v_descale_tensor(problem, args.v_shift, "v_shift"),
                          m);
}

// Those of a cache of 8 or 4 bits are written under FA_APPEND_DYNAMIC_SCALE, by themselves for each slot and head.
static fa_status_t check_descales(const Problem& problem, const fa_append_kv_args_t& args, Call* call) {
    const bool dynamic = (args.flags & FA_APPEND_DYNAMIC_SCALE) != 0;
    const bool dynamic_k = dynamic && element_size(problem.d.k_dtype) == 1,
               dynamic_v = dynamic && !problem.v_in_k() && element_size(problem.d.v_dtype) == 1;
    if (dynamic && !dynamic_k && !dynamic_v)
        return fail(call->message, FA_INVALID_ARGUMENT,
                    "k_dtype and v_dtype are %s and %s: expected e4m3, e5m2, i8 or a type of 4 bits with FA_APPEND_DYNAMIC_SCALE",
                    fa_dtype_name(problem.d.k_dtype), fa_dtype_name(problem.d.v_dtype));
    const uint64_t missing = ((dynamic_k ? FA_OPERAND_K_DESCALE : 0) | (dynamic_v ? FA_OPERAND_V_DESCALE : 0)) & ~problem.d.operands;
    if (missing)
        return fail(call->message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected %s with FA_APPEND_DYNAMIC_SCALE",
                    llu(problem.d.operands), operand_name(missing));
    if (dynamic_k) FA_TRY(check_dynamic(problem, args, true, call));
    if (dynamic_v) FA_TRY(check_dynamic(problem, args, false, call));
    const Role k_role = dynamic_k ? Role::output : Role::input, v_role = dynamic_v ? Role::output : Role::input;
    FA_TRY(call->with(FA_OPERAND_K_DESCALE, k_role, k_descale_tensor(problem, args.k_descale)));
    FA_TRY(call->with(FA_OPERAND_V_DESCALE, v_role, v_descale_tensor(problem, args.v_descale)));
    FA_TRY(call->with(FA_OPERAND_K_SHIFT, k_role, k_descale_tensor(problem, args.k_shift, "k_shift")));
    return call->with(FA_OPERAND_V_SHIFT, v_role, v_descale_tensor(problem, args.v_shift, "v_shift"));
}

// v within k comes with it.
static fa_status_t check_v_in_k(const fa_append_kv_args_t& args, Call* call) {
    for (int i = 0; i < 4; i++)
        if (args.v_new_stride[i] != 0)
            return fail(call->message, FA_INVALID_ARGUMENT, "v_new_stride[%d] is %lld: expected 0 with FA_V_IN_K", i,
                        ll(args.v_new_stride[i]));
    FA_TRY(call->without("v_new", args.v_new, "FA_V_IN_K"));
    return call->without("v", args.v, "FA_V_IN_K");
}

static fa_status_t check_tensors(const Problem& problem, const fa_append_kv_args_t& args, Call* call) {
    const Role in = Role::input;
    const bool packed = args.cu_seqlens_new != nullptr;
    FA_TRY(call->always(Role::output, k_tensor(problem, args.k)));
    FA_TRY(call->always(Role::output, v_tensor(problem, args.v)));
    FA_TRY(call->with(FA_OPERAND_K_TAIL, Role::output, k_tail_tensor(problem, args.k_tail)));
    FA_TRY(check_descales(problem, args, call));
    FA_TRY(check_rotation(problem, args, call));
    FA_TRY(call->perhaps(in, array_of("cu_seqlens_new", args.cu_seqlens_new, 4, problem.d.batch + 1)));
    FA_TRY(call->perhaps(in, array_of("seqused_new", args.seqused_new, 4, problem.d.batch)));
    FA_TRY(call->perhaps(in, array_of("positions", args.positions, 4, packed ? args.total_new : problem.d.batch * args.seqlen_new)));
    FA_TRY(call->with(FA_OPERAND_SEQUSED_K, in, array_of("seqused_k", args.seqused_k, 4, problem.d.batch)));
    FA_TRY(call->with(FA_OPERAND_LEFTPAD_K, in, array_of("leftpad_k", args.leftpad_k, 4, problem.d.batch)));
    FA_TRY(call->with(FA_OPERAND_KV_BATCH_IDX, in, array_of("kv_batch_idx", args.kv_batch_idx, 4, problem.d.batch)));
    FA_TRY(call->with(FA_OPERAND_PAGE_TABLE, in, page_table_tensor(problem, args.page_table)));
    FA_TRY(call->with(FA_OPERAND_DEVICE_STATUS, Role::output, array_of("device_status", args.device_status, 4, 1)));
    return call->outputs_apart();
}

// Slots [begin, end) of sequence b: within its own, on pages that exist, with angles for their positions.
static fa_status_t check_slots(const Problem& problem, const fa_append_kv_args_t& args, int64_t b, int64_t begin, int64_t end,
                               Message* message) {
    if (args.cos) {
        const int64_t pad = args.leftpad_k ? args.leftpad_k[b] : 0;
        if (begin < pad) {
            return fail(message, FA_INVALID_ARGUMENT, "leftpad_k[%lld] is %lld: expected %lld or less, the slot of a rotated token", ll(b),
                        ll(pad), ll(begin));
        }
        if (end - pad > args.max_position) {
            return fail(message, FA_INVALID_ARGUMENT, "max_position is %lld: expected %lld or more, for slot %lld of sequence %lld",
                        ll(args.max_position), ll(end - pad), ll(end - 1), ll(b));
        }
    }
    if (!args.page_table) return FA_OK;
    return check_pages(problem, args.page_table, args.kv_batch_idx ? args.kv_batch_idx[b] : b, begin, end, message);
}

static fa_status_t check_contents(const Problem& problem, const fa_append_kv_args_t& args, Message* message) {
    const Lengths keys{kLengthsOfK, nullptr, args.seqused_k, problem.d.batch, problem.d.seqlen_k, 0};
    constexpr LengthNames fresh{"cu_seqlens_new", "seqused_new", "seqlen_new", "total_new"};
    FA_TRY(check_lengths({fresh, args.cu_seqlens_new, args.seqused_new, problem.d.batch, args.seqlen_new, args.total_new}, message));
    FA_TRY(check_lengths(keys, message));
    if (args.leftpad_k) FA_TRY(check_leftpad(keys, args.leftpad_k, message));
    if (args.kv_batch_idx) FA_TRY(check_kv_batch_idx(problem, args.kv_batch_idx, message));
    const QuerySpans spans{args.cu_seqlens_new, args.seqused_new, args.seqlen_new, args.total_new};
    return each_sequence(problem.d.batch, spans, [&](int64_t b, const Span& tokens) -> fa_status_t {
        if (args.positions) {
            const int64_t first = args.cu_seqlens_new ? tokens.begin : b * args.seqlen_new;
            for (int64_t i = first; i < first + tokens.length; i++) {
                const int64_t slot = args.positions[i];
                FA_TRY(entry_in_range(message, "positions", i, slot, {-1, problem.d.seqlen_k - 1, "seqlen_k", problem.d.seqlen_k}));
                if (slot >= 0) FA_TRY(check_slots(problem, args, b, slot, slot + 1, message));
            }
            return FA_OK;
        }
        const int64_t begin = args.seqused_k ? args.seqused_k[b] : args.leftpad_k ? args.leftpad_k[b] : 0, end = begin + tokens.length;
        if (end > problem.d.seqlen_k) {
            return fail(message, FA_INVALID_ARGUMENT,
                        "seqlen_k is %lld: expected %lld or more, sequence %lld has %lld slots in use and %lld new tokens",
                        ll(problem.d.seqlen_k), ll(end), ll(b), ll(begin), ll(tokens.length));
        }
        return check_slots(problem, args, b, begin, end, message);
    });
}

fa_status_t check_append_kv(const Problem& problem, fa_append_kv_args_t* args, bool host_metadata, Regions* regions, Message* message) {
    const fa_append_kv_args_t& a = *args;
    Call call(problem, regions, message);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM | FA_ROTARY_INTERLEAVED | FA_APPEND_DYNAMIC_SCALE, a.stream, a.workspace, a.workspace_size));
    FA_TRY(in_range(message, "seqlen_new", a.seqlen_new, 0, kMaxSize));
    FA_TRY(in_range(message, "total_new", a.total_new, 0, kMaxSize));
    if (a.total_new != 0 && !a.cu_seqlens_new) {
        return fail(message, FA_INVALID_ARGUMENT, "total_new is %lld: expected 0 without cu_seqlens_new", ll(a.total_new));
    }

    if (problem.v_in_k()) FA_TRY(check_v_in_k(a, &call));
    // No packed sequence is longer than all of them.
    if (a.cu_seqlens_new) args->seqlen_new = min_of(a.seqlen_new, a.total_new);
    int64_t lines;
    if (__builtin_mul_overflow(problem.d.batch * a.seqlen_new, max_of(problem.d.heads_k, problem.d.heads_v), &lines)) {
        return fail(message, FA_INVALID_ARGUMENT,
                    "seqlen_new is %lld: expected batch * seqlen_new * heads_k, %lld * %lld * %lld, below 2^63", ll(a.seqlen_new),
                    ll(problem.d.batch), ll(a.seqlen_new), ll(problem.d.heads_k));
    }

    const Rows rows{problem.d.batch, a.seqlen_new, a.total_new, a.cu_seqlens_new != nullptr};
    Tensor k_new = tokens("k_new", a.k_new, problem.d.q_dtype, rows, problem.d.heads_k, problem.d.dim_qk, a.k_new_stride);
    Tensor v_new = tokens("v_new", a.v_new, problem.d.q_dtype, rows, problem.d.heads_v, problem.d.dim_v, a.v_new_stride);
    FA_TRY(lay_out(&k_new, true, message));
    FA_TRY(lay_out(&v_new, true, message));
    put_strides(k_new, args->k_new_stride);
    put_strides(v_new, args->v_new_stride);

    FA_TRY(call.always(Role::input, k_new));
    FA_TRY(call.always(Role::input, v_new));
    FA_TRY(check_tensors(problem, a, &call));
    return host_metadata ? check_contents(problem, a, message) : FA_OK;
}

}  // namespace fa
