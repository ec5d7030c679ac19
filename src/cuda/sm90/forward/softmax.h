// Online softmax of a consumer warpgroup, from the accumulators of S to P in registers, with a lazily moved reference: scores are
// measured from row_ref, a row's largest score when it was last moved, and O and the row sum are rescaled only when P has outgrown
// it. So the steady mainloop has no maximum, no shuffle and no multiplication of O.
//
// exact_softmax serves where that does not hold: the first block of a tile, rows that outgrew their row_ref, and masked blocks with
// a ScoreMod.
#pragma once
#include "cuda/sm90/forward/consumer.h"

namespace fa {
namespace gpu {

// Which parts of 32 keys of a block a warp computes P for.
struct AllParts {
    FA_MEMBER bool operator()(int) const { return true; }
};
template <class Consumer>
struct SeenParts {
    const Consumer& wg;
    FA_MEMBER bool operator()(int part) const {
        const int first = wg.n_block * Consumer::kBlockN + 32 * part;
        return !Consumer::kSkipUnseenParts || (wg.warp_range.begin < first + 32 && wg.warp_range.end > first);
    }
};

// Of the keys before the `end`-th of a block, how many scores of a row this thread has.
template <int kBlockN>
FA_DEVICE int scores_before(int end) {
    const int within = max(min(end, kBlockN), 0);
    return within / 8 * 2 + min(within % 8, 2);
}

// Of a row, a bit for each of this thread's scores from number `word` on whose key the row sees.
template <class Consumer>
FA_DEVICE uint32_t seen_bits(const Consumer& wg, int r, int c, int word) {
    constexpr int kBlockN = Consumer::kBlockN;
    const KeyRange range = Consumer::mask == MaskKind::none ? KeyRange{0, wg.tile->k_len} : wg.key_range[r];
    const int first = scores_before<kBlockN>(range.begin - wg.n_block * kBlockN - 2 * c),
              past = scores_before<kBlockN>(range.end - wg.n_block * kBlockN - 2 * c);
    uint32_t seen = rt::low_bit_mask(past - word);
    if (Consumer::mask == MaskKind::band) seen &= ~rt::low_bit_mask(first - word);
    return seen;
}
// The same where units make up a block, all scores of which one word has.
template <class Consumer>
FA_DEVICE uint32_t seen_bits_of_units(const Consumer& wg, int r, int c) {
    constexpr int scores = KeyUnitTable::kKeys / 4;
    uint32_t seen = 0;
    FA_UNROLL_FOR (int i = 0; i < Consumer::Traits::kUnits; i++) {
        const SeenKeys of_unit = wg.units.seen(i, wg.warpgroup);
        const KeyRange range = of_unit == SeenKeys::masked ? wg.key_range[r] : KeyRange{0, of_unit == SeenKeys::none ? 0 : wg.tile->k_len};
        const int first = wg.units.first_key(i) + 2 * c;
        seen |= (rt::low_bit_mask(scores_before<KeyUnitTable::kKeys>(range.end - first)) &
                 ~rt::low_bit_mask(scores_before<KeyUnitTable::kKeys>(range.begin - first)))
                << scores * i;
    }
    return seen;
}

// And where masks come as bits (list_units.h).
template <class Consumer>
FA_DEVICE void apply_mask_bits(Consumer& wg) {
    constexpr int units = Consumer::Traits::kUnits, scores = KeyUnitTable::kKeys / 2;
    const KeyUnitTable& table = wg.a.units;
    const int64_t entry = wg.tile->table_tile * table.most + wg.n_block * units;
    const uint32_t* const word = table.bits + entry * KeyUnitTable::kBits + Consumer::thread_of_tile();
    FA_UNROLL_FOR (int i = 0; i < units; i++) {
        if (wg.units.seen(i, wg.warpgroup) != SeenKeys::masked) continue;
        const uint32_t seen = word[i * KeyUnitTable::kBits];
        FA_UNROLL_FOR (int j = 0; j < scores; j++)
            if (!(seen >> j & 1)) wg.acc_s[i * scores + j] = kNegInf;
    }
}

// By bits, a word of them for 32 scores: eight at a time become predicates.
template <class Consumer>
FA_DEVICE void apply_mask(Consumer& wg) {
    constexpr int kBlockN = Consumer::kBlockN;
    static_assert(Consumer::mask != MaskKind::list || kBlockN <= 128, "one word has all scores of a row");
    const int c = wg.row_place().c;
    if (Consumer::kRecomputePlace) wg.find_key_ranges();
    FA_UNROLL_FOR (int r = 0; r < 2; r++)
        FA_UNROLL_FOR (int word = 0; word < kBlockN / 4; word += 32) {
            uint32_t seen;
            if constexpr (Consumer::mask == MaskKind::list) seen = seen_bits_of_units(wg, r, c);
            else seen = seen_bits(wg, r, c, word);
            FA_UNROLL_FOR (int i = word; i < min(word + 32, kBlockN / 4); i++)
                if (!(seen >> (i - word) & 1)) wg.acc_s[i / 2 * 4 + 2 * r + i % 2] = kNegInf;
        }
    if constexpr (Consumer::mask == MaskKind::list)
        if (wg.a.units.bits) apply_mask_bits(wg);
}

// Exact scores in place of products. `nan`: is one NaN? So are the scores of keys whose page does not exist.
template <class Consumer>
FA_DEVICE void apply_score_mod(Consumer& wg, bool nan) {
    wg.score_mod_op.apply_exact(wg.acc_s, wg.n_block);
    if (Consumer::Traits::kPagedKv && nan && wg.a.page_chunk) mask_missing_pages<Consumer::kBlockN>(wg.a, *wg.tile, wg.n_block, wg.acc_s);
}

// What is known of a block's P: this thread's part of its row sums, by two; and, of 8 bits, words of which the highest bit of a byte is set
// where a P of the row has reached the type's limit, or is NaN, and such where exp2_by_fma may have made a P of something beyond its range.
struct PStats {
    float row[4];
    uint32_t limit[2], beyond[2];
    FA_MEMBER float of(int r) const { return row[2 * r] + row[2 * r + 1]; }
    template <class Consumer>
    FA_MEMBER bool outgrew(const Consumer& wg, int r) const {
        const bool within = Consumer::Traits::kP8 ? ((limit[r] & 0x80808080u) | (beyond[r] & rt::kExp2Beyond)) == 0
                                                  : of(r) <= Consumer::Traits::kRescaleThreshold;
        return !(within && wg.score_mod_op.in_range(r));
    }
};

// Is P of the j-th score of a word, of which four words have 64 keys of a row, made by exp2_by_fma? One of eight, where special functions
// are the bound: of more, the power that instructions take costs what is gained.
template <class Traits>
constexpr bool made_by_fma(int word, int j) {
    return Traits::kExp2ByFma && j == 3 && word % 4 < 2;
}

// The same as below, of 8 bits: a word has four scores of 16 keys, in the order in which transpose_v.h leaves the keys. The sum for an LSE
// takes none from exp2_by_fma.
template <class Consumer, class Exponent>
FA_DEVICE void exp2_to_p8(Consumer& wg, const bool (&wanted)[2], Exponent exponent, PStats& stats) {
    using Traits = typename Consumer::Traits;
    FA_UNROLL_FOR (int r = 0; r < 2; r++)
        if (wanted[r]) stats.row[2 * r] = stats.row[2 * r + 1] = 0.f, stats.limit[r] = stats.beyond[r] = 0;
    const float zero[] = {rt::kExp2Zero - wg.ref_log2[0], rt::kExp2Zero - wg.ref_log2[1]};
    FA_UNROLL_FOR (int i = 0; i < Consumer::kBlockN / 8; i++) {
        const int r = i % 2, s = i / 2 * 8 + 2 * r;
        if (!wanted[r]) continue;
        float value[4];
        FA_UNROLL_FOR (int j = 0; j < 4; j++) value[j] = rt::exp2_fast(exponent(s + j / 2 * 4 + j % 2, r));
        stats.row[2 * r] += value[0] + value[1];
        stats.row[2 * r + 1] += value[2] + value[3];
        FA_UNROLL_FOR (int j = 0; j < 4; j++) {
            if (!made_by_fma<Traits>(i, j)) continue;
            uint32_t bits;
            value[j] = rt::exp2_by_fma(fmaf(wg.acc_s[s + j / 2 * 4 + j % 2], wg.score_mod_op.scale_log2, zero[r]), bits);
            stats.beyond[r] |= bits;
        }
        wg.p[i] = rt::pack_e4m3(value[0], value[1], value[2], value[3]);
        stats.limit[r] |= wg.p[i] + 0x02020202u;
    }
}

// P of those rows that are wanted, packed in pairs; acc_s stays as it is. Parts that are not computed get P = 0. exponent(i, r): of score
// i, in row r, in log2 units.
template <class Consumer, class Parts, class Exponent>
FA_DEVICE void exp2_to_p(Consumer& wg, Parts computed, const bool (&wanted)[2], Exponent exponent, PStats& stats) {
    if constexpr (Consumer::Traits::kP8) return exp2_to_p8(wg, wanted, exponent, stats);
    float (&sum)[4] = stats.row;
    constexpr int kBlockN = Consumer::kBlockN;
    // Adding to −0 takes no instruction; with 256 dims that makes a spill larger.
    constexpr float kZero = Consumer::kHeadDim <= 64 ? -0.f : 0.f;
    FA_UNROLL_FOR (int r = 0; r < 2; r++)
        if (wanted[r]) sum[2 * r] = sum[2 * r + 1] = kZero;
    FA_UNROLL_FOR (int part = 0; part < (kBlockN + 31) / 32; part++) {
        const int past = min(8 * part + 8, kBlockN / 4);
        if (computed(part)) {
            FA_UNROLL_FOR (int i = 8 * part; i < past; i++) {
                const int r = i % 2;
                if (!wanted[r]) continue;
                const float first = rt::exp2_fast(exponent(2 * i, r)), second = rt::exp2_fast(exponent(2 * i + 1, r));
                sum[2 * r] += first;
                sum[2 * r + 1] += second;
                float of_v = 1.f;
                if constexpr (Consumer::score_mod == ScoreMod::factors) of_v = wg.score_mod_op.of_value(2 * i);
                wg.p[i] = Consumer::Traits::f16 ? rt::pack_f16(first * of_v, second * of_v) : rt::pack_bf16(first * of_v, second * of_v);
            }
        } else {
            FA_UNROLL_FOR (int i = 8 * part; i < past; i++) wg.p[i] = 0;
        }
    }
}

// Each row's largest score so far, in the units of scores.
template <class Consumer>
FA_DEVICE void find_row_max(const Consumer& wg, bool is_first, float (&row_max)[2]) {
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        float other = kNegInf;
        row_max[r] = is_first ? kNegInf : wg.row_ref[r];
        FA_UNROLL_FOR (int i = 0; i < Consumer::kBlockN / 2; i += 4) {
            row_max[r] = fmaxf(row_max[r], wg.acc_s[i + 2 * r]);
            other = fmaxf(other, wg.acc_s[i + 2 * r + 1]);
        }
        row_max[r] = fmaxf(row_max[r], other);
    }
    FA_UNROLL_FOR (int lanes = 1; lanes < 4; lanes *= 2)
        FA_UNROLL_FOR (int r = 0; r < 2; r++) row_max[r] = fmaxf(row_max[r], rt::shuffle_xor16(row_max[r], lanes));
}

// Is row_ref too large for a fused multiplication, whose exact product may exceed what row_ref · scale was rounded to?
template <class Consumer>
FA_DEVICE bool ref_too_large(const Consumer& wg, int r) {
    return fabsf(wg.row_ref[r] * wg.score_mod_op.scale_log2) > 0x1p+16f;
}

// Moves row_ref of those rows that are to `move` to row_max, and rescales O and the row sum. Where row_ref is too large, scores
// become differences from it.
template <class Consumer>
FA_DEVICE void lazy_rescale(Consumer& wg, const bool (&move)[2], bool is_first, const float (&row_max)[2]) {
    bool large[2];
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        large[r] = false;
        if (!move[r]) continue;
        if (!is_first) {
            const float factor =
                rt::exp2_fast(wg.row_ref[r] * wg.score_mod_op.scale_log2 - safe_max(row_max[r]) * wg.score_mod_op.scale_log2);
            wg.row_sum[r] *= factor;
            if (Consumer::Traits::kLseSum) wg.lse_sum[r] *= factor;
            wg.rescale_averages(r, factor);
            FA_UNROLL_FOR (int i = 0; i < Consumer::kHeadDimV / 2; i++)
                if (i / 2 % 2 == r) wg.acc_o[i] *= factor;
        }
        wg.row_ref[r] = row_max[r];
        large[r] = row_max[r] != kNegInf && ref_too_large(wg, r);
    }
    if (__builtin_expect(rt::warp_any(large[0] || large[1]), 0))
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            if (!large[r]) continue;
            FA_UNROLL_FOR (int i = 0; i < Consumer::kBlockN / 2; i++)
                if (i / 2 % 2 == r) wg.acc_s[i] -= row_max[r];
        }
}

