// Which element of a product D = A · B + C a lane holds, for AMD's matrix instructions: element i of lane l, counted through its
// registers, is the element (row, column) of the operand. tests/emulator compares them with AMD's own tables.
#pragma once

namespace fa {
namespace rt {

struct MatrixElement {
    int row, column;
};

// v_mfma_f32_{size}x{size}x{depth} of f16 or bf16, by waves of 64.
template <int size, int depth>
struct MfmaMap {
    static constexpr int kRows = size, kDepth = depth, kLanes = 64, kResults = size * size / 64, kOperands = size * depth / 64;
    static constexpr MatrixElement a(int lane, int i) { return {lane % size, kOperands * (lane / size) + i}; }
    static constexpr MatrixElement b(int lane, int i) { return {kOperands * (lane / size) + i, lane % size}; }
    static constexpr MatrixElement d(int lane, int i) { return {256 / size * (i / 4) + 4 * (lane / size) + i % 4, lane % size}; }
};

// ds_read_b64_tr_b16: which lane, and which of the four elements at its address, element i of a lane comes from.
struct TransposedLoad {
    static constexpr MatrixElement source(int lane, int i) { return {lane / 16 * 16 + 4 * i + lane % 16 / 4, lane % 4}; }
};

// v_wmma_f32_16x16x16 of RDNA 3 in waves of 32: operands are there twice.
struct WmmaGfx11Map {
    static constexpr int kRows = 16, kDepth = 16, kLanes = 32, kResults = 8, kOperands = 16;
    static constexpr MatrixElement a(int lane, int i) { return {lane % 16, i}; }
    static constexpr MatrixElement b(int lane, int i) { return {i, lane % 16}; }
    static constexpr MatrixElement d(int lane, int i) { return {2 * i + lane / 16, lane % 16}; }
};

// v_wmma_f32_16x16x16 of RDNA 4 in waves of 32.
struct WmmaGfx12Map {
    static constexpr int kRows = 16, kDepth = 16, kLanes = 32, kResults = 8, kOperands = 8;
    static constexpr int depth_of(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 16) + i % 4; }
    static constexpr MatrixElement a(int lane, int i) { return {lane % 16, depth_of(lane, i)}; }
    static constexpr MatrixElement b(int lane, int i) { return {depth_of(lane, i), lane % 16}; }
    static constexpr MatrixElement d(int lane, int i) { return {8 * (lane / 16) + i, lane % 16}; }
};

}  // namespace rt
}  // namespace fa
