// Block formats: 32 neighbouring dims of a row that share a factor, and some a smallest value, in the bytes that ggml gives them. A block
// begins with d, an f16, then m, another, where it has one; then bit 4 of each x of 5 bits; then the x, either a signed byte each or
// nibbles: those of dims 0 … 15 in the low halves of 16 bytes, those of dims 16 … 31 in the high ones.
// All of it is defined by bytes, the same ones on every machine.
#pragma once
#include "numerics.h"

namespace fa {

constexpr int kBlockDims = 32;

// bits: of an x, 4, 5 or 8. A value is d · x + m where there is an m, else d · (x − 2^(bits − 1)), x of 8 bits having its sign by itself.
struct BlockFormat {
    int bits;
    bool has_min;
};
FA_FN constexpr int block_bytes(BlockFormat format) { return (format.has_min ? 4 : 2) + format.bits * kBlockDims / 8; }

FA_FN uint16_t block_word(const uint8_t* at) { return uint16_t(at[0] | at[1] << 8); }

FA_FN float block_value(const uint8_t* block, BlockFormat format, int dim) {
    const float d = f16_to_f32(block_word(block));
    const uint8_t* x = block + (format.has_min ? 4 : 2);
    if (format.bits == 8) return d * float(int8_t(x[dim]));
    int high = 0;
    if (format.bits == 5) {
        high = (x[dim / 8] >> dim % 8 & 1) << 4;
        x += 4;
    }
    const int value = high | (dim < 16 ? x[dim] & 15 : x[dim - 16] >> 4);
    return format.has_min ? d * float(value) + f16_to_f32(block_word(block + 2)) : d * float(value - (1 << (format.bits - 1)));
}

// Are d, and m, finite?
FA_FN bool has_finite_factors(const uint8_t* block, BlockFormat format) {
    const auto is_finite = [&](int at) { return (block_word(block + at) & 0x7c00) != 0x7c00; };
    return is_finite(0) && !(format.has_min && !is_finite(2));
}

// The integer part of an x >= 0, at most `most`; 0 for what is not finite: that is so where d rounds to 0.
FA_FN int block_integer(float x, int most) { return x < float(most) ? (x > 0.f ? int(x) : 0) : x <= kMaxFloat ? most : 0; }

// The rule of ggml's reference quantiser, for finite values byte for byte: the inverse of d comes from d before that is rounded. Where one
// of the values is not finite, d is NaN, and so are all of them.
FA_FN void quantise_block(const float* x, BlockFormat format, uint8_t* block) {
    const int last = (1 << format.bits) - 1;
    float low = kMaxFloat, high = -kMaxFloat, most = 0.f, top = 0.f, probe = 0.f, first = 0.f;  // top: of magnitude `most`, with its sign
    for (int i = 0; i < kBlockDims; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        // (Not by fabsf(top): for AMD's targets clang 19 forgets that top may be negative, where it is the first.)
        const bool more = fabsf(x[i]) > most;
        top = more ? x[i] : top;
        most = more ? fabsf(x[i]) : most;
        probe += x[i] * 0.f;
    }
    // Of zeros of both signs the first one's: a device's minimum takes −0.
    for (int i = kBlockDims - 1; i >= 0; i--) first = x[i] == low ? x[i] : first;
    const float d = format.has_min     ? (high - low) / float(last)
                    : format.bits == 8 ? fabsf(top) / 127.f
                                       : top / -float(1 << (format.bits - 1));
    const float inverse = d != 0.f ? 1.f / d : 0.f;
    const uint16_t words[] = {probe == 0.f ? f32_to_f16(d) : uint16_t(0x7e00), f32_to_f16(first)};
    for (int i = 0; i < (format.has_min ? 4 : 2); i++) *block++ = uint8_t(words[i / 2] >> 8 * (i % 2));
    if (format.bits == 8) {
        for (int i = 0; i < kBlockDims; i++) {
            const float scaled = x[i] * inverse;
            block[i] = uint8_t(int8_t(fabsf(scaled) < 128.f ? roundf(scaled) : 0.f));
        }
        return;
    }
    // Truncated behind what rounds: a whole, half a unit, and the middle of the range where there is no m.
    const float shift = format.has_min ? 0.5f : float(1 << (format.bits - 1)) + 0.5f, from = format.has_min ? low : 0.f;
    uint32_t fifth = 0;
    uint8_t* const nibbles = block + (format.bits == 5 ? 4 : 0);
    for (int i = 0; i < 16; i++) {
        const int a = block_integer((x[i] - from) * inverse + shift, last), b = block_integer((x[i + 16] - from) * inverse + shift, last);
        nibbles[i] = uint8_t((a & 15) | (b & 15) << 4);
        fifth |= uint32_t(a >> 4) << i | uint32_t(b >> 4) << (i + 16);
    }
    for (int i = 0; i < 4 && format.bits == 5; i++) block[i] = uint8_t(fifth >> 8 * i);
}

}  // namespace fa
