// Decoding from k and v in blocks: the products of mma/cache/blocks.h with their sides exchanged. Keys, and columns of v, are the 16 rows
// of a product, and query rows its 8 columns: S = k q^T, O = v^T P. A query head or a few that share a kv head then fill a tile, where 16
// rows would be padding in the half of all products, sums and exponentials, and a lane has scores of two keys, so that it reads two factors
// and not four.
//
// What a lane holds of k and v is the same either way. P leaves the scores' layout for the right side's by a transposition of 8 x 8 once
// its products with factors are rounded.
#pragma once
#include "gpu/mma/block.h"
#include "gpu/mma/cache/blocks.h"

namespace fa {
namespace gpu {

// 16 keys, or columns, times 8 rows. A lane holds elements of two rows, and the eight lanes that are as far from a multiple of 4 share
// them.
struct AccColumns {
    static constexpr int kElements = 4, kRows = 2;
    float x[kElements];
    FA_MEMBER static int row(int lane_row) { return rt::thread() % 4 * 2 + lane_row; }
    FA_MEMBER static constexpr int lane_row(int i) { return i % 2; }
    FA_MEMBER static int column(int i) { return rt::thread() % 32 / 4 + 8 * (i / 2); }
    FA_MEMBER static bool first_of_row() { return rt::thread() % 32 < 4; }
    FA_MEMBER static float max_of_row(float x) {
        FA_UNROLL_FOR (int mask = 4; mask < 32; mask *= 2) x = max_fn(x, rt::shuffle_xor32(x, mask));
        return x;
    }
    FA_MEMBER static float sum_of_row(float x) {
        FA_UNROLL_FOR (int mask = 4; mask < 32; mask *= 2) x += rt::shuffle_xor32(x, mask);
        return x;
    }
    static constexpr bool kMaskVecs = false;
    template <int tiles>
    FA_MEMBER static void load_mask(const uint8_t*, uint32_t*) {}
    template <int tiles>
    FA_MEMBER static void set_mask_bits(const uint32_t (&)[tiles], int, uint32_t&) {}
};

template <class T>
struct MmaQuantisedDecode : MmaQuantised<T> {
    using Usual = MmaQuantised<T>;
    using typename Usual::FragmentB;
    using Acc = AccColumns;
    struct FragmentA {
        uint32_t r[2];
    };  // 8 rows of q or of P, 16 deep
    using General = MmaQuantisedDecode;
    static constexpr auto& kRows = kMmaBlockDecodeRows;

    FA_MEMBER static int output_column(int c, int i) { return kBlockDims / 2 * c + rt::thread() % 32 / 4 * 2 + i / 2; }

    // q's rows come in the order that they have: a lane takes four neighbouring dims of each 16.
    FA_MEMBER static constexpr int permuted_q_byte(int at) { return at; }
    template <int row_bytes>
    FA_MEMBER static SwizzledPtr q_ptr(const char* tile, int row, int lane = rt::thread() % 32) {
        return SwizzledPtr(rt::smem_addr(tile) + uint32_t(swizzle_offset<row_bytes>(row + lane / 4, lane % 4 / 2) + lane % 2 * 8));
    }
    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) {
        const uint32_t at = ptr.pair(i) + uint32_t(down);
        const uint32_t words[] = {bits_of(rt::ld_shared(at)), bits_of(rt::ld_shared(at + 4))};
        a.r[0] = rt::prmt(words[0], words[1], 0x5410);
        a.r[1] = rt::prmt(words[0], words[1], 0x7632);
    }

    // Factors of the two keys whose scores and probabilities a lane has.
    static constexpr int kFactors = 2;
    template <int pitch>
    FA_MEMBER static const char* factor_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return tile + (key + lane / 4) * pitch;
    }
    template <class Type, int pitch>
    FA_MEMBER static void load_factors(float (&factor)[2], const char* ptr, int block) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) factor[i] = rt::load_f16(ptr + 8 * i * pitch + block * Type::kBytes);
    }
    FA_MEMBER static constexpr int factor_of(int e) { return e / 2; }

    // 32 columns of 16 keys: two neighbouring ones of a block's first half and two of its second, of nibbles in the same two bytes, which
    // lie at an even address as they are. Four keys' come together in two words.
    FA_MEMBER static uint32_t load_pair(const char* at) { return *reinterpret_cast<const uint16_t*>(at); }
    template <class Type, int pitch>
    FA_MEMBER static void load_v(FragmentB (&b)[2], const char* ptr, int block) {
        const int column = rt::thread() % 32 / 4 * 2;
        const char* const first = ptr + block * Type::kBytes + Type::kFirst + column;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            const char* const row = first + 8 * half * pitch;
            const auto both = [&](int at) { return load_pair(row + at) | load_pair(row + pitch + at) << 16; };
            uint32_t words[2] = {both(0)};
            if constexpr (Type::kBits == 8) words[1] = both(16);
            else words[1] = words[0] >> 4;
            if constexpr (Type::kBits == 5) {
                FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                    const uint32_t fifth = both(2 * i - 4 - column) >> column;  // bits 0 and 1 of both halves
                    words[i] = Usual::select_fifth(words[i], (fifth & 0x00030003u) * 0x0810u);
                }
            }
            FA_UNROLL_FOR (int i = 0; i < 2; i++)
                FA_UNROLL_FOR (int e = 0; e < 2; e++) b[i].r[2 * e + half] = Usual::template widen<Type, Bf16>(words[i] >> 8 * e);
        }
    }

    FA_MEMBER static void mma(Acc& d, const FragmentA& a, const FragmentB& b) {
        const uint32_t left[] = {b.r[0], b.r[2], b.r[1], b.r[3]};
        if constexpr (kIsF16<T>) rt::mma_m16n8k16_f16(d.x, left, a.r);
        else rt::mma_m16n8k16_bf16(d.x, left, a.r);
    }
    FA_MEMBER static void round_products(FragmentA& a, FragmentA& rest, const Acc& p, const float (&factor)[2]) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const float x[] = {p.x[2 * i] * factor[i], p.x[2 * i + 1] * factor[i]};
            const uint32_t pair = rt::pack_bf16(x[0], x[1]);
            a.r[i] = rt::transpose_8x8(pair);
            if constexpr (kIsF16<T>)
                rest.r[i] = rt::transpose_8x8(rt::pack_bf16(x[0] - float_of(pair << 16), x[1] - float_of(pair & 0xffff0000u)));
        }
    }
    FA_MEMBER static void mma_v(Acc& d, const FragmentA& a, const FragmentA& rest, const FragmentB& b) {
        const uint32_t left[] = {b.r[0], b.r[2], b.r[1], b.r[3]};
        rt::mma_m16n8k16_bf16(d.x, left, a.r);
        if constexpr (kIsF16<T>) rt::mma_m16n8k16_bf16(d.x, left, rest.r);
    }
};
template <class T>
constexpr int kRowsOfTile<MmaQuantisedDecode<T>> = 8;

}  // namespace gpu
}  // namespace fa
