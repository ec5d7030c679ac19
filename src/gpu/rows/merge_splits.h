// The kernels that merge the splits of a forward (common/merge.h), and their launches. For the one translation unit of a module that
// compiles them: they are no part of most calls, and take a compiler seconds.
#pragma once
#include "gpu/common/epilogue.h"
#include "gpu/common/merge.h"

namespace fa {
namespace gpu {

// Merging splits with few rows: blocks for each group-major row, of kMinMergeColumns or kMaxMergeColumns each. No read depends on
// another: all splits' states are read at once, and a split's factor follows from the largest m. Each team of threads, four columns
// a thread, sums every so many splits, several of whose loads are issued before their factors are known. More splits than threads
// are taken in parts.
constexpr int kPrefetchParts = 8;
struct MergeShared {
    RowState part[kMergeThreads];
    float scale[kMergeThreads];
    float sum[kMergeWarps][kMaxMergeColumns];
};
FA_DEVICE void load_columns(const float* from, int64_t left, bool aligned, float x[4]) {
    if (aligned && left >= 4) return rt::load4(from, x);
    FA_UNROLL_FOR (int e = 0; e < 4; e++) x[e] = e < left ? from[e] : 0.f;
}
// The state of `count` splits in shared.part, which every warp computes for itself, and each split's factor.
FA_DEVICE RowState merge_parts(MergeShared& shared, int count) {
    const int thread = rt::thread(), lane = thread % 32;
    RowState all = empty_row();
    for (int i = lane; i < count; i += 32) all.m = max_fn(all.m, shared.part[i].m);
    FA_UNROLL_FOR (int mask = 16; mask > 0; mask /= 2) all.m = max_fn(all.m, rt::shuffle_xor32(all.m, mask));
    const auto factor = [&](int i) { return shared.part[i].l == 0.f ? 0.f : rescale(shared.part[i].m, all.m); };
    for (int i = lane; i < count; i += 32) all.l += shared.part[i].l * factor(i);
    FA_UNROLL_FOR (int mask = 16; mask > 0; mask /= 2) all.l += rt::shuffle_xor32(all.l, mask);
    if (thread < count) shared.scale[thread] = factor(thread);
    return all;
}
// Merges the splits where rows are many: a team of 32 threads for each row, split after split.
FA_KERNEL void FA_BOUNDS(kMergeThreads, 1) merge_split_rows(FA_PARAM SplitMergeParams params) {
    const int64_t all = params.batch * params.kv_heads * params.rows, dim = params.dim_v;
    const int64_t index = rt::block() * kMergeWarps + rt::thread() / 32;
    const int lane = rt::thread() % 32;
    rt::release_successor();
    rt::wait_for_predecessor();
    const int64_t at_most = min_of(index, all - 1);  // a team beyond the last row takes part in shuffles
    const uint32_t r = uint32_t(at_most) % uint32_t(params.rows), head_index = uint32_t(at_most) / uint32_t(params.rows);
    const int64_t kv_head = head_index % uint32_t(params.kv_heads), batch = head_index / uint32_t(params.kv_heads);
    const int64_t row = r / uint32_t(params.group), head = kv_head * params.group + r % uint32_t(params.group);
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const int64_t splits = row < seq.q_len ? split_count(seq.k_len, params.num_splits, params.split_size) : 0;
    const RowState* const states = params.state + at_most;
    RowState state = empty_row();
    for (int64_t i = lane; i < splits; i += 32) state.m = max_fn(state.m, states[i * all].m);
    FA_UNROLL_FOR (int mask = 16; mask > 0; mask /= 2) state.m = max_fn(state.m, rt::shuffle_xor32(state.m, mask));
    const auto factor = [&](RowState part) { return part.l == 0.f ? 0.f : rescale(part.m, state.m); };
    for (int64_t i = lane; i < splits; i += 32) state.l += states[i * all].l * factor(states[i * all]);
    FA_UNROLL_FOR (int mask = 16; mask > 0; mask /= 2) state.l += rt::shuffle_xor32(state.l, mask);
    if (splits == 0 || index >= all) return;
    const RowOutput output = finalize_row(params, seq, batch, head, row, state, lane == 0);
    const int64_t at = query_index(params.o_strides, seq, batch, row, head);
    for (int64_t column = 4 * lane; column < dim; column += 4 * 32) {
        float sum[4] = {};
        FA_UNROLL_BY(4)
        for (int64_t i = 0; i < splits; i++) {
            float part[4];
            load_columns(params.partial_o + (i * all + at_most) * dim + column, dim - column, dim % 4 == 0, part);
            const float scale = factor(states[i * all]);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] += part[e] * scale;
        }
        for (int e = 0; e < 4 && column + e < dim; e++)
            store_element_cold(params.o, at + column + e, params.o_dtype, output_value(params, sum[e], output.factor));
    }
}

// The same where rows are few: see merge_parts. The kernel's blocks wait on the device for those that make the splits. Meanwhile
// they run the whole code once with no split: this loads their instructions, which would be waited for later.
template <int columns>
FA_KERNEL void FA_BOUNDS(kMergeThreads, 1) merge_splits(FA_PARAM SplitMergeParams params) {
    constexpr int across = columns / 4, teams = kMergeThreads / across;
    rt::release_successor();
    rt::fetch_parameters(params);
    const uint32_t rows = uint32_t(params.rows), heads = uint32_t(params.kv_heads), group = uint32_t(params.group);
    const int64_t all = params.batch * params.kv_heads * params.rows;
    const uint32_t index = uint32_t(rt::block()) % uint32_t(all);
    const uint32_t r = index % rows, kv_head = index / rows % heads, batch = index / rows / heads;
    const int64_t dim = params.dim_v, column0 = uint32_t(rt::block()) / uint32_t(all) * uint32_t(columns);
    const int64_t row = r / group, head = kv_head * group + r % group;
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const int64_t splits = split_count(seq.k_len, params.num_splits, params.split_size);
    const int64_t at = query_index(params.o_strides, seq, batch, row, head) + column0;
    MergeShared& shared = *reinterpret_cast<MergeShared*>(rt::shared_memory());
    const int thread = rt::thread(), team = thread / across, column = thread % across * 4;
    if (row >= seq.q_len) return rt::wait_for_predecessor();  // the grid must not end before that one
    FA_UNROLL_BY(1)
    for (int pass = 0; pass < 2; pass++) {
        const bool dry_run = pass == 0;
        if (!dry_run) rt::wait_for_predecessor();
        RowState state = empty_row();
        float total = 0.f;  // of column0 + thread
        for (int64_t first = 0; first < splits; first += kMergeThreads) {
            const int count = dry_run ? 0 : int(min_of(splits - first, kMergeThreads));
            const float* const parts = params.partial_o + (first * all + index) * dim + column0 + column;
            float part[kPrefetchParts][4], sum[4] = {};
            const auto load = [&](int i, float* to) {
                if (i < count) load_columns(parts + i * all * dim, dim - column0 - column, dim % 4 == 0, to);
            };
            FA_UNROLL_FOR (int n = 0; n < kPrefetchParts; n++) load(team + n * teams, part[n]);
            if (thread < count) shared.part[thread] = params.state[(first + thread) * all + index];
            rt::barrier();
            const RowState these = merge_parts(shared, count);
            rt::barrier();
            for (int i = team; i < count; i += kPrefetchParts * teams)
                FA_UNROLL_FOR (int n = 0; n < kPrefetchParts; n++) {
                    const int now = i + n * teams;
                    if (now < count) {
                        FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] += part[n][e] * shared.scale[now];
                    }
                    load(now + kPrefetchParts * teams, part[n]);
                }
            FA_UNROLL_FOR (int mask = across; mask < 32; mask *= 2)
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] += rt::shuffle_xor32(sum[e], mask);
            if (thread % 32 < across) rt::store4(shared.sum[thread / 32] + column, sum);
            rt::barrier();
            float kept = 0.f;
            if (thread < columns)
                FA_UNROLL_FOR (int w = 0; w < kMergeWarps; w++) kept += shared.sum[w][thread];
            const Merged merged = merge(state, these);
            total = total * merged.scale_a + kept * merged.scale_b;
            state = merged.state;
        }
        if (thread >= columns) continue;
        const RowOutput output = finalize_row(params, seq, batch, head, row, state, column0 + thread == 0 && !dry_run);
        if (column0 + thread < dim && !dry_run)
            store_element_cold(params.o, at + thread, params.o_dtype, output_value(params, total, output.factor));
    }
}

