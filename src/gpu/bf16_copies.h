// Copies of q, k and v in bf16, which a forward of many rows reads in place of what native precision permits to round: k and v in blocks, beside
// a q of any type. Matrix units then have operands, of whatever types k and v are; and reading blocks and writing 16 bits once takes a part of the
// time that every tile of rows would take to find their values again.
#pragma once
#include "gpu/memory.h"

namespace fa {
namespace gpu {

constexpr int kCopyThreads = 256;

// A tensor and its copy, which is dense: sequences or pages, rows, heads, dims.
struct Bf16Copy {
    const void* from;
    uint16_t* to;
    RowStrides strides;           // of `from`, in its units
    const int32_t* seqused;       // rows of a sequence that are wanted; NULL: all
    uint32_t rows, heads, eights;  // eight dims each, of a head
    uint32_t total;               // eights in all; 0: there is no copy
    int32_t dtype;
    constexpr int64_t bytes() const { return (int64_t(total) * 16 + 255) / 256 * 256; }
    constexpr int64_t blocks() const { return (int64_t(total) + kCopyThreads - 1) / kCopyThreads; }
};
struct Bf16Copies {
    Bf16Copy tensor[3];  // k, v, q
    constexpr int64_t bytes() const { return tensor[0].bytes() + tensor[1].bytes() + tensor[2].bytes(); }
};

// Eight values of a block, from dim `first` on, a multiple of 8. Blocks lie at even addresses.
FA_DEVICE void load_block_eight(const uint16_t* block, BlockFormat f, int first, float value[8]) {
    const int head = f.has_min ? 2 : 1, at = head + (f.bits == 5 ? 2 : 0) + (f.bits == 8 ? first : first % 16) / 2;
    const float d = f16_to_f32(block[0]), m = f16_to_f32(block[head - 1]);
    const uint32_t fifth = f.bits == 5 ? block[head + first / 16] >> first % 16 : 0;
    uint32_t x[] = {block[at] | uint32_t(block[at + 1]) << 16, block[at + 2] | uint32_t(block[at + 3]) << 16};
    if (f.bits != 8)
        for (uint32_t& four : x) four = four >> (first < 16 ? 0 : 4) & 0x0f0f0f0fu;
    FA_UNROLL for (int e = 0; e < 8; e++) {
        const uint32_t byte = x[e / 4] >> e % 4 * 8 & 255u;
        const int integer = f.bits == 8 ? int(int8_t(byte)) : int(byte | (fifth >> e & 1u) << 4) - (f.has_min ? 0 : 1 << (f.bits - 1));
        value[e] = f.has_min ? d * float(integer) + m : d * float(integer);
    }
}

FA_DEVICE void copy_eight(const Bf16Copy& x, uint32_t eight) {
    const uint32_t line = eight / x.eights, column = eight % x.eights * 8, position = line / x.heads;
    const uint32_t row = position % x.rows, sequence = position / x.rows;
    if (eight >= x.total || (x.seqused && int64_t(row) >= x.seqused[sequence])) return;
    const int64_t at = x.strides.index(sequence, row, line % x.heads);
    float value[8];
    if (is_block_type(x.dtype)) {
        const char* const block = static_cast<const char*>(x.from) + (at + column / kBlockDims) * type_bytes(x.dtype);
        load_block_eight(reinterpret_cast<const uint16_t*>(block), block_format(x.dtype), int(column % kBlockDims), value);
    } else {
        FA_UNROLL for (int e = 0; e < 8; e++) value[e] = load_element(x.from, at + column + e, x.dtype);
    }
    float words[4];
    FA_UNROLL for (int i = 0; i < 4; i++) words[i] = float_of(rt::pack_bf16(value[2 * i], value[2 * i + 1]));
    rt::store4(reinterpret_cast<float*>(x.to) + int64_t(eight) * 4, words);
}

FA_KERNEL void FA_BOUNDS(kCopyThreads, 1) copy_as_bf16(FA_PARAM Bf16Copies x) {
    int64_t block = rt::block();
    int i = 0;
    while (i < 2 && block >= x.tensor[i].blocks()) block -= x.tensor[i++].blocks();
    copy_eight(x.tensor[i], uint32_t(block) * kCopyThreads + uint32_t(rt::thread()));
}

}  // namespace gpu
}  // namespace fa
