// The contents of small arrays that the host can read. Lengths, indices and page ids lead every access to memory.
#pragma once
#include "core/rules.h"
#include "core/tensor.h"

namespace fa {

// What the fields are called that say the lengths of one side.
struct LengthNames {
    const char *cu, *used, *longest, *total;
};
constexpr LengthNames kLengthsOfQ{"cu_seqlens_q", "seqused_q", "seqlen_q", "total_q"};
constexpr LengthNames kLengthsOfK{"cu_seqlens_k", "seqused_k", "seqlen_k", "total_k"};

// How many rows each sequence of one side has: all `longest`, or less by cu_seqlens and seqused.
struct Lengths {
    LengthNames names;
    const int32_t* cu;    // or NULL
    const int32_t* used;  // or NULL
    int64_t batch, longest, total;

    int64_t bound(int64_t b) const { return cu ? int64_t(cu[b + 1]) - cu[b] : longest; }
    int64_t length(int64_t b) const { return used ? used[b] : bound(b); }
};
fa_status_t check_lengths(const Lengths&, Message*);
// Lengths and left padding of a forward or backward.
fa_status_t check_input_lengths(const Problem&, const fa_forward_args_t&, Message*);

// Calls visit(sequence, its rows) for each that has rows. This is the one loop over the sequences of a call that no array of theirs bounds:
// where none can have a row it counts none, so that an empty call costs the same whatever its batch is. `visit` gives a status.
template <class Visit>
fa_status_t each_sequence(int64_t batch, const QuerySpans& spans, const Visit& visit) {
    for (int64_t b = 0; spans.seqlen > 0 && b < batch; b++) {
        const Span rows = span_of(spans, b);
        if (rows.length > 0) FA_TRY(visit(b, rows));
    }
    return FA_OK;
}

// Left padding lies within the keys, which count it.
fa_status_t check_leftpad(const Lengths& keys, const int32_t* leftpad, Message*);
fa_status_t check_kv_batch_idx(const Problem&, const int32_t* index, Message*);
// Ids of the pages that hold slots [begin, end) of a row of the table; no other entry is read.
fa_status_t check_pages(const Problem&, const int32_t* page_table, int64_t row, int64_t begin, int64_t end, Message*);

// Ranges of each valid row ascend and lie apart, but for empty ones.
fa_status_t check_key_ranges(const Problem&, const fa_forward_args_t&, Message*);
// Lengths and entries of lists, of the blocks of valid rows; sequences begin with blocks.
fa_status_t check_key_lists(const Problem&, const fa_forward_args_t&, Message*);
fa_status_t check_bias_scale(const Problem&, const float* scale, Message*);
fa_status_t check_o_scale(float o_scale, Message*);

}  // namespace fa
