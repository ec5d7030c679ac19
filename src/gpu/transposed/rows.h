// The kernels on AMD's matrix cores that are compiled, a row each: the lists of kernels, the choice among them and tests read them. Rows
// are ordered by dims, then by rows of a tile, tall ones first. Those with key warps are for decode.
#pragma once

namespace fa {
namespace gpu {

struct TransposedRow {
    int dims;       // the widest head that it takes
    int tile_rows;  // of the instruction
    int row_warps;  // warps with rows of their own
    int key_warps;  // warps that share a tile's keys
    int keys;       // of a tile
};

// On CDNA, k and v of q's type, of 16 bits. A block's tiles of k and v, its rows' states and a part of its outputs share 64 KB.
constexpr TransposedRow kMfmaRows[] = {{64, 32, 4, 1, 64},  {64, 16, 1, 4, 64},  {128, 32, 8, 1, 64},
                                       {128, 16, 1, 4, 64}, {256, 16, 4, 1, 32}, {256, 16, 1, 2, 32}};
// Of f32, whose tiles take twice the room.
constexpr TransposedRow kMfmaF32Rows[] = {
    {64, 32, 8, 1, 64}, {64, 16, 1, 4, 64}, {128, 32, 8, 1, 32}, {128, 16, 1, 2, 32}, {256, 16, 4, 1, 16}};
// k and v of 8 bits.
constexpr TransposedRow kMfmaByteRows[] = {{128, 32, 8, 1, 64}, {128, 16, 1, 4, 64}, {256, 16, 4, 1, 32}, {256, 16, 1, 2, 32}};
// On RDNA the accumulators of 256 columns take half of the registers: q of such heads lies in shared memory, too.
constexpr TransposedRow kWmmaRows[] = {{64, 16, 8, 1, 64},  {64, 16, 1, 4, 64},  {128, 16, 8, 1, 32},
                                       {128, 16, 1, 4, 64}, {256, 16, 4, 1, 16}, {256, 16, 2, 2, 32}};
constexpr TransposedRow kWmmaByteRows[] = {{128, 16, 8, 1, 32}, {128, 16, 1, 4, 64}, {256, 16, 4, 1, 16}, {256, 16, 2, 2, 32}};

// The backward's, a plain kernel and a general one each. All take the instruction with tiles of 16 rows.
struct TransposedBackwardRow {
    int dims;       // the widest head that it takes
    int warps;      // of a block
    int own_tiles;  // tiles of rows or keys that each warp owns
    int streamed;   // rows or keys of a tile that all of them read
};

constexpr TransposedBackwardRow kMfmaBackwardRows[] = {{64, 4, 2, 32}, {128, 8, 1, 32}, {256, 4, 1, 16}};
constexpr TransposedBackwardRow kMfmaF32BackwardRows[] = {{64, 8, 1, 32}, {128, 8, 1, 16}, {256, 4, 1, 16}};
// On RDNA a block's owned tiles lie in shared memory, which four warps of 128 columns fill.
constexpr TransposedBackwardRow kWmmaBackwardRows[] = {{64, 8, 1, 32}, {128, 4, 1, 16}};

}  // namespace gpu
}  // namespace fa
