// The block formats (FA_Q4_0 … FA_Q8_0) as decode_kernels.h reads them: a unit is a block, of kParts VecPairs, and each is widened by
// itself. The instruction set's formats.h has for them
//     read_bytes(at), read_signed_bytes(at)   kLanes bytes as integers
//     to_floats(x)                            the integers as floats
//     splat_half(at)                          the f16 at `at`, low byte first, in every lane
// and may specialise FloatTable.
#pragma once
#include "cpu/kernels/byte_order.h"
#include "spec/block_formats.h"
#include FA_ISA_FORMATS

namespace fa {
namespace cpu {
namespace {

template <int Bits, bool HasMin, int Lanes = kLanes>
struct Block {
    static constexpr BlockFormat kFormat = {Bits, HasMin};
    static constexpr int kUnitBytes = block_bytes(kFormat), kParts = kBlockDims / (2 * kLanes);
    // kScaledDots: few rows multiply their sums and their P by d, and not every value.
    static constexpr bool kBlock = true, kScaledDots = !HasMin, kDeinterleaved = false, kNoNan = false;
    static constexpr float kDescale = 1;
    static constexpr bool kByTable =
        FloatTable<Lanes>::kExists && Bits < 8;  // a nibble picks one of the 16 values there are without a fifth bit

    static V nibble_values() {
        V table;
        for (int i = 0; i < kLanes; i++) table[i] = float(HasMin ? i : i - (1 << (Bits - 1)));
        return table;
    }
    static VecPair pick_pair(V table, const char* block) {
        using Table = FloatTable<Lanes>;
        const char* const x = block + (HasMin ? 4 : 2);
        const VI bytes = read_bytes(x + (Bits == 5 ? 4 : 0));
        const VecPair picked = {Table::pick(table, bytes), Table::pick(table, bytes >> 4)};
        if constexpr (Bits == 4) return picked;
        const uint32_t fifths = load_le<uint32_t>(x);
        return {Table::add_where(picked.a, fifths, 16), Table::add_where(picked.b, fifths >> 16, 16)};
    }

    // x of dims [dim, dim + kLanes), less 2^(Bits − 1) where there is no m.
    static VI integers(const char* block, int dim) {
        const char* x = block + (HasMin ? 4 : 2);
        if constexpr (Bits == 8) return read_signed_bytes(x + dim);
        const VI bytes = read_bytes(x + (Bits == 5 ? 4 : 0) + dim % 16);
        VI value = dim < 16 ? bytes & 15 : bytes >> 4;
        if constexpr (Bits == 5) {
            const uint32_t bits = load_le<uint32_t>(x);
            alignas(64) static constexpr int32_t kLaneBits[] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                                                1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
            VI lane_bit;
            memcpy(&lane_bit, kLaneBits, sizeof lane_bit);
            const VI clear = ((VI{} + int32_t(bits >> dim)) & lane_bit) == 0;  // −1 where bit 4 of the x is 0
            return HasMin ? value + 16 + (clear & -16) : value + (clear & -16);
        }
        return HasMin ? value : value - 8;
    }
    // The values over d, of formats without an m.
    static VecPair read_unscaled(const char* block, int part) {
        if constexpr (kByTable) return pick_pair(nibble_values(), block);
        const int dim = part * 2 * kLanes;
        return {to_floats(integers(block, dim)), to_floats(integers(block, dim + kLanes))};
    }
    static VecPair read_part(const char* block, int part) {
        if constexpr (kByTable && Bits == 4) {  // all values that a block can have are scaled at once
            const V x = nibble_values(), d = splat_half(block);
            return pick_pair(HasMin ? fma_v(x, d, splat_half(block + 2)) : x * d, block);
        }
        const VecPair x = read_unscaled(block, part);
        const V d = splat_half(block);
        if constexpr (!HasMin) return {x.a * d, x.b * d};
        const V m = splat_half(block + 2);
        return {fma_v(x.a, d, m), fma_v(x.b, d, m)};
    }
};

// Rows of whole blocks, to and from f32. OfK: of k, see nan_if_infinite().
template <class T, bool OfK = false>
static void widen_blocks(const void* from, int64_t count, float* to) {
    const char* block = static_cast<const char*>(from);
    for (const float* const end = to + count; to < end; to += kBlockDims, block += T::kUnitBytes)
#pragma GCC unroll 4
        for (int part = 0; part < T::kParts; part++) {
            VecPair x = T::read_part(block, part);
            if (OfK && part == 0) {
                x.a = fma_v(splat_half(block), V{}, x.a);
                if (T::kFormat.has_min) x.a = fma_v(splat_half(block + 2), V{}, x.a);
            }
            store(to + part * 2 * kLanes, x.a);
            store(to + part * 2 * kLanes + kLanes, x.b);
        }
}
template <class T>
static void narrow_blocks(const float* from, int64_t count, void* to) {
    uint8_t* block = static_cast<uint8_t*>(to);
    for (int64_t i = 0; i < count; i += kBlockDims, block += T::kUnitBytes) quantise_block(from + i, T::kFormat, block);
}

// By type_index(), behind the types of single elements.
using Q4_0 = Block<4, false>;
using Q4_1 = Block<4, true>;
using Q5_0 = Block<5, false>;
using Q5_1 = Block<5, true>;
using Q8_0 = Block<8, false>;
constexpr void (*kWidenBlocks[])(const void*, int64_t, float*) = {widen_blocks<Q4_0>, widen_blocks<Q4_1>, widen_blocks<Q5_0>,
                                                                  widen_blocks<Q5_1>, widen_blocks<Q8_0>};
constexpr void (*kWidenBlocksOfK[])(const void*, int64_t, float*) = {
    widen_blocks<Q4_0, true>, widen_blocks<Q4_1, true>, widen_blocks<Q5_0, true>, widen_blocks<Q5_1, true>, widen_blocks<Q8_0, true>};
constexpr void (*kNarrowBlocks[])(const float*, int64_t, void*) = {narrow_blocks<Q4_0>, narrow_blocks<Q4_1>, narrow_blocks<Q5_0>,
                                                                   narrow_blocks<Q5_1>, narrow_blocks<Q8_0>};

}  // namespace
}  // namespace cpu
}  // namespace fa
