// The kernel that packs the mask operand, from a byte to a bit a score, before the forward kernel runs. With broadcast masks that
// takes microseconds; where every sequence and head has a mask of its own, reading its bytes is the cost. packed_mask.h has the
// layout.
#pragma once
#include "cuda/sm90/forward/operands/packed_mask.h"

namespace fa {
namespace gpu {

struct PackParams {
    PackedMask to;  // its spans 0
    const uint8_t* from;
    int64_t stride[4];
    int rows, keys;
    bool words;  // can four keys be read at once?
};
constexpr int kPackThreads = 128;

// Every second of the lower 16 bits to every fourth of 32.
FA_DEVICE uint32_t spread_bits(uint32_t x) {
    x &= 0x5555u;
    x = (x | x << 8) & 0x00550055u;
    x = (x | x << 4) & 0x05050505u;
    return (x | x << 2) & 0x11111111u;
}

// A warp packs 16 rows of 128 keys, of which each lane reads four.
FA_KERNEL void FA_BOUNDS(kPackThreads, 1) pack_mask(FA_PARAM PackParams params) {
    constexpr int rows = PackedMask::kWarpRows, parts = PackedMask::kBlockM / rows;
    const int64_t index = int64_t(blockIdx.x) * (kPackThreads / 32) + threadIdx.x / 32, tile = index / params.to.n_blocks / parts;
    if (tile >= params.to.all_tiles()) return;
    const int lane = int(threadIdx.x) % 32, c = lane % 4, block = int(index % params.to.n_blocks),
              part = int(index / params.to.n_blocks % parts);
    const int64_t mask = tile / params.to.m_blocks, row0 = tile % params.to.m_blocks * PackedMask::kBlockM + part * rows;
    const int64_t key = block * PackedMask::kBlockN + 4 * lane;
    const uint8_t* const from = params.from + mask / params.to.heads * params.stride[0] + mask % params.to.heads * params.stride[1] +
                                row0 * params.stride[2] + key * params.stride[3];
    uint32_t four[rows];
    FA_UNROLL_FOR (int r = 0; r < rows; r++) {
        four[r] = 0;
        if (row0 + r >= params.rows) continue;
        const uint8_t* const row = from + r * params.stride[2];
        if (params.words && key + 4 <= params.keys) four[r] = *reinterpret_cast<const uint32_t*>(row);
        else
            for (int j = 0; j < 4; j++)
                if (key + j < params.keys) four[r] |= uint32_t(row[j * params.stride[3]]) << 8 * j;
    }
    uint32_t word[2] = {}, any = 0;
    FA_UNROLL_FOR (int r = 0; r < rows; r++) {
        uint32_t attended[4];  // of keys 4 · lane + j of the row
        FA_UNROLL_FOR (int j = 0; j < 4; j++) attended[j] = __ballot_sync(~0u, (four[r] >> 8 * j & 255) != 0);
        any |= attended[0] | attended[1] | attended[2] | attended[3];
        if (lane / 4 != r % 8) continue;
        // Of every eight keys the lane has scores of 2c and 2c + 1.
        FA_UNROLL_FOR (int e = 0; e < 2; e++) {
            const uint32_t own = (c % 2 ? attended[2 + e] : attended[e]) >> c / 2;
            FA_UNROLL_FOR (int half = 0; half < 2; half++) word[half] |= spread_bits(own >> 16 * half) << (r / 8 * 2 + e);
        }
    }
    params.to.bits[index * 32 + lane] = make_uint2(word[0], word[1]);
    if (any && lane == 0) {
        atomicMax(&params.to.spans[tile].x, block + 1);
        atomicMax(&params.to.spans[tile].y, params.to.n_blocks - block);
    }
}

}  // namespace gpu
}  // namespace fa
