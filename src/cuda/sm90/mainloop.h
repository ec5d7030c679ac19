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
#include "cuda/sm90/score_mod.h"
#include "cuda/sm90/paged_kv.h"

namespace fa {
namespace gpu {

template <class T, int HeadDim, int HeadDimV, int BlockN, int Warpgroups, MaskKind mask, bool pair, ScoreMod score_mod, int Stages, int QStages>
FA_DEVICE void consumer_mainloop(const Sm90ForwardParams& a) {
    using Traits = Sm90ForwardTraits<T, HeadDim, HeadDimV, BlockN, Warpgroups, pair, Stages, QStages>;
    using Wgmma = rt::Wgmma<Traits::f16>;
    typename Traits::Shared& shared = Traits::shared();
    const ForwardParams& x = a.x;
    const int warp = rt::uniform(int(threadIdx.x) / 32), lane = int(threadIdx.x) % 32, warpgroup = warp / 4 - 1;
    constexpr bool kWideHead = HeadDim > 128, kOverlapEpilogue = score_mod != ScoreMod::softcap;  // whose work has no registers beside products
    // The first of this thread's two rows, the other being 8 below it, and the thread's number among the four that share them. Where no
    // register is left at the border of tiles, they are not kept, but found anew.
    constexpr bool kRecomputePlace = HeadDim == 256;
    struct RowPlace { int row, c; };
    const auto row_place_of = [&](int lane) { return RowPlace{warpgroup * 64 + warp % 4 * 16 + lane / 4, lane % 4}; };
    const RowPlace kept = row_place_of(lane);
    const auto row_place = [&] { return kRecomputePlace ? row_place_of(rt::read_laneid()) : kept; };
    constexpr bool kZeroByFirstMma = mask != MaskKind::none && HeadDim == 128;  // a tile's sums by its first product; dense tiles lose by it
    // Scores; sums of weights times v; and of two rows the reference in the units of products, what is taken from scores before their
    // exponential, and this thread's part of the sum of weights.
    float acc_s[BlockN / 2], acc_o[HeadDimV / 2], row_ref[2] = {}, ref_log2[2], row_sum[2] = {};
    uint32_t p[BlockN / 4];
    KeyRange key_range[2], warp_range{};  // of the keys that the two rows see, where a mask says so, and of those that some row of the warp does
    int n_block, n_block_min, n_block_min_before_local_mask, n_block_min_causal_local_mask, blocks_to_skip, blocks_left, q_stage, o_started = 0;  // skips: blocks that come before our first. begun: has the tile a sum?
    PipelineState<Stages> k, v;
    PipelineState<QStages> q;
    PipelineState<Traits::kTileStages> tile_stage;
    const WorkTileInfo* tile = nullptr;
    static_assert(score_mod != ScoreMod::alibi || mask == MaskKind::band, "the other masks' loops have no blocks that only the exact way serves");
    ScoreModOp<score_mod, BlockN> score_mod_op(a);

    const auto release = [&](const uint64_t& barrier) {
        if (lane == 0) rt::mbarrier_arrive(smem_addr(barrier));
    };
    const auto release_to_pair = [&](const uint64_t& barrier) {
        if (!pair) release(barrier);
        else if (lane < 2) rt::mbarrier_arrive_remote(smem_addr(barrier), lane);
    };
    const auto release_k = [&] { release_to_pair(shared.barrier.k_empty[k.index]), k.advance(); };
    const auto release_v = [&] { release_to_pair(shared.barrier.v_empty[v.index]), v.advance(); };
    const auto is_last_block = [&] { return score_mod == ScoreMod::alibi ? blocks_left == 0 : n_block == n_block_min; };  // block of the tile?
    // Under a causal mask, warpgroups whose rows are as many as a block's keys each begin at their own diagonal, so that none but a first block is
    // masked. They go without turns, in which one would have to wait for those that are not there yet.
    constexpr bool kWarpgroupDiagonals = warpgroup_diagonals(mask, BlockN, Traits::kBlockM), kPingPong = !kWarpgroupDiagonals;
    static_assert(!kWarpgroupDiagonals || (!pair && Warpgroups <= Stages), "the old rows' last values wait in a slot while the first has its own keys brought");
    const auto begin_tile = [&]() -> bool {
        const WorkTileInfo* const next = &shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(next->tile_ready), tile_stage.phase);
        const int4 blocks = *reinterpret_cast<const int4*>(next);
        n_block = rt::uniform(blocks.x);
        if (n_block < 0) return false;
        rt::mbarrier_wait(smem_addr(shared.barrier.q_full[q.index]), q.phase);
        tile = next;
        q_stage = q.index;
        tile_stage.advance();
        q.advance();
        n_block_min_causal_local_mask = mask == MaskKind::none ? 0 : rt::uniform(blocks.y);
        n_block_min = mask == MaskKind::band ? rt::uniform(blocks.z) : 0;
        n_block_min_before_local_mask = mask == MaskKind::band ? rt::uniform(blocks.w) : 0;
        blocks_to_skip = pair && mask != MaskKind::none ? rt::uniform(tile->peer_only_blocks) : 0;
        if constexpr (kWarpgroupDiagonals) {
            const int row = tile->row0 + 64 * warpgroup, last = min(n_block, rt::uniform(n_block_max_of<Traits, mask>(a.window, *tile, row, 64)));
            n_block_min_causal_local_mask = rt::uniform(key_range_of<mask>(a.window, row, tile->off, tile->k_len).end / BlockN);
            blocks_to_skip = n_block - last;
            n_block = last;
        }
        blocks_left = n_block - n_block_min;
        if constexpr (score_mod == ScoreMod::alibi) n_block = rt::uniform(tile->first_n_block());
        score_mod_op.begin_tile(x, *tile, row_place().row);
        for (int i = 0; i < blocks_to_skip; i++) {
            rt::mbarrier_wait(smem_addr(shared.barrier.k_full[k.index]), k.phase);
            release_k();
        }
        return true;
    };
    // A warp makes weights of a masked block in parts of 32 keys, and none where no row of its own sees a part. With wider heads, or three
    // warpgroups, the branches cost more than that saves.
    constexpr bool kSkip = mask != MaskKind::none && HeadDim <= 64 && Warpgroups == 2;
    const auto find_key_ranges = [&] {
        if constexpr (mask != MaskKind::none) {
            const int own_row = row_place().row;
            FA_UNROLL for (int r = 0; r < 2; r++) key_range[r] = key_range_of<mask>(a.window, tile->row0 + own_row + 8 * r, tile->off, tile->k_len);
        }
        if constexpr (kSkip) {
            if (mask == MaskKind::band) warp_range.begin = rt::uniform(__reduce_min_sync(~0u, min(key_range[0].begin, key_range[1].begin)));
            warp_range.end = rt::uniform(__reduce_max_sync(~0u, max(key_range[0].end, key_range[1].end)));
        }
    };
    const auto all_parts = [](int) { return true; };
    const auto warp_sees = [&](int part) {
        const int first = n_block * BlockN + 32 * part;
        return !kSkip || (warp_range.begin < first + 32 && warp_range.end > first);
    };
    const auto release_skipped_v = [&] {
        for (int i = 0; i < blocks_to_skip; i++) {
            rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase);
            release_v();
        }
    };
    // What lies behind the last value of a sequence within its tensor may be anything, and 0 · NaN is NaN.
    const auto zero_v_tail = [&] {
        const int left = tile->k_len - n_block * BlockN;
        if (kWarpgroupDiagonals || (x.alike && !(Traits::kPagedKv && a.page_chunk)) || left >= BlockN) return;
        rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase);
        const int pieces = (BlockN - left) * 8;
        for (int i = int(threadIdx.x) - 128; i < pieces * Traits::kVPanels; i += 128 * Warpgroups)
            rt::st_shared_zero_v4(Traits::v_tile(v.index) + i / pieces * Traits::kPanelBytes + left * 128 + i % pieces * 16);
        rt::fence_proxy_async_shared();
        rt::named_barrier_sync(1 + Warpgroups, 128 * Warpgroups);
    };
    const auto issue_qk = [&] {
        score_mod_op.prefetch(n_block);
        // Where dims are many, the compiler is not to keep all addresses over the loop.
        const uint32_t q_rows = Traits::q_tile(q_stage) + warpgroup * 8192;
        const uint64_t left = rt::smem_desc(kWideHead ? uint32_t(rt::uniform(int(q_rows))) : q_rows, 16), right = rt::smem_desc(Traits::k_tile(k.index), 16);
        FA_UNROLL for (int i = 0; i < HeadDim / 16; i++)
            Wgmma::mma(acc_s, left + i / 4 * (Traits::kBlockM * 8) + i % 4 * 2, right + i / 4 * (Traits::kPanelBytes / 16) + i % 4 * 2, i > 0);
        rt::wgmma_commit();
    };
    const auto issue_pv = [&](bool pass_turn) {
        const uint64_t right = rt::smem_desc(Traits::v_tile(v.index), Traits::kPanelBytes);
        FA_UNROLL for (int i = 0; i < BlockN / 16; i++) {
            Wgmma::mma(acc_o, p + 4 * i, right + i * 128, !kZeroByFirstMma || i > 0 ? 1 : o_started);
            // Two products early: the next one's first takes as long to begin.
            if (kPingPong && pass_turn && i == BlockN / 16 - 3) rt::named_barrier_arrive(1 + (warpgroup + 1) % Warpgroups, 256);
        }
        rt::wgmma_commit();
        o_started = 1;
    };
    // Of the keys before the `end`-th of a block, how many scores of a row this thread has.
    const auto scores_before = [&](int end) {
        const int within = max(min(end, BlockN), 0);
        return within / 8 * 2 + min(within % 8, 2);
    };
    // By bits, a word of them for 32 scores: eight at a time become predicates.
    const auto apply_mask = [&] {
        const int c = row_place().c;
        if (kRecomputePlace) find_key_ranges();
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const KeyRange range = mask == MaskKind::none ? KeyRange{0, tile->k_len} : key_range[r];
            const int first = scores_before(range.begin - n_block * BlockN - 2 * c), past = scores_before(range.end - n_block * BlockN - 2 * c);
            FA_UNROLL for (int word = 0; word < BlockN / 4; word += 32) {
                uint32_t bits = rt::low_bit_mask(past - word);
                if (mask == MaskKind::band) bits &= ~rt::low_bit_mask(first - word);
                FA_UNROLL for (int i = word; i < min(word + 32, BlockN / 4); i++)
                    if (!(bits >> (i - word) & 1)) acc_s[i / 2 * 4 + 2 * r + i % 2] = kNegInf;
            }
        }
    };
    // Weights of those rows that are wanted, straight to pairs; `sum` gets their sums, and s stays as it is. Parts that do not count have
    // weights of 0. exponent(i, r): of score i, in row r, in log2 units.
    constexpr float kZero = HeadDim <= 64 ? -0.f : 0.f;  // adding to −0 takes no instruction; with 256 dims that makes a spill larger
    const auto exp2_to_p = [&](auto visible, const bool (&wanted)[2], auto exponent, float (&sum)[4]) {
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (wanted[r]) sum[2 * r] = sum[2 * r + 1] = kZero;
        FA_UNROLL for (int part = 0; part < (BlockN + 31) / 32; part++) {
            const int past = min(8 * part + 8, BlockN / 4);
            if (visible(part)) {
                FA_UNROLL for (int i = 8 * part; i < past; i++) {
                    const int r = i % 2;
                    if (!wanted[r]) continue;
                    const float first = rt::exp2_fast(exponent(2 * i, r)), second = rt::exp2_fast(exponent(2 * i + 1, r));
                    sum[2 * r] += first;
                    sum[2 * r + 1] += second;
                    p[i] = Traits::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
                }
            } else {
                FA_UNROLL for (int i = 8 * part; i < past; i++) p[i] = 0;
            }
        }
    };
    // Scores as they are, but for bands. `nan`: is one NaN? So is what keys of a page that does not exist have come as.
    const auto apply_score_mod = [&](bool nan) {
        score_mod_op.apply_exact(acc_s, n_block);
        if (Traits::kPagedKv && nan && a.page_chunk) mask_missing_pages<BlockN>(a, *tile, n_block, acc_s);
    };
    // Each row's largest score so far, in the units of scores.
    const auto find_row_max = [&](bool is_first, float (&row_max)[2]) {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            float other = kNegInf;
            row_max[r] = is_first ? kNegInf : row_ref[r];
            FA_UNROLL for (int i = 0; i < BlockN / 2; i += 4) {
                row_max[r] = fmaxf(row_max[r], acc_s[i + 2 * r]);
                other = fmaxf(other, acc_s[i + 2 * r + 1]);
            }
            row_max[r] = fmaxf(row_max[r], other);
        }
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) row_max[r] = fmaxf(row_max[r], rt::shuffle_xor16(row_max[r], lanes));
    };
    // The exact way to weights: for the first block of a tile (`fresh`), where weights have outgrown the reference, and where scores that are
    // worked on are masked. Moves the reference of a row to its largest score so far, if `move`, and what has been summed with it. A row without a
    // reference comes here with the next block again, and so does one whose reference is so large that it does not go into a fused
    // multiplication, whose exact product may exceed what the reference was rounded to: its scores become differences.
    const auto ref_too_large = [&](int r) { return fabsf(row_ref[r] * score_mod_op.scale_log2) > 0x1p+16f; };
    const auto lazy_rescale = [&](const bool (&move)[2], bool is_first, const float (&row_max)[2]) {
        bool large[2];
        FA_UNROLL for (int r = 0; r < 2; r++) {
            large[r] = false;
            if (!move[r]) continue;
            if (!is_first) {
                const float factor = rt::exp2_fast(row_ref[r] * score_mod_op.scale_log2 - origin(row_max[r]) * score_mod_op.scale_log2);
                row_sum[r] *= factor;
                FA_UNROLL for (int i = 0; i < HeadDimV / 2; i++)
                    if (i / 2 % 2 == r) acc_o[i] *= factor;
            }
            row_ref[r] = row_max[r];
            large[r] = row_max[r] != kNegInf && ref_too_large(r);
        }
        if (__builtin_expect(rt::any_lane(large[0] || large[1]), 0))
            FA_UNROLL for (int r = 0; r < 2; r++) {
                if (!large[r]) continue;
                FA_UNROLL for (int i = 0; i < BlockN / 2; i++)
                    if (i / 2 % 2 == r) acc_s[i] -= row_max[r];
            }
    };
    const auto exact_softmax = [&](auto visible, const bool (&wanted)[2], float (&sum)[4]) {
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (wanted[r]) ref_log2[r] = (ref_too_large(r) ? 0.f : row_ref[r] * score_mod_op.scale_log2) - Traits::kPScaleLog2;
        exp2_to_p(visible, wanted, [&](int i, int r) { return fmaf(acc_s[i], score_mod_op.scale_log2, -ref_log2[r]); }, sum);
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (ref_too_large(r)) ref_log2[r] = kNegInf;
    };
    const auto first_row_max = [&] {
        float row_max[2];
        apply_score_mod(may_miss_pages(acc_s));
        if (mask != MaskKind::none || (n_block + 1) * BlockN > tile->k_len) apply_mask();
        find_row_max(true, row_max);
        lazy_rescale({true, true}, true, row_max);
    };
    const auto first_probs = [&] {
        float sum[4];
        exact_softmax(warp_sees, {true, true}, sum);
        rt::keep_in_registers(p);
        FA_UNROLL for (int r = 0; r < 2; r++) row_sum[r] = sum[2 * r] + sum[2 * r + 1];
    };
    // A row's own weights alone decide whether its reference moves, or later keys would change an earlier row's bits.
    const auto online_softmax = [&](auto is_masked) {
        float sum[4], row_max[2];
        if constexpr (is_masked.value && score_mod != ScoreMod::none) {
            apply_score_mod(may_miss_pages(acc_s));
            apply_mask();
            find_row_max(false, row_max);
            lazy_rescale({true, true}, false, row_max);
            exact_softmax(all_parts, {true, true}, sum);
        } else {
            if constexpr (is_masked.value) apply_mask();
            score_mod_op.begin_block(n_block, ref_log2);
            const auto exponent = [&](int i, int r) { return score_mod_op.exponent(acc_s[i], i, r, ref_log2[r]); };
            if constexpr (is_masked.value) exp2_to_p(warp_sees, {true, true}, exponent, sum);
            else exp2_to_p(all_parts, {true, true}, exponent, sum);
            bool move[2];
            FA_UNROLL for (int r = 0; r < 2; r++) move[r] = !(sum[2 * r] + sum[2 * r + 1] <= Traits::kRescaleThreshold && score_mod_op.in_range(r));
            if (rt::any_lane(move[0] || move[1])) {
                FA_UNROLL for (int r = 0; r < 2; r++) move[r] = (__ballot_sync(~0u, move[r]) >> (lane & 28) & 15) != 0;
                apply_score_mod(isnan(sum[0] + sum[1]) || isnan(sum[2] + sum[3]));
                find_row_max(false, row_max);
                lazy_rescale(move, false, row_max);
                if (score_mod == ScoreMod::none) exact_softmax(all_parts, {true, true}, sum);  // the same again where the reference stays
                else exact_softmax(all_parts, move, sum);
            }
        }
        FA_UNROLL for (int r = 0; r < 2; r++) row_sum[r] += sum[2 * r] + sum[2 * r + 1];
        rt::keep_in_registers(p);
    };
    // The end of a tile's rows: what sums are to be multiplied by, and where averages go. A factor below 0 stands for `empty` where registers are full.
    struct RowEnds {
        T* out;
        bool in_bounds[2], empty[2];
        float factor[2];
    };
    const int64_t eight_rows = 8 * x.p.d.o_stride[1];
    const auto output_of = [&](const WorkTileInfo& t, int row0, int c) {
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        return static_cast<T*>(x.a.o) + query_index(x.p, x.p.d.o_stride, seq, t.batch, row0, t.head) + 8 * c;
    };
    // All but the averages, which wait for the last products: LSE, sinks, and the end.
    const auto finish_rows = [&](const WorkTileInfo& t, RowEnds& e) {
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        const RowPlace place =row_place();
        const int row0 = t.row0 + place.row;
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) row_sum[r] += rt::shuffle_xor16(row_sum[r], lanes);
        FA_UNROLL for (int r = 0; r < 2; r++) {
            e.in_bounds[r] = row0 + 8 * r < t.o_rows;
            e.empty[r] = row0 + 8 * r >= t.q_len || row_sum[r] == 0.f;
            e.factor[r] = !e.empty[r] ? rt::reciprocal_fast(row_sum[r]) : kRecomputePlace ? -1.f : 0.f;
        }
        if (x.p.has(FA_OPERAND_SINKS | FA_OPERAND_LSE))
            FA_UNROLL for (int r = 0; r < 2; r++) {
                const int row = row0 + 8 * r;
                RowState state = e.empty[r] ? empty_row() : RowState{row_ref[r] == kNegInf ? kNegInf : row_ref[r] * score_mod_op.scale_log2, row_sum[r] * Traits::kPUnscale};
                if (x.p.has(FA_OPERAND_SINKS) && row < t.q_len) {
                    const Fold f = fold(state, sink_state(x.a.sinks[t.head]));
                    state = f.state;
                    if (!kRecomputePlace || !e.empty[r]) e.factor[r] = Traits::kPUnscale * f.scale_a * normaliser(state);
                }
                if (x.p.has(FA_OPERAND_LSE) && place.c == 0 && e.in_bounds[r]) x.a.lse[lse_index(x.p, seq, t.batch, row, t.head)] = log_sum_exp(state);
            }
        e.out = output_of(t, row0, place.c);
    };
    // Averages to memory: transposes of 4 × 4 words among the four lanes of a row make pieces of 16 bytes. Returns the largest, as a pair.
    const auto store_o = [&](const RowEnds& e) {
        const int c = row_place().c;
        uint32_t largest = 0;
        FA_UNROLL for (int g = 0; g < HeadDimV / 32; g++)
            FA_UNROLL for (int r = 0; r < 2; r++) {
                uint32_t word[4];
                FA_UNROLL for (int i = 0; i < 4; i++) {
                    const float* const two = acc_o + 16 * g + 4 * i + 2 * r;
                    const float first = fmaf(two[0], e.factor[r], 0.f), second = fmaf(two[1], e.factor[r], 0.f);  // −0 becomes 0: removed
                    word[i] = Traits::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);                // keys' signs never show
                    largest = rt::max_magnitude<Traits::f16>(largest, word[i]);
                    if (kRecomputePlace ? e.factor[r] < 0.f : e.empty[r]) word[i] = 0;  // whatever the values are
                }
                rt::transpose_4x4(word, c);
                if (e.in_bounds[r] && 32 * g + 8 * c < a.o_columns)
                    *reinterpret_cast<uint4*>(e.out + r * eight_rows + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
            }
        return largest;
    };
    // Averages to an f32 o. Where a place is asked for decides which registers the assembler gives to the steady loop, by 4 % of its speed.
    const auto store_o_f32 = [&](const WorkTileInfo& t, const RowEnds& e) {
        const RowPlace place =HeadDim == 64 && mask == MaskKind::none ? row_place() : row_place_of(rt::read_laneid());
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        float* const out = static_cast<float*>(x.a.o) + query_index(x.p, x.p.d.o_stride, seq, t.batch, t.row0 + place.row, t.head);
        FA_UNROLL for (int i = 0; i < HeadDimV / 2; i += 2) {
            const int r = i / 2 % 2, column = i / 4 * 8 + 2 * place.c;
            const bool empty = kRecomputePlace ? e.factor[r] < 0.f : e.empty[r];
            if (e.in_bounds[r] && column < int(x.p.d.dim_v))
                *reinterpret_cast<float2*>(out + r * eight_rows + column) =
                    empty ? make_float2(0.f, 0.f) : make_float2(fmaf(acc_o[i], e.factor[r], 0.f), fmaf(acc_o[i + 1], e.factor[r], 0.f));
        }
    };
    // The average of finite values is finite, but weights are rounded and their sum is not: stores again what has become infinite. And f32
    // averages, behind the same branch.
    const auto repair_overflow = [&](const WorkTileInfo& t, RowEnds& e, uint32_t largest) {
        constexpr float limit = Traits::f16 ? 65520.f : 0x1.ffp+127f, less = Traits::f16 ? 1.f - 0x1p-10f : 1.f - 0x1p-8f;
        // Asked of averages, it keeps all of them until the largest of three at a time is taken; where registers are few, it is asked of sums.
        constexpr bool of_sums = kRecomputePlace || (score_mod == ScoreMod::softcap && Warpgroups == 3);
        bool infinite = rt::any_infinite<Traits::f16>(largest);
        if constexpr (of_sums) {
            float most[2] = {};
            FA_UNROLL for (int i = 0; i < HeadDimV / 2; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(acc_o[i]));
            infinite = most[0] * fabsf(e.factor[0]) >= limit || most[1] * fabsf(e.factor[1]) >= limit;
        }
        const bool to_f32 = a.o_columns == 0;
        if (__builtin_expect(!rt::any_lane(infinite || to_f32), 1)) return;
        if (!of_sums || rt::any_lane(infinite))
            FA_UNROLL for (int i = 0; i < HeadDimV / 2; i++)
                if (fabsf(acc_o[i] * e.factor[i / 2 % 2]) >= limit) acc_o[i] *= less;
        if (to_f32) return store_o_f32(t, e);
        if (kRecomputePlace) e.out = output_of(t, t.row0 + row_place().row, row_place().c);
        store_o(e);
    };
    const auto zero_o = [&] {
        if (kZeroByFirstMma) {
            o_started = 0;
            rt::mark_undefined(acc_o);
        } else {
            FA_UNROLL for (int i = 0; i < HeadDimV / 2; i++) acc_o[i] = 0.f;
            rt::keep_in_registers(acc_o);
        }
    };
    // One step. A new tile's first one also ends the old tile: what does not need its last products comes before they are waited for, and no
    // branch parts the averages from the new tile's weights, so that the one runs where the other waits.
    const auto mainloop_step = [&](auto is_first, auto is_masked, const WorkTileInfo* prev_tile) {
        rt::mbarrier_wait(smem_addr(shared.barrier.k_full[k.index]), k.phase);
        if (kPingPong) rt::named_barrier_sync(1 + warpgroup, 256);
        kZeroByFirstMma ? rt::mark_undefined(acc_s) : rt::keep_in_registers(acc_s);
        rt::keep_in_registers(acc_o), rt::keep_in_registers(p);
        rt::wgmma_fence();
        issue_qk();
        rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase);
        rt::wgmma_fence();
        issue_pv(true);
        RowEnds row_ends;
        if constexpr (is_first.value) find_key_ranges();
        if constexpr (is_first.value && kOverlapEpilogue) finish_rows(*prev_tile, row_ends);
        rt::wgmma_wait<1>();
        rt::keep_in_registers(acc_s);
        release_k();
        if (is_last_block()) release(shared.barrier.q_empty[q_stage]);
        if constexpr (is_first.value && kOverlapEpilogue) {
            first_row_max();
            rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase);  // long over: the compiler moves nothing that comes before past it
        }
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_o), rt::keep_in_registers(p);
        release_v();
        if constexpr (is_first.value) {
            if (!kOverlapEpilogue) finish_rows(*prev_tile, row_ends);
            const uint32_t largest = store_o(row_ends);
            if (kOverlapEpilogue) first_probs();
            repair_overflow(*prev_tile, row_ends, largest);
            if (!kOverlapEpilogue) first_row_max(), first_probs();
            rt::mbarrier_arrive(smem_addr(prev_tile->tile_consumed));
            zero_o();
            release_skipped_v();
            zero_v_tail();
        } else {
            online_softmax(is_masked);
        }
    };

    if (kPingPong && warpgroup == Warpgroups - 1) rt::named_barrier_arrive(1, 256);  // the first warpgroup has the first turn
    if (!begin_tile()) return;
    rt::mbarrier_wait(smem_addr(shared.barrier.k_full[k.index]), k.phase);
    rt::keep_in_registers(acc_s);
    rt::wgmma_fence();
    issue_qk();
    rt::wgmma_wait<0>();
    rt::keep_in_registers(acc_s);
    release_k();
    if (is_last_block()) release(shared.barrier.q_empty[q_stage]);
    zero_o();
    find_key_ranges();
    first_row_max();
    first_probs();
    release_skipped_v();
    zero_v_tail();
    while (true) {
        const auto needs_mask = [&] { return n_block >= n_block_min_causal_local_mask || n_block < n_block_min_before_local_mask || score_mod_op.needs_exact(n_block); };
        if constexpr (score_mod == ScoreMod::alibi) {
            while (blocks_left > 0) {
                blocks_left--;
                n_block = rt::uniform(tile->next_n_block(n_block));
                if (needs_mask()) mainloop_step(False{}, True{}, nullptr);
                else mainloop_step(False{}, False{}, nullptr);
                zero_v_tail();
            }
        } else {
            n_block--;
            if constexpr (mask != MaskKind::none)
                for (; n_block >= max(n_block_min_causal_local_mask, n_block_min); n_block--) mainloop_step(False{}, True{}, nullptr);
            for (; n_block >= max(n_block_min_before_local_mask, n_block_min); n_block--) mainloop_step(False{}, False{}, nullptr);
            if constexpr (mask == MaskKind::band)
                for (; n_block >= n_block_min; n_block--) mainloop_step(False{}, True{}, nullptr);
        }
        const WorkTileInfo* const prev_tile = tile;
        if (!begin_tile()) break;
        mainloop_step(True{}, True{}, prev_tile);
    }
    rt::keep_in_registers(acc_o), rt::keep_in_registers(p);
    rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase);
    rt::wgmma_fence();
    issue_pv(false);
    RowEnds row_ends;
    finish_rows(*tile, row_ends);
    rt::wgmma_wait<0>();
    rt::keep_in_registers(acc_o);
    repair_overflow(*tile, row_ends, store_o(row_ends));
}

}  // namespace gpu
}  // namespace fa
