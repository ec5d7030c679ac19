// Blocks of 32 values that share a factor, from the table in flashattn.h; and how they are quantised, from ggml's rule. That is said in
// f32: here each operation is done in double and then rounded to float, which is the same, for a double has more than twice a float's
// digits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include "oracle/formats.h"

namespace oracle {
namespace {

constexpr int kValues = 32;

struct Block {
    int bits;      // of an integer
    bool offset;   // a smallest value lies behind the factor
    int fifth_at;  // where bits 4 lie, of 5
    int integers_at;
};

Block block_of(int32_t dtype) {
    switch (dtype) {
        case FA_Q4_0: return {4, false, 0, 2};
        case FA_Q4_1: return {4, true, 0, 4};
        case FA_Q5_0: return {5, false, 2, 6};
        case FA_Q5_1: return {5, true, 4, 8};
        default: return {8, false, 0, 2};
    }
}

float f32(double x) { return static_cast<float>(x); }

int whole_part(double x) { return std::isfinite(x) ? int(std::trunc(x)) : 0; }

}  // namespace

double load_block_word(const void* block, int word) {
    const unsigned char* const at = static_cast<const unsigned char*>(block) + 2 * word;
    const uint16_t code = static_cast<uint16_t>(at[0] + 256 * at[1]);
    return load(&code, 0, FA_F16);
}

void store_block_word(void* block, int word, double value) {
    unsigned char* const at = static_cast<unsigned char*>(block) + 2 * word;
    uint16_t code;
    store(&code, 0, FA_F16, value);
    at[0] = static_cast<unsigned char>(code % 256);
    at[1] = static_cast<unsigned char>(code / 256);
}

double load_dim(const void* base, int64_t row, int64_t dim, int32_t dtype) {
    if (!is_block(dtype)) return load(base, row * elements_of(dtype) + dim, dtype);
    const unsigned char* const bytes = static_cast<const unsigned char*>(base) + (row + dim / kValues) * size_of(dtype);
    const Block b = block_of(dtype);
    const int c = int(dim % kValues);
    const double d = load_block_word(bytes, 0);
    if (b.bits == 8) return d * load(bytes + b.integers_at, c, FA_I8);
    const int pair = bytes[b.integers_at + c % 16];
    int x = c < 16 ? pair % 16 : pair / 16;
    if (b.bits == 5 && bytes[b.fifth_at + c / 8] & (1 << c % 8)) x += 16;
    return b.offset ? d * x + load_block_word(bytes, 1) : d * (x - (b.bits == 5 ? 16 : 8));
}

bool has_finite_factors(const void* base, int64_t row, int64_t dim, int32_t dtype) {
    const unsigned char* const bytes = static_cast<const unsigned char*>(base) + (row + dim / kValues) * size_of(dtype);
    return std::isfinite(load_block_word(bytes, 0)) && (!block_of(dtype).offset || std::isfinite(load_block_word(bytes, 1)));
}

double largest_of_block(const void* base, int64_t row, int64_t dim, int32_t dtype) {
    const unsigned char* const bytes = static_cast<const unsigned char*>(base) + (row + dim / kValues) * size_of(dtype);
    const Block b = block_of(dtype);
    return std::fabs(load_block_word(bytes, 0)) * std::ldexp(1, b.bits - 1) * (b.offset ? 2 : 1) +
           (b.offset ? std::fabs(load_block_word(bytes, 1)) : 0);
}

std::vector<unsigned char> quantised(const double* values, int32_t dtype) {
    const Block b = block_of(dtype);
    std::vector<unsigned char> bytes(static_cast<size_t>(size_of(dtype)));
    double least = values[0], most = values[0], peak = 0;
    for (int c = 0; c < kValues; c++) {
        if (values[c] < least) least = values[c];  // of zeros of both signs the first, which fmin leaves open
        if (values[c] > most) most = values[c];
        if (std::fabs(values[c]) > std::fabs(peak)) peak = values[c];
    }
    const double d = b.offset      ? double(f32(double(f32(most - least)) / (b.bits == 5 ? 31 : 15)))
                     : b.bits == 8 ? double(f32(std::fabs(peak) / 127))
                                   : double(f32(peak / (b.bits == 5 ? -16 : -8)));
    const double inverse = d == 0 ? 0 : double(f32(1 / d));
    store_block_word(bytes.data(), 0, d);
    if (b.offset) store_block_word(bytes.data(), 1, least);
    for (int c = 0; c < kValues; c++) {
        const double scaled = double(f32(double(f32(values[c] - (b.offset ? least : 0))) * inverse));
        if (b.bits == 8) {
            bytes[size_t(b.integers_at + c)] = static_cast<unsigned char>(std::isfinite(scaled) ? int(std::round(scaled)) : 0);
            continue;
        }
        const double middle = b.offset ? 0.5 : b.bits == 5 ? 16.5 : 8.5;
        const int x = std::min(whole_part(double(f32(scaled + middle))), b.bits == 5 ? 31 : 15);
        bytes[size_t(b.integers_at + c % 16)] |= static_cast<unsigned char>(c < 16 ? x % 16 : x % 16 * 16);
        if (x >= 16) bytes[size_t(b.fifth_at + c / 8)] |= static_cast<unsigned char>(1 << c % 8);
    }
    return bytes;
}

void store_row(void* base, int64_t row, int32_t dtype, const std::vector<double>& values) {
    if (!is_block(dtype)) {
        for (size_t c = 0; c < values.size(); c++) store(base, row * elements_of(dtype) + int64_t(c), dtype, values[c]);
        return;
    }
    std::vector<double> floats;
    for (const double value : values) floats.push_back(double(f32(value)));
    for (size_t c = 0; c < floats.size(); c += kValues) {
        const std::vector<unsigned char> block = quantised(floats.data() + c, dtype);
        memcpy(static_cast<char*>(base) + (row + int64_t(c) / kValues) * size_of(dtype), block.data(), block.size());
    }
}

}  // namespace oracle
