// What a warp of the forward's mma kernel has of its block's rows and of each tile of keys.
#pragma once
#include "gpu/mma/block.h"

namespace fa {
namespace gpu {

// A warp's part of a tile: its rows, its keys, and the first keys of the tiles in which some of its scores are kept, and all of them.
template <class M>
struct WarpPart {
    int row0, key0, key_warp, column_warp, some_begin, some_end, full_begin, full_end;
    FA_MEMBER WarpPart() {
        constexpr int wide = M::kTile * M::kKeyTiles, high = M::kTileRows * M::row_tiles;
        const typename M::Shared& shared = M::shared();
        const int warp = rt::warp_uniform(rt::thread() / M::Policy::kLanes);
        key_warp = M::column_warps > 1 ? warp / M::row_warps % M::key_warps : warp / M::row_warps;
        column_warp = M::column_warps > 1 ? warp / (M::row_warps * M::key_warps) : 0;
        row0 = warp % M::row_warps * high;
        key0 = key_warp * wide;
        const typename M::Row first = shared.row[row0], last = shared.row[row0 + high - 1];
        some_begin = rt::warp_uniform(first.begin - key0 - wide + 1);
        some_end = rt::warp_uniform(row0 < shared.tile.valid ? last.end - key0 : 0);
        full_begin = rt::warp_uniform(last.begin - key0);
        full_end = rt::warp_uniform(first.end - key0 - wide + 1);
    }
};

}  // namespace gpu
}  // namespace fa