rt::Status launch_merge(int32_t columns, rt::Stream stream, const SplitMergeParams& params) {
    const int64_t rows = params.batch * params.kv_heads * params.rows;
    if (columns == 0) return rt::launch_after(merge_split_rows, ceil_div(rows, kMergeWarps), kMergeThreads, 0, stream, params);
    const auto kernel = columns == kMinMergeColumns ? merge_splits<kMinMergeColumns> : merge_splits<kMaxMergeColumns>;
    return rt::launch_after(kernel, rows * max_of(ceil_div(params.dim_v, columns), 1), kMergeThreads, sizeof(MergeShared), stream, params);
}

FA_KERNEL void FA_BOUNDS(kMergeThreads, 1) merge_split_states(FA_PARAM SplitMergeParams params) {
    const int64_t index = rt::block() * kMergeThreads + rt::thread(), all = params.batch * params.kv_heads * params.rows;
    if (index >= all) return;
    const int64_t r = index % params.rows, kv_head = index / params.rows % params.kv_heads, batch = index / params.rows / params.kv_heads;
    const Sequence seq = bounded_sequence(params.sequences, batch);
    if (r / params.group >= seq.q_len) return;
    RowState state = params.state[index];
    const int64_t splits = split_count(seq.k_len, params.num_splits, params.split_size);
    for (int64_t split = 1; split < splits; split++) state = merge(state, params.state[split * all + index]).state;
    params.state[index] =
        finalize_row_cold(params, seq, batch, kv_head * params.group + r % params.group, r / params.group, state, false).state;
}

rt::Status launch_state_merge(rt::Stream stream, const SplitMergeParams& params) {
    const int64_t rows = params.batch * params.kv_heads * params.rows;
    return rt::launch(merge_split_states, ceil_div(rows, kMergeThreads), kMergeThreads, 0, stream, params);
}

}  // namespace gpu
}  // namespace fa
