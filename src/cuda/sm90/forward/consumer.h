// The state of a consumer warpgroup, and how it takes part in the pipeline: its accumulators, the tile and the block of keys that
// it is at, the stages that it waits for and releases, and the wgmma that it issues. softmax.h, epilogue.h and mainloop.h work on
// it.
//
// A warpgroup has 64 rows of the tile; a thread has two of them, 8 apart, each shared by the four lanes of a quad. Functions are
// force-inlined into one kernel, and ptxas decides on registers there: where a value is computed again instead of kept, or the
// order of statements looks odd, it is what leaves no kernel of kernels.def with a spill. Whoever changes this file compares
// registers, spills and the loops' instructions.
#pragma once
#include "cuda/sm90/forward/paged_kv.h"
#include "cuda/sm90/forward/score_mod.h"

namespace fa {
namespace gpu {

template <class Traits_, MaskKind mask_, ScoreMod score_mod_>
struct Consumer {
    using Traits = Traits_;
    using QkWgmma = Select<Traits::k8Bit, rt::WgmmaE4m3, rt::Wgmma<Traits::f16>>;
    using PvWgmma = Select<Traits::kP8, rt::WgmmaE4m3, rt::Wgmma<Traits::f16>>;
    static constexpr MaskKind mask = mask_;
    static constexpr ScoreMod score_mod = score_mod_;
    static constexpr int kHeadDim = Traits::kHeadDim, kHeadDimV = Traits::kHeadDimV, kBlockN = Traits::kBlockN,
                         kWarpgroups = Traits::kWarpgroups;
    static constexpr bool kPair = Traits::kPair, kPacksHeads = Traits::template kPacksHeads<mask>;
    // A softcap leaves no registers for softmax of the next tile's first block beside O's accumulators; and row sums by wgmma are not known
    // before the wait for it.
    static constexpr bool kOverlapEpilogue = score_mod != ScoreMod::softcap && !Traits::kP8;
    // But the new tile's row_ref can be found before that wait.
    static constexpr bool kEarlyRowRef = Traits::kP8 && !Traits::kScarceRegisters;
    // Where no register is left in which to keep RowPlace. With 8-bit P of 256 dims ptxas then takes stages' numbers to differ among lanes,
    // and moves every descriptor to uniform registers anew.
    static constexpr bool kRecomputePlace =
        Traits::kTiles == 2 || (kHeadDim == 256 && !Traits::kP8) || (Traits::k8Bit && kWarpgroups == 4) || Traits::kScarceRegisters;
    // Likewise for RowEnds::empty, which a negative factor then stands for; but v's de-scale factor may be negative.
    static constexpr bool kEmptyBySign = (Traits::kTiles == 2 || kHeadDim == 256) && !Traits::kDescale;
    // The first P · V of a tile overwrites acc_o, in place of zeros in it; without a mask that is slower, and with 8
    // bits it spills registers.
    static constexpr bool kZeroByFirstMma =
        Traits::kP8 || ((mask != MaskKind::none || Traits::kBiasSize > 0) && kHeadDim == 128 && !Traits::k8Bit);
    // Under a causal mask, warpgroups whose rows are as many as a block's keys each begin at their own diagonal, so that only their
    // first block is masked. They go without ping-pong, in which one would have to wait for those that have not begun; or, where 256 dims
    // are promoted, for one that promotes.
    static constexpr bool kWarpgroupDiagonals = warpgroup_diagonals(mask, kBlockN, Traits::kBlockM),
                          kPingPong = !kWarpgroupDiagonals && !(Traits::kPromotes && kHeadDimV > 128);
    // A warp computes P of a masked block in parts of 32 keys, and not where none of its rows sees a part. With wider heads, or
    // three warpgroups, the branches cost more than that saves.
    static constexpr bool kSkipUnseenParts = mask != MaskKind::none && mask != MaskKind::list && kHeadDim <= 64 && kWarpgroups == 2;
    // One loop for all blocks of a tile: a second one, of masked blocks, has not enough registers; and lists have masked ones anywhere.
    static constexpr bool kOneLoop = mask == MaskKind::list || (mask != MaskKind::none && Traits::kScarceRegisters);
    static_assert(!kWarpgroupDiagonals || (!kPair && kWarpgroups <= Traits::kStages),
                  "the last V of the previous tile keeps its stage until the first warpgroup's own keys have been loaded");
    static_assert(score_mod != ScoreMod::alibi || !Traits::kP8, "transpose_v and store_averages count blocks down");
    static_assert(score_mod != ScoreMod::alibi || mask == MaskKind::band,
                  "the other masks' loops have no blocks that only exact_softmax serves");
    static_assert(mask != MaskKind::list || (Traits::kBlockM == KeyUnitTable::kTileRows && kBlockN % KeyUnitTable::kKeys == 0),
                  "a table is of such tiles and blocks");

