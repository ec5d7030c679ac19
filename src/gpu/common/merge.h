// Merging the partial states of splits, behind the forward kernel: rows/merge_splits.h has the kernels, in a unit of their own.
// merge_splits serves decode (few rows, many blocks to a row), merge_split_rows all else.
#pragma once
#include "gpu/common/row_params.h"

namespace fa {
namespace gpu {

constexpr int kMergeThreads = 256, kMergeWarps = kMergeThreads / 32;

// What merging reads of a call, whichever family's kernel has computed the splits.
struct SplitMergeParams : RowParams, SplitParams {
    const float* o_scale;
    float dropout_scale;  // 1 / (1 − dropout_p)
};

constexpr int kMinMergeColumns = 32, kMaxMergeColumns = 128;  // of a block of merge_splits
// The columns of o that a block of merge_splits takes; 0: merge_split_rows merges. With a fixed split size always that one, or a
// row's bits would depend on how many rows there are. `rows`: of all sequences and kv heads.
inline int32_t merge_columns(const rt::Device& device, const Problem& problem, int64_t rows) {
    const int64_t at_once = 2 * device.multiprocessors;
    if (problem.d.split_size > 0 || rows > at_once) return 0;
    return rows * ceil_div(problem.d.dim_v, kMinMergeColumns) <= at_once ? kMinMergeColumns : kMaxMergeColumns;
}
inline const char* merge_name(int32_t columns) { return columns ? "merge_splits" : "merge_split_rows"; }
// Merges the splits of all rows, behind the kernel that computes them.
rt::Status launch_merge(int32_t columns, rt::Stream, const SplitMergeParams&);
// The final state of every row, for the scores output of a call with splits: merges as above, into split 0's place.
rt::Status launch_state_merge(rt::Stream, const SplitMergeParams&);

}  // namespace gpu
}  // namespace fa
