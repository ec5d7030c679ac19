// The consumer mainloops of the backward kernel for heads of 136 to 256 dims: one warpgroup computes P and dv, the other dS and dk,
// and each 64 dims of dq. They pass P on through shared memory, and exchange dS with the other CTA of the pair.
#pragma once
#include "cuda/sm90/backward/epilogue.h"
#include "cuda/sm90/backward_wide/params.h"
#include "cuda/sm90/backward_wide/wgmma.h"

namespace fa {
namespace gpu {

// Rows of a tile that do not belong to the sequence may hold anything, and 0 · NaN is NaN. By one warpgroup, or by both.
template <class Traits>
FA_DEVICE void zero_rows_outside(uint32_t tile, int panels, int begin, int end, int first_thread, int threads) {
    for (int i = int(threadIdx.x) % 128 + first_thread; i < 64 * 8; i += threads)
        if (i / 8 < begin || i / 8 >= end)
            for (int panel = 0; panel < panels; panel++) rt::st_shared_zero_v4(tile + panel * Traits::kPanelBytes + i * 16);
}
FA_DEVICE void sync_zeroed(bool by_both) {
    rt::fence_proxy_async_shared();
    __syncwarp();
    if (by_both) rt::named_barrier_sync(1, 256);
    else rt::named_barrier_sync(2, 128);
}

// Before the two warpgroups' mainloops.
template <class Traits>
FA_DEVICE void wait_for_kv() {
    const KeyBlockInfo& key_block = Traits::shared().block;
    const typename Traits::Barriers& barrier = Traits::shared().barrier;
    if (key_block.m_block_min == key_block.m_block_max) return;
    rt::mbarrier_wait(Traits::smem_addr(&barrier.k_full), 0);
    rt::mbarrier_wait(Traits::smem_addr(&barrier.v_full), 0);
    const int others = Traits::peer_keys(key_block), warpgroup = int(threadIdx.x) / 128 - 1;
    if (key_block.valid_keys == 64 && others == 64) return;
    zero_rows_outside<Traits>(Traits::k_tile(), 4, 0, key_block.valid_keys, 128 * warpgroup, 256);
    zero_rows_outside<Traits>(Traits::v_tile(), 4, 0, key_block.valid_keys, 128 * warpgroup, 256);
    zero_rows_outside<Traits>(Traits::peer_k_tile(), 2, 0, others, 128 * warpgroup, 256);
    sync_zeroed(true);
}

// What the mainloops of the two consumer warpgroups have in common.
template <class Traits>
struct WideWarpgroup {
    const Sm90BackwardParams& a;
    const KeyBlockInfo& t;
    typename Traits::Barriers& barrier;
    int rank, warpgroup, warp, lane;  // rank: of the CTA in the pair; warp: in the warpgroup
    int m_block_min, m_block_max, valid_row_min, valid_row_max;
    uint32_t remote_barriers;           // `barrier` in the CTA of the pair, one for each of two lanes, at which a lane arrives
    int m_block, steps_left, dq_block;  // dq_block: m_block among those of all heads
    PipelineState<Traits::kStages> stage;
    PipelineState<1> single_stage;  // of dout, P and dS