    const Sm90ForwardParams& a;
    const Sm90Call& x;
    typename Traits::Shared& shared;
    const int warp, lane, warpgroup, warp_row;  // warp_row: the first of the warp's 16 rows behind the tile's first
    // The first of the thread's two rows in the tile, and its lane of the quad.
    struct RowPlace {
        int row, c;
    };
    const RowPlace kept_place;
    // S and O; and of two rows what scores are measured from, in their own units and in log2, with kPScaleLog2, as exponent()
    // subtracts it; and this thread's part of the row sum.
    float acc_s[kBlockN / 2], acc_o[Traits::kOColumns / 2], row_ref[2] = {}, ref_log2[2], row_sum[2] = {};
    uint32_t p[kBlockN / (Traits::kP8 ? 8 : 4)];
    // With P of 8 bits: of two rows this thread's part of the sum of P before it was rounded; what their averages in shared memory are
    // to be multiplied by; and whether there are any.
    float lse_sum[2] = {}, average_sum[2] = {};
    bool has_averages = false;
    // Of the keys that the two rows see, with a mask, and of those that some row of the warp sees.
    KeyRange key_range[2], warp_range{};
    int n_block, n_block_min, n_block_min_before_local_mask, n_block_min_causal_local_mask;
    int blocks_to_skip;            // that the tile loads before this warpgroup's first
    typename Traits::Units units;  // of a list, in the block of which S is computed
    int blocks_left, q_stage;
    int o_started = 0;  // has acc_o been written in this tile?
    PipelineState<Traits::kStages> k, v;
    PipelineState<Traits::kQStages> q;
    PipelineState<Traits::kTileStages> tile_stage;
    const WorkTileInfo* tile = nullptr;
    PipelineState<(Traits::kBiasStages > 0 ? Traits::kBiasStages : 1)> bias;
    ScoreModOp<score_mod, kBlockN, Traits::kDescale, Traits::f16> score_mod_op;
    const int64_t eight_rows;  // of o

    FA_MEMBER explicit Consumer(const Sm90ForwardParams& params)
        : a(params),
          x(params.x),
          shared(Traits::shared(Traits::kTiles == 1 ? 0 : rt::warp_uniform(int(threadIdx.x) / 32 - 4) / (4 * kWarpgroups))),
          warp(rt::warp_uniform(int(threadIdx.x) / 32)),
          lane(int(threadIdx.x) % 32),
          warpgroup(Traits::kTiles == 1 ? warp / 4 - 1 : (warp / 4 - 1) % kWarpgroups),
          warp_row(kPacksHeads ? row_in_tile() & ((1 << a.head_rows_log2) - 1) : row_in_tile()),
          kept_place(row_place_of(lane)),
          score_mod_op(params),
          eight_rows(8 * x.o_strides.row) {}

