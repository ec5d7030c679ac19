// The mainloop of a consumer warpgroup: over the tiles of its CTA, and over the blocks of keys of each, from right to left.
//
//   a step:   wait k(n)  ·  turn  ·  S = q k(n)ᵀ  |  O += P v(n+1)  ·  pass the turn  ·  wait S  ·  wait O  ·  P = softmax S
//
// Both wgmma groups are issued together; softmax of one warpgroup runs beside the wgmma of the others (ping-pong). This goes on
// from tile to tile: the first step of a tile is the last of the one before, whose last P · V it issues with its own first S, and
// whose o it writes.
#pragma once
#include "cuda/sm90/forward/epilogue.h"
#include "cuda/sm90/forward/softmax.h"

namespace fa {
namespace gpu {

// Issues S of block n_block and O of the block before.
template <class Consumer>
FA_DEVICE void issue_qk_and_pv(Consumer& wg) {
    wg.wait_k();
    if (Consumer::kPingPong) rt::named_barrier_sync(wg.barrier_of(wg.warpgroup), 256);
    Consumer::kZeroByFirstMma ? rt::mark_undefined(wg.acc_s) : rt::keep_in_registers(wg.acc_s);
    rt::keep_in_registers(wg.acc_o), rt::keep_in_registers(wg.p);
    rt::wgmma_fence();
    wg.issue_qk();
    wg.wait_v();
    rt::wgmma_fence();
    wg.issue_pv(true);
}
template <class Consumer>
FA_DEVICE void wait_s(Consumer& wg) {
    rt::wgmma_wait<1>();
    rt::keep_in_registers(wg.acc_s);
    wg.release_k();
    wg.release_q_with_last_block();
}
template <class Consumer>
FA_DEVICE void wait_o(Consumer& wg) {
    rt::wgmma_wait<0>();
    rt::keep_in_registers(wg.acc_o), rt::keep_in_registers(wg.p);
    wg.release_v();
    wg.take_row_sum();
}

template <class Consumer, class IsMasked>
FA_DEVICE void mainloop_step(Consumer& wg, IsMasked is_masked) {
    issue_qk_and_pv(wg);
    wait_s(wg);
    wait_o(wg);
    online_softmax(wg, is_masked);
    if constexpr (Consumer::Traits::kPromotes)
        if ((wg.n_block + 1) % Consumer::Traits::kPromoteBlocks == 0) wg.store_averages();
}

// The first step of a tile, and the epilogue of the previous one. What does not need O of that comes before the wait for it, and no
// branch parts the stores of O from the new tile's P, so that ptxas interleaves the two.
template <class Consumer>
FA_DEVICE void first_step(Consumer& wg, const WorkTileInfo& prev_tile) {
    issue_qk_and_pv(wg);
    RowEnds<typename Consumer::Traits::Element> row_ends;
    wg.find_key_ranges();
    if constexpr (Consumer::kOverlapEpilogue) finish_rows(wg, prev_tile, row_ends);
    wait_s(wg);
    if constexpr (Consumer::kOverlapEpilogue) {
        first_row_ref(wg);
        wg.wait_v();  // has long come: but ptxas moves nothing from before it to behind it
    }
    float row_ref[2];  // the new tile's
    if constexpr (Consumer::kEarlyRowRef) {
        const float before[] = {wg.row_ref[0], wg.row_ref[1]};
        first_row_ref(wg);
        FA_UNROLL_FOR (int r = 0; r < 2; r++) row_ref[r] = wg.row_ref[r], wg.row_ref[r] = before[r];
    }
    wait_o(wg);
    if (!Consumer::kOverlapEpilogue) wg.load_averages(), finish_rows(wg, prev_tile, row_ends);
    const uint32_t largest = store_o(wg, row_ends);
    if (Consumer::kOverlapEpilogue) first_softmax(wg);
    repair_overflow(wg, prev_tile, row_ends, largest);
    if constexpr (Consumer::kEarlyRowRef) {
        FA_UNROLL_FOR (int r = 0; r < 2; r++) wg.row_ref[r] = row_ref[r];
        first_softmax(wg);
    } else if (!Consumer::kOverlapEpilogue) first_row_ref(wg), first_softmax(wg);
    rt::mbarrier_arrive(smem_addr(prev_tile.tile_consumed));
    wg.zero_o();
    wg.release_skipped_v();
    wg.zero_v_tail();
}

// The first step of the first tile.
template <class Consumer>
FA_DEVICE void prologue(Consumer& wg) {
    wg.wait_k();
    rt::keep_in_registers(wg.acc_s);
    rt::wgmma_fence();
    wg.issue_qk();
    rt::wgmma_wait<0>();
    rt::keep_in_registers(wg.acc_s);
    wg.release_k();
    wg.release_q_with_last_block();
    wg.zero_o();
    wg.find_key_ranges();
    first_row_ref(wg);
    first_softmax(wg);
    wg.release_skipped_v();
    wg.zero_v_tail();
}

// All blocks of a tile but its first.
template <class Consumer>
FA_DEVICE void tile_mainloop(Consumer& wg) {
    if constexpr (Consumer::score_mod == ScoreMod::alibi) {
        while (wg.blocks_left > 0) {
            wg.blocks_left--;
            wg.n_block = rt::warp_uniform(wg.tile->next_n_block(wg.n_block));
            if (wg.needs_mask()) mainloop_step(wg, True{});
            else mainloop_step(wg, False{});
            wg.zero_v_tail();
        }
    } else if constexpr (Consumer::kOneLoop) {
        for (wg.n_block--; wg.n_block >= wg.n_block_min; wg.n_block--) mainloop_step(wg, False{});
    } else {
        wg.n_block--;
        if constexpr (Consumer::mask != MaskKind::none)
            for (; wg.n_block >= max(wg.n_block_min_causal_local_mask, wg.n_block_min); wg.n_block--) mainloop_step(wg, True{});
        for (; wg.n_block >= max(wg.n_block_min_before_local_mask, wg.n_block_min); wg.n_block--) mainloop_step(wg, False{});
        if constexpr (Consumer::mask == MaskKind::band)
            for (; wg.n_block >= wg.n_block_min; wg.n_block--) mainloop_step(wg, True{});
    }
}

template <class Traits, MaskKind mask, ScoreMod score_mod>
FA_DEVICE void consumer_mainloop(const Sm90ForwardParams& params) {
    Consumer<Traits, mask, score_mod> wg(params);
    if (wg.kPingPong && wg.warpgroup == wg.kWarpgroups - 1)
        rt::named_barrier_arrive(wg.barrier_of(0), 256);  // the first warpgroup has the first turn
    if (!wg.begin_tile()) return;
    prologue(wg);
    while (true) {
        tile_mainloop(wg);
        const WorkTileInfo* const prev_tile = wg.tile;
        if (!wg.begin_tile()) break;
        first_step(wg, Traits::kScarceRegisters ? wg.previous_tile() : *prev_tile);
    }
    rt::keep_in_registers(wg.acc_o), rt::keep_in_registers(wg.p);
    wg.wait_v();
    rt::wgmma_fence();
    wg.issue_pv(false);
    RowEnds<typename Traits::Element> row_ends;
    if (!Traits::kP8) finish_rows(wg, *wg.tile, row_ends);
    rt::wgmma_wait<0>();
    rt::keep_in_registers(wg.acc_o);
    if constexpr (Traits::kP8) {
        wg.take_row_sum();
        wg.load_averages();
        finish_rows(wg, *wg.tile, row_ends);
    }
    repair_overflow(wg, *wg.tile, row_ends, store_o(wg, row_ends));
}

}  // namespace gpu
}  // namespace fa
