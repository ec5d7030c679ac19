#include <math.h>
#include "core/metadata.h"
#include "core/rules.h"
#include "spec/shape.h"

namespace fa {

fa_status_t check_lengths(const Lengths& l, Message* m) {
    if (!l.cu && !l.used) return FA_OK;
    char cu[32], used[32];
    const char* const joint = l.side[0] ? "_" : "";
    snprintf(cu, sizeof cu, "cu_seqlens%s%s", joint, l.side);
    snprintf(used, sizeof used, "seqused%s%s", joint, l.side);
    if (l.cu) FA_TRY(entry_in_range(m, cu, 0, l.cu[0], 0, l.total));
    for (int64_t b = 0; b < l.batch; b++) {
        if (l.cu) {
            FA_TRY(entry_in_range(m, cu, b + 1, l.cu[b + 1], l.cu[b], l.total));
            if (l.bound(b) > l.longest) {
                return fail(m, FA_INVALID_ARGUMENT, "%s[%lld] is %lld: expected %lld or less, seqlen_%s after its predecessor", cu,
                            ll(b + 1), ll(l.cu[b + 1]), ll(l.cu[b] + l.longest), l.side[0] ? l.side : "q");
            }
        }
        if (l.used) FA_TRY(entry_in_range(m, used, b, l.used[b], 0, l.bound(b)));
    }
    return FA_OK;
}

fa_status_t check_leftpad(const Lengths& keys, const int32_t* leftpad, Message* m) {
    for (int64_t b = 0; b < keys.batch; b++) FA_TRY(entry_in_range(m, "leftpad_k", b, leftpad[b], 0, keys.length(b)));
    return FA_OK;
}

fa_status_t check_input_lengths(const Problem& p, const fa_forward_args_t& a, Message* m) {
    const Lengths q{"q", a.cu_seqlens_q, a.seqused_q, p.d.batch, p.d.seqlen_q, p.d.total_q};
    const Lengths k{"k", a.cu_seqlens_k, a.seqused_k, p.d.batch, p.d.seqlen_k, p.d.total_k};
    FA_TRY(check_lengths(q, m));
    FA_TRY(check_lengths(k, m));
    return a.leftpad_k ? check_leftpad(k, a.leftpad_k, m) : FA_OK;
}

fa_status_t check_kv_batch_idx(const Problem& p, const int32_t* index, Message* m) {
    for (int64_t b = 0; b < p.d.batch; b++) FA_TRY(entry_in_range(m, "kv_batch_idx", b, index[b], 0, p.d.kv_batch - 1));
    return FA_OK;
}

fa_status_t check_pages(const Problem& p, const int32_t* page_table, int64_t row, int64_t begin, int64_t end, Message* m) {
    if (begin >= end) return FA_OK;
    for (int64_t i = begin / p.d.page_size; i < ceil_div(end, p.d.page_size); i++) {
        const int64_t at = row * p.d.page_table_stride + i;
        FA_TRY(entry_in_range(m, "page_table", at, page_table[at], 0, p.d.num_pages - 1));
    }
    return FA_OK;
}

fa_status_t check_bias_scale(const Problem& p, const float* scale, Message* m) {
    for (int64_t h = 0; h < p.d.heads_q; h++)
        if (!isfinite(scale[h]))
            return fail(m, FA_INVALID_ARGUMENT, "bias_scale[%lld] is %g: expected a finite number", ll(h), double(scale[h]));
    return FA_OK;
}

fa_status_t check_o_scale(float o_scale, Message* m) {
    if (isfinite(o_scale)) return FA_OK;
    return fail(m, FA_INVALID_ARGUMENT, "o_scale[0] is %g: expected a finite number", double(o_scale));
}

}  // namespace fa