    // Which of the tiles that are computed at once the warpgroup's is.
    FA_MEMBER int place() const {
        if constexpr (Traits::kTiles == 1) return 0;
        else return (warp - 4) / (4 * kWarpgroups);
    }
    FA_MEMBER static int thread_of_tile() {
        return Traits::kTiles == 1 ? int(threadIdx.x) - 128 : (int(threadIdx.x) - 128) % (128 * kWarpgroups);
    }
    // A named barrier of the tile: of a warpgroup's turn, of all its warpgroups, and of each alone.
    FA_MEMBER int barrier_of(int n) const { return 1 + (Traits::kTiles == 1 ? 0 : place() * (2 * kWarpgroups + 1)) + n; }
    FA_MEMBER int row_in_tile() const { return warpgroup * 64 + warp % 4 * 16; }
    // The warp's.
    FA_MEMBER int head_of(const WorkTileInfo& tile) const {
        return kPacksHeads ? tile.head + (row_in_tile() >> a.head_rows_log2) : tile.head;
    }
    FA_MEMBER int lane_index() const { return Traits::kScarceRegisters ? rt::read_laneid() : lane; }
    FA_MEMBER RowPlace row_place_of(int lane) const { return RowPlace{warp_row + lane / 4, lane % 4}; }
    FA_MEMBER RowPlace row_place() const { return kRecomputePlace ? row_place_of(rt::read_laneid()) : kept_place; }
    // The same where a tile begins or ends. With four warpgroups, which have the fewest registers, the row is not kept over the
    // mainloop; with 8 bits, or a softcap in three, neither is the lane.
    FA_MEMBER RowPlace border_place() const {
        if constexpr (Traits::k8Bit || Traits::kTiles == 2 || (kWarpgroups == 3 && score_mod == ScoreMod::softcap))
            return row_place_of(rt::read_laneid());
        else if constexpr (kWarpgroups == 4) return RowPlace{warp_row + rt::read_laneid() / 4, kept_place.c};
        else return row_place();
    }
    FA_MEMBER bool is_last_block() const {  // of the tile
        return score_mod == ScoreMod::alibi ? blocks_left == 0 : n_block == n_block_min;
    }
    FA_MEMBER bool needs_mask() const {
        if constexpr (mask == MaskKind::list) {
            bool all = true;
            FA_UNROLL_FOR (int i = 0; i < Traits::kUnits; i++) all = all && units.seen(i, warpgroup) == SeenKeys::all;
            return !all;
        }
        return n_block >= n_block_min_causal_local_mask || n_block < n_block_min_before_local_mask || score_mod_op.needs_exact(n_block);
    }

    // ---- the pipeline

    FA_MEMBER void release(const uint64_t& empty) const {
        if (lane_index() == 0) rt::mbarrier_arrive(smem_addr(empty));
    }
    FA_MEMBER void release_to_pair(const uint64_t& empty) const {
        if (!kPair) release(empty);
        else if (lane < 2) rt::mbarrier_arrive_remote(smem_addr(empty), lane);
    }
    FA_MEMBER void wait_k() const { rt::mbarrier_wait(smem_addr(shared.barrier.k_full[k.index]), k.phase); }
    FA_MEMBER void wait_v() const { rt::mbarrier_wait(smem_addr(shared.barrier.v_full[v.index]), v.phase); }
    // The bias of a block, from when exact or other scores are made until they are no more.
    FA_MEMBER void wait_bias() {
        if constexpr (Traits::kBiasSize > 0) {
            rt::mbarrier_wait(smem_addr(shared.barrier.bias_full[warpgroup][bias.index]), bias.phase);
            score_mod_op.set_tile(Traits::bias_tile(warpgroup, bias.index));
        }
    }
    FA_MEMBER void release_bias() {
        if constexpr (Traits::kBiasSize > 0)
            rt::mbarrier_arrive(smem_addr(shared.barrier.bias_empty[warpgroup][bias.index])), bias.advance();
    }
    FA_MEMBER void release_k() { release_to_pair(shared.barrier.k_empty[k.index]), k.advance(); }
    FA_MEMBER void release_v() {
        if (Traits::k8Bit) release(shared.barrier.v_empty[v.index]);  // the widened v is this CTA's own
        else release_to_pair(shared.barrier.v_empty[v.index]);
        v.advance();
    }
    FA_MEMBER void release_q_with_last_block() const {
        if (is_last_block()) release(shared.barrier.q_empty[q_stage]);
    }
    FA_MEMBER void release_skipped_k() {
        for (int i = 0; i < blocks_to_skip; i++) {
            wait_k();
            release_k();
        }
    }
    FA_MEMBER void release_skipped_v() {
        for (int i = 0; i < blocks_to_skip; i++) {
            wait_v();
            release_v();
        }
    }

