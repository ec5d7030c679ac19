// The consumer mainloop of the backward kernel for up to 128 dims: two warpgroups, each with 64 keys of the CTA's block and their
// dk and dv in registers, go through the blocks of rows that see any of the keys. backward/kernel.h gives the overview.
//
// It stays one function of steps over its locals: as an object with members, like the forward's Consumer, the loop of the plain
// kernel for 128 dims has 553 instructions instead of 538. What works on accumulators alone is in backward/products.h.
#pragma once
#include "cuda/sm90/backward/epilogue.h"
#include "cuda/sm90/backward/products.h"

namespace fa {
namespace gpu {

template <int n>
struct Int {
    static constexpr int value = n;
};

template <class T, int HeadDim, int BlockM, BwdVariant variant, class Traits = Sm90BackwardTraits<T, HeadDim, BlockM, variant>>
FA_DEVICE void backward_mainloop(const typename Traits::Params& params) {
    typename Traits::Shared& shared = Traits::shared();
    typename Traits::Barriers& barrier = shared.barrier;
    const BackwardRowParams& call = params.x;
    const int warp = rt::warp_uniform(int(threadIdx.x) / 32) - 4, lane = int(threadIdx.x) % 32, warpgroup = warp / 4, c = lane % 4;
    const int own_key = warpgroup * 64 + warp % 4 * 16 + lane / 4;  // and the key 8 below it
    const float scale = call.scale * kLog2e;
    // Keys by rows: S, then P; delta − dP, which dS, and then dQ, take the registers of; dV and dK.
    float acc_s[BlockM / 2], acc_dp[BlockM / 2], acc_dv[HeadDim / 2], acc_dk[HeadDim / 2];
    float (&acc_dq)[32] = reinterpret_cast<float (&)[32]>(acc_dp);  // dP has become dS by then
    uint32_t p[BlockM / 4], ds[BlockM / 4];
    PipelineState<Traits::kStages> stage;
    PipelineState<Traits::kKStages> k_stage;
    int m_block_min, m_block_max, m_block_full_min, m_block_full_max;  // of the block of keys
    int m_block, steps_left;                                           // steps_left: of all heads of the group
    const int valid_row_min = rt::warp_uniform(shared.block[0].valid_row_min),
              valid_row_max = rt::warp_uniform(shared.block[0].valid_row_max);
    // dQ goes to memory by a bulk reduction of each warp, from a staging buffer in shared memory.
    constexpr int kDqWarpBytes = Traits::kDqBytes / 8;
    const int blocks_of_head = int(call.padded_rows / BlockM);
    // The block of rows, among those of all heads, whose dQ is computed next, or −1: none yet; and the one after it.
    int dq_block = -1, next_dq_block;
    int dq_k_stage = 0;                                                  // of its K
    const bool deterministic = Traits::kGeneral && params.dq_semaphore;  // reduce_dq_in_order takes dQ to memory
    const uint32_t dq_staging = Traits::dq_tile() + warp * kDqWarpBytes;
    // The row of dS in shared memory, rows by keys, that this lane addresses in stmatrix; a panel of 64 keys for each warpgroup.
    const uint32_t ds_row = warpgroup * BlockM * 128 + (lane % 8 + lane / 16 * 8) * 128 + ((warp % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;

    // One lane arrives for its warp.
    const auto release = [&](uint64_t& barrier) {
        __syncwarp();
        if (lane == 0) rt::mbarrier_arrive(Traits::smem_addr(&barrier));
    };
    const auto has_invalid_rows = [&](int block) {
        return Traits::kGeneral && (block * BlockM < valid_row_min || (block + 1) * BlockM > valid_row_max);
    };
    const auto zero_invalid_rows = [&](uint32_t tile) {
        zero_rows_outside<Traits, BlockM>(tile, valid_row_min - m_block * BlockM, valid_row_max - m_block * BlockM);
    };
    // dQ of a step to memory, by way of the staging buffer, which that of the step before must have left.
    const auto reduce_dq = [&](int before) {
        rt::keep_in_registers(acc_dq);
        if (dq_block < 0) return;
        release(barrier.ds_empty[before]);
        if (deterministic) rt::mbarrier_wait(Traits::smem_addr(&barrier.dq_empty), before ^ 1);  // one staging buffer, two stages of dS
        else if (lane == 0) rt::bulk_wait_group_read();
        __syncwarp();
        FA_UNROLL_FOR (int i = 0; i < Traits::kDqRows / 8; i++) rt::st_shared_v4(dq_staging + i * 512 + lane * 16, acc_dq + 4 * i);
        rt::fence_proxy_async_shared();
        __syncwarp();
        if (lane == 0) {
            if (deterministic) rt::mbarrier_arrive(Traits::smem_addr(&barrier.dq_full));
            else if (call.dq_acc)
                rt::tma_reduce_add(call.dq_acc + (int64_t(dq_block) * 8 + warp) * (kDqWarpBytes / 4), dq_staging, kDqWarpBytes);
        }
    };
    const auto start_s = [&](auto from) {
        rt::mbarrier_wait(Traits::smem_addr(&barrier.q_full[stage.index]), stage.phase);
        if (has_invalid_rows(m_block)) zero_invalid_rows(Traits::q_tile(stage.index));
        if constexpr (Traits::kBias) {
            rt::mbarrier_wait(Traits::smem_addr(&barrier.bias_full), stage.index);  // one stage
            start_at_bias<T, BlockM>(acc_s, Traits::bias_tile() + ds_row, barrier.bias_factor, params.inverse_scale);
            rt::mbarrier_arrive(Traits::smem_addr(&barrier.bias_empty));
            rt::keep_in_registers(acc_s);
        } else {
            rt::mark_undefined(acc_s);
        }
        rt::wgmma_fence();
        if constexpr (from.value < BlockM)
            issue_s<Traits, HeadDim, from.value>(acc_s, Traits::k_tile(k_stage.index) + warpgroup * 8192, Traits::q_tile(stage.index));
    };
    // The accumulators of delta − dP begin at delta.
    const auto init_dp = [&](int from) {
        rt::mbarrier_wait(Traits::smem_addr(&barrier.do_full[stage.index]), stage.phase);
        if (has_invalid_rows(m_block)) zero_invalid_rows(Traits::do_tile(stage.index));
        load_delta<BlockM>(acc_dp, Traits::smem_addr(shared.delta[stage.index]) + 8 * c, from);
        rt::keep_in_registers(acc_dp);
    };
    // P from S, which has been waited for, and dV += Pᵀ dO; dS from dP, while dV is in flight.
    const auto softmax_and_ds = [&](auto from) {
        rt::keep_in_registers(acc_s);
        if constexpr (from.value < BlockM) {
            if (m_block < m_block_full_min || m_block >= m_block_full_max) apply_mask<Traits>(acc_s, own_key, m_block, c, from.value);
            rt::wgmma_fence();
            issue_dp<Traits, HeadDim, from.value>(acc_dp, Traits::v_tile() + warpgroup * 8192, Traits::do_tile(stage.index));
            rt::keep_in_registers(acc_s);
            exp2_to_p<T, BlockM>(acc_s, p, Traits::smem_addr(shared.lse_log2[stage.index]) + 8 * c, scale, from.value);
            rt::keep_in_registers(p), rt::keep_in_registers(acc_dv);
            rt::wgmma_fence();
            issue_rs<Traits, HeadDim, BlockM>(acc_dv, p, Traits::do_tile(stage.index), from.value);
            rt::wgmma_wait<1>();
            rt::keep_in_registers(acc_dp);
        }
        scores_to_ds<T, BlockM>(acc_s, acc_dp, ds, from.value, shared.block[k_stage.index]);
        rt::mbarrier_wait(Traits::smem_addr(&barrier.ds_empty[stage.index]), stage.phase ^ 1);
        FA_UNROLL_FOR (int i = 0; i < BlockM / 16; i++) rt::stmatrix_trans(Traits::ds_tile(stage.index) + ds_row + i * 2048, ds + 4 * i);
        rt::fence_proxy_async_shared();
        release(barrier.ds_full[stage.index]);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(p), rt::keep_in_registers(acc_dv);
        // Every thread arrives: each has read LSE and delta, which come with dout.
        rt::mbarrier_arrive(Traits::smem_addr(&barrier.do_empty[stage.index]));
    };
    const auto start_dq = [&](int from, uint32_t phase) {
        rt::mbarrier_wait(Traits::smem_addr(&barrier.ds_full[from]), phase);
        rt::mark_undefined(acc_dq);
        rt::wgmma_fence();
        issue_dq<Traits>(acc_dq, Traits::k_tile(dq_k_stage), Traits::ds_tile(from), warpgroup);
    };
    // dQ of the step before, whose dS both warpgroups have written by now: neither waits for the other. The first step has none
    // before it; at d 64, where a branch costs registers that are not there (C7511), it computes one of whatever is in shared
    // memory, which reduce_dq drops.
    const auto start_previous_dq = [&] {
        if (Traits::kPanels == 1 || dq_block >= 0) start_dq(stage.index ^ 1, stage.index ? stage.phase : stage.phase ^ 1);
    };
    const auto start_dk = [&] {
        rt::keep_in_registers(ds), rt::keep_in_registers(acc_dk);
        rt::wgmma_fence();
        issue_rs<Traits, HeadDim, BlockM>(acc_dk, ds, Traits::q_tile(stage.index), 0);
    };

    const auto begin_key_block = [&] {
        const KeyBlockInfo& key_block = shared.block[k_stage.index];
        const int key = own_key - lane / 4 + lane;
        m_block_min = rt::warp_uniform(key_block.m_block_min), m_block_max = rt::warp_uniform(key_block.m_block_max),
        m_block_full_min = rt::warp_uniform(key_block.m_block_full_min), m_block_full_max = rt::warp_uniform(key_block.m_block_full_max);
        m_block = m_block_min, steps_left = (m_block_max - m_block_min) * int(call.group);
        next_dq_block = rt::warp_uniform(key_block.kv_head * int(call.group) * blocks_of_head + key_block.row0 / BlockM) + m_block;
        __syncwarp();
        if constexpr (!Traits::kBias) {
            if (lane < 16)
                shared.of_keys.row_range[key] =
                    rows_seeing(key_block.rule, key_block.key0 + key, key < key_block.valid_keys, key_block.q_len);
            __syncwarp();
        }
        FA_UNROLL_FOR (int i = 0; i < HeadDim / 2; i++) acc_dv[i] = acc_dk[i] = 0.f;
    };
    const auto store = [&](int operand, void* out, const RowStrides& strides, int64_t dim, float factor, const float (&acc)[HeadDim / 2]) {
        const KeyBlockInfo& key_block = shared.block[k_stage.index];
        if (!Traits::kGeneral && key_block.index >= params.split.first_block) {
            float* const partial = partial_of_split<HeadDim>(params, key_block.index - params.split.first_block) +
                                   operand * (128 * HeadDim) + (rt::opaque(threadIdx.x) - 128) * 4;
            FA_UNROLL_FOR (int i = 0; i < HeadDim / 8; i++) rt::store4(partial + i * 1024, acc + 4 * i);
        } else {
            store_dkv<T, HeadDim>(params, key_block, rt::opaque(own_key), out, strides, 0, dim, factor, acc);
        }
    };
    const auto store_dv = [&] { store(0, call.dv, call.dv_strides, call.dim_v, dv_factor<T>(), acc_dv); };
    const auto store_dk = [&] {
        store(1, call.dk, call.dk_strides, call.dim_qk, dk_factor<T>(params, shared.block[k_stage.index].ds_unit), acc_dk);
    };
    // After the wait for dQ of the step before. The last one of a block of keys releases the stage of K and of the block's
    // description.
    const auto finish_dq = [&](int before) {
        if (Traits::kPersistent && dq_k_stage != k_stage.index) rt::mbarrier_arrive(Traits::smem_addr(&barrier.k_empty[dq_k_stage]));
        dq_k_stage = k_stage.index;
        reduce_dq(before);
        dq_block = next_dq_block;
    };
    // The first step of a block of keys, every other step, and what follows the last one.
    const auto first_step = [&](auto from) {
        start_s(from);
        rt::mbarrier_wait(Traits::smem_addr(&barrier.v_full), Traits::kPersistent ? k_stage.index : 0);
        if (Traits::kGeneral && shared.block[0].valid_keys < Traits::kBlockN)
            zero_rows_outside<Traits, Traits::kBlockN>(Traits::v_tile(), 0, shared.block[0].valid_keys);
        if constexpr (from.value < BlockM) rt::wgmma_wait<0>(), rt::keep_in_registers(acc_s);
        init_dp(from.value);
        softmax_and_ds(from);
    };
    const auto step = [&] {
        const int own = stage.index;
        start_previous_dq();
        start_dk();
        stage.advance();
        if (++m_block == m_block_max) m_block = m_block_min;
        start_s(Int<0>{});
        rt::wgmma_wait<2>();
        finish_dq(own ^ 1);
        next_dq_block += m_block == m_block_min ? blocks_of_head - (m_block_max - m_block_min) + 1 : 1;
        rt::wgmma_wait<1>();
        rt::keep_in_registers(ds), rt::keep_in_registers(acc_dk);
        release(barrier.q_empty[own]);
        init_dp(0);
        rt::wgmma_wait<0>();
        softmax_and_ds(Int<0>{});
    };
    const auto last_step = [&] {
        start_previous_dq();
        start_dk();
        store_dv();
        rt::wgmma_wait<0>();
        rt::keep_in_registers(ds), rt::keep_in_registers(acc_dk);
        finish_dq(stage.index ^ 1);
        release(barrier.q_empty[stage.index]);
        store_dk();
    };
    begin_key_block();
    if (Traits::kPersistent || steps_left > 0) {
        rt::mbarrier_wait(Traits::smem_addr(&barrier.k_full[0]), 0);
        if (Traits::kGeneral && shared.block[0].valid_keys < Traits::kBlockN)
            zero_rows_outside<Traits, Traits::kBlockN>(Traits::k_tile(), 0, shared.block[0].valid_keys);
        while (true) {
            // The first 64 rows may see none of the second warpgroup's keys.
            const KeyBlockInfo& key_block = shared.block[k_stage.index];
            if (Traits::kPersistent && warpgroup == 1 && rt::warp_uniform(key_block.key0 + key_block.rule.begin) >= m_block * BlockM)
                first_step(Int<64>{});
            else first_step(Int<0>{});
            while (--steps_left > 0) step();
            last_step();
            if (!Traits::kPersistent) break;
            k_stage.advance();
            rt::mbarrier_wait(Traits::smem_addr(&barrier.k_full[k_stage.index]), k_stage.phase);
            if (rt::warp_uniform(shared.block[k_stage.index].index) < 0) break;
            stage.advance();
            begin_key_block();
        }
        start_dq(stage.index, stage.phase);
        rt::wgmma_wait<0>();
        reduce_dq(stage.index);
    } else {
        store_dv(), store_dk();
    }
    if (lane == 0) rt::bulk_wait_group_read();
}

}  // namespace gpu
}  // namespace fa
