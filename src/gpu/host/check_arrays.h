// A call's arrays held against what they may say, for callers that ask (FA_OPERAND_DEVICE_STATUS): a launch before the others. The host
// cannot refuse what lies in device memory; kernels take it as clamped or absent, and this one says so.
#pragma once
#include "gpu/common/memory.h"
#include "backend/row_keys.h"

namespace fa {
namespace gpu {

// The new tokens of an append; those of other calls are none.
struct NewTokens {
    const int32_t *cu_seqlens, *seqused, *positions;  // NULL: as in QuerySpans; one behind the other
    int64_t longest, total;
    int64_t positions_stride;  // between sequences
    int64_t angles;            // of the tables; −1: no rotation
};
// Pointers without their operand are NULL.
struct ArrayChecks {
    uint32_t* status;
    SequenceTable sequences;
    bool appends;
    NewTokens fresh;
    Pages pages;
    KeyRanges ranges;
    int64_t heads, list_heads;
    ListTable lists;
    int64_t list_rows, list_entries;  // rows that share a list; what its entries are below
};

// Where a sequence lies, by starts and lengths; false where these are none of so many rows, `longest` at most.
FA_DEVICE bool find_span(const int32_t* starts, const int32_t* used, int64_t longest, int64_t total, int64_t b, Span* span) {
    *span = {0, longest};
    if (starts) {
        const int64_t begin = starts[b], end = starts[b + 1];
        if (begin < 0 || end < begin || end > total || end - begin > longest) return false;
        *span = {begin, end - begin};
    }
    if (!used) return true;
    const int64_t length = used[b];
    if (length < 0 || length > span->length) return false;
    span->length = length;
    return true;
}

constexpr int kCheckThreads = 128;

// The pages of slots [begin, end): each thread has every so many of them.
FA_DEVICE uint32_t check_pages(const Pages& pages, int64_t row, int64_t begin, int64_t end, int first, int step) {
    if (!pages.table || begin >= end) return 0;
    uint32_t bad = 0;
    for (int64_t i = begin / pages.size + first; i < ceil_div(end, pages.size); i += step) {
        const int64_t page = pages.table[row * pages.row_stride + i];
        if (page < 0 || page >= pages.count) bad = FA_BAD_PAGE;
    }
    return bad;
}

FA_DEVICE uint32_t check_new_tokens(const ArrayChecks& checks, int64_t b, int64_t row, int64_t pad) {
    const NewTokens& fresh = checks.fresh;
    Span span;
    if (!find_span(fresh.cu_seqlens, fresh.seqused, fresh.longest, fresh.total, b, &span)) return FA_BAD_LENGTH;
    if (span.length == 0) return 0;
    const auto has_angles = [&](int64_t begin, int64_t end) { return fresh.angles < 0 || (begin >= pad && end - pad <= fresh.angles); };
    uint32_t bad = 0;
    if (!fresh.positions) {
        const int64_t begin = checks.sequences.seqused_k ? checks.sequences.seqused_k[b] : pad, end = begin + span.length;
        if (end > checks.sequences.seqlen_k) return FA_BAD_LENGTH;
        if (!has_angles(begin, end)) bad = FA_BAD_INDEX;
        return bad | check_pages(checks.pages, row, begin, end, rt::thread(), kCheckThreads);
    }
    for (int64_t t = rt::thread(); t < span.length; t += kCheckThreads) {
        const int64_t slot = fresh.positions[b * fresh.positions_stride + span.begin + t];
        if (slot < -1 || slot >= checks.sequences.seqlen_k || (slot >= 0 && !has_angles(slot, slot + 1))) bad |= FA_BAD_INDEX;
        else if (slot >= 0) bad |= check_pages(checks.pages, row, slot, slot + 1, 0, 1);
    }
    return bad;
}

FA_DEVICE uint32_t check_list(const ArrayChecks& checks, const ListSource& list) {
    if (list.count && (*list.count < 0 || *list.count > list.most)) return FA_BAD_INDEX;
    uint32_t bad = 0;
    for (int64_t e = rt::thread(); list.entries && e < list.length(); e += kCheckThreads) {
        const int64_t entry = list.entries[e * list.step];
        if (entry < -1 || entry >= checks.list_entries) bad = FA_BAD_INDEX;
    }
    return bad;
}

FA_DEVICE uint32_t check_lists(const ArrayChecks& checks, int64_t b, const Span& q) {
    if ((!checks.lists.entries[0] && !checks.lists.entries[1]) || q.length == 0) return 0;
    if (q.begin % checks.list_rows != 0) return FA_BAD_LENGTH;
    uint32_t bad = 0;
    const int64_t outer = checks.sequences.q.packed() ? 0 : b;
    for (int64_t h = 0; h < checks.list_heads; h++)
        for (int64_t block = q.begin / checks.list_rows; block < ceil_div(q.begin + q.length, checks.list_rows); block++)
            for (int full = 0; full < 2; full++) bad |= check_list(checks, list_source(checks.lists, outer, h, block, full));
    return bad;
}

// A row's intervals ascend and lie apart.
FA_DEVICE uint32_t check_ranges(const ArrayChecks& checks, int64_t b, const Span& q) {
    if (!checks.ranges.pairs) return 0;
    uint32_t bad = 0;
    for (int64_t i = rt::thread(); i < q.length * checks.heads; i += kCheckThreads) {
        const int64_t row = checks.ranges.rows.index(b, q.begin + i / checks.heads, i % checks.heads);
        int64_t last = INT64_MIN;
        for (int64_t t = 0; t < checks.ranges.max; t++) {
            const int32_t* const pair = checks.ranges.pairs + 2 * (row + t * checks.ranges.interval);
            if (pair[0] >= pair[1]) continue;
            if (pair[0] < last) bad = FA_BAD_INDEX;
            last = pair[1];
        }
    }
    return bad;
}

// A block for each sequence.
FA_KERNEL void FA_BOUNDS(kCheckThreads, 1) check_arrays(FA_PARAM ArrayChecks checks) {
    rt::wait_for_predecessor();
    rt::release_successor();
    const int64_t b = rt::block();
    const SequenceTable& sequences = checks.sequences;
    Span q{}, k{};
    const bool lengths = find_span(sequences.q.cu_seqlens, sequences.q.seqused, sequences.q.seqlen, sequences.q.total, b, &q) &&
                         find_span(sequences.cu_seqlens_k, sequences.seqused_k, sequences.seqlen_k, sequences.total_k, b, &k);
    const int64_t pad = sequences.leftpad_k ? sequences.leftpad_k[b] : 0, row = sequences.kv_batch_idx ? sequences.kv_batch_idx[b] : b;
    uint32_t bad = 0;
    if (!lengths || pad < 0 || pad > k.length) bad = FA_BAD_LENGTH;
    else if (row < 0 || row >= sequences.kv_sequences) bad = FA_BAD_INDEX;
    else if (checks.appends) bad = check_new_tokens(checks, b, row, pad);
    else
        bad = check_pages(checks.pages, row, pad, k.length, rt::thread(), kCheckThreads) | check_lists(checks, b, q) |
              check_ranges(checks, b, q);
    if (bad) rt::atomic_or(checks.status, bad);
}

inline ArrayChecks array_checks(const Problem& problem, const fa_forward_args_t& args) {
    ArrayChecks checks{};
    checks.status = args.device_status;
    checks.sequences = sequence_table(problem, args);
    checks.pages = pages_of(problem, args.page_table);
    checks.ranges = key_ranges(problem, args);
    checks.heads = checks.ranges.rows.head == 0 ? 1 : problem.d.heads_q;
    checks.lists = list_table(problem, args);
    checks.list_heads = problem.d.list_stride[1] == 0 && problem.d.list_count_stride[1] == 0 ? 1 : problem.d.list_heads;
    checks.list_rows = problem.d.list_rows;
    checks.list_entries = problem.slots() ? problem.d.num_pages * problem.d.page_size : ceil_div(problem.d.seqlen_k, problem.d.list_keys);
    return checks;
}
inline ArrayChecks array_checks(const Problem& problem, const fa_append_kv_args_t& args) {
    fa_forward_args_t of_cache{};
    of_cache.device_status = args.device_status;
    of_cache.seqused_k = args.seqused_k;
    of_cache.leftpad_k = args.leftpad_k;
    of_cache.kv_batch_idx = args.kv_batch_idx;
    ArrayChecks checks{};
    checks.status = args.device_status;
    checks.sequences = sequence_table(problem, of_cache);
    checks.pages = pages_of(problem, args.page_table);
    checks.appends = true;
    checks.fresh = {args.cu_seqlens_new,
                    args.seqused_new,
                    args.positions,
                    args.seqlen_new,
                    args.total_new,
                    args.cu_seqlens_new ? 0 : args.seqlen_new,
                    args.cos ? args.max_position : -1};
    return checks;
}

}  // namespace gpu
}  // namespace fa
