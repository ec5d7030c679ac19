// What boolean masks and biases of −inf leave of the keys that bands and ranges let a tile see.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// The keys among `within` of [key, key + kTileKeys) that each row sees, and those that some row does.
uint64_t kept_words(const Call& call, const QueryTile& tile, int64_t key, uint64_t within, uint64_t* words);
// Does some row see some?
bool keeps_keys(const Call& call, const QueryTile& tile, int64_t key, uint64_t within);
// Do all heads of a sequence see the same keys?
bool heads_share_masks(const Call& call);
// bias − slope · |i + off − j| of the keys that each row sees, [row][kTileKeys]; of others it is finite or whatever the bias has.
void gather_kept_addend(const Call& call, const QueryTile& tile, int64_t key, const uint64_t* kept, float* addend);

}  // namespace cpu
}  // namespace fa
