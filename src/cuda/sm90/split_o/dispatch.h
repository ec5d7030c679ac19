// How the kernels whose O two warpgroups share (split_o/consumer.h) cut keys into splits.
#pragma once
#include "cuda/sm90/common/refusals.h"
#include "cuda/sm90/common/tensor_map.h"
#include "gpu/common/row_params.h"

namespace fa {
namespace gpu {

// In steps of so many keys: what a CTA begins and ends with is worth, and what merging is.
struct SplitCosts {
    int64_t keys, border, merge;
};

// Of `tiles` CTAs of a split, whose keys take so many steps.
inline int64_t split_time(const rt::Device& device, int64_t tiles, int64_t splits, int64_t steps, const SplitCosts& costs) {
    return ceil_div(tiles * splits, device.multiprocessors) * (ceil_div(steps, splits) + costs.border) + (splits > 1 ? costs.merge : 0);
}
// The splits that should take the least time.
inline int64_t num_splits_heuristic(const rt::Device& device, const Problem& problem, int64_t tiles, const SplitCosts& costs) {
    constexpr int64_t kMaxSplits = 128;
    const int64_t steps = ceil_div(problem.d.seqlen_k, costs.keys);
    int64_t best = 1, least = INT64_MAX;
    for (int64_t splits = 1; splits <= min_of(kMaxSplits, steps); splits++) {
        const int64_t time = split_time(device, tiles, splits, steps, costs);
        if (time < least) best = splits, least = time;
    }
    return best;
}
inline SplitParams splits_of(const rt::Device& device, const Problem& problem, int64_t tiles, const SplitCosts& costs) {
    SplitParams split{};
    split.rows = problem.d.seqlen_q * problem.group;
    split.split_size = problem.d.split_size;
    split.num_splits =
        problem.d.num_splits > 0 || split.split_size > 0 ? problem.d.num_splits : num_splits_heuristic(device, problem, tiles, costs);
    split.splits = max_splits(problem.d.seqlen_k, split.num_splits, split.split_size);
    return split;
}

// May a block of 64 keys be taken to lie in one page?
inline bool blocks_lie_in_pages(const Problem& problem, Refusal* refusal) {
    if (!problem.paged()) return true;
    if (problem.d.page_size % 64 != 0)
        return refuse(refusal, "page_size is %lld: expected a multiple of 64", (long long)problem.d.page_size);
    if (problem.has(FA_OPERAND_LEFTPAD_K))
        return refuse(refusal, "operands has FA_OPERAND_LEFTPAD_K with pages: a block of keys would span two");
    return in_range("num_pages", problem.d.num_pages, 1, kMaxExtent, refusal);
}

}  // namespace gpu
}  // namespace fa
