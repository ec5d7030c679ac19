// The SIMT kernels that are compiled, a row each: the lists of kernels, the choice among them and tests read them. Rows are ordered by
// columns, then by rows of a tile, tall ones first.
#pragma once

namespace fa {
namespace gpu {

struct SimtRow {
    int rows;     // query rows of a tile; a tall one is taken unless a call has at most half of them
    int columns;  // of v; those of the last row serve any wider v in parts
};

// wide_rows: of the tallest tile of 256 columns (rt::kWideRows).
template <int wide_rows>
constexpr SimtRow kSimtRows[] = {{64, 64}, {16, 64}, {64, 128}, {16, 128}, {wide_rows, 256}, {16, 256}};

struct SimtBackwardRow {
    int columns;  // of a block's gradients; those of the last row serve any more in parts
};
constexpr SimtBackwardRow kSimtBackwardRows[] = {{64}, {128}};

}  // namespace gpu
}  // namespace fa
