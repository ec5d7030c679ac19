// Rows of a tile of the f32 method that decoding takes in its place.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

bool streams_sparse_rows(const Call& call, const QueryTile& tile);
// A bit for each row that masks leave at most half of its keys.
uint64_t find_sparse_rows(const Call& call, const QueryTile& tile, int64_t begin, int64_t end);
// Writes their states.
void run_sparse_rows(const Call& call, const QueryTile& tile, uint64_t sparse, int64_t begin, int64_t end, PartialState& state,
                     Scratch& scratch);

}  // namespace cpu
}  // namespace fa