    FA_MEMBER WideWarpgroup(const Sm90BackwardParams& params, int own_rank, int own_warpgroup)
        : a(params),
          t(Traits::shared().block),
          barrier(Traits::shared().barrier),
          rank(own_rank),
          warpgroup(own_warpgroup),
          warp(rt::warp_uniform(int(threadIdx.x) / 32) % 4),
          lane(int(threadIdx.x) % 32),
          m_block_min(rt::warp_uniform(t.m_block_min)),
          m_block_max(rt::warp_uniform(t.m_block_max)),
          valid_row_min(rt::warp_uniform(t.valid_row_min)),
          valid_row_max(rt::warp_uniform(t.valid_row_max)) {
        remote_barriers = rt::mapa(Traits::smem_addr(&barrier), lane % 2);
        m_block = m_block_min;
        steps_left = (m_block_max - m_block_min) * int(a.x.group);
        dq_block = rt::warp_uniform(t.kv_head * int(a.x.group) * blocks_of_head() + int(t.row0 / Traits::kBlockM)) + m_block;
    }
    FA_MEMBER int blocks_of_head() const { return int(a.x.padded_rows / Traits::kBlockM); }
    FA_MEMBER int next_m_block() const { return m_block + 1 == m_block_max ? m_block_min : m_block + 1; }
    FA_MEMBER void advance() {
        dq_block += m_block + 1 == m_block_max ? blocks_of_head() - (m_block_max - m_block_min) + 1 : 1;
        m_block = next_m_block();
        steps_left--;
        stage.advance(), single_stage.advance();
    }
    FA_MEMBER int own_key() const { return 16 * warp + lane / 4; }  // and the key 8 below it
    FA_MEMBER void release_to_pair(uint64_t& empty) const {
        if (lane < 2)
            rt::mbarrier_arrive_cluster(remote_barriers + uint32_t(reinterpret_cast<char*>(&empty) - reinterpret_cast<char*>(&barrier)));
    }
    FA_MEMBER bool has_invalid_rows(int block) const {
        return block * Traits::kBlockM < valid_row_min || (block + 1) * Traits::kBlockM > valid_row_max;
    }
    FA_MEMBER void zero_invalid_rows(uint32_t tile, int block, bool both) const {
        zero_rows_outside<Traits>(tile, 4, valid_row_min - block * Traits::kBlockM, valid_row_max - block * Traits::kBlockM,
                                  both ? 128 * warpgroup : 0, both ? 256 : 128);
        sync_zeroed(both);
    }
    FA_MEMBER void wait_for_do() const {
        rt::mbarrier_wait(Traits::smem_addr(&barrier.do_full), single_stage.phase);
        if (has_invalid_rows(m_block)) zero_invalid_rows(Traits::do_tile(), m_block, true);
    }
    // 64 rows of k or v by the rows of q or dout.
    template <class Product>
    FA_MEMBER static void issue_ss(uint32_t left_tile, uint32_t right_tile, const Product& product) {
        const uint32_t keys = smem_desc_low(left_tile, 16), rows = smem_desc_low(right_tile, 16);
        FA_UNROLL_FOR (int i = 0; i < Traits::kHeadDim / 16; i++) {
            const int step = i / 4 * (Traits::kPanelBytes / 16) + i % 4 * 2;
            product(keys + step, rows + step, i > 0);
        }
        rt::wgmma_commit();
    }
    FA_MEMBER static void issue_rs(float (&acc)[Traits::kHeadDim / 2], const uint32_t (&p)[16], uint32_t tile) {
        const uint32_t right = smem_desc_low(tile, Traits::kPanelBytes);
        FA_UNROLL_FOR (int i = 0; i < 4; i++) WideWgmma<Traits::f16>::mma(acc, p + 4 * i, right + i * 128);
        rt::wgmma_commit();
    }
    // dQᵀ over the keys of both CTAs, for 64 of this CTA's dims.
    FA_MEMBER void issue_dq(float (&acc_dq)[32]) const {
        const uint32_t own = smem_desc_low(Traits::k_tile() + (2 * rank + warpgroup) * Traits::kPanelBytes, 16);
        const uint32_t other = smem_desc_low(Traits::peer_k_tile() + warpgroup * Traits::kPanelBytes, 16);
        const uint32_t own_ds = smem_desc_low(Traits::ds_tile(), 16), other_ds = smem_desc_low(Traits::peer_ds_tile(), 16);
        FA_UNROLL_FOR (int i = 0; i < 4; i++) WideWgmma<Traits::f16>::mma_ab_mn_major(acc_dq, own + i * 128, own_ds + i * 128, i > 0);
        FA_UNROLL_FOR (int i = 0; i < 4; i++) WideWgmma<Traits::f16>::mma_ab_mn_major(acc_dq, other + i * 128, other_ds + i * 128, 1);
        rt::wgmma_commit();
    }
    // acc += p · tile, which is complete on return; and dQ, once dS of both CTAs is there, which is still in flight.
    FA_MEMBER void accumulate(float (&acc)[Traits::kHeadDim / 2], uint32_t (&p)[16], uint32_t tile, float (&acc_dq)[32]) const {
        rt::keep_in_registers(p), rt::keep_in_registers(acc);
        rt::wgmma_fence();
        issue_rs(acc, p, tile);
        rt::mbarrier_wait(Traits::smem_addr(&barrier.ds_full), single_stage.phase);
        rt::mark_undefined(acc_dq);
        rt::wgmma_fence();
        issue_dq(acc_dq);
        rt::wgmma_wait<1>();
        rt::keep_in_registers(p), rt::keep_in_registers(acc);
    }
    // To memory, through the warp's staging buffer, by itself or by reduce_dq_in_order.
    FA_MEMBER void reduce_dq(uint32_t staging, const float (&acc_dq)[32]) const {
        FA_UNROLL_FOR (int i = 0; i < 8; i++) rt::st_shared_v4(staging + i * 512 + lane * 16, acc_dq + 4 * i);
        rt::fence_proxy_async_shared();
        __syncwarp();
        if (lane != 0) return;
        if (a.dq_semaphore) rt::mbarrier_arrive(Traits::smem_addr(&barrier.dq_full[warpgroup]));
        else
            rt::tma_reduce_add(a.x.dq_acc + (int64_t(dq_block) * 16 + rank * 8 + warpgroup * 4 + warp) * (Traits::kWarpBytes / 4), staging,
                               Traits::kWarpBytes);
    }
    // Until dQ of the step before has left the staging buffer.
    FA_MEMBER void wait_for_staging() const {
        if (a.dq_semaphore) rt::mbarrier_wait(Traits::smem_addr(&barrier.dq_empty[warpgroup]), single_stage.phase ^ 1);
        else if (lane == 0) rt::bulk_wait_group_read();
        __syncwarp();
    }
};

// P, dv, and 64 dims of dq.
template <class Traits>
FA_DEVICE void dv_mainloop(const Sm90BackwardParams& params, int rank) {
    using Wgmma = WideWgmma<Traits::f16>;
    using T = typename Traits::Type;
    WideWarpgroup<Traits> wg(params, rank, 0);
    typename Traits::Shared& shared = Traits::shared();
    const int c = wg.lane % 4, m_block_full_min = rt::warp_uniform(wg.t.m_block_full_min),
              m_block_full_max = rt::warp_uniform(wg.t.m_block_full_max);
    const float scale = params.x.scale * kLog2e;
    const uint32_t staging = Traits::dq_staging(0) + wg.warp * Traits::kWarpBytes;
    float acc_s[32], acc_dq[32], acc_dv[Traits::kHeadDim / 2];
    uint32_t p[16];

    const auto issue_ss = [&](int stage) {
        wg.issue_ss(Traits::k_tile(), Traits::q_tile(stage), [&](uint32_t x, uint32_t y, int more) { Wgmma::mma(acc_s, x, y, more); });
    };
    const auto apply_mask = [&] {
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const int2 seen = shared.row_range[wg.own_key() + 8 * r];
            const int begin = seen.x - wg.m_block * Traits::kBlockM - 2 * c, end = seen.y - wg.m_block * Traits::kBlockM - 2 * c;
            FA_UNROLL_FOR (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r && (8 * (i / 4) + i % 2 < begin || 8 * (i / 4) + i % 2 >= end)) acc_s[i] = kNegInf;
        }
    };
    const auto make_p = [&] {
        if (wg.m_block < m_block_full_min || wg.m_block >= m_block_full_max) apply_mask();
        const float* const lse_log2 = shared.lse_log2[wg.stage.index];
        FA_UNROLL_FOR (int i = 0; i < 8; i++) {
            const float2 l = rt::ld_shared_v2(Traits::smem_addr(lse_log2) + 32 * i + 8 * c);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) acc_s[4 * i + e] = rt::exp2_fast(fmaf(acc_s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
        }
        wg.wait_for_staging();
        FA_UNROLL_FOR (int i = 0; i < 8; i++) rt::st_shared_v4(staging + i * 512 + wg.lane * 16, acc_s + 4 * i);
        rt::mbarrier_arrive(Traits::smem_addr(&wg.barrier.p_full));
        rt::mbarrier_arrive(Traits::smem_addr(&wg.barrier.q_empty[wg.stage.index]));
        FA_UNROLL_FOR (int i = 0; i < 16; i++) p[i] = pack<T>(acc_s[2 * i], acc_s[2 * i + 1]);
    };
    const auto wait_for_q = [&](int stage, uint32_t phase, int block) {
        rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.q_full[stage]), phase);
        if (wg.has_invalid_rows(block)) wg.zero_invalid_rows(Traits::q_tile(stage), block, false);
    };
    // `prefetch_s`: S of the next block is issued, too.
    const auto step = [&](auto prefetch_s) {
        make_p();
        PipelineState<Traits::kStages> next = wg.stage;
        next.advance();
        if (prefetch_s.value) wait_for_q(next.index, next.phase, wg.next_m_block());
        wg.wait_for_do();
        wg.accumulate(acc_dv, p, Traits::do_tile(), acc_dq);
        wg.release_to_pair(wg.barrier.do_empty);
        if constexpr (prefetch_s.value) {
            rt::mark_undefined(acc_s);
            rt::wgmma_fence();
            issue_ss(next.index);
            rt::wgmma_wait<1>();
        } else {
            rt::wgmma_wait<0>();
        }
        rt::keep_in_registers(acc_dq);
        wg.release_to_pair(wg.barrier.ds_empty);
        rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.p_empty), wg.single_stage.phase);
        if (params.x.dq_acc) wg.reduce_dq(staging, acc_dq);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_s);
        wg.advance();
    };

    FA_UNROLL_FOR (int i = 0; i < Traits::kHeadDim / 2; i++) acc_dv[i] = 0.f;
    if (wg.steps_left > 0) {
        wait_for_q(0, 0, wg.m_block);
        rt::mark_undefined(acc_s);
        rt::wgmma_fence();
        issue_ss(0);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_s);
        while (wg.steps_left > 1) step(True{});
        step(False{});
    }
    store_dkv<T, Traits::kHeadDim>(params, wg.t, wg.own_key(), params.x.dv, params.x.dv_strides, 0, params.x.dim_v, dv_factor<T>(), acc_dv);
    wg.wait_for_staging();
}

