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
FA_DEVICE bool find_span(const int32_t* starts, const int32_t* used, int64_t longest, int64_t total, int64_t b, Span* s) {
    *s = {0, longest};
    if (starts) {
        const int64_t begin = starts[b], end = starts[b + 1];
        if (begin < 0 || end < begin || end > total || end - begin > longest) return false;
        *s = {begin, end - begin};
    }
    if (!used) return true;
    const int64_t length = used[b];
    if (length < 0 || length > s->length) return false;
    s->length = length;
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

FA_DEVICE uint32_t check_new_tokens(const ArrayChecks& x, int64_t b, int64_t row, int64_t pad) {
    const NewTokens& f = x.fresh;
    Span s;
    if (!find_span(f.cu_seqlens, f.seqused, f.longest, f.total, b, &s)) return FA_BAD_LENGTH;
    if (s.length == 0) return 0;
    const auto has_angles = [&](int64_t begin, int64_t end) { return f.angles < 0 || (begin >= pad && end - pad <= f.angles); };
    uint32_t bad = 0;
    if (!f.positions) {
        const int64_t begin = x.sequences.seqused_k ? x.sequences.seqused_k[b] : pad, end = begin + s.length;
        if (end > x.sequences.seqlen_k) return FA_BAD_LENGTH;
        if (!has_angles(begin, end)) bad = FA_BAD_INDEX;
        return bad | check_pages(x.pages, row, begin, end, rt::thread(), kCheckThreads);
    }
    for (int64_t t = rt::thread(); t < s.length; t += kCheckThreads) {
        const int64_t slot = f.positions[b * f.positions_stride + s.begin + t];
        if (slot < -1 || slot >= x.sequences.seqlen_k || (slot >= 0 && !has_angles(slot, slot + 1))) bad |= FA_BAD_INDEX;
        else if (slot >= 0) bad |= check_pages(x.pages, row, slot, slot + 1, 0, 1);
    }
    return bad;
}

FA_DEVICE uint32_t check_list(const ArrayChecks& x, const ListSource& list) {
    if (list.count && (*list.count < 0 || *list.count > list.most)) return FA_BAD_INDEX;
    uint32_t bad = 0;
    for (int64_t e = rt::thread(); list.entries && e < list.length(); e += kCheckThreads) {
        const int64_t entry = list.entries[e * list.step];
        if (entry < -1 || entry >= x.list_entries) bad = FA_BAD_INDEX;
    }
    return bad;
}

FA_DEVICE uint32_t check_lists(const ArrayChecks& x, int64_t b, const Span& q) {
    if ((!x.lists.entries[0] && !x.lists.entries[1]) || q.length == 0) return 0;
    if (q.begin % x.list_rows != 0) return FA_BAD_LENGTH;
    uint32_t bad = 0;
    const int64_t outer = x.sequences.q.packed() ? 0 : b;
    for (int64_t h = 0; h < x.list_heads; h++)
        for (int64_t block = q.begin / x.list_rows; block < ceil_div(q.begin + q.length, x.list_rows); block++)
            for (int full = 0; full < 2; full++) bad |= check_list(x, list_source(x.lists, outer, h, block, full));
    return bad;
}

// A row's intervals ascend and lie apart.
FA_DEVICE uint32_t check_ranges(const ArrayChecks& x, int64_t b, const Span& q) {
    if (!x.ranges.pairs) return 0;
    uint32_t bad = 0;
    for (int64_t i = rt::thread(); i < q.length * x.heads; i += kCheckThreads) {
        const int64_t row = x.ranges.rows.index(b, q.begin + i / x.heads, i % x.heads);
        int64_t last = INT64_MIN;
        for (int64_t t = 0; t < x.ranges.max; t++) {
            const int32_t* const pair = x.ranges.pairs + 2 * (row + t * x.ranges.interval);
            if (pair[0] >= pair[1]) continue;
            if (pair[0] < last) bad = FA_BAD_INDEX;
            last = pair[1];
        }
    }
    return bad;
}

// A block for each sequence.
FA_KERNEL void FA_BOUNDS(kCheckThreads, 1) check_arrays(FA_PARAM ArrayChecks x) {
    rt::wait_for_predecessor();
    rt::release_successor();
    const int64_t b = rt::block();
    const SequenceTable& t = x.sequences;
    Span q{}, k{};
    const bool lengths = find_span(t.q.cu_seqlens, t.q.seqused, t.q.seqlen, t.q.total, b, &q) &&
                         find_span(t.cu_seqlens_k, t.seqused_k, t.seqlen_k, t.total_k, b, &k);
    const int64_t pad = t.leftpad_k ? t.leftpad_k[b] : 0, row = t.kv_batch_idx ? t.kv_batch_idx[b] : b;
    uint32_t bad = 0;
    if (!lengths || pad < 0 || pad > k.length) bad = FA_BAD_LENGTH;
    else if (row < 0 || row >= t.kv_sequences) bad = FA_BAD_INDEX;
    else if (x.appends) bad = check_new_tokens(x, b, row, pad);
    else bad = check_pages(x.pages, row, pad, k.length, rt::thread(), kCheckThreads) | check_lists(x, b, q) | check_ranges(x, b, q);
    if (bad) rt::atomic_or(x.status, bad);
}

inline ArrayChecks array_checks(const Problem& problem, const fa_forward_args_t& args) {
    ArrayChecks x{};
    x.status = args.device_status;
    x.sequences = sequence_table(problem, args);
    x.pages = pages_of(problem, args.page_table);
    x.ranges = key_ranges(problem, args);
    x.heads = x.ranges.rows.head == 0 ? 1 : problem.d.heads_q;
    x.lists = list_table(problem, args);
    x.list_heads = problem.d.list_stride[1] == 0 && problem.d.list_count_stride[1] == 0 ? 1 : problem.d.list_heads;
    x.list_rows = problem.d.list_rows;
    x.list_entries = problem.slots() ? problem.d.num_pages * problem.d.page_size : ceil_div(problem.d.seqlen_k, problem.d.list_keys);
    return x;
}
inline ArrayChecks array_checks(const Problem& problem, const fa_append_kv_args_t& args) {
    fa_forward_args_t of_cache{};
    of_cache.device_status = args.device_status;
    of_cache.seqused_k = args.seqused_k;
    of_cache.leftpad_k = args.leftpad_k;
    of_cache.kv_batch_idx = args.kv_batch_idx;
    ArrayChecks x{};
    x.status = args.device_status;
    x.sequences = sequence_table(problem, of_cache);
    x.pages = pages_of(problem, args.page_table);
    x.appends = true;
    x.fresh = {args.cu_seqlens_new,
               args.seqused_new,
               args.positions,
               args.seqlen_new,
               args.total_new,
               args.cu_seqlens_new ? 0 : args.seqlen_new,
               args.cos ? args.max_position : -1};
    return x;
}

}  // namespace gpu
}  // namespace fa
