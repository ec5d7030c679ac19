// The forward kernel for Hopper: f16 and bf16 through the products of warpgroups. docs/hopper.md tells how it works and what was tried.
//
// A block is persistent. Of its first warpgroup, one thread takes tiles of `rows` query rows of one head and brings q by bulk copies, one
// brings k and one v; the other warpgroups, the consumers, own 64 rows each and go through blocks of keys from right to left. In a step a
// consumer issues S' = q · k' for the next block and O += P · V for this one together, in turns with the others, then makes weights of S'.
// This runs on over the border of tiles: the last P · V of a tile is issued with the first q · k of the next. Pairs of blocks bring each
// one half of k and v to both.
//
// Weights are measured from a reference that moves only when a row's weights have outgrown it: see exact_weights. The steady loop then has
// no maximum, no shuffle and no multiplication of O.
#pragma once
#include "cuda/mask_sm90.h"
#include "cuda/pages_sm90.h"

namespace fa {
namespace gpu {

template <class T, int DQ, int DV, int Keys, int Groups, Mask mask, bool pair, Work work, int KSlots, int QSlots>
FA_DEVICE void consume(const HopperParams& a) {
    using H = Hopper<T, DQ, DV, Keys, Groups, pair, KSlots, QSlots>;
    using Mma = rt::Products<H::f16>;
    typename H::Shared& shared = H::shared();
    const ForwardParams& x = a.x;
    const int warp = rt::uniform(int(threadIdx.x) / 32), lane = int(threadIdx.x) % 32, group = warp / 4 - 1;
    constexpr bool kWide = DQ > 128, kEarly = work != Work::softcap;  // whose work has no registers beside products
    // The first of this thread's two rows, the other being 8 below it, and the thread's number among the four that share them. Where no
    // register is left at the border of tiles, they are not kept, but found anew.
    constexpr bool kFull = DQ == 256;
    struct Place { int row, c; };
    const auto place_of = [&](int lane) { return Place{group * 64 + warp % 4 * 16 + lane / 4, lane % 4}; };
    const Place kept = place_of(lane);
    const auto place = [&] { return kFull ? place_of(rt::lane_anew()) : kept; };
    constexpr bool kBegin = mask != Mask::none && DQ == 128;  // a tile's sums by its first product; dense tiles lose by it
    // Scores; sums of weights times v; and of two rows the reference in the units of products, what is taken from scores before their
    // exponential, and this thread's part of the sum of weights.
    float s[Keys / 2], o[DV / 2], reference[2] = {}, shift[2], l[2] = {};
    uint32_t p[Keys / 4];
    Ends ends[2], any{};  // of the keys that the two rows see, where a mask says so, and of those that some row of the warp does
    int n, low, inner, edge, skips, blocks_left, q_slot, begun = 0;  // skips: blocks that come before our first. begun: has the tile a sum?
    Ring<KSlots> k, v;
    Ring<QSlots> q;
    Ring<H::kTiles> slot;
    const HopperTile* tile = nullptr;
    static_assert(work != Work::alibi || mask == Mask::band, "the other masks' loops have no blocks that only the exact way serves");
    Scores<work, Keys> scores(a);

    const auto release = [&](const uint64_t& barrier) {
        if (lane == 0) rt::barrier_arrive(at(barrier));
    };
    const auto release_in_pair = [&](const uint64_t& barrier) {
        if (!pair) release(barrier);
        else if (lane < 2) rt::barrier_arrive_at(at(barrier), lane);
    };
    const auto free_k = [&] { release_in_pair(shared.barrier.k_free[k.i]), k.next(); };
    const auto free_v = [&] { release_in_pair(shared.barrier.v_free[v.i]), v.next(); };
    const auto last = [&] { return work == Work::alibi ? blocks_left == 0 : n == low; };  // block of the tile?
    // Under a causal mask, warpgroups whose rows are as many as a block's keys each begin at their own diagonal, so that none but a first block is
    // masked. They go without turns, in which one would have to wait for those that are not there yet.
    constexpr bool kOwn = own_diagonals(mask, Keys, H::rows), kTurns = !kOwn;
    static_assert(!kOwn || (!pair && Groups <= KSlots), "the old rows' last values wait in a slot while the first has its own keys brought");
    const auto open_tile = [&]() -> bool {
        const HopperTile* const next = &shared.tile[slot.i];
        rt::barrier_wait(at(next->told), slot.parity);
        const int4 blocks = *reinterpret_cast<const int4*>(next);
        n = rt::uniform(blocks.x);
        if (n < 0) return false;
        rt::barrier_wait(at(shared.barrier.q_full[q.i]), q.parity);
        tile = next;
        q_slot = q.i;
        slot.next();
        q.next();
        edge = mask == Mask::none ? 0 : rt::uniform(blocks.y);
        low = mask == Mask::band ? rt::uniform(blocks.z) : 0;
        inner = mask == Mask::band ? rt::uniform(blocks.w) : 0;
        skips = pair && mask != Mask::none ? rt::uniform(tile->skip) : 0;
        if constexpr (kOwn) {
            const int row = tile->row0 + 64 * group, top = min(n, rt::uniform(top_block<H, mask>(a.reach, *tile, row, 64)));
            edge = rt::uniform(ends_of<mask>(a.reach, row, tile->off, tile->k_len).end / Keys);
            skips = n - top;
            n = top;
        }
        blocks_left = n - low;
        if constexpr (work == Work::alibi) n = rt::uniform(tile->first());
        scores.open(x, *tile, place().row);
        for (int i = 0; i < skips; i++) {
            rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
            free_k();
        }
        return true;
    };
    // A warp makes weights of a masked block in parts of 32 keys, and none where no row of its own sees a part. With wider heads, or three
    // warpgroups, the branches cost more than that saves.
    constexpr bool kSkip = mask != Mask::none && DQ <= 64 && Groups == 2;
    const auto find_ends = [&] {
        if constexpr (mask != Mask::none) {
            const int own_row = place().row;
            FA_UNROLL for (int r = 0; r < 2; r++) ends[r] = ends_of<mask>(a.reach, tile->row0 + own_row + 8 * r, tile->off, tile->k_len);
        }
        if constexpr (kSkip) {
            if (mask == Mask::band) any.begin = rt::uniform(__reduce_min_sync(~0u, min(ends[0].begin, ends[1].begin)));
            any.end = rt::uniform(__reduce_max_sync(~0u, max(ends[0].end, ends[1].end)));
        }
    };
    const auto every = [](int) { return true; };
    const auto seen = [&](int part) {
        const int first = n * Keys + 32 * part;
        return !kSkip || (any.begin < first + 32 && any.end > first);
    };
    const auto skip_values = [&] {
        for (int i = 0; i < skips; i++) {
            rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
            free_v();
        }
    };
    // What lies behind the last value of a sequence within its tensor may be anything, and 0 · NaN is NaN.
    const auto clear_values = [&] {
        const int left = tile->k_len - n * Keys;
        if (kOwn || (x.alike && !(H::pages && a.piece)) || left >= Keys) return;
        rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
        const int pieces = (Keys - left) * 8;
        for (int i = int(threadIdx.x) - 128; i < pieces * H::kVPanels; i += 128 * Groups)
            rt::zero16(H::v_tile(v.i) + i / pieces * H::kPanelBytes + left * 128 + i % pieces * 16);
        rt::fence_for_products();
        rt::named_sync(1 + Groups, 128 * Groups);
    };
    const auto issue_qk = [&] {
        scores.fetch(n);
        // Where dims are many, the compiler is not to keep all addresses over the loop.
        const uint32_t q_rows = H::q_tile(q_slot) + group * 8192;
        const uint64_t left = rt::matrix_at(kWide ? uint32_t(rt::uniform(int(q_rows))) : q_rows, 16), right = rt::matrix_at(H::k_tile(k.i), 16);
        FA_UNROLL for (int i = 0; i < DQ / 16; i++)
            Mma::multiply(s, left + i / 4 * (H::rows * 8) + i % 4 * 2, right + i / 4 * (H::kPanelBytes / 16) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto issue_pv = [&](bool pass_turn) {
        const uint64_t right = rt::matrix_at(H::v_tile(v.i), H::kPanelBytes);
        FA_UNROLL for (int i = 0; i < Keys / 16; i++) {
            Mma::multiply(o, p + 4 * i, right + i * 128, !kBegin || i > 0 ? 1 : begun);
            // Two products early: the next one's first takes as long to begin.
            if (kTurns && pass_turn && i == Keys / 16 - 3) rt::named_arrive(1 + (group + 1) % Groups, 256);
        }
        rt::products_commit();
        begun = 1;
    };
    // Of the keys before the `end`-th of a block, how many scores of a row this thread has.
    const auto scores_before = [&](int end) {
        const int within = max(min(end, Keys), 0);
        return within / 8 * 2 + min(within % 8, 2);
    };
    // By bits, a word of them for 32 scores: eight at a time become predicates.
    const auto mask_scores = [&] {
        const int c = place().c;
        if (kFull) find_ends();
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const Ends seen_keys = mask == Mask::none ? Ends{0, tile->k_len} : ends[r];
            const int first = scores_before(seen_keys.begin - n * Keys - 2 * c), past = scores_before(seen_keys.end - n * Keys - 2 * c);
            FA_UNROLL for (int word = 0; word < Keys / 4; word += 32) {
                uint32_t seen = rt::low_bits(past - word);
                if (mask == Mask::band) seen &= ~rt::low_bits(first - word);
                FA_UNROLL for (int i = word; i < min(word + 32, Keys / 4); i++)
                    if (!(seen >> (i - word) & 1)) s[i / 2 * 4 + 2 * r + i % 2] = kNegInf;
            }
        }
    };
    // Weights of those rows that are wanted, straight to pairs; `sum` gets their sums, and s stays as it is. Parts that do not count have
    // weights of 0. exponent(i, r): of score i, in row r, in log2 units.
    constexpr float kNothing = DQ <= 64 ? -0.f : 0.f;  // adding to −0 takes no instruction; with 256 dims that makes a spill larger
    const auto exponentials = [&](auto counts, const bool (&wanted)[2], auto exponent, float (&sum)[4]) {
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (wanted[r]) sum[2 * r] = sum[2 * r + 1] = kNothing;
        FA_UNROLL for (int part = 0; part < (Keys + 31) / 32; part++) {
            const int past = min(8 * part + 8, Keys / 4);
            if (counts(part)) {
                FA_UNROLL for (int i = 8 * part; i < past; i++) {
                    const int r = i % 2;
                    if (!wanted[r]) continue;
                    const float first = rt::exp2_fast(exponent(2 * i, r)), second = rt::exp2_fast(exponent(2 * i + 1, r));
                    sum[2 * r] += first;
                    sum[2 * r + 1] += second;
                    p[i] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
                }
            } else {
                FA_UNROLL for (int i = 8 * part; i < past; i++) p[i] = 0;
            }
        }
    };
    // Scores as they are, but for bands. `nan`: is one NaN? So is what keys of a page that does not exist have come as.
    const auto finish_scores = [&](bool nan) {
        scores.finish(s, n);
        if (H::pages && nan && a.piece) remove_holes<Keys>(a, *tile, n, s);
    };
    // Each row's largest score so far, in the units of scores.
    const auto tops = [&](bool fresh, float (&top)[2]) {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            float other = kNegInf;
            top[r] = fresh ? kNegInf : reference[r];
            FA_UNROLL for (int i = 0; i < Keys / 2; i += 4) {
                top[r] = fmaxf(top[r], s[i + 2 * r]);
                other = fmaxf(other, s[i + 2 * r + 1]);
            }
            top[r] = fmaxf(top[r], other);
        }
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], rt::shuffle_xor16(top[r], lanes));
    };
    // The exact way to weights: for the first block of a tile (`fresh`), where weights have outgrown the reference, and where scores that are
    // worked on are masked. Moves the reference of a row to its largest score so far, if `move`, and what has been summed with it. A row without a
    // reference comes here with the next block again, and so does one whose reference is so large that it does not go into a fused
    // multiplication, whose exact product may exceed what the reference was rounded to: its scores become differences.
    const auto too_large = [&](int r) { return fabsf(reference[r] * scores.unit) > 0x1p+16f; };
    const auto move_reference = [&](const bool (&move)[2], bool fresh, const float (&top)[2]) {
        bool large[2];
        FA_UNROLL for (int r = 0; r < 2; r++) {
            large[r] = false;
            if (!move[r]) continue;
            if (!fresh) {
                const float factor = rt::exp2_fast(reference[r] * scores.unit - origin(top[r]) * scores.unit);
                l[r] *= factor;
                FA_UNROLL for (int i = 0; i < DV / 2; i++)
                    if (i / 2 % 2 == r) o[i] *= factor;
            }
            reference[r] = top[r];
            large[r] = top[r] != kNegInf && too_large(r);
        }
        if (__builtin_expect(rt::any_lane(large[0] || large[1]), 0))
            FA_UNROLL for (int r = 0; r < 2; r++) {
                if (!large[r]) continue;
                FA_UNROLL for (int i = 0; i < Keys / 2; i++)
                    if (i / 2 % 2 == r) s[i] -= top[r];
            }
    };
    const auto exact_weights = [&](auto counts, const bool (&wanted)[2], float (&sum)[4]) {
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (wanted[r]) shift[r] = (too_large(r) ? 0.f : reference[r] * scores.unit) - H::kLift;
        exponentials(counts, wanted, [&](int i, int r) { return fmaf(s[i], scores.unit, -shift[r]); }, sum);
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (too_large(r)) shift[r] = kNegInf;
    };
    const auto first_tops = [&] {
        float top[2];
        finish_scores(may_have_holes(s));
        if (mask != Mask::none || (n + 1) * Keys > tile->k_len) mask_scores();
        tops(true, top);
        move_reference({true, true}, true, top);
    };
    const auto first_weights = [&] {
        float sum[4];
        exact_weights(seen, {true, true}, sum);
        rt::pin(p);
        FA_UNROLL for (int r = 0; r < 2; r++) l[r] = sum[2 * r] + sum[2 * r + 1];
    };
    // A row's own weights alone decide whether its reference moves, or later keys would change an earlier row's bits.
    const auto weights = [&](auto masked) {
        float sum[4], top[2];
        if constexpr (masked.value && work != Work::plain) {
            finish_scores(may_have_holes(s));
            mask_scores();
            tops(false, top);
            move_reference({true, true}, false, top);
            exact_weights(every, {true, true}, sum);
        } else {
            if constexpr (masked.value) mask_scores();
            scores.begin(n, shift);
            const auto exponent = [&](int i, int r) { return scores.exponent(s[i], i, r, shift[r]); };
            if constexpr (masked.value) exponentials(seen, {true, true}, exponent, sum);
            else exponentials(every, {true, true}, exponent, sum);
            bool move[2];
            FA_UNROLL for (int r = 0; r < 2; r++) move[r] = !(sum[2 * r] + sum[2 * r + 1] <= H::kMost && scores.served(r));
            if (rt::any_lane(move[0] || move[1])) {
                FA_UNROLL for (int r = 0; r < 2; r++) move[r] = (__ballot_sync(~0u, move[r]) >> (lane & 28) & 15) != 0;
                finish_scores(isnan(sum[0] + sum[1]) || isnan(sum[2] + sum[3]));
                tops(false, top);
                move_reference(move, false, top);
                if (work == Work::plain) exact_weights(every, {true, true}, sum);  // the same again where the reference stays
                else exact_weights(every, move, sum);
            }
        }
        FA_UNROLL for (int r = 0; r < 2; r++) l[r] += sum[2 * r] + sum[2 * r + 1];
        rt::pin(p);
    };
    // The end of a tile's rows: what sums are to be multiplied by, and where averages go. A factor below 0 stands for `empty` where registers are full.
    struct Ending {
        T* out;
        bool stored[2], empty[2];
        float factor[2];
    };
    const int64_t eight_rows = 8 * x.p.d.o_stride[1];
    const auto output_of = [&](const HopperTile& t, int row0, int c) {
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        return static_cast<T*>(x.a.o) + query_index(x.p, x.p.d.o_stride, seq, t.batch, row0, t.head) + 8 * c;
    };
    // All but the averages, which wait for the last products: LSE, sinks, and the end.
    const auto end_rows = [&](const HopperTile& t, Ending& e) {
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        const Place own = place();
        const int row0 = t.row0 + own.row;
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) l[r] += rt::shuffle_xor16(l[r], lanes);
        FA_UNROLL for (int r = 0; r < 2; r++) {
            e.stored[r] = row0 + 8 * r < t.stored;
            e.empty[r] = row0 + 8 * r >= t.q_len || l[r] == 0.f;
            e.factor[r] = !e.empty[r] ? rt::reciprocal_fast(l[r]) : kFull ? -1.f : 0.f;
        }
        if (x.p.has(FA_OPERAND_SINKS | FA_OPERAND_LSE))
            FA_UNROLL for (int r = 0; r < 2; r++) {
                const int row = row0 + 8 * r;
                RowState state = e.empty[r] ? empty_row() : RowState{reference[r] == kNegInf ? kNegInf : reference[r] * scores.unit, l[r] * H::kUnlift};
                if (x.p.has(FA_OPERAND_SINKS) && row < t.q_len) {
                    const Fold f = fold(state, sink_state(x.a.sinks[t.head]));
                    state = f.state;
                    if (!kFull || !e.empty[r]) e.factor[r] = H::kUnlift * f.scale_a * normaliser(state);
                }
                if (x.p.has(FA_OPERAND_LSE) && own.c == 0 && e.stored[r]) x.a.lse[lse_index(x.p, seq, t.batch, row, t.head)] = log_sum_exp(state);
            }
        e.out = output_of(t, row0, own.c);
    };
    // Averages to memory: transposes of 4 × 4 words among the four lanes of a row make pieces of 16 bytes. Returns the largest, as a pair.
    const auto store_averages = [&](const Ending& e) {
        const int c = place().c;
        uint32_t largest = 0;
        FA_UNROLL for (int g = 0; g < DV / 32; g++)
            FA_UNROLL for (int r = 0; r < 2; r++) {
                uint32_t word[4];
                FA_UNROLL for (int i = 0; i < 4; i++) {
                    const float* const two = o + 16 * g + 4 * i + 2 * r;
                    const float first = fmaf(two[0], e.factor[r], 0.f), second = fmaf(two[1], e.factor[r], 0.f);  // −0 becomes 0: removed
                    word[i] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);                // keys' signs never show
                    largest = rt::max_magnitude<H::f16>(largest, word[i]);
                    if (kFull ? e.factor[r] < 0.f : e.empty[r]) word[i] = 0;  // whatever the values are
                }
                rt::transpose_words(word, c);
                if (e.stored[r] && 32 * g + 8 * c < a.columns)
                    *reinterpret_cast<uint4*>(e.out + r * eight_rows + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
            }
        return largest;
    };
    // Averages to an f32 o. Where a place is asked for decides which registers the assembler gives to the steady loop, by 4 % of its speed.
    const auto store_f32 = [&](const HopperTile& t, const Ending& e) {
        const Place own = DQ == 64 && mask == Mask::none ? place() : place_of(rt::lane_anew());
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        float* const out = static_cast<float*>(x.a.o) + query_index(x.p, x.p.d.o_stride, seq, t.batch, t.row0 + own.row, t.head);
        FA_UNROLL for (int i = 0; i < DV / 2; i += 2) {
            const int r = i / 2 % 2, column = i / 4 * 8 + 2 * own.c;
            const bool empty = kFull ? e.factor[r] < 0.f : e.empty[r];
            if (e.stored[r] && column < int(x.p.d.dim_v))
                *reinterpret_cast<float2*>(out + r * eight_rows + column) =
                    empty ? make_float2(0.f, 0.f) : make_float2(fmaf(o[i], e.factor[r], 0.f), fmaf(o[i + 1], e.factor[r], 0.f));
        }
    };
    // The average of finite values is finite, but weights are rounded and their sum is not: stores again what has become infinite. And f32
    // averages, behind the same branch.
    const auto mend_averages = [&](const HopperTile& t, Ending& e, uint32_t largest) {
        constexpr float limit = H::f16 ? 65520.f : 0x1.ffp+127f, less = H::f16 ? 1.f - 0x1p-10f : 1.f - 0x1p-8f;
        // Asked of averages, it keeps all of them until the largest of three at a time is taken; where registers are few, it is asked of sums.
        constexpr bool of_sums = kFull || (work == Work::softcap && Groups == 3);
        bool infinite = rt::any_infinite<H::f16>(largest);
        if constexpr (of_sums) {
            float most[2] = {};
            FA_UNROLL for (int i = 0; i < DV / 2; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(o[i]));
            infinite = most[0] * fabsf(e.factor[0]) >= limit || most[1] * fabsf(e.factor[1]) >= limit;
        }
        const bool to_f32 = a.columns == 0;
        if (__builtin_expect(!rt::any_lane(infinite || to_f32), 1)) return;
        if (!of_sums || rt::any_lane(infinite))
            FA_UNROLL for (int i = 0; i < DV / 2; i++)
                if (fabsf(o[i] * e.factor[i / 2 % 2]) >= limit) o[i] *= less;
        if (to_f32) return store_f32(t, e);
        if (kFull) e.out = output_of(t, t.row0 + place().row, place().c);
        store_averages(e);
    };
    const auto begin_output = [&] {
        if (kBegin) {
            begun = 0;
            rt::forget(o);
        } else {
            FA_UNROLL for (int i = 0; i < DV / 2; i++) o[i] = 0.f;
            rt::pin(o);
        }
    };
    // One step. A new tile's first one also ends the old tile: what does not need its last products comes before they are waited for, and no
    // branch parts the averages from the new tile's weights, so that the one runs where the other waits.
    const auto step = [&](auto fresh, auto masked, const HopperTile* old) {
        rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
        if (kTurns) rt::named_sync(1 + group, 256);
        kBegin ? rt::forget(s) : rt::pin(s);
        rt::pin(o), rt::pin(p);
        rt::products_begin();
        issue_qk();
        rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
        rt::products_begin();
        issue_pv(true);
        Ending ending;
        if constexpr (fresh.value) find_ends();
        if constexpr (fresh.value && kEarly) end_rows(*old, ending);
        rt::products_left<1>();
        rt::pin(s);
        free_k();
        if (last()) release(shared.barrier.q_free[q_slot]);
        if constexpr (fresh.value && kEarly) {
            first_tops();
            rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);  // long over: the compiler moves nothing that comes before past it
        }
        rt::products_left<0>();
        rt::pin(o), rt::pin(p);
        free_v();
        if constexpr (fresh.value) {
            if (!kEarly) end_rows(*old, ending);
            const uint32_t largest = store_averages(ending);
            if (kEarly) first_weights();
            mend_averages(*old, ending, largest);
            if (!kEarly) first_tops(), first_weights();
            rt::barrier_arrive(at(old->done));
            begin_output();
            skip_values();
            clear_values();
        } else {
            weights(masked);
        }
    };

    if (kTurns && group == Groups - 1) rt::named_arrive(1, 256);  // the first warpgroup has the first turn
    if (!open_tile()) return;
    rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
    rt::pin(s);
    rt::products_begin();
    issue_qk();
    rt::products_left<0>();
    rt::pin(s);
    free_k();
    if (last()) release(shared.barrier.q_free[q_slot]);
    begin_output();
    find_ends();
    first_tops();
    first_weights();
    skip_values();
    clear_values();
    while (true) {
        const auto exact = [&] { return n >= edge || n < inner || scores.exact(n); };
        if constexpr (work == Work::alibi) {
            while (blocks_left > 0) {
                blocks_left--;
                n = rt::uniform(tile->after(n));
                if (exact()) step(No{}, Yes{}, nullptr);
                else step(No{}, No{}, nullptr);
                clear_values();
            }
        } else {
            n--;
            if constexpr (mask != Mask::none)
                for (; n >= max(edge, low); n--) step(No{}, Yes{}, nullptr);
            for (; n >= max(inner, low); n--) step(No{}, No{}, nullptr);
            if constexpr (mask == Mask::band)
                for (; n >= low; n--) step(No{}, Yes{}, nullptr);
        }
        const HopperTile* const old = tile;
        if (!open_tile()) break;
        step(Yes{}, Yes{}, old);
    }
    rt::pin(o), rt::pin(p);
    rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
    rt::products_begin();
    issue_pv(false);
    Ending ending;
    end_rows(*tile, ending);
    rt::products_left<0>();
    rt::pin(o);
    mend_averages(*tile, ending, store_averages(ending));
}