// dS, dk, and the 64 dims of dq beside those.
template <class Traits>
FA_DEVICE void dk_mainloop(const Sm90BackwardParams& params, int rank) {
    using Wgmma = WideWgmma<Traits::f16>;
    using T = typename Traits::Type;
    WideWarpgroup<Traits> wg(params, rank, 1);
    typename Traits::Shared& shared = Traits::shared();
    const int c = wg.lane % 4;
    const uint32_t p = Traits::p_tile() + wg.warp * Traits::kWarpBytes + wg.lane * 16,
                   staging = Traits::dq_staging(1) + wg.warp * Traits::kWarpBytes;
    // dS of a warp's 16 keys: rows of 128 bytes, their 16-byte units swizzled.
    const uint32_t own_ds = wg.warp * 2048,
                   ds_piece = Traits::ds_tile() + own_ds + (wg.lane % 16) * 128 + ((wg.lane / 16) ^ (wg.lane % 8)) * 16;
    float acc_dp[32], acc_dq[32], acc_dk[Traits::kHeadDim / 2];
    uint32_t ds[16];
    bool dp_prefetched = false;

    const auto make_ds = [&] {
        const float factor = ds_factor<T>(wg.t);
        FA_UNROLL_FOR (int i = 0; i < 8; i++) {
            float prob[4];
            rt::ld_shared_v4(p + i * 512, prob);
            FA_UNROLL_FOR (int e = 0; e < 2; e++) {
                const float x = prob[2 * e] * acc_dp[4 * i + 2 * e], y = prob[2 * e + 1] * acc_dp[4 * i + 2 * e + 1];
                ds[2 * i + e] = pack_ds<T>(x, y, factor);
            }
        }
        rt::mbarrier_arrive(Traits::smem_addr(&wg.barrier.p_empty));
    };
    const auto exchange_ds = [&] {
        rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.ds_empty), wg.single_stage.phase ^ 1);
        FA_UNROLL_FOR (int i = 0; i < 4; i++) rt::stmatrix(ds_piece ^ (i * 32), ds + 4 * i);
        rt::fence_proxy_async_shared();
        __syncwarp();
        if (wg.lane == 0) {
            rt::mbarrier_expect_tx(Traits::smem_addr(&wg.barrier.ds_full), 2048);
            rt::bulk_copy_to_cta(Traits::peer_ds_tile() + own_ds, Traits::ds_tile() + own_ds, 2048, Traits::smem_addr(&wg.barrier.ds_full),
                                 rank ^ 1);
        }
    };
    const auto issue_dp = [&](bool remote_barrier) {
        FA_UNROLL_FOR (int i = 0; i < 8; i++) {
            const float2 d = remote_barrier ? rt::ld_shared_v2(Traits::smem_addr(shared.delta) + 32 * i + 8 * c) : make_float2(0, 0);
            acc_dp[4 * i] = acc_dp[4 * i + 2] = d.x;
            acc_dp[4 * i + 1] = acc_dp[4 * i + 3] = d.y;
        }
        rt::keep_in_registers(acc_dp);
        rt::wgmma_fence();
        wg.issue_ss(Traits::v_tile(), Traits::do_tile(), [&](uint32_t x, uint32_t y, int) { Wgmma::mma_negated(acc_dp, x, y, 1); });
    };
    // The next block's delta - dP is computed ahead where its rows can be read as they come; else what is computed is of no use.
    const auto step = [&] {
        if (!dp_prefetched) {
            wg.wait_for_do();
            issue_dp(true);
            rt::wgmma_wait<0>();
            rt::keep_in_registers(acc_dp);
        }
        rt::mbarrier_arrive(Traits::smem_addr(&wg.barrier.do_empty));
        if (wg.lane == 0) rt::mbarrier_arrive_remote(Traits::smem_addr(&wg.barrier.do_empty), rank ^ 1);
        rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.p_full), wg.single_stage.phase);
        make_ds();
        exchange_ds();
        rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.q_full[wg.stage.index]), wg.stage.phase);
        wg.accumulate(acc_dk, ds, Traits::q_tile(wg.stage.index), acc_dq);
        wg.release_to_pair(wg.barrier.q_empty[wg.stage.index]);
        dp_prefetched = wg.steps_left > 1 && !wg.has_invalid_rows(wg.next_m_block());
        if (dp_prefetched) rt::mbarrier_wait(Traits::smem_addr(&wg.barrier.do_full), wg.single_stage.phase ^ 1);
        issue_dp(dp_prefetched);
        rt::wgmma_wait<1>();
        rt::keep_in_registers(acc_dq);
        wg.release_to_pair(wg.barrier.ds_empty);
        wg.wait_for_staging();
        if (params.x.dq_acc) wg.reduce_dq(staging, acc_dq);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_dp);
        wg.advance();
    };

    FA_UNROLL_FOR (int i = 0; i < Traits::kHeadDim / 2; i++) acc_dk[i] = 0.f;
    while (wg.steps_left > 0) step();
    store_dkv<T, Traits::kHeadDim>(params, wg.t, wg.own_key(), params.x.dk, params.x.dk_strides, 0, params.x.dim_qk,
                                   dk_factor<T>(params, wg.t.ds_unit), acc_dk);
    wg.wait_for_staging();
}

}  // namespace gpu
}  // namespace fa
