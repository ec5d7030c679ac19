#include "cp/job.h"

namespace fa {
namespace cp {

View dense(const View& like, void* data, int64_t rows) {
    View v = like;
    v.data = static_cast<char*>(data);
    v.head = v.head_bytes;
    v.row = v.row_bytes();
    v.batch = rows * v.row;
    return v;
}

Segment Job::segment(int64_t index, const Segment* previous) const {
    Segment s{};
    const bool each = packed_q || packed_k;
    s.first = each ? index : 0;
    s.count = each ? 1 : d.batch;
    s.rows = packed_q ? cu_seqlens_q[index + 1] - cu_seqlens_q[index] : d.seqlen_q;
    s.keys = packed_k ? cu_seqlens_k[index + 1] - cu_seqlens_k[index] : d.seqlen_k;
    s.own_rows = ranges_of(partition, s.rows, rank);
    s.own_keys = ranges_of(partition, s.keys, rank);
    if (previous && packed_q) s.row_base = previous->row_base + previous->own_rows.rows();
    if (previous && packed_k) s.key_base = previous->key_base + previous->own_keys.rows();
    return s;
}

int64_t Job::keys_on(int32_t r) const {
    if (!packed_k) return ranges_of(partition, d.seqlen_k, r).rows();
    int64_t keys = 0;
    for (int64_t b = 0; b < d.batch; b++) keys += ranges_of(partition, cu_seqlens_k[b + 1] - cu_seqlens_k[b], r).rows();
    return keys;
}

int64_t Job::diagonal(const Segment& segment, int64_t sequence) const {
    if (d.alignment == FA_ALIGN_BOTTOM_RIGHT) return segment.keys - segment.rows;
    return d.alignment == FA_ALIGN_EXPLICIT && causal_offset ? causal_offset[sequence] : 0;
}

Range Job::band(const Segment& segment, const Range& rows) const {
    MaskRule rule{0, -1, -1, d.chunk};
    if (d.flags & FA_WINDOW) {
        rule.left = d.window_left;
        rule.right = d.window_right;
    }
    if (d.flags & FA_CAUSAL) rule.right = 0;
    int64_t begin = segment.keys, end = 0;
    for (int64_t b = segment.first; b < segment.first + segment.count; b++) {
        rule.off = diagonal(segment, b);
        const KeyBand first = key_band(rule, rows.begin, segment.keys), last = key_band(rule, rows.begin + rows.rows - 1, segment.keys);
        if (first.begin >= last.end) continue;
        if (first.begin < begin) begin = first.begin;
        if (last.end > end) end = last.end;
        if (d.alignment != FA_ALIGN_EXPLICIT) break;  // the others' is the same
    }
    return begin < end ? Range{begin, end - begin} : Range{0, 0};
}

}  // namespace cp
}  // namespace fa
