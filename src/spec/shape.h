// Index arithmetic that every backend must agree on: head groups, tile counts, and how keys are cut into splits.
#pragma once
#include "numerics.h"

namespace fa {

FA_FN int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
FA_FN int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
FA_FN int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
FA_FN int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
// Floats would lose their fractions, so they do not compile.
template <bool fractions>
struct Deleted {};
template <>
struct Deleted<true> {
    using Result = int64_t;
};
template <class A, class B>
typename Deleted<(A(1) / 2 != 0 || B(1) / 2 != 0)>::Result min_of(A, B) = delete;
template <class A, class B>
typename Deleted<(A(1) / 2 != 0 || B(1) / 2 != 0)>::Result max_of(A, B) = delete;

// The least common multiple of two numbers below 2^31; of 0 and any, 0.
FA_FN int64_t common_multiple(int64_t a, int64_t b) {
    int64_t divisor = a, rest = b;
    while (rest != 0) {
        const int64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    return divisor == 0 ? 0 : a / divisor * b;
}

// Query heads come in contiguous groups that share one k and v head.
FA_FN int64_t kv_head(int64_t head, int64_t heads_q, int64_t heads_k) { return head / (heads_q / heads_k); }

// A split takes whole quanta of keys: tiles of 16, 32 or 64 keys fill it.
constexpr int64_t kSplitQuantum = 64;

// Keys per split. A fixed size is taken as it is: the partition then depends on nothing else.
FA_FN int64_t split_keys(int64_t keys, int64_t num_splits, int64_t split_size) {
    if (split_size > 0) return split_size;
    if (num_splits <= 1) return max_of(keys, 1);
    return max_of(round_up(ceil_div(keys, num_splits), kSplitQuantum), 1);
}

// Split s of a sequence covers keys [s · size, (s + 1) · size). Partial states are merged in ascending order of s.
FA_FN int64_t split_count(int64_t keys, int64_t num_splits, int64_t split_size) {
    return keys <= 0 ? 1 : ceil_div(keys, split_keys(keys, num_splits, split_size));
}

}  // namespace fa
