// The mask operand as the forward kernel for sm_90a reads it: one bit a score, in the order of a thread's accumulators. pack_mask.h
// makes it from the operand's bytes, score_mod.h reads it.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// Of a tile's 128 rows each warp has 16; of those and a block of 128 keys each lane has 64 scores, for which two words have a bit,
// set: attend.
struct PackedMask {
    static constexpr int kBlockM = 128, kWarpRows = 16, kBlockN = 128;
    uint2* bits;
    int2* spans;             // of a tile: one more than the last n_block in which a key is attended, and n_blocks minus the first such
    int sequences, heads;    // that have a mask of their own, all or one
    int m_blocks, n_blocks;  // of one mask
    constexpr int64_t tile_of(int batch, int head, int row0) const {
        return (int64_t(sequences > 1 ? batch : 0) * heads + (heads > 1 ? head : 0)) * m_blocks + row0 / kBlockM;
    }
    constexpr int64_t word_index(int64_t tile, int row, int n_block) const {
        return ((tile * (kBlockM / kWarpRows) + row / kWarpRows) * n_blocks + n_block) * 32;
    }
    constexpr int64_t all_tiles() const { return int64_t(sequences) * heads * m_blocks; }
    constexpr int64_t words() const { return word_index(all_tiles(), 0, 0); }
};

}  // namespace gpu
}  // namespace fa
