// Block lists (FlexAttention's BlockMask) and key ranges as the forward kernels for sm_90a of MaskKind::list read them: a table of the
// units of 64 keys that a tile's rows see. list_units.h makes it from the operands before the forward runs; producers load its units, which
// need not be neighbours, into a block of keys, and consumers mask what it says they must.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// Which keys of a unit the 64 rows of a warpgroup see: none; those that masks leave them; all; or all that the sequence has.
enum class SeenKeys { none, masked, all, to_end };

// An entry is unit << 4 | the second warpgroup's SeenKeys << 2 | the first one's. Units ascend; where they do not fill the last block,
// kNoUnit, which lies outside of every tensor, so that TMA brings zeros, does.
struct KeyUnitTable {
    static constexpr int kKeys = 64, kRows = 64, kTileRows = 2 * kRows, kNoUnit = 1 << 24, kBits = kTileRows * kKeys / 32;
    int32_t* units;   // `most` for each tile
    int32_t* blocks;  // of a tile: blocks of keys that its units fill, at least one
    // Of each entry kBits words, in which a lane has a bit for each of its scores; NULL: masks are bands and a range of each row.
    uint32_t* bits;
    int64_t most;
    int m_blocks;          // tiles of a head
    int heads, sequences;  // that have units of their own
    int heads_together;    // query heads that share them
    constexpr int tile_of(int batch, int head, int row0) const {
        return ((sequences > 1 ? batch : 0) * heads + head / heads_together) * m_blocks + row0 / kTileRows;
    }
    struct Place {
        int batch, head, row0;
    };
    constexpr Place place_of(int tile) const {
        const int pair = tile / m_blocks;
        return {pair / heads, pair % heads * heads_together, tile % m_blocks * kTileRows};
    }
    constexpr int64_t tiles() const { return int64_t(sequences) * heads * m_blocks; }
};
// The units of a block of keys.
template <int count>
struct alignas(count == 2 ? 8 : 4) KeyUnits {
    int32_t entry[count];
    constexpr int first_key(int i) const { return (entry[i] >> 4) * KeyUnitTable::kKeys; }
    constexpr SeenKeys seen(int i, int warpgroup) const { return SeenKeys(entry[i] >> 2 * warpgroup & 3); }
};

}  // namespace gpu
}  // namespace fa
