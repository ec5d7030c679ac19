// Proofs of overlap against sets of addresses.
#include "core/overlap.h"
#include <gtest/gtest.h>
#include <algorithm>
#include <random>
#include <vector>

namespace {

using fa::Tensor;

// Offsets of all elements, in elements.
std::vector<int64_t> offsets(const Tensor& tensor) {
    std::vector<int64_t> all = {0};
    for (int i = 0; i < tensor.rank; i++) {
        std::vector<int64_t> next;
        for (const int64_t at : all) {
            for (int64_t x = 0; x < tensor.extent[i]; x++) next.push_back(at + x * tensor.stride[i]);
        }
        all = next;
    }
    return all;
}

std::vector<uintptr_t> bytes(const Tensor& tensor) {  // in order
    std::vector<uintptr_t> all;
    for (const int64_t at : offsets(tensor)) {
        for (int b = 0; b < tensor.element; b++)
            all.push_back(reinterpret_cast<uintptr_t>(tensor.base) + uintptr_t(at * tensor.element + b));
    }
    std::sort(all.begin(), all.end());
    return all;
}

bool meet(const Tensor& a, const Tensor& b) {
    const std::vector<uintptr_t> in_a = bytes(a);
    for (const uintptr_t at : bytes(b)) {
        if (std::binary_search(in_a.begin(), in_a.end(), at)) return true;
    }
    return false;
}

struct Random {
    std::mt19937_64 bits;
    int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }

    Tensor tensor(int max_rank) {
        Tensor t{};
        t.name = "t";
        t.rank = int32_t(1 + below(max_rank));
        t.element = 1 << below(4);
        t.base = reinterpret_cast<const void*>(uintptr_t(4096 + below(200)));
        int64_t dense = 1;
        for (int i = t.rank - 1; i >= 0; i--) {
            t.extent[i] = below(20) == 0 ? 0 : 1 + below(4);
            // Near the dense stride, a multiple of it, or anything.
            const int64_t kind = below(4);
            t.stride[i] = kind == 0 ? below(40) : kind == 1 ? dense * (1 + below(3)) : dense + below(3);
            dense = t.stride[i] * (t.extent[i] > 0 ? t.extent[i] : 1);
            if (dense == 0) dense = 1;
        }
        for (int i = t.rank - 1; i > 0; i--) {
            const int64_t j = below(i + 1);
            std::swap(t.extent[i], t.extent[j]);
            std::swap(t.stride[i], t.stride[j]);
        }
        return t;
    }
};

constexpr int kCases = 60000;

}  // namespace

TEST(Overlap, OfTwoAgreesWithBruteForce) {
    Random random{std::mt19937_64(20240607)};
    int met = 0;
    for (int i = 0; i < kCases; i++) {
        const Tensor a = random.tensor(4), b = random.tensor(4);
        const bool expected = meet(a, b);
        met += expected;
        ASSERT_EQ(fa::overlap(a, b), expected) << "case " << i;
        ASSERT_EQ(fa::overlap(b, a), expected) << "case " << i;
    }
    EXPECT_GT(met, kCases / 10);
    EXPECT_LT(met, kCases * 9 / 10);
}

TEST(Overlap, OfOneAgreesWithBruteForce) {
    Random random{std::mt19937_64(7)};
    int met = 0;
    for (int i = 0; i < kCases; i++) {
        const Tensor t = random.tensor(5);
        std::vector<int64_t> all = offsets(t);
        std::sort(all.begin(), all.end());
        const bool expected = std::adjacent_find(all.begin(), all.end()) != all.end();
        met += expected;
        ASSERT_EQ(fa::overlaps_itself(t), expected) << "case " << i;
    }
    EXPECT_GT(met, kCases / 20);
    EXPECT_LT(met, kCases * 9 / 10);
}

// Sizes as they come, where counting addresses is out of the question.
TEST(Overlap, LargeTensors) {
    const int64_t n = int64_t(1) << 20, row = 3 * 32 * 128;
    Tensor q{"q", reinterpret_cast<const void*>(1 << 20), 2, 4, fa::kNoDim, false, {4, n, 32, 128}, {n * row, row, 128, 1}};
    Tensor k = q;
    k.base = reinterpret_cast<const void*>((1 << 20) + 32 * 128 * 2);
    EXPECT_FALSE(fa::overlap(q, k));
    k.base = reinterpret_cast<const void*>((1 << 20) + 32 * 128 * 2 - 2);
    EXPECT_TRUE(fa::overlap(q, k));
    k.base = reinterpret_cast<const void*>((1 << 20) + 32 * 128 * 2 * 2 + 1);
    EXPECT_TRUE(fa::overlap(q, k));  // its last byte is the first of q's next row
    EXPECT_FALSE(fa::overlaps_itself(q));
    q.stride[0] -= row;
    EXPECT_TRUE(fa::overlaps_itself(q));
}

// At the ends of the address space, where sums wrap if they are taken carelessly.
TEST(Overlap, EndsOfTheAddressSpace) {
    const uintptr_t half = uintptr_t(1) << 63;
    Tensor low{"low", nullptr, 1, 1, fa::kNoDim, false, {INT64_MAX}, {1}};
    Tensor high{"high", reinterpret_cast<const void*>(half), 1, 1, fa::kNoDim, false, {INT64_MAX}, {1}};
    EXPECT_FALSE(fa::overlap(low, high));
    high.base = reinterpret_cast<const void*>(half - 1);
    EXPECT_FALSE(fa::overlap(low, high));
    high.base = reinterpret_cast<const void*>(half - 2);
    EXPECT_TRUE(fa::overlap(low, high));
    Tensor sparse{"sparse", reinterpret_cast<const void*>(1), 1, 2, fa::kNoDim, false, {2, 2}, {INT64_MAX / 2, 1}};
    EXPECT_TRUE(fa::overlap(sparse, low));
    EXPECT_FALSE(fa::overlaps_itself(sparse));
}

// Knapsacks that no layout makes: the search gives up, and what is not proven is allowed.
TEST(Overlap, HopelessCasesEnd) {
    Tensor t{"t",
             nullptr,
             8,
             5,
             fa::kNoDim,
             false,
             {1 << 12, 1 << 12, 1 << 12, 1 << 12, 1 << 12},
             {1000000007, 1000000021, 1000000033, 1000000087, 1000000093}};
    Tensor other = t;
    other.base = reinterpret_cast<const void*>(8 * uintptr_t(500000001));
    fa::overlap(t, other);
    fa::overlaps_itself(t);
    t.extent[0] = 0;
    EXPECT_FALSE(fa::overlap(t, other));
    EXPECT_FALSE(fa::overlaps_itself(t));
}