// P from exact scores and a row_ref that has been moved. A row that has seen no key yet, or whose row_ref is too large, keeps
// ref_log2 at −∞, so that its next block comes here again.
template <class Consumer, class Parts>
FA_DEVICE void exact_softmax(Consumer& wg, Parts computed, const bool (&wanted)[2], PStats& sum) {
    FA_UNROLL_FOR (int r = 0; r < 2; r++)
        if (wanted[r])
            wg.ref_log2[r] = (ref_too_large(wg, r) ? 0.f : wg.row_ref[r] * wg.score_mod_op.scale_log2) - Consumer::Traits::kPScaleLog2;
    exp2_to_p(wg, computed, wanted, [&](int i, int r) { return fmaf(wg.acc_s[i], wg.score_mod_op.scale_log2, -wg.ref_log2[r]); }, sum);
    FA_UNROLL_FOR (int r = 0; r < 2; r++)
        if (ref_too_large(wg, r)) wg.ref_log2[r] = kNegInf;
}

// The first block of a tile, in two parts between which the mainloop stores the previous tile's o: row_ref, and P.
template <class Consumer>
FA_DEVICE void first_row_ref(Consumer& wg) {
    float row_max[2];
    wg.wait_bias();
    apply_score_mod(wg, may_miss_pages(wg.acc_s));
    wg.release_bias();
    if (Consumer::mask == MaskKind::list ? wg.needs_mask()
                                         : Consumer::mask != MaskKind::none || (wg.n_block + 1) * Consumer::kBlockN > wg.tile->k_len)
        apply_mask(wg);
    find_row_max(wg, true, row_max);
    lazy_rescale(wg, {true, true}, true, row_max);
}
template <class Consumer>
FA_DEVICE void first_softmax(Consumer& wg) {
    using Traits = typename Consumer::Traits;
    PStats sum;
    exact_softmax(wg, SeenParts<Consumer>{wg}, {true, true}, sum);
    rt::keep_in_registers(wg.p);
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        wg.row_sum[r] = Traits::kRowSumByWgmma ? 0.f : sum.of(r);
        if (Traits::kLseSum) wg.lse_sum[r] = sum.of(r);
    }
}

