#include "problems.h"
#include <algorithm>

namespace test {

void fill(Case& test_case, Rng& rng) {
    test_case.bind(rng);
    test_case.fill_normal(rng);
    for (int64_t h = 0; h < test_case.d.heads_q; h++) {
        if (test_case.a.sinks) test_case.sinks.as<float>()[h] = float(rng.normal());
        if (test_case.a.alibi_slopes) test_case.alibi.as<float>()[h] = float(rng.uniform(0.01, 0.3));
    }
    if (test_case.a.bias) test_case.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
    if (test_case.a.mask) test_case.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.7); });
}

static void pack_sequences(Case& test_case, const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
    test_case.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    test_case.metadata.cu_seqlens_q = q, test_case.metadata.cu_seqlens_k = k;
    test_case.d.batch = int64_t(q.size()) - 1;
    test_case.d.total_q = q.back() + 2, test_case.d.total_k = k.back() + 1;  // rows behind the last belong to nobody
}

Case problem(uint64_t seed, bool pairs, bool chunks, bool differentiable) {
    Rng rng(seed);
    const int64_t heads_k = rng.pick<int64_t>({8, 8, 16}), rows = rng.between(1, 70), keys = rng.chance(0.5) ? rows : rng.between(1, 90);
    Case c = shaped({rng.between(1, 2), heads_k * rng.between(1, 2), heads_k, rows, keys, 16, rng.pick<int64_t>({16, 24})},
                    rng.pick<int32_t>({FA_F32, FA_F32, FA_BF16, FA_F16}));
    c.seed = seed;
    if (rng.chance(0.2) && !differentiable) c.d.heads_v = 8;
    const int32_t alignment = rng.pick<int32_t>({FA_ALIGN_TOP_LEFT, FA_ALIGN_BOTTOM_RIGHT, FA_ALIGN_EXPLICIT});
    if (rng.chance(0.6)) causal(c, alignment);
    if (rng.chance(0.3)) window(c, rng.between(-1, 30), rng.between(-1, 10), alignment);
    if (rng.chance(0.2)) c.d.operands |= FA_OPERAND_ALIBI, c.d.alignment = alignment;
    if (chunks && rng.chance(0.2)) c.d.chunk = rng.between(5, 40), c.d.alignment = alignment;
    if (rng.chance(0.2)) c.d.operands |= FA_OPERAND_SINKS;
    if (rng.chance(0.2)) c.d.softcap = 3;
    if (pairs && rng.chance(0.2)) c.d.operands |= FA_OPERAND_BIAS;
    if (pairs && rng.chance(0.2)) c.d.operands |= FA_OPERAND_MASK;
    if (rng.chance(0.1) && !differentiable) c.d.operands &= ~FA_OPERAND_LSE;
    if (rng.chance(0.3)) {
        const int32_t a = int32_t(rng.between(0, rows)), b = int32_t(rng.between(0, keys));
        pack_sequences(c, {1, 1 + a, 1 + a, 1 + a + int32_t(rows)}, {0, b, b + 3, b + 3 + int32_t(keys)});
        c.d.seqlen_k = std::max<int64_t>(keys, 3);
    }
    if (c.d.alignment == FA_ALIGN_EXPLICIT) {
        c.d.operands |= FA_OPERAND_CAUSAL_OFFSET;
        for (int64_t b = 0; b < c.d.batch; b++) c.metadata.causal_offset.push_back(int32_t(rng.between(-20, 40)));
    }
    dense_pairs(c.d, c.d.bias_stride), dense_pairs(c.d, c.d.mask_stride);
    if (!(c.d.operands & FA_OPERAND_BIAS)) std::fill(c.d.bias_stride, c.d.bias_stride + 4, 0);
    if (!(c.d.operands & FA_OPERAND_MASK)) std::fill(c.d.mask_stride, c.d.mask_stride + 4, 0);
    fill(c, rng);
    Rng drops(derive(seed, 3));
    if (drops.chance(0.25)) {
        c.d.dropout_p = drops.pick<float>({0.2f, 0.7f});
        c.a.dropout_seed = drops.bits(), c.a.dropout_offset = drops.bits();
        if (drops.chance(0.3)) c.a.dropout_row = 1001, c.a.dropout_key = 77, c.a.dropout_head = 5, c.a.dropout_heads = 40;
    }
    return c;
}

Spread spread_of(const Way& way, const Case& test_case, Rng& rng) {
    Spread s = by_rows(rng.pick<int32_t>({2, 2, 4, 8}), way.method, way.layout);
    if (way.method != FA_CP_METHOD_ULYSSES && rng.chance(0.3)) s.ranks = 3;
    if (rng.chance(0.3)) s.desc.block = rng.pick<int64_t>({4, 16});
    if (way.method == FA_CP_METHOD_ALL_GATHER && rng.chance(0.5))
        s.desc.head_chunk = int32_t(test_case.d.heads_k / rng.pick<int32_t>({1, 2, 8}));
    if (s.desc.head_chunk > 0 && test_case.d.heads_v > 0 && test_case.d.heads_v < test_case.d.heads_k)
        s.desc.head_chunk = int32_t(test_case.d.heads_k);
    return s;
}

}  // namespace test