    // Waits for the next tile and its q. False: there are no more.
    FA_MEMBER bool begin_tile() {
        const WorkTileInfo* const next = &shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(next->tile_ready), tile_stage.phase);
        const int4 blocks = *reinterpret_cast<const int4*>(next);
        n_block = rt::warp_uniform(blocks.x);
        if (n_block < 0) return false;
        rt::mbarrier_wait(smem_addr(shared.barrier.q_full[q.index]), q.phase);
        tile = next;
        q_stage = q.index;
        tile_stage.advance();
        q.advance();
        n_block_min_causal_local_mask = mask == MaskKind::none || mask == MaskKind::list ? 0 : rt::warp_uniform(blocks.y);
        n_block_min = mask == MaskKind::band ? rt::warp_uniform(blocks.z) : 0;
        n_block_min_before_local_mask = mask == MaskKind::band ? rt::warp_uniform(blocks.w) : 0;
        blocks_to_skip = kPair && mask != MaskKind::none ? rt::warp_uniform(tile->peer_only_blocks) : 0;
        if constexpr (kWarpgroupDiagonals) {
            const int row = tile->row0 + 64 * warpgroup,
                      last = min(n_block, rt::warp_uniform(n_block_max_of<Traits, mask>(a.window, *tile, row, 64)));
            n_block_min_causal_local_mask = rt::warp_uniform(key_range_of<mask>(a.window, row, tile->off, tile->k_len).end / kBlockN);
            blocks_to_skip = n_block - last;
            n_block = last;
        }
        blocks_left = n_block - n_block_min;
        if constexpr (score_mod == ScoreMod::alibi) n_block = rt::warp_uniform(tile->first_n_block());
        if constexpr (Traits::kDescale) {
            if (Traits::kP8 ? __builtin_expect(tile->scale < 0.f, 0) : tile->scale < 0.f) negate_q();
            score_mod_op.set_scale(fabsf(tile->scale));
        }
        score_mod_op.begin_tile(x, *tile, border_place().row);
        release_skipped_k();
        return true;
    }
    // The tile before, while its o has not been written: where no registers are left to keep a pointer in.
    FA_MEMBER const WorkTileInfo& previous_tile() const {
        static_assert(Traits::kTileStages == 3, "tile_stage is the next one");
        return shared.tile[tile_stage.index < 2 ? tile_stage.index + 1 : 0];
    }
    // Where de-scale factors make the scale negative, in place of it: row_ref is the largest score, of a positive scale.
    FA_MEMBER void negate_q() const {
        constexpr uint32_t signs = Traits::k8Bit ? 0x80808080u : 0x80008000u;
        FA_UNROLL_FOR (int panel = 0; panel < Traits::kQPanels; panel++) {
            for (int i = 0; i < 8192; i += 2048) {  // 16 bytes a thread of the warpgroup's 64 rows
                const uint32_t at =
                    Traits::q_tile(q_stage, place()) + panel * Traits::kBlockM * 128 + warpgroup * 8192 + i + int(threadIdx.x) % 128 * 16;
                const uint4 bytes = rt::ld_shared_v4(at);
                rt::st_shared_v4(at, bytes.x ^ signs, bytes.y ^ signs, bytes.z ^ signs, bytes.w ^ signs);
            }
        }
        rt::fence_proxy_async_shared();
        rt::named_barrier_sync(barrier_of(1 + kWarpgroups + warpgroup), 128);
    }
    // What takes the scores of a tile to log2 units.
    FA_MEMBER float scale_log2_of(const WorkTileInfo& tile) const {
        if constexpr (Traits::kDescale && (score_mod == ScoreMod::none || score_mod == ScoreMod::mask)) return fabsf(tile.scale) * kLog2e;
        else return score_mod_op.scale_log2;
    }
    FA_MEMBER void find_key_ranges() {
        if constexpr (mask != MaskKind::none) {
            const int row = border_place().row;
            FA_UNROLL_FOR (int r = 0; r < 2; r++)
                key_range[r] = key_range_of<mask>(a.window, tile->row0 + row + 8 * r, tile->off, tile->k_len);
            if constexpr (mask == MaskKind::list) {
                const Sequence seq{tile->q_begin, tile->q_len, 0, tile->k_len, 0, tile->off};
                FA_UNROLL_FOR (int r = 0; r < 2; r++) {
                    const int existing = max(min(tile->row0 + row + 8 * r, tile->q_len - 1), 0);
                    if (a.ranges.pairs)
                        key_range[r] = intersection(key_range[r], row_range(a.ranges, seq, tile->batch, tile->head, existing));
                }
            }
        }
        if constexpr (kSkipUnseenParts) {
            if (mask == MaskKind::band)
                warp_range.begin = rt::warp_uniform(__reduce_min_sync(~0u, min(key_range[0].begin, key_range[1].begin)));
            warp_range.end = rt::warp_uniform(__reduce_max_sync(~0u, max(key_range[0].end, key_range[1].end)));
        }
    }
    // What lies behind the last value of a sequence within its tensor may be anything, and 0 · NaN is NaN.
    FA_MEMBER void zero_v_tail() const {
        if (Traits::k8Bit) return;  // widen_v has
        if constexpr (mask == MaskKind::list) return zero_v_tail_of_units();
        const int left = tile->k_len - n_block * kBlockN;
        if (kWarpgroupDiagonals || (x.uniform_lengths && !(Traits::kPagedKv && a.page_chunk)) || left >= kBlockN) return;
        wait_v();
        const int units = (kBlockN - left) * 8;  // of 16 bytes, in a panel
        for (int i = thread_of_tile(); i < units * Traits::kVPanels; i += 128 * kWarpgroups)
            rt::st_shared_zero_v4(Traits::v_tile(v.index, place()) + i / units * Traits::kPanelBytes + left * 128 + i % units * 16);
        rt::fence_proxy_async_shared();
        rt::named_barrier_sync(barrier_of(kWarpgroups), 128 * kWarpgroups);
    }