// Every other block. A row's own P alone decides whether its row_ref moves, or later keys would change an earlier row's bits.
template <class Consumer, class IsMasked>
FA_DEVICE void online_softmax(Consumer& wg, IsMasked is_masked) {
    using Traits = typename Consumer::Traits;
    PStats sum;
    float row_max[2];
    wg.wait_bias();
    if constexpr (is_masked.value && Consumer::score_mod != ScoreMod::none) {
        apply_score_mod(wg, may_miss_pages(wg.acc_s));
        apply_mask(wg);
        find_row_max(wg, false, row_max);
        lazy_rescale(wg, {true, true}, false, row_max);
        exact_softmax(wg, AllParts{}, {true, true}, sum);
    } else {
        if constexpr (is_masked.value) apply_mask(wg);
        if constexpr (Consumer::kOneLoop)
            if (wg.needs_mask()) apply_mask(wg);
        wg.score_mod_op.begin_block(wg.n_block, wg.ref_log2);
        const auto exponent = [&](int i, int r) { return wg.score_mod_op.exponent(wg.acc_s[i], i, r, wg.ref_log2[r]); };
        if constexpr (is_masked.value) exp2_to_p(wg, SeenParts<Consumer>{wg}, {true, true}, exponent, sum);
        else exp2_to_p(wg, AllParts{}, {true, true}, exponent, sum);
        bool move[2];
        FA_UNROLL_FOR (int r = 0; r < 2; r++) move[r] = sum.outgrew(wg, r);
        if (rt::warp_any(move[0] || move[1])) {
            FA_UNROLL_FOR (int r = 0; r < 2; r++) move[r] = (__ballot_sync(~0u, move[r]) >> (wg.lane_index() & 28) & 15) != 0;
            apply_score_mod(wg, Traits::kP8 ? Traits::kPagedKv && may_miss_pages<1>(wg.acc_s) : isnan(sum.of(0)) || isnan(sum.of(1)));
            find_row_max(wg, false, row_max);
            lazy_rescale(wg, move, false, row_max);
            if (Consumer::score_mod == ScoreMod::none)
                exact_softmax(wg, AllParts{}, {true, true}, sum);  // the same again where row_ref stays
            else exact_softmax(wg, AllParts{}, move, sum);
        }
    }
    wg.release_bias();
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        if (!Traits::kRowSumByWgmma) wg.row_sum[r] += sum.of(r);
        if (Traits::kLseSum) wg.lse_sum[r] += sum.of(r);
    }
    rt::keep_in_registers(wg.p);
}

}  // namespace gpu
}  // namespace fa
