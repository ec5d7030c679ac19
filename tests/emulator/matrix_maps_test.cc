// The lane maps of AMD's matrix instructions against AMD's own tables (amd_matrix/*.csv): those that the emulator multiplies by, and those
// that the policies of gpu/transposed/mma.h read and write by. A product alone would not show a permutation that A and B share.
#include "emu/matrix_emu.h"
#include "gpu/transposed/mma.h"
#include <gtest/gtest.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace test {
namespace {

using fa::rt::MatrixElement;
using Table = std::vector<std::vector<MatrixElement>>;  // [lane][element]

// Lines such as 16,D[4][0],D[5][0], the lane first.
Table read(const std::string& instruction, char matrix) {
    std::ifstream file(std::string(AMD_TABLES "/") + instruction + "_" + matrix + ".csv");
    Table table;
    std::string line, cell;
    while (std::getline(file, line)) {
        std::istringstream cells(line);
        std::getline(cells, cell, ',');
        EXPECT_EQ(cell, std::to_string(table.size())) << instruction;
        table.emplace_back();
        while (std::getline(cells, cell, ',')) {
            MatrixElement e{-1, -1};
            char name = 0;
            EXPECT_EQ(sscanf(cell.c_str(), "%c[%d][%d]", &name, &e.row, &e.column), 3) << cell;
            EXPECT_EQ(name, matrix);
            table.back().push_back(e);
        }
    }
    return table;
}

template <class F>
void expect_map(const Table& table, int lanes, int elements, F map) {
    ASSERT_EQ(int(table.size()), lanes);
    for (int lane = 0; lane < lanes; lane++) {
        ASSERT_EQ(int(table[size_t(lane)].size()), elements);
        for (int i = 0; i < elements; i++) {
            const MatrixElement expected = table[size_t(lane)][size_t(i)], found = map(lane, i);
            EXPECT_EQ(found.row, expected.row) << "lane " << lane << ", element " << i;
            EXPECT_EQ(found.column, expected.column) << "lane " << lane << ", element " << i;
        }
    }
}

// Each depth of a product is one dim, or one key, whichever lane and operand holds it; and a fragment has all of them.
struct Depths {
    std::vector<int> at;
    explicit Depths(int n) : at(size_t(n), -1) {}
    void meet(int depth, int value) {
        int& is = at[size_t(depth)];
        if (is < 0) is = value;
        EXPECT_EQ(is, value) << "depth " << depth;
    }
    void expect_all() const {
        std::vector<bool> found(at.size());
        for (const int value : at) {
            ASSERT_GE(value, 0);
            ASSERT_LT(value, int(at.size()));
            EXPECT_FALSE(found[size_t(value)]);
            found[size_t(value)] = true;
        }
    }
};

template <class Map, class I, int bytes = 2>
void check(const std::string& instruction) {
    const Table a = read(instruction, 'A'), b = read(instruction, 'B'), d = read(instruction, 'D');
    expect_map(a, Map::kLanes, Map::kOperands, Map::a);
    expect_map(b, Map::kLanes, Map::kOperands, Map::b);
    expect_map(d, Map::kLanes, Map::kResults, Map::d);
    ASSERT_FALSE(testing::Test::HasFailure());
    ASSERT_EQ(I::kLanes, Map::kLanes);
    ASSERT_EQ(I::kElements, Map::kResults);
    // Results are transposed: their rows are keys or columns of v.
    expect_map(d, I::kLanes, I::kElements, [](int lane, int i) { return MatrixElement{I::column(lane, i), I::row(lane)}; });
    const int elements = I::kWords * 4 / bytes, products = elements / Map::kOperands;
    ASSERT_EQ(products * Map::kDepth, I::kTile);
    Depths dims(I::kTile), keys(I::kTile);
    for (int lane = 0; lane < I::kLanes; lane++)
        for (int i = 0; i < elements; i++) {
            const MatrixElement left = a[size_t(lane)][size_t(i % Map::kOperands)], right = b[size_t(lane)][size_t(i % Map::kOperands)];
            const int first = i / Map::kOperands * Map::kDepth;
            EXPECT_EQ(left.row, I::row(lane));
            EXPECT_EQ(right.column, I::row(lane));
            const auto read_at = [&](int begin, int step, int piece) {
                return (begin + step * (bytes * i / piece) + bytes * i % piece) / bytes;
            };
            const int dim = read_at(I::dim_byte(lane), I::kDimStep, I::kDimBytes),
                      key = read_at(I::key_byte(lane), I::kKeyStep, I::kKeyBytes);
            dims.meet(first + left.column, dim);                                       // k's
            dims.meet(first + right.row, dim);                                         // q's
            keys.meet(first + left.column, key);                                       // v's
            keys.meet(first + right.row, I::kOperandsTwice ? i : I::column(lane, i));  // P's
        }
    dims.expect_all();
    keys.expect_all();
}

TEST(MatrixMaps, Mfma32x32x8) { check<fa::rt::MfmaMap<32, 8>, fa::gpu::Mfma32<fa::rt::Cdna<3>>>("cdna3_mfma_f32_32x32x8"); }
TEST(MatrixMaps, Mfma16x16x16) { check<fa::rt::MfmaMap<16, 16>, fa::gpu::Mfma16<fa::rt::Cdna<3>>>("cdna3_mfma_f32_16x16x16"); }
TEST(MatrixMaps, Mfma32x32x2) { check<fa::rt::MfmaMap<32, 2>, fa::gpu::Mfma32x2, 4>("cdna3_mfma_f32_32x32x2"); }
TEST(MatrixMaps, Mfma16x16x4) { check<fa::rt::MfmaMap<16, 4>, fa::gpu::Mfma16x4, 4>("cdna3_mfma_f32_16x16x4"); }
TEST(MatrixMaps, WmmaOfRdna3) { check<fa::rt::WmmaGfx11Map, fa::gpu::WmmaGfx11>("rdna3_wmma_f32_16x16x16"); }
TEST(MatrixMaps, WmmaOfRdna4) { check<fa::rt::WmmaGfx12Map, fa::gpu::WmmaGfx12>("rdna4_wmma_f32_16x16x16"); }

}  // namespace
}  // namespace test
