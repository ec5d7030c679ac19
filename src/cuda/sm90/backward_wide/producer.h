// The producer warps of the backward kernel for heads of 136 to 256 dims: one thread loads k, v, and each block of rows, of which
// both CTAs of the pair load one half and multicast it; another warp finds the rows that see each key; and for deterministic calls
// two threads add dq to memory in a fixed order.
#pragma once
#include "cuda/sm90/backward_wide/params.h"

namespace fa {
namespace gpu {

// By one warp; k_full waits for it.
template <class Traits>
FA_DEVICE void find_row_ranges() {
    typename Traits::Shared& shared = Traits::shared();
    const KeyBlockInfo& key_block = shared.block;
    for (int i = int(threadIdx.x) % 32; i < Traits::kBlockN; i += 32)
        shared.row_range[i] = rows_seeing(key_block.rule, key_block.key0 + i, i < key_block.valid_keys, key_block.q_len);
    rt::mbarrier_arrive(Traits::smem_addr(&shared.barrier.k_full));
}

// Each warpgroup's dq by a thread of its own: P waits for its place, and so must not wait for the other warpgroup's dq.
template <class Traits>
FA_DEVICE void wide_reduce_dq_in_order(const Sm90BackwardParams& params, int rank, int warpgroup) {
    typename Traits::Barriers& barrier = Traits::shared().barrier;
    reduce_dq_in_order<Traits, Traits::kBlockM>(
        params, Traits::shared().block,
        {Traits::dq_staging(warpgroup), barrier.dq_full[warpgroup], barrier.dq_empty[warpgroup], 2 * rank + warpgroup});
}

template <class Traits>
FA_DEVICE void wide_producer(const Sm90BackwardParams& params, int rank) {
    typename Traits::Shared& shared = Traits::shared();
    typename Traits::Barriers& barrier = shared.barrier;
    const KeyBlockInfo& key_block = shared.block;
    if (key_block.m_block_min == key_block.m_block_max) return;
    const int kv_batch = params.x.sequences.packed_k() ? 0 : key_block.batch, q_batch = params.x.sequences.q.packed() ? 0 : key_block.batch,
              group = int(params.x.group);
    const auto load_panels = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, int first, int count, int row) {
        for (int i = 0; i < count; i++)
            rt::tma_load(to + i * Traits::kPanelBytes, map, Traits::smem_addr(&full), 64 * (first + i), row, key_block.kv_head, kv_batch,
                         rt::kEvictFirst);
    };
    set_ds_unit<typename Traits::Type>(params, shared.block);
    rt::mbarrier_expect_tx(Traits::smem_addr(&barrier.k_full), Traits::kKvBytes + 2 * Traits::kPanelBytes);
    load_panels(Traits::k_tile(), &params.k, barrier.k_full, 0, 4, key_block.k_row);
    load_panels(Traits::peer_k_tile(), &params.k, barrier.k_full, 2 * rank, 2,
                key_block.k_row + Traits::peer_key0(key_block) - key_block.key0);
    PipelineState<Traits::kStages> stage;
    PipelineState<1> do_stage;
    for (int g = 0; g < group; g++) {
        const int head = key_block.kv_head * group + g;
        const int64_t row0 = head * params.x.padded_rows + key_block.row0;
        for (int m_block = key_block.m_block_min; m_block < key_block.m_block_max; m_block++) {
            const auto load = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, uint64_t& empty, uint32_t phase, float* values,
                                  const float* from) {
                rt::mbarrier_wait(Traits::smem_addr(&empty), phase ^ 1);
                rt::mbarrier_expect_tx(Traits::smem_addr(&full), Traits::kQBytes + Traits::kBlockM * 4);
                load_row_block<Traits>(to, map, Traits::smem_addr(&full), rank, key_block.q_begin + m_block * Traits::kBlockM, head,
                                       q_batch);
                rt::bulk_load(Traits::smem_addr(values), from + row0 + m_block * Traits::kBlockM, Traits::kBlockM * 4,
                              Traits::smem_addr(&full));
            };
            load(Traits::q_tile(stage.index), &params.q, barrier.q_full[stage.index], barrier.q_empty[stage.index], stage.phase,
                 shared.lse_log2[stage.index], params.x.lse_log2);
            if (g == 0 && m_block == key_block.m_block_min) {
                rt::mbarrier_expect_tx(Traits::smem_addr(&barrier.v_full), Traits::kKvBytes);
                load_panels(Traits::v_tile(), &params.v, barrier.v_full, 0, 4, key_block.k_row);
            }
            load(Traits::do_tile(), &params.dout, barrier.do_full, barrier.do_empty, do_stage.phase, shared.delta, params.x.delta);
            stage.advance(), do_stage.advance();
        }
    }
}

}  // namespace gpu
}  // namespace fa
