#include <math.h>
#include "core/metadata.h"
#include "backend/row_keys.h"
#include "spec/shape.h"

namespace fa {

fa_status_t check_lengths(const Lengths& lengths, Message* message) {
    if (!lengths.cu && !lengths.used) return FA_OK;
    const LengthNames& n = lengths.names;
    if (lengths.cu) FA_TRY(entry_in_range(message, n.cu, 0, lengths.cu[0], {0, lengths.total, n.total, lengths.total}));
    for (int64_t b = 0; b < lengths.batch; b++) {
        if (lengths.cu) {
            FA_TRY(entry_in_range(message, n.cu, b + 1, lengths.cu[b + 1], {lengths.cu[b], lengths.total, n.total, lengths.total}));
            if (lengths.bound(b) > lengths.longest && lengths.longest == 0)
                return fail(message, FA_INVALID_ARGUMENT, "%s is 0: expected 1 or more, since %s[%lld] is %lld", n.longest, n.cu, ll(b + 1),
                            ll(lengths.cu[b + 1]));
            if (lengths.bound(b) > lengths.longest)
                return fail(message, FA_INVALID_ARGUMENT, "%s[%lld] is %lld: expected %lld or less, %s after its predecessor", n.cu,
                            ll(b + 1), ll(lengths.cu[b + 1]), ll(lengths.cu[b] + lengths.longest), n.longest);
        }
        if (lengths.used)
            FA_TRY(entry_in_range(message, n.used, b, lengths.used[b],
                                  {0, lengths.bound(b), lengths.cu ? nullptr : n.longest, lengths.longest}));
    }
    return FA_OK;
}

fa_status_t check_leftpad(const Lengths& keys, const int32_t* leftpad, Message* message) {
    for (int64_t b = 0; b < keys.batch; b++) {
        const bool all = !keys.cu && !keys.used;
        FA_TRY(entry_in_range(message, "leftpad_k", b, leftpad[b], {0, keys.length(b), all ? "seqlen_k" : nullptr, keys.longest}));
    }
    return FA_OK;
}

fa_status_t check_input_lengths(const Problem& problem, const fa_forward_args_t& args, Message* message) {
    const Lengths q{kLengthsOfQ, args.cu_seqlens_q, args.seqused_q, problem.d.batch, problem.d.seqlen_q, problem.d.total_q};
    const Lengths k{kLengthsOfK, args.cu_seqlens_k, args.seqused_k, problem.d.batch, problem.d.seqlen_k, problem.d.total_k};
    FA_TRY(check_lengths(q, message));
    FA_TRY(check_lengths(k, message));
    return args.leftpad_k ? check_leftpad(k, args.leftpad_k, message) : FA_OK;
}

fa_status_t check_kv_batch_idx(const Problem& problem, const int32_t* index, Message* message) {
    for (int64_t b = 0; b < problem.d.batch; b++)
        FA_TRY(entry_in_range(message, "kv_batch_idx", b, index[b], {0, problem.d.kv_batch - 1, "kv_batch", problem.d.kv_batch}));
    return FA_OK;
}

fa_status_t check_pages(const Problem& problem, const int32_t* page_table, int64_t row, int64_t begin, int64_t end, Message* message) {
    if (begin >= end) return FA_OK;
    for (int64_t i = begin / problem.d.page_size; i < ceil_div(end, problem.d.page_size); i++) {
        const int64_t at = row * problem.d.page_table_stride + i;
        FA_TRY(entry_in_range(message, "page_table", at, page_table[at], {0, problem.d.num_pages - 1, "num_pages", problem.d.num_pages}));
    }
    return FA_OK;
}

static fa_status_t check_row_ranges(const KeyRanges& ranges, int64_t row, Message* message) {
    int64_t last_end = INT64_MIN;
    for (int64_t t = 0; t < ranges.max; t++) {
        const int64_t at = 2 * (row + t * ranges.interval);
        const int64_t begin = ranges.pairs[at], end = ranges.pairs[at + 1];
        if (begin >= end) continue;
        if (begin < last_end)
            return fail(message, FA_INVALID_ARGUMENT, "key_ranges[%lld] is %lld: expected %lld or more, the end of an interval before it",
                        ll(at), ll(begin), ll(last_end));
        last_end = end;
    }
    return FA_OK;
}

fa_status_t check_key_ranges(const Problem& problem, const fa_forward_args_t& args, Message* message) {
    const KeyRanges r = key_ranges(problem, args);
    const int64_t heads = r.rows.head == 0 ? 1 : problem.d.heads_q;
    return each_sequence(problem.d.batch, query_spans(problem, args.cu_seqlens_q, args.seqused_q),
                         [&](int64_t b, const Span& span) -> fa_status_t {
                             for (int64_t h = 0; h < heads; h++)
                                 for (int64_t i = 0; i < span.length; i++)
                                     FA_TRY(check_row_ranges(r, r.rows.index(b, span.begin + i, h), message));
                             return FA_OK;
                         });
}

static fa_status_t check_list(const int32_t* entries, const int32_t* counts, const char* name, const Problem& problem, int64_t at,
                              int64_t count_at, Message* message) {
    char field[32];
    snprintf(field, sizeof field, "%s_count", name);
    if (counts) FA_TRY(entry_in_range(message, field, count_at, counts[count_at], {0, problem.d.list_max, "list_max", problem.d.list_max}));
    const int64_t length = counts ? counts[count_at] : problem.d.list_max;
    const Bounds entry = problem.slots()
                             ? Bounds{-1, problem.d.num_pages * problem.d.page_size - 1, "num_pages", problem.d.num_pages}
                             : Bounds{-1, ceil_div(problem.d.seqlen_k, problem.d.list_keys) - 1, "seqlen_k", problem.d.seqlen_k};
    for (int64_t e = 0; e < length; e++)
        FA_TRY(entry_in_range(message, name, at + e * problem.d.list_stride[3], entries[at + e * problem.d.list_stride[3]], entry));
    return FA_OK;
}

fa_status_t check_key_lists(const Problem& problem, const fa_forward_args_t& args, Message* message) {
    const int64_t *s = problem.d.list_stride, *c = problem.d.list_count_stride;
    const int64_t heads = s[1] == 0 && c[1] == 0 ? 1 : problem.d.list_heads;
    return each_sequence(
        problem.d.batch, query_spans(problem, args.cu_seqlens_q, args.seqused_q), [&](int64_t b, const Span& rows) -> fa_status_t {
            if (rows.begin % problem.d.list_rows != 0)
                return fail(message, FA_INVALID_ARGUMENT, "cu_seqlens_q[%lld] is %lld: expected a multiple of list_rows, %lld", ll(b),
                            ll(rows.begin), ll(problem.d.list_rows));
            const int64_t outer = problem.packed_q() ? 0 : b;
            for (int64_t h = 0; h < heads; h++)
                for (int64_t block = rows.begin / problem.d.list_rows; block < ceil_div(rows.begin + rows.length, problem.d.list_rows);
                     block++) {
                    const int64_t at = outer * s[0] + h * s[1] + block * s[2], count_at = outer * c[0] + h * c[1] + block * c[2];
                    if (args.key_list) FA_TRY(check_list(args.key_list, args.key_list_count, "key_list", problem, at, count_at, message));
                    if (args.full_list)
                        FA_TRY(check_list(args.full_list, args.full_list_count, "full_list", problem, at, count_at, message));
                }
            return FA_OK;
        });
}

fa_status_t check_bias_scale(const Problem& problem, const float* scale, Message* message) {
    for (int64_t h = 0; h < problem.d.heads_q; h++)
        if (!isfinite(scale[h]))
            return fail(message, FA_INVALID_ARGUMENT, "bias_scale[%lld] is %g: expected a finite number", ll(h), double(scale[h]));
    return FA_OK;
}

fa_status_t check_o_scale(float o_scale, Message* message) {
    if (isfinite(o_scale)) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "o_scale[0] is %g: expected a finite number", double(o_scale));
}

}  // namespace fa