template <class T, int DQ, int DV, int Keys, int Groups, Mask mask, bool pair, Work work, int KSlots, int QSlots>
FA_KERNEL void FA_BOUNDS((Hopper<T, DQ, DV, Keys, Groups, pair, KSlots, QSlots>::threads), 1) forward_sm90(FA_PARAM HopperParams a) {
    using H = Hopper<T, DQ, DV, Keys, Groups, pair, KSlots, QSlots>;
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) H::init_barriers();
    if (threadIdx.x == 32) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v);
    if (pair) rt::cluster_sync();
    else __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::uniform(int(threadIdx.x) / 128) == 0) {
        rt::give_registers<H::kBringers>();
        const int warp = rt::uniform(int(threadIdx.x) / 32);
        if (threadIdx.x == 0) take_tiles<H, mask, pair, QSlots>(a);
        else if (H::pages && a.piece && warp == 1) load_pages<H, Side::keys, KSlots>(a);
        else if (H::pages && a.piece && warp == 2) load_pages<H, Side::values, KSlots>(a);
        else if (threadIdx.x == 32) load_blocks<H, pair, Side::keys, KSlots>(a);
        else if (threadIdx.x == 64) load_blocks<H, pair, Side::values, KSlots>(a);
        else return;
    } else {
        rt::take_registers<H::kConsumers>();
        consume<T, DQ, DV, Keys, Groups, mask, pair, work, KSlots, QSlots>(a);
    }
    if (pair) rt::cluster_sync();  // the other block may still write here
}

}  // namespace gpu
}  // namespace fa
