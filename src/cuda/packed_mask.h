// The mask operand as the Hopper kernel reads it: bits, in the order in which its threads have scores. pack_mask.h makes them.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// Of a tile's 128 rows each warp has 16; of those and a block of 128 keys each lane has 64 scores, for which two words have a bit, set: attend.
struct PackedMask {
    static constexpr int kTileRows = 128, kRows = 16, kKeys = 128;
    uint2* bits;
    int2* spans;           // of a tile: one more than the last block in which a key is attended, and blocks from the first such on
    int sequences, heads;  // that have a mask of their own, all or one
    int tiles, blocks;
    constexpr int64_t tile_of(int batch, int head, int row0) const {
        return (int64_t(sequences > 1 ? batch : 0) * heads + (heads > 1 ? head : 0)) * tiles + row0 / kTileRows;
    }
    constexpr int64_t place_of(int64_t tile, int row, int block) const {
        return ((tile * (kTileRows / kRows) + row / kRows) * blocks + block) * 32;
    }
    constexpr int64_t all_tiles() const { return int64_t(sequences) * heads * tiles; }
    constexpr int64_t words() const { return place_of(all_tiles(), 0, 0); }
};

}  // namespace gpu
}  // namespace fa
