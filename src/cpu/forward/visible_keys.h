// Which keys a tile of rows visits, and whether it must edit their scores, by the masks that are bands or ranges: what FlexAttention
// calls full and partial blocks.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// Keys that any row of the tile may see, within [begin, end).
KeyBand visible_keys(const Call& call, const QueryTile& tile, int64_t begin, int64_t end);
// The same of each of `count` tiles, and the range that holds all of these; empty: begin >= end.
KeyBand visible_range(const Call& call, const QueryTile* tiles, int count, int64_t begin, int64_t end, KeyBand* visible);
// May a range of visible keys have gaps, in which rows see none?
static inline bool has_gaps(const Call& call) { return call.sets.any(); }
// The rows' keys [key, key + keys), kTileKeys at most.
TileClass classify(const Call& call, const QueryTile& tile, int64_t key, int keys);
// Keys [key, key + kTileKeys) of one row, before boolean masks.
RowKeys visible_bits(const Call& call, const QueryTile& tile, int64_t position, int64_t head, int64_t key);
// Those among `within` of all lanes, of which those without a row see no key; the tile's class.
TileClass visible_words(const Call& call, const QueryTile& tile, int64_t key, uint64_t within, int lanes, uint64_t* words);
// Keys that all rows of the tile see, within [begin, end), where that can be told from the whole: none where rows have several ranges.
KeyBand common_keys(const Call& call, const QueryTile& tile, int64_t begin, int64_t end);
// Where the first block of keys behind `key` lies that a row of these tiles may see: blocks are kTileKeys long and begin at `start`.
int64_t next_visible_block(const Call& call, const QueryTile* tiles, int count, int64_t start, int64_t key);
// −inf in scratch.s, [key][width], where a row does not see the key.
void mask_tile(const Call& call, const QueryTile& tile, int64_t key, int keys, Scratch& scratch);

}  // namespace cpu
}  // namespace fa
