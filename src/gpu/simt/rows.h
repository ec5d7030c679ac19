// How rows of k and v come to the SIMT kernel's buffer in shared memory, as f32: those of one element a value in four neighbouring ones at
// a time, those of blocks likewise, and those with factors, of 4 bits or with a tail element by element.
#pragma once
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

constexpr int kThreads = 256, kKeys = 64, kDims = 64;

// A thread's share of `width` elements from column0 of each of the rows at[first], at[first + 1], …, as they are stored: 0 beyond
// `dim` and for rows that are not there. All loads are issued before one is used.
constexpr int kVec4s = kDims * kKeys / 4 / kThreads;
template <int width, class T>
FA_DEVICE void gather(const void* data, const int64_t* at, int first, int64_t column0, int64_t dim, bool aligned, T value[kVec4s][4]) {
    static_assert(kThreads % (width / 4) == 0, "a thread stays in its columns");
    const int64_t c = column0 + rt::thread() % (width / 4) * 4;
    const int left = int(min_of(dim - c, 4));
    const bool full = aligned && left == 4;
    FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) {
        const int64_t row = at[first + (rt::thread() + n * kThreads) / (width / 4)];
        const T* const from = static_cast<const T*>(data) + row + c;
        Vec4<T> quad{};
        if (row >= 0 && full) {
            quad = *reinterpret_cast<const Vec4<T>*>(from);
        } else if (row >= 0) {
            FA_UNROLL_FOR (int e = 0; e < 4; e++)
                if (e < left) quad.element[e] = from[e];
        }
        FA_UNROLL_FOR (int e = 0; e < 4; e++) value[n][e] = quad.element[e];
    }
}

// The same from blocks, as f32 into the buffer.
template <int width>
FA_COLD void load_blocks(const void* data, const int64_t* at, int first, int64_t column0, int64_t dim, int32_t dtype, int stride,
                         float* kv) {
    constexpr int across = width / 4;
    const BlockFormat format = block_format(dtype);
    const int64_t c = column0 + rt::thread() % across * 4;
    const uint8_t* const block = static_cast<const uint8_t*>(data) + c / kBlockDims * type_bytes(dtype);
    BlockQuad quad[kVec4s];
    bool there[kVec4s];
    FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) {
        const int64_t row = at[first + (rt::thread() + n * kThreads) / across];
        there[n] = row >= 0 && c < dim;
        quad[n] = BlockQuad{};
        if (there[n]) quad[n] = load_block_quad(block + row * type_bytes(dtype), format, int(c % kBlockDims));
    }
    FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) {
        float value[4];
        widen(quad[n], format, value);
        FA_UNROLL_FOR (int e = 0; e < 4; e++) value[e] = there[n] ? value[e] : 0.f;
        rt::store4(kv + (rt::thread() + n * kThreads) / across * stride + rt::thread() % across * 4, value);
    }
}

// The same from rows that are not plain: for each key, its page or sequence and its row there.
template <int width>
FA_COLD void load_scaled(const ScaledRows& rows, const void* data, int32_t dtype, const RowStrides& strides, const int64_t* outer,
                         const int64_t* row, int64_t head, int first, int64_t column0, int64_t dim, int stride, float* kv) {
    FA_UNROLL_BY(1)
    for (int i = rt::thread(); i < kDims * kKeys; i += kThreads) {
        const int j = first + i / width;
        const int64_t c = column0 + i % width;
        const bool there = outer[j] >= 0 && c < dim;
        kv[i / width * stride + i % width] =
            there ? scaled_dim(rows, data, dtype, strides.index(outer[j], row[j], head), outer[j], row[j], head, c) : 0.f;
    }
}

}  // namespace gpu
}  // namespace fa
