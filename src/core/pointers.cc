// Every pointer to a tensor in an args struct, written by tools/generate_abi.py.
#include "core/pointers.h"
#include <stddef.h>

#define POINTER(field) {offsetof(Args, field), #field}

namespace fa {

template <>
Pointers pointers_of<fa_forward_args_t>() {
    using Args = fa_forward_args_t;
    static constexpr Pointer list[] = {
        POINTER(q), POINTER(k), POINTER(v), POINTER(o), POINTER(lse), POINTER(q_tail), POINTER(k_tail), POINTER(q_descale),
        POINTER(k_descale), POINTER(v_descale), POINTER(k_shift), POINTER(v_shift), POINTER(o_scale), POINTER(bias),
        POINTER(bias_scale), POINTER(mask), POINTER(key_ranges), POINTER(key_list), POINTER(key_list_count), POINTER(full_list),
        POINTER(full_list_count), POINTER(alibi_slopes), POINTER(sinks), POINTER(causal_offset), POINTER(cu_seqlens_q),
        POINTER(cu_seqlens_k), POINTER(seqused_q), POINTER(seqused_k), POINTER(leftpad_k), POINTER(kv_batch_idx),
        POINTER(page_table), POINTER(scores), POINTER(rng_state), POINTER(device_status),
    };
    return {list, sizeof list / sizeof *list};
}

template <>
Pointers pointers_of<fa_backward_args_t>() {
    using Args = fa_backward_args_t;
    static constexpr Pointer list[] = {
        POINTER(dout), POINTER(dlse), POINTER(dq), POINTER(dk), POINTER(dv), POINTER(dbias), POINTER(dsinks),
    };
    return {list, sizeof list / sizeof *list};
}

template <>
Pointers pointers_of<fa_merge_args_t>() {
    using Args = fa_merge_args_t;
    static constexpr Pointer list[] = {
        POINTER(o_parts), POINTER(lse_parts), POINTER(o), POINTER(lse), POINTER(sinks), POINTER(o_scale), POINTER(cu_seqlens_q),
        POINTER(seqused_q),
    };
    return {list, sizeof list / sizeof *list};
}

template <>
Pointers pointers_of<fa_rotary_args_t>() {
    using Args = fa_rotary_args_t;
    static constexpr Pointer list[] = {
        POINTER(x), POINTER(out), POINTER(cos), POINTER(sin), POINTER(positions), POINTER(position_offset), POINTER(cu_seqlens),
        POINTER(seqused),
    };
    return {list, sizeof list / sizeof *list};
}

template <>
Pointers pointers_of<fa_append_kv_args_t>() {
    using Args = fa_append_kv_args_t;
    static constexpr Pointer list[] = {
        POINTER(k_new), POINTER(v_new), POINTER(k), POINTER(v), POINTER(k_tail), POINTER(k_descale), POINTER(v_descale),
        POINTER(k_shift), POINTER(v_shift), POINTER(cu_seqlens_new), POINTER(seqused_new), POINTER(positions), POINTER(seqused_k),
        POINTER(leftpad_k), POINTER(kv_batch_idx), POINTER(page_table), POINTER(device_status), POINTER(cos), POINTER(sin),
    };
    return {list, sizeof list / sizeof *list};
}

}  // namespace fa
