// P and v of 8 bits: the two warps that transpose v between a ring of stages as it comes and the ring that the consumers read, for wgmma
// transposes 16-bit operands only. What they write is rows of columns of v, 128 bytes of keys each.
//
// ldmatrix transposes pairs of bytes: of 32 keys and 16 columns a lane gets columns 2i and 2i + 1 (i = lane / 4) of keys 2c, 2c + 1
// (c = lane % 4) and of those 8, 16 and 24 further. Byte permutes part the two columns, and stmatrix writes the even ones as rows 0 to 7
// and the odd ones as rows 8 to 15 of 16, without a bank conflict. So the keys of a row come in another order, 2c, 2c + 1, 8 + 2c, 9 + 2c
// in places 4c to 4c + 3: just the scores of 16 that a consumer's lane has, whose P needs no shuffle. And O has its columns in another
// order, which the epilogue knows: a lane has four neighbouring ones of 16.
#pragma once
#include "cuda/sm90/forward/widen_v.h"

namespace fa {
namespace gpu {

// Once for all: the columns of ones behind v's of each stage.
template <class Traits>
FA_DEVICE void write_ones() {
    constexpr uint32_t ones = 0x38383838u;
    constexpr int panels = Traits::kKeyPanels ? Traits::kBlockN / 32 : 1, row_bytes = Traits::kKeyPanels ? 32 : 128, units = row_bytes / 2;
    for (int i = int(threadIdx.x); i < units * panels * Traits::kStages; i += Traits::kThreads)
        rt::st_shared_v4(Traits::v_tile(i / (units * panels)) + i / units % panels * Traits::kKeyPanelBytes +
                             Traits::kHeadDimV * row_bytes + i % units * 16,
                         ones, ones, ones, ones);
    rt::fence_proxy_async_shared();
}

// What lies behind a sequence's end may be anything, and 0 · NaN is NaN. left: keys from the lane's first pair on that exist.
FA_DEVICE void clear_keys(uint32_t (&pair)[4], int left) {
    FA_UNROLL_FOR (int i = 0; i < 4; i++)
        if (left - 8 * i < 2) pair[i] &= left - 8 * i < 1 ? 0u : 0xffffu;
}

template <class Traits, class HasTail>
FA_DEVICE void transpose_block(uint32_t from, uint32_t to, int left, HasTail) {
    constexpr int kUnits = Traits::kUnitsOfAWarp,
                  kBatch = Traits::kProducerRegisters <= 40 || HasTail::value ? 2 : kUnits;  // loads in flight
    FA_UNROLL_BY(1)
    for (int keys = 0; keys < Traits::kBlockN; keys += 32) {
        FA_UNROLL_FOR (int unit = 0; unit < kUnits; unit += kBatch) {
            uint32_t pair[kBatch][4];
            FA_UNROLL_FOR (int i = 0; i < kBatch; i++) {
                rt::ldmatrix_x4_trans(from ^ (unit + i) << 4, pair[i]);
                if (HasTail::value) clear_keys(pair[i], left - keys);
            }
            FA_UNROLL_FOR (int i = 0; i < kBatch; i++) {
                const uint32_t parted[] = {rt::prmt(pair[i][0], pair[i][1], 0x6420), rt::prmt(pair[i][0], pair[i][1], 0x7531),
                                           rt::prmt(pair[i][2], pair[i][3], 0x6420), rt::prmt(pair[i][2], pair[i][3], 0x7531)};
                rt::stmatrix(Traits::kKeyPanels ? to + (unit + i) * 512 : (to ^ keys) + (unit + i) * 2048, parted);
            }
        }
        from += 32 * 128;
        if (Traits::kKeyPanels) to += Traits::kKeyPanelBytes;
    }
}

// The two last warps of the producer's warpgroup.
template <class Traits>
FA_DEVICE void transpose_v(const Sm90ForwardParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    const int first = rt::warp_uniform(int(threadIdx.x) / 32 % 2 * Traits::kUnitsOfAWarp);
    PipelineState<Traits::kStages> stage;
    PipelineState<Traits::kRawStages> own_raw;
    auto& raw = first_of<Traits::kStages == Traits::kRawStages>(stage, own_raw);  // the ring of v as it comes
    for (PipelineState<Traits::kTileStages> tile_stage;; tile_stage.advance()) {
        const WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_ready), tile_stage.phase);
        if (rt::warp_uniform(tile.n_block_max) < 0) return;
        // Not later: with its last v the tile's description may be overwritten.
        const int end = rt::warp_uniform(tile.k_len - tile.n_block_min * Traits::kBlockN);
        const int begin = rt::warp_uniform(tile.k_len - (tile.n_block_max + tile.peer_only_blocks) * Traits::kBlockN);
        rt::mbarrier_arrive(smem_addr(shared.tile[tile_stage.index].tile_consumed));
        FA_UNROLL_BY(1)
        for (int keys = begin; keys <= end; keys += Traits::kBlockN) {  // that are left from the block's first on
            rt::mbarrier_wait(smem_addr(shared.barrier.raw_full[raw.index]), raw.phase);
            rt::mbarrier_wait(smem_addr(shared.barrier.v_empty[stage.index]), stage.phase ^ 1);
            const int lane = rt::read_laneid(), row = lane % 8;  // here, as there are 32 registers
            const uint32_t raw_v = Traits::raw_v_tile(raw.index) + first / 8 * Traits::kPanelBytes + lane * 128 + ((row ^ first % 8) << 4),
                           v = Traits::v_tile(stage.index) + (Traits::kKeyPanels
                                                                  ? first * 512 + lane % 16 * 32 + ((lane / 16 ^ row / 4) << 4)
                                                                  : first * 2048 + lane % 16 * 128 + ((lane / 16 ^ row) << 4));
            if (keys < Traits::kBlockN) transpose_block<Traits>(raw_v, v, keys - lane % 4 * 2, True{});
            else transpose_block<Traits>(raw_v, v, 0, False{});
            rt::fence_proxy_async_shared();
            __syncwarp();
            if (rt::read_laneid() < Traits::kClusterSize) {
                if (Traits::kPair) rt::mbarrier_arrive_remote(smem_addr(shared.barrier.raw_empty[raw.index]), rt::read_laneid());
                else rt::mbarrier_arrive(smem_addr(shared.barrier.raw_empty[raw.index]));
            }
            if (rt::read_laneid() == 0) rt::mbarrier_arrive(smem_addr(shared.barrier.v_full[stage.index]));
            stage.advance();
            if (Traits::kStages != Traits::kRawStages) raw.advance();
        }
    }
}

}  // namespace gpu
}  // namespace fa