    // The last key lies in the last unit, and that in a tile's first block.
    FA_MEMBER void zero_v_tail_of_units() const {
        FA_UNROLL_FOR (int i = 0; i < Traits::kUnits; i++) {
            const int left = tile->k_len - units.first_key(i);
            if ((x.uniform_lengths && !x.pages.table) || left >= KeyUnitTable::kKeys || left <= 0) continue;
            wait_v();
            const int pieces = (KeyUnitTable::kKeys - left) * 8;  // of 16 bytes, in a panel
            for (int piece = thread_of_tile(); piece < pieces * Traits::kVPanels; piece += 128 * kWarpgroups)
                rt::st_shared_zero_v4(Traits::v_tile(v.index, place()) + piece / pieces * Traits::kPanelBytes +
                                      (i * KeyUnitTable::kKeys + left) * 128 + piece % pieces * 16);
            rt::fence_proxy_async_shared();
            rt::named_barrier_sync(barrier_of(kWarpgroups), 128 * kWarpgroups);
        }
    }

    // ---- wgmma

    FA_MEMBER void issue_qk() {
        score_mod_op.prefetch(n_block);
        // With wide heads a uniform address keeps the compiler from holding those of all k-steps in registers over the loop.
        const uint32_t q_rows = Traits::q_tile(q_stage, place()) + warpgroup * 8192;
        const uint64_t q_desc = rt::smem_desc(kHeadDim > 128 && !Traits::kP8 ? uint32_t(rt::warp_uniform(int(q_rows))) : q_rows, 16);
        const uint64_t k_desc = rt::smem_desc(Traits::k_tile(k.index, place()), 16);
        FA_UNROLL_FOR (int i = 0; i < Traits::kQkSteps; i++)
            QkWgmma::mma(acc_s, q_desc + i / 4 * (Traits::kBlockM * 8) + i % 4 * 2, k_desc + i / 4 * (Traits::kPanelBytes / 16) + i % 4 * 2,
                         i > 0);
        rt::wgmma_commit();
        if constexpr (mask == MaskKind::list) {  // before k's stage is released, and by the lane alone that releases it
            FA_UNROLL_FOR (int i = 0; i < Traits::kUnits; i++)
                units.entry[i] = rt::warp_uniform(lane_index() == 0 ? shared.units[k.index].entry[i] : 0);
        }
    }
    // `ping_pong`: lets the next warpgroup issue, two wgmma before the end (of 8 bits one), for its first one takes as long to begin.
    FA_MEMBER void issue_pv(bool ping_pong) {
        constexpr int steps = kBlockN / (Traits::kP8 ? 32 : 16), last_turn = steps - (Traits::kP8 ? 2 : 3);
        const uint64_t v_desc = Traits::kKeyPanels
                                    ? rt::smem_desc_32_bytes(Traits::v_tile(v.index, place()))
                                    : rt::smem_desc(Traits::v_tile(v.index, place()), Traits::kP8 ? 16 : Traits::kPanelBytes);
        constexpr int v_step = Traits::kKeyPanels ? Traits::kKeyPanelBytes / 16 : Traits::kP8 ? 2 : 128;
        FA_UNROLL_FOR (int i = 0; i < steps; i++) {
            PvWgmma::mma(acc_o, p + 4 * i, v_desc + i * v_step, !kZeroByFirstMma || i > 0 ? 1 : o_started);
            if (kPingPong && ping_pong && i == last_turn) rt::named_barrier_arrive(barrier_of((warpgroup + 1) % kWarpgroups), 256);
        }
        rt::wgmma_commit();
        o_started = 1;
    }
    FA_MEMBER void zero_o() {
        if (kZeroByFirstMma) {
            o_started = 0;
            rt::mark_undefined(acc_o);
        } else {
            FA_UNROLL_FOR (int i = 0; i < kHeadDimV / 2; i++) acc_o[i] = 0.f;
            rt::keep_in_registers(acc_o);
        }
    }

