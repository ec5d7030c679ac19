// 8-bit k and v: the producer warp that loads both, and the two warps that widen v to f16, exactly, between a ring of stages as it
// comes and the ring that the consumers read. wgmma transposes 16-bit operands only; widened, v needs no transposition, P is f16,
// and the accumulators of O are f32 in all their bits.
#pragma once
#include "cuda/sm90/forward/paged_kv.h"

namespace fa {
namespace gpu {

// k's stage and v's, both of block after block. One thread.
template <class Traits>
FA_DEVICE void kv_8bit_producer(const Sm90ForwardParams& params) {
    constexpr bool pair = Traits::kPair;
    typename Traits::Shared& shared = Traits::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    PipelineState<Traits::kStages> stage;
    PipelineState<Traits::kRawStages> raw;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        const int blocks = tile.n_block_max + tile.peer_only_blocks - tile.n_block_min + 1;
        for (int left = blocks, n_block = tile.first_n_block();; left--, n_block = tile.next_n_block(n_block)) {
            if (params.tile_counter && left == min(blocks, Traits::kPrefetchBlocks))
                rt::mbarrier_arrive(smem_addr(shared.barrier.prefetch_next));
            const int row = tile.k_begin + n_block * Traits::kBlockN;
            rt::mbarrier_wait(smem_addr(shared.barrier.k_empty[stage.index]), stage.phase ^ 1);
            load_kv_block<Traits, pair, Traits::kQPanels>(Traits::k_tile(stage.index), &params.k,
                                                          smem_addr(shared.barrier.k_full[stage.index]), rank, row, tile.kv_head,
                                                          tile.kv_batch);
            rt::mbarrier_wait(smem_addr(shared.barrier.raw_empty[raw.index]), raw.phase ^ 1);
            load_kv_block<Traits, pair, Traits::kRawPanels>(Traits::raw_v_tile(raw.index), &params.v,
                                                            smem_addr(shared.barrier.raw_full[raw.index]), rank, row, tile.kv_head,
                                                            tile.kv_batch);
            stage.advance();
            raw.advance();
            if (left == 1) break;  // the scheduler may overwrite the tile's description from here on
        }
    }
}

// The same over pages, as a whole warp; see paged_kv_producer.
template <class Traits>
FA_DEVICE void paged_kv_8bit_producer(const Sm90ForwardParams& params) {
    constexpr int panels = Traits::kQPanels;
    typename Traits::Shared& shared = Traits::shared();
    const int lane = int(threadIdx.x) % 32, panel = lane % panels, first = lane / panels * params.page_chunk;
    const int place = panel * Traits::kPanelBytes + first * 128;
    PipelineState<Traits::kStages> stage;
    PipelineState<Traits::kRawStages> raw;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        const auto find = [&](int key) { return key < tile.k_len ? find_paged_row(params, tile, key) : PagedRow{-1, 0}; };
        const int blocks = tile.n_block_max - tile.n_block_min + 1;
        int n_block = tile.first_n_block();
        PagedRow source = find(n_block * Traits::kBlockN + first);
        FA_UNROLL_BY(1)
        for (int left = blocks; left > 0; left--) {
            if (params.tile_counter && left == min(blocks, Traits::kPrefetchBlocks) && lane == 0)
                rt::mbarrier_arrive(smem_addr(shared.barrier.prefetch_next));
            const int next_n_block = tile.next_n_block(n_block);
            const PagedRow next_source = left > 1 ? find(next_n_block * Traits::kBlockN + first) : source;
            const bool missing = n_block * Traits::kBlockN + first < tile.k_len && !source.exists(params);
            const uint32_t k_full = smem_addr(shared.barrier.k_full[stage.index]), raw_full = smem_addr(shared.barrier.raw_full[raw.index]);
            rt::mbarrier_wait(smem_addr(shared.barrier.k_empty[stage.index]), stage.phase ^ 1);
            if (lane == 0) rt::mbarrier_expect_tx(k_full, panels * Traits::kPanelBytes);
            if (first < Traits::kBlockN)
                rt::tma_load(Traits::k_tile(stage.index) + place, missing ? &params.k_missing : &params.k, k_full, 64 * panel, source.row,
                             tile.kv_head, source.page, rt::kEvictLast);
            rt::mbarrier_wait(smem_addr(shared.barrier.raw_empty[raw.index]), raw.phase ^ 1);
            if (lane == 0) rt::mbarrier_expect_tx(raw_full, panels * Traits::kPanelBytes);
            if (first < Traits::kBlockN)
                rt::tma_load(Traits::raw_v_tile(raw.index) + place, &params.v, raw_full, 64 * panel, source.row, tile.kv_head, source.page,
                             rt::kEvictLast);
            stage.advance();
            raw.advance();
            n_block = next_n_block;
            source = next_source;
        }
    }
}

