// The producer thread of the backward kernels, which loads k, v, and block after block of rows of q and dout with their LSE and
// delta; and the thread that, for deterministic calls, adds dq to memory in a fixed order.
#pragma once
#include "cuda/sm90/backward/range.h"
#include "cuda/sm90/backward/tile_scheduler.h"

namespace fa {
namespace gpu {

// A block of rows of q or dout to one stage; in pairs each CTA loads every second panel, and multicasts it to both.
template <class Traits>
FA_DEVICE void load_row_block(uint32_t to, const CUtensorMap* map, uint32_t barrier, int rank, int row, int head, int sequence) {
    constexpr int bytes = Traits::kQBytes / Traits::kPanels;
    FA_UNROLL_FOR (int i = 0; i < Traits::kPanels; i++) {
        if (!Traits::kPair) rt::tma_load(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
        else if (i % 2 == rank) rt::tma_load_multicast(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
    }
}

// Until CTAs of the part before have preprocessed the rows.
FA_DEVICE void wait_for_preprocess(const Sm90BackwardParams& params, int index) {
    const int part = params.preprocess.part_of(block_and_piece(params, index).number);
    if (part == 0) return;
    while (rt::ld_acquire(params.preprocess.rows_ready + part) !=
           uint32_t(params.preprocess.chunks_end(part) - part * params.preprocess.part_chunks)) {
    }
    rt::fence_proxy_async_global();
}

// When the rows have been preprocessed; the first block of rows tells the consumers.
template <class T>
FA_DEVICE void set_ds_unit(const Sm90BackwardParams& params, KeyBlockInfo& key_block) {
    if constexpr (kIsF16<T>) key_block.ds_unit = acc_unit<T>(params, key_block.batch, key_block.kv_head);
}

// Two PipelineStates for threads with few registers: of the ring of K, as a count in shared memory, one for each warp; and of the
// ring of q and dout, as a count in one register.
template <class Traits>
struct KStageInShared {
    FA_MEMBER static volatile int& count() { return Traits::shared().blocks_done[rt::opaque(threadIdx.x) / 32]; }
    FA_MEMBER static int index() { return count() % Traits::kKStages; }
    FA_MEMBER static uint32_t phase() { return uint32_t(count()) / Traits::kKStages % 2; }
};
template <int stages>
struct StepCount {
    uint32_t n = 0;
    FA_MEMBER int index() const { return int(n % stages); }
    FA_MEMBER uint32_t phase() const { return n / stages % 2; }
};

// A persistent CTA takes its next block of keys when the last rows of one are being loaded: blocks of different lengths then end
// together, and K has two steps to arrive.
template <class Traits, int rows>
FA_DEVICE void backward_producer(const Sm90BackwardParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    typename Traits::Barriers& barrier = shared.barrier;
    StepCount<Traits::kStages> stage;
    KStageInShared<Traits> k_stage;
    if (shared.block[0].m_block_min == shared.block[0].m_block_max) return;
    while (true) {
        const KeyBlockInfo& key_block = shared.block[k_stage.index()];
        const auto load_kv = [&](uint32_t to, const CUtensorMap* map, uint64_t& barrier) {
            rt::mbarrier_expect_tx(Traits::smem_addr(&barrier), Traits::kKvBytes);
            FA_UNROLL_FOR (int i = 0; i < Traits::kPanels; i++)
                rt::tma_load(to + i * Traits::kBlockN * 128, map, Traits::smem_addr(&barrier), 64 * i, key_block.k_row, key_block.kv_head,
                             params.x.sequences.packed_k() ? 0 : key_block.batch, rt::kEvictFirst);
        };
        load_kv(Traits::k_tile(k_stage.index()), &params.k, barrier.k_full[k_stage.index()]);
        if constexpr (!Traits::kGeneral) wait_for_preprocess(params, key_block.index);
        set_ds_unit<typename Traits::Type>(params, shared.block[k_stage.index()]);
        for (int g = 0; g < int(params.x.group); g++) {
            const int head = key_block.kv_head * int(params.x.group) + g, row0 = head * int(params.x.padded_rows) + key_block.row0;
            for (int m_block = key_block.m_block_min; m_block < key_block.m_block_max; m_block++) {
                const auto load = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, uint64_t& empty, int more) {
                    rt::mbarrier_wait(Traits::smem_addr(&empty), stage.phase() ^ 1);
                    rt::mbarrier_expect_tx(Traits::smem_addr(&full), Traits::kQBytes + more);
                    load_row_block<Traits>(to, map, Traits::smem_addr(&full), 0, key_block.q_begin + m_block * rows, head,
                                           params.x.sequences.q.packed() ? 0 : key_block.batch);
                };
                load(Traits::q_tile(stage.index()), &params.q, barrier.q_full[stage.index()], barrier.q_empty[stage.index()], 0);
                load(Traits::do_tile(stage.index()), &params.dout, barrier.do_full[stage.index()], barrier.do_empty[stage.index()],
                     2 * rows * 4);
                rt::bulk_load(Traits::smem_addr(shared.delta[stage.index()]), params.x.delta + row0 + m_block * rows, rows * 4,
                              Traits::smem_addr(&barrier.do_full[stage.index()]));
                rt::bulk_load(Traits::smem_addr(shared.lse_log2[stage.index()]), params.x.lse_log2 + row0 + m_block * rows, rows * 4,
                              Traits::smem_addr(&barrier.do_full[stage.index()]));
                stage.n++;
                if (g > 0 || m_block > key_block.m_block_min) continue;
                // V has one stage: that of the block before has been read when its last step has released dout.
                rt::mbarrier_wait(Traits::smem_addr(&barrier.do_empty[stage.index()]), stage.phase() ^ 1);
                load_kv(Traits::v_tile(), &params.v, barrier.v_full);
            }
        }
        if (!Traits::kPersistent) return;
        const int index = params.resident_blocks + atomicAdd(params.block_counter, 1);
        k_stage.count() = k_stage.count() + 1;
        rt::mbarrier_wait(Traits::smem_addr(&barrier.k_empty[k_stage.index()]), k_stage.phase() ^ 1);
        KeyBlockInfo& next = shared.block[k_stage.index()];
        if (index >= params.blocks) {
            next.index = -1;
            return rt::mbarrier_arrive(Traits::smem_addr(&barrier.k_full[k_stage.index()]));
        }
        fill_key_block<Traits>(params, index, next);
    }
}

// How many blocks of keys, or pairs of them, add their dq to a block of rows before this one does, deterministic calls adding from
// right to left (reverse_order) or from left to right. Counted for a row that sees keys.
template <class Traits, int rows>
FA_DEVICE uint32_t dq_order_of(bool reverse_order, const KeyBlockInfo& key_block, int m_block) {
    constexpr int keys = Traits::kBlockN * Traits::kClusterSize;
    const int row = reverse_order ? min(min((m_block + 1) * rows, key_block.q_len), key_block.valid_row_max) - 1
                                  : max(m_block * rows, key_block.valid_row_min);
    int begin = row - key_block.rule.end + 1, end = row - key_block.rule.begin + 1;
    if (key_block.rule.chunk > 0) {
        const int chunk = (row + key_block.rule.off) / key_block.rule.chunk * key_block.rule.chunk;
        begin = max(begin, chunk), end = min(end, chunk + key_block.rule.chunk);
    }
    return uint32_t(reverse_order ? (min(end, key_block.k_len) - 1) / keys - key_block.key0 / keys
                                  : key_block.key0 / keys - max(begin, 0) / keys);
}

// Where consumers leave a part of dq of a block of rows, one of the kDqSemaphores that take turns by themselves.
template <class Traits>
struct DqStaging {
    static constexpr int kBytes = Traits::kBlockM * Traits::kPanels * 256 / Traits::kDqSemaphores;
    uint32_t buffer;
    uint64_t &full, &empty;
    int part;
};

// Adds that part of dq of all steps to memory, each when the semaphore of its block of rows says so. A thread of
// its own does it: neither the polling, nor the wait until the sums have arrived, which must come before the semaphore is raised,
// then keeps wgmma waiting.
template <class Traits, int rows>
FA_DEVICE void reduce_dq_in_order(const Sm90BackwardParams& params, const KeyBlockInfo& key_block, DqStaging<Traits> from) {
    const int blocks_of_head = int(params.x.padded_rows / rows);
    int dq_block = key_block.kv_head * int(params.x.group) * blocks_of_head + key_block.row0 / rows + key_block.m_block_min,
        m_block = key_block.m_block_min;
    for (int left = (key_block.m_block_max - key_block.m_block_min) * int(params.x.group), phase = 0; left > 0; left--, phase ^= 1) {
        const uint32_t own = dq_order_of<Traits, rows>(params.reverse_order, key_block, m_block);
        const int64_t turn = int64_t(dq_block) * Traits::kDqSemaphores + from.part;
        while (rt::ld_acquire(params.dq_semaphore + turn) != own) {
        }
        rt::mbarrier_wait(Traits::smem_addr(&from.full), phase);
        rt::tma_reduce_add(params.x.dq_acc + turn * (from.kBytes / 4), from.buffer, from.kBytes);
        rt::bulk_wait_group_read();
        rt::mbarrier_arrive(Traits::smem_addr(&from.empty));
        rt::bulk_wait_group();
        rt::red_release_add(params.dq_semaphore + turn, 1);
        m_block++, dq_block++;
        if (m_block == key_block.m_block_max) {
            m_block = key_block.m_block_min;
            dq_block += blocks_of_head - (key_block.m_block_max - key_block.m_block_min);
        }
    }
}

}  // namespace gpu
}  // namespace fa
