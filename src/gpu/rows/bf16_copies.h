// Copies of q, k and v in bf16, which a forward of many rows reads in place of what native precision permits to round: k and v in blocks,
// of 4 bits or with factors of rows or along the dims, beside a q of any type. Matrix units then have operands, of whatever types k and v
// are; and reading blocks and writing 16 bits once takes a part of the time that every tile of rows would take to find their values again.
#pragma once
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

constexpr int kCopyThreads = 256;

// A tensor and its copy, which is dense: sequences or pages, rows, heads, dims. A thread copies a part of a row: eight dims, or of a block
// sixteen, eight of each half, whose bits lie in the same bytes where they are fewer than eight. Factors and shifts are multiplied and
// added before.
struct Bf16Copy {
    const void* from;
    uint16_t* to;
    RowStrides strides;           // of `from`, in its units
    const int32_t* seqused;       // rows of a sequence that are wanted; NULL: all
    uint32_t rows, heads, parts;  // of a head
    uint32_t total;               // parts in all; 0: there is no copy
    int32_t dtype;
    int32_t dim;
    Factors factors;
    constexpr int64_t bytes() const { return (int64_t(total) / (parts ? parts : 1) * dim * 2 + 255) / 256 * 256; }
    constexpr int64_t blocks() const { return (int64_t(total) + kCopyThreads - 1) / kCopyThreads; }
};
struct Bf16Copies {
    Bf16Copy tensor[3];  // k, v, q
    constexpr int64_t bytes() const { return tensor[0].bytes() + tensor[1].bytes() + tensor[2].bytes(); }
};

// Of a block, values `first` and seven more, and those of 16 dims behind them. Blocks lie at even addresses.
FA_DEVICE void load_block_part(const uint16_t* block, BlockFormat format, int first, float value[16]) {
    const int head = format.has_min ? 2 : 1, at = head + (format.bits == 5 ? 2 : 0) + first / 2;
    const float d = nan_if_infinite(f16_to_f32(block[0])), m = format.has_min ? nan_if_infinite(f16_to_f32(block[1])) : 0.f;
    uint32_t x[4] = {block[at] | uint32_t(block[at + 1]) << 16, block[at + 2] | uint32_t(block[at + 3]) << 16};
    if (format.bits == 8) {
        x[2] = block[at + 8] | uint32_t(block[at + 9]) << 16, x[3] = block[at + 10] | uint32_t(block[at + 11]) << 16;
    } else {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) x[2 + i] = x[i] >> 4 & 0x0f0f0f0fu, x[i] &= 0x0f0f0f0fu;
    }
    uint32_t fifth[2] = {};
    if (format.bits == 5) fifth[0] = uint32_t(block[head]) >> first, fifth[1] = uint32_t(block[head + 1]) >> first;
    const int middle = format.bits == 8 || format.has_min ? 0 : 1 << (format.bits - 1);
    FA_UNROLL_FOR (int e = 0; e < 16; e++) {
        const uint32_t byte = x[e / 4] >> e % 4 * 8 & 255u;
        const int integer = format.bits == 8 ? int(int8_t(byte)) : int(byte | (fifth[e / 8] >> e % 8 & 1u) << 4) - middle;
        value[e] = format.has_min ? d * float(integer) + m : d * float(integer);
    }
}

FA_DEVICE void store_eight(uint16_t* to, const float value[8]) {
    float words[4];
    FA_UNROLL_FOR (int i = 0; i < 4; i++) words[i] = float_of(rt::pack_bf16(clamp_to_bf16(value[2 * i]), clamp_to_bf16(value[2 * i + 1])));
    rt::store4(reinterpret_cast<float*>(to), words);
}

FA_DEVICE void scale_eight(const Factors& factors, int64_t index, uint32_t first, float value[8]) {
    const uint32_t dims = uint32_t(factors.block[1]);
    if (dims % 8 == 0) {
        const int64_t at = index + first / dims * factors.stride[3];
        FA_UNROLL_FOR (int e = 0; e < 8; e++) value[e] = scaled_value(factors, at, value[e]);
    } else {
        for (int e = 0; e < 8; e++) value[e] = scaled_value(factors, index + (first + uint32_t(e)) / dims * factors.stride[3], value[e]);
    }
}

FA_DEVICE void copy_part(const Bf16Copy& copy, uint32_t part) {
    const uint32_t line = part / copy.parts, in_row = part % copy.parts, position = line / copy.heads;
    const uint32_t row = position % copy.rows, sequence = position / copy.rows;
    if (part >= copy.total || (copy.seqused && int64_t(row) >= copy.seqused[sequence])) return;
    const int64_t at = copy.strides.index(sequence, row, line % copy.heads);
    uint16_t* const to = copy.to + int64_t(line) * copy.dim;
    float value[16];
    if (is_block_type(copy.dtype)) {
        const int first = int(in_row % 2 * 8);
        const char* const block = static_cast<const char*>(copy.from) + (at + in_row / 2) * type_bytes(copy.dtype);
        load_block_part(reinterpret_cast<const uint16_t*>(block), block_format(copy.dtype), first, value);
        store_eight(to + in_row / 2 * kBlockDims + first, value);
        store_eight(to + in_row / 2 * kBlockDims + first + 16, value + 8);
    } else {
        const uint32_t first = in_row * 8;
        FA_UNROLL_FOR (int e = 0; e < 8; e++) value[e] = load_dim(copy.from, at, first + e, copy.dtype);
        if (copy.factors.factor) scale_eight(copy.factors, factor_index(copy.factors, sequence, row, line % copy.heads), first, value);
        store_eight(to + in_row * 8, value);
    }
}

FA_KERNEL void FA_BOUNDS(kCopyThreads, 1) copy_as_bf16(FA_PARAM Bf16Copies copies) {
    int64_t block = rt::block();
    int i = 0;
    while (i < 2 && block >= copies.tensor[i].blocks()) block -= copies.tensor[i++].blocks();
    copy_part(copies.tensor[i], uint32_t(block) * kCopyThreads + uint32_t(rt::thread()));
}

}  // namespace gpu
}  // namespace fa