// How a lane takes part in widening eight rows by 64 columns: of one row one 8-bit unit of 16 bytes, which becomes two of f16. Of the eight
// lanes that access shared memory together four are of a row and four of the row four further on, so that the swizzle keeps their units
// apart; the latter write their second unit first.
struct WideningLane {
    int row;
    bool far;
    uint32_t from, to;  // in the eight rows
    FA_MEMBER explicit WideningLane(int lane) : row(lane / 8 + (lane & 4)), far(lane & 4) {
        from = uint32_t(row * 128 + (lane % 4 ^ row) * 16);
        to = uint32_t(row * 128 + ((2 * (lane % 4) + far) ^ row) * 16);
    }
    // further: 64 in odd panels, whose units are the upper ones of a row. What lies behind a sequence's end may be anything, and
    // 0 · NaN is NaN.
    FA_MEMBER uint4 load(uint32_t rows, int further, bool exists) const {
        return exists ? rt::ld_shared_v4(rows + (from ^ further)) : make_uint4(0, 0, 0, 0);
    }
    FA_MEMBER void store(uint32_t rows, const uint4& byte) const {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const bool upper = far != (i == 1);
            uint32_t half[4];
            rt::e4m3_to_f16(upper ? byte.z : byte.x, half[0], half[1]), rt::e4m3_to_f16(upper ? byte.w : byte.y, half[2], half[3]);
            rt::st_shared_v4(rows + (to ^ 16 * i), half[0], half[1], half[2], half[3]);
        }
    }
};

// The two last warps of the producer's warpgroup.
template <class Traits>
FA_DEVICE void widen_v(const Sm90ForwardParams& params) {
    constexpr int warps = Traits::kWideningWarps, kRows = Traits::kBlockN / warps;
    constexpr int kBatch = Traits::kProducerRegisters < 40 ? 1 : kRows % 32 == 0 ? 4 : kRows % 24 == 0 ? 3 : 2;  // loads in flight
    static_assert(kRows % (8 * kBatch) == 0, "a warp widens eight rows at a time");
    typename Traits::Shared& shared = Traits::shared();
    const WideningLane lane(int(threadIdx.x) % 32);
    const int row0 = int(threadIdx.x) / 32 % warps * kRows;
    PipelineState<Traits::kStages> stage;
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (tile.n_block_max < 0) return;
        int n_block = tile.first_n_block();
        FA_UNROLL_BY(1)
        for (int left = tile.n_block_max + tile.peer_only_blocks - tile.n_block_min + 1; left > 0; left--) {
            const int rows_left = tile.k_len - n_block * Traits::kBlockN;
            n_block = tile.next_n_block(n_block);  // not later: with its last v the tile's description may be overwritten
            rt::mbarrier_wait(smem_addr(shared.barrier.raw_full[stage.index]), stage.phase);
            rt::mbarrier_wait(smem_addr(shared.barrier.v_empty[stage.index]), stage.phase ^ 1);
            const uint32_t from = Traits::raw_v_tile(stage.index) + row0 * 128, to = Traits::v_tile(stage.index) + row0 * 128;
            FA_UNROLL_BY(1)
            for (int panel = 0; panel < Traits::kVPanels; panel++) {
                FA_UNROLL_BY(1)
                for (int row = 0; row < kRows; row += 8 * kBatch) {
                    const uint32_t from_rows = from + panel / 2 * Traits::kPanelBytes + row * 128,
                                   to_rows = to + panel * Traits::kPanelBytes + row * 128;
                    uint4 byte[kBatch];
                    FA_UNROLL_FOR (int i = 0; i < kBatch; i++)
                        byte[i] = lane.load(from_rows + 1024 * i, panel % 2 * 64, row0 + row + 8 * i + lane.row < rows_left);
                    FA_UNROLL_FOR (int i = 0; i < kBatch; i++) lane.store(to_rows + 1024 * i, byte[i]);
                }
            }
            rt::fence_proxy_async_shared();
            __syncwarp();
            if (int(threadIdx.x) % 32 < Traits::kClusterSize) {
                if (Traits::kPair) rt::mbarrier_arrive_remote(smem_addr(shared.barrier.raw_empty[stage.index]), int(threadIdx.x) % 32);
                else rt::mbarrier_arrive(smem_addr(shared.barrier.raw_empty[stage.index]));
            }
            if (int(threadIdx.x) % 32 == 0) rt::mbarrier_arrive(smem_addr(shared.barrier.v_full[stage.index]));
            stage.advance();
        }
        rt::mbarrier_arrive(smem_addr(shared.tile[tile_stage.index].tile_consumed));
    }
}

}  // namespace gpu
}  // namespace fa