    // ---- 8-bit P

    // The row sum of the last blocks' P, from the columns of ones, which begin anew: left there, small weights would be lost.
    FA_MEMBER void take_row_sum() {
        if constexpr (Traits::kRowSumByWgmma) {
            FA_UNROLL_FOR (int r = 0; r < 2; r++) row_sum[r] += acc_o[kHeadDimV / 2 + 2 * r];
            const uint32_t zero = rt::hidden_zero();  // a constant among the accumulators would serialise wgmma (C7511)
            FA_UNROLL_FOR (int i = kHeadDimV / 2; i < kHeadDimV / 2 + 4; i++) asm volatile("mov.b32 %0, %1;" : "=f"(acc_o[i]) : "r"(zero));
        }
    }
    FA_MEMBER uint32_t average_place() const {
        return Traits::averages() + warpgroup * (Traits::kAverageBytes / kWarpgroups) + int(threadIdx.x) % 128 * 16;
    }
    // average_sum, where no register is left for it.
    FA_MEMBER uint32_t average_sum_place() const { return Traits::average_sum_base() + thread_of_tile() * 8; }
    // Not by loading them: what had been summed would be in the short accumulator again. Where there are none, nothing is harmed.
    FA_MEMBER void rescale_averages(int r, float factor) {
        if constexpr (!Traits::kPromotes) return;
        if constexpr (Traits::kScarceRegisters) {
            const uint32_t place = average_sum_place() + 4 * r;
            rt::st_shared(place, bits_of(rt::ld_shared(place) * factor));
        } else if constexpr (Traits::kP8) {
            average_sum[r] *= factor;
        }
    }
    // O from its averages, or sums, in shared memory, to which it went; and back to there. Sums have the factor 1, until O is rescaled.
    FA_MEMBER void load_averages() {
        if constexpr (Traits::kPromotes) {
            if (__builtin_expect(has_averages, 0)) add_averages();
        }
    }
    FA_MEMBER void add_averages() {
        if constexpr (Traits::kScarceRegisters) {
            const float2 stored = rt::ld_shared_v2(average_sum_place());
            average_sum[0] = stored.x, average_sum[1] = stored.y;
        }
        constexpr int unit = Traits::kPromotesToF32 ? 4 : 8;  // accumulators of 16 bytes
        FA_UNROLL_FOR (int i = 0; i < kHeadDimV / 2; i += unit) {
            const uint4 words = rt::ld_shared_v4(average_place() + i / unit * 2048);
            const uint32_t word[] = {words.x, words.y, words.z, words.w};
            FA_UNROLL_FOR (int j = 0; j < 4; j++) {
                if constexpr (Traits::kPromotesToF32) {
                    acc_o[i + j] = fmaf(float_of(word[j]), average_sum[j / 2], acc_o[i + j]);
                } else {
                    float low, high;
                    rt::f16x2_to_f32(word[j], low, high);
                    acc_o[i + 2 * j] = fmaf(low, average_sum[j % 2], acc_o[i + 2 * j]);
                    acc_o[i + 2 * j + 1] = fmaf(high, average_sum[j % 2], acc_o[i + 2 * j + 1]);
                }
            }
        }
        has_averages = false;
    }
    FA_MEMBER void store_averages() {
        load_averages();
        float inverse[2];
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            if constexpr (Traits::kPromotesToF32) {  // the product with a hidden 1, as stored from where they are accumulators serialise
                                                     // wgmma (C7511)
                average_sum[r] = 1.f, inverse[r] = float_of(rt::hidden_zero() | bits_of(1.f));
                continue;
            }
            average_sum[r] = row_sum[r];
            if (!Traits::kRowSumByWgmma)
                FA_UNROLL_FOR (int lanes = 1; lanes < 4; lanes *= 2) average_sum[r] += rt::shuffle_xor16(average_sum[r], lanes);
            inverse[r] = average_sum[r] > 0.f ? rt::reciprocal_fast(average_sum[r]) : 0.f;
        }
        constexpr int unit = Traits::kPromotesToF32 ? 4 : 8;
        FA_UNROLL_FOR (int i = 0; i < kHeadDimV / 2; i += unit) {
            uint32_t word[4];
            FA_UNROLL_FOR (int j = 0; j < 4; j++) {
                if constexpr (Traits::kPromotesToF32) word[j] = bits_of(acc_o[i + j] * inverse[j / 2]);
                else word[j] = rt::pack_f16(acc_o[i + 2 * j] * inverse[j % 2], acc_o[i + 2 * j + 1] * inverse[j % 2]);
            }
            rt::st_shared_v4(average_place() + i / unit * 2048, word[0], word[1], word[2], word[3]);
        }
        if (Traits::kScarceRegisters) {
            rt::st_shared(average_sum_place(), bits_of(average_sum[0]));
            rt::st_shared(average_sum_place() + 4, bits_of(average_sum[1]));
        }
        has_averages = true;
        o_started = 0;
    }
};

}  // namespace gpu
}  // namespace fa
