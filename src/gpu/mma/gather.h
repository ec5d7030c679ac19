// Lists of keys, slots and blocks of keys for the forward's mma kernels: a tile's rows share a list, and its entries, one behind the other,
// take the place of keys. Where the key of an entry lies is found as for pages, a tile before it is needed (mma/block.h). Lists of blocks
// keep their bands: of a tile of theirs, whose keys are neighbours, the first one is kept as well.
#pragma once
#include "gpu/mma/block.h"

namespace fa {
namespace gpu {

template <class M>
struct GatheredKeys {
    // For a thread that has begun with init_block().
    FA_COLD_MEMBER static void init_tile(const MmaForwardParams& params, int block) {
        typename M::Tile& tile = M::shared().tile;
        tile.first = int(tile_begin(params.tiles, block));
        tile.valid = int(min_of(tile.seq.q_len * params.group, tile_end(params.tiles, block)) - tile.first);
        if (tile.valid <= 0) return;
        const int64_t head = tile.kv_head * params.group, row = tile.first / params.group;
        tile.list = slots_of(params.gathered.lists, tile.seq, tile.batch, head, row);
        tile.keys = tile.seq.k_len;
        if (params.gathered.blocks()) {
            tile.full = full_blocks_of(params.gathered.lists, tile.seq, tile.batch, head, row);
            tile.full_blocks = tile.full.length();
            tile.entries = (tile.full_blocks + tile.list.length()) * params.gathered.block;
            tile.features |= kListed;
        } else {
            tile.entries = tile.seq.k_len = tile.list.length();
        }
    }

    // Entry `at` of blocks, which count as their keys: the key, or −1 − it where masks do not act; kNoKey: none.
    static constexpr int kNoKey = INT32_MAX;
    FA_MEMBER static int listed_key(const MmaForwardParams& params, int at) {
        const typename M::Tile& tile = M::shared().tile;
        if (at >= tile.entries) return kNoKey;
        const uint32_t size = uint32_t(params.gathered.block), block = uint32_t(at) / size, full = uint32_t(tile.full_blocks);
        const ListSource& list = block < full ? tile.full : tile.list;
        const int64_t entry = list.entries[int64_t(block < full ? block : block - full) * list.step],
                      key = entry * size + uint32_t(at) % size;
        return entry < 0 || key >= tile.keys ? kNoKey : block < full ? ~int(key) : int(key);
    }
    // Of the tile that begins with entry `at`.
    FA_COLD_MEMBER static void store_first(const MmaForwardParams& params, int at, int j) {
        if (rt::thread() == 0) M::shared().listed[j % M::kLocationTiles] = listed_key(params, at);
    }

    FA_MEMBER static KeyLocation locate(const MmaForwardParams& params, int at) {
        const typename M::Tile& tile = M::shared().tile;
        if (!params.gathered.blocks())
            return locate_entry(params.gathered, params.pages, tile.seq, tile.keys, tile.list.entries[at * tile.list.step]);
        const int key = listed_key(params, at);
        return key == kNoKey ? KeyLocation{0, 0, false} : locate_key(params.pages, tile.seq, key < 0 ? ~key : key);
    }
    // As find_location() and find_vec_offsets() of mma/block.h.
    FA_COLD_MEMBER static int64_t location(const MmaForwardParams& params, int at) {
        const KeyLocation found = locate(params, at + rt::thread());
        return found.valid ? found.outer << 32 | found.row : -1;
    }
    FA_COLD_MEMBER static int64_t vec_offsets(const MmaForwardParams& params, int at) {
        const KeyLocation found = locate(params, at + rt::thread());
        const auto vecs = [&](const typename M::Source& from) { return (found.outer * from.outer + found.row * from.row) / M::kVecBytes; };
        return found.valid ? vecs(M::shared().tile.v) << 32 | vecs(M::shared().tile.k) : -1;
    }
};

}  // namespace gpu
}  // namespace fa
