// Products of 16 × 16 tiles by mma.sync, one wave of 32 lanes each: what mma/forward.h calls an Mma policy. A policy knows which lane
// holds which element, how tiles lie in shared memory, and what P is rounded to. It stands on the few instructions of mma_cuda.h
// (or mma_emu.h).
#pragma once
#include "gpu/mma/common.h"

namespace fa {
namespace gpu {

// Where a lane reads its share of a tile: the address of its first two 16-byte vectors, and the same under each of the four
// swizzles of vector pairs. Vectors 2i and 2i + 1 then lie at a constant offset from one of the four.
struct SwizzledPtr {
    uint32_t at[4];
    FA_MEMBER explicit SwizzledPtr(uint32_t first) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) at[i] = first ^ uint32_t(32 * i);
    }
    FA_MEMBER uint32_t pair(int i) const { return at[uint32_t(i) % 4] + 128 * (uint32_t(i) / 4); }
    FA_MEMBER SwizzledPtr advance(int i) const {
        return SwizzledPtr((at[0] ^ uint32_t(32 * (i % 4))) + uint32_t(128 * (i / 4)));
    }  // i: any number
};

// The same for even rows or vectors, and for odd ones.
struct SwizzledPtrPair {
    SwizzledPtr even, odd;
    // Where a lane writes its word of a row's first vector, and of its second.
    template <int row_bytes>
    FA_MEMBER static SwizzledPtrPair for_store(const char* tile, int row) {
        const int lane = rt::opaque(rt::thread()) % 32;
        const uint32_t first = rt::smem_addr(tile) + uint32_t(swizzle_offset<row_bytes>(row + lane / 4, 0) + lane % 4 * 4);
        return {SwizzledPtr(first), SwizzledPtr(first ^ 16)};
    }
};

// 16 rows × 16 columns of f32: two 16 × 8 results side by side. A lane holds elements of two rows, and four lanes share a row.
struct AccFragment {
    static constexpr int kElements = 8, kRows = 2;
    float x[kElements];
    FA_MEMBER static int row(int lane_row) { return rt::thread() % 32 / 4 + 8 * lane_row; }
    FA_MEMBER static constexpr int lane_row(int i) { return i / 2 % 2; }
    FA_MEMBER static int column(int i) { return 8 * (i / 4) + 2 * (rt::thread() % 4) + i % 2; }
    FA_MEMBER static bool first_of_row() { return rt::thread() % 4 == 0; }
    // The largest, or the sum, of a value over the lanes that share a row.
    FA_MEMBER static float max_of_row(float x) {
        x = max_fn(x, rt::shuffle_xor16(x, 1));
        return max_fn(x, rt::shuffle_xor16(x, 2));
    }
    FA_MEMBER static float sum_of_row(float x) {
        x += rt::shuffle_xor16(x, 1);
        return x + rt::shuffle_xor16(x, 2);
    }

    // A mask's bytes for `tiles` neighbouring tiles of a row: each of its lanes reads a part of the row's vectors.
    static constexpr bool kMaskVecs = true;
    template <int tiles>
    FA_MEMBER static void load_mask(const uint8_t* row, uint32_t word[tiles]) {
        rt::load_words<tiles>(row + rt::thread() % 4 * 4 * tiles, word);
    }
    // Sets the bits of one lane_row's elements, in the order of the tiles', where the mask's byte is not 0.
    template <int tiles>
    FA_MEMBER static void set_mask_bits(const uint32_t (&words)[tiles], int lane_row, uint32_t& kept) {
        const int lane = rt::thread() % 4;
        uint32_t bits = 0, half[2] = {};
        FA_UNROLL_FOR (int i = 0; i < tiles; i++) {
            const uint32_t word = words[i], nonzero = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) >> 7 & 0x01010101u;
            bits |= nonzero * 0x10204080u >> 28 << 4 * i;
        }
        const int at = lane * 4 * tiles;  // the vector's place in the row
        half[0] = at < 32 ? bits << at : 0;
        half[1] = at < 32 ? 0 : bits << (at - 32);
        FA_UNROLL_FOR (int i = 0; i < tiles / 2; i++) {
            half[i] |= rt::shuffle_xor4(half[i], 1);
            half[i] |= rt::shuffle_xor4(half[i], 2);
            uint32_t own = half[i] >> 2 * lane & 0x03030303u;  // its columns: two of every eight
            own = (own | own >> 4) & 0x00ff00ffu;
            kept |= ((own | own >> 8) & 0xffffu) << (16 * i + 2 * lane_row);
        }
    }
};

// f16 and bf16. Probabilities of f16 are kept 2^15 times too large: what then falls below its smallest number is less than 2^-39 of
// a row's largest probability. Those of bf16 are kept 2^-24 times too small, lest many of them times the largest bf16 overflow
// before the average: lost is what is less than 2^-109 of the largest.
template <class T>
struct MmaSync : MmaPolicy<T, T> {
    using Acc = AccFragment;
    static constexpr int kLanes = 32, kTile = 16;  // of a wave; rows, columns and depth of a tile
    static constexpr const char* kFamily = "fwd_mma";
    static constexpr bool kAsyncCopies = true, kClusters = true, kQInShared = true, kOutputInPasses = false, kAvailable = rt::kHasMma;
    struct alignas(8) Pairs {
        uint32_t low, high;
    };
    struct FragmentA {
        uint32_t r[4];
    };  // 16 rows × 16 deep
    struct FragmentB {
        uint32_t r[4];
    };  // 16 deep × 16 columns
    using General = MmaSync;  // the policy of general kernels, in whose rows others' are whole tiles
    static constexpr auto& kRows = kMmaRows;
    FA_MEMBER static constexpr Loops loops(int) { return Loops::each; }
    static constexpr bool kGathers = true, kSmallGeneral = false, kRoundsQ = !kIsF16<T>;
    static constexpr Copies kCopies = Copies::async;
    static constexpr float kExponent = kIsF16<T> ? 15.f : 0.f;             // log2 of what exponentials are computed too large by
    static constexpr float kRowSumUnit = kIsF16<T> ? 0x1p-47f : 0x1p-32f;  // takes their sums to the units of kHeadroomUnit
    static constexpr float kOutputUnit = kIsF16<T> ? 0x1p-47f : 0x1p-8f;   // and the sums of probabilities times v
    FA_MEMBER static int output_column(int c, int i) { return kTile * c + Acc::column(i); }  // of element i of the c-th product with v

    // Where a lane reads, in a tile of q from `row` on, and in tiles of k and v from `key` on.
    template <int row_bytes>
    FA_MEMBER static SwizzledPtr q_ptr(const char* tile, int row, int lane = rt::thread() % 32) {
        return SwizzledPtr(rt::smem_addr(tile) + swizzle_offset<row_bytes>(row + lane % 16, lane / 16));
    }
    template <int row_bytes>
    FA_MEMBER static SwizzledPtr k_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return SwizzledPtr(rt::smem_addr(tile) + swizzle_offset<row_bytes>(key + lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
    template <int row_bytes, int keys>
    FA_MEMBER static SwizzledPtr v_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return q_ptr<row_bytes>(tile, key, lane);
    }

    // A tile of rows or keys, `down` bytes further on, or for v of its n-th keys, and step i of 16 dims or columns. keys: of all that
    // lie there.
    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) { rt::ldmatrix_x4(ptr.pair(i) + down, a.r); }
    template <int row_bytes>
    FA_MEMBER static void load_k(FragmentB& b, const SwizzledPtr& ptr, int down, int i) {
        rt::ldmatrix_x4(ptr.pair(i) + down, b.r);
    }
    template <int row_bytes, int keys>
    FA_MEMBER static void load_v(FragmentB& b, const SwizzledPtr& ptr, int n, int i) {
        rt::ldmatrix_x4_trans(ptr.pair(i) + kTile * n * row_bytes, b.r);
    }
    FA_MEMBER static void mma(Acc& d, const FragmentA& a, const FragmentB& b) {  // d += a · b
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            if constexpr (kIsF16<T>) rt::mma_m16n8k16_f16(d.x + 4 * half, a.r, b.r + 2 * half);
            else rt::mma_m16n8k16_bf16(d.x + 4 * half, a.r, b.r + 2 * half);
        }
    }
    FA_MEMBER static uint32_t pack(const float x[2]) { return kIsF16<T> ? rt::pack_f16(x[0], x[1]) : rt::pack_bf16(x[0], x[1]); }
    FA_MEMBER static void store4(T* to, const float x[4]) { *reinterpret_cast<Pairs*>(to) = {pack(x), pack(x + 2)}; }
    FA_MEMBER static float tanh(float x) { return tanh_fast(x); }
    // Probabilities, as the left side of a product with v: the lanes already hold what they need.
    FA_MEMBER static void round_probs(FragmentA& a, const Acc& p) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) {
            if constexpr (kIsF16<T>) a.r[i] = rt::pack_f16(p.x[2 * i], p.x[2 * i + 1]);
            else a.r[i] = rt::scale_down_bf16(rt::pack_bf16(p.x[2 * i], p.x[2 * i + 1]));
        }
    }

    // For the backward: probabilities go to a tile in shared memory, of which load_q reads rows, and load_transposed columns, as a
    // left side.
    static constexpr bool kHoldsProbs = false, kHoldsOwned = false;                            // in registers
    static constexpr float kProbExponent = kExponent, kProbUnit = kIsF16<T> ? 0x1p+15f : 1.f;  // what they are kept too large by
    static constexpr float kProductUnit = 1.f;  // takes products of probabilities to their value
    static constexpr bool kNarrow = kIsF16<T>;  // of exponent: gradients of scores need units of their own
    template <int row_bytes>
    FA_MEMBER static SwizzledPtrPair prob_ptr(const char* tile, int row) {
        return SwizzledPtrPair::for_store<row_bytes>(tile, row);
    }
    template <int row_bytes>
    FA_MEMBER static void store_probs(const SwizzledPtrPair& ptr, int down, int c, const Acc& p) {
        FA_UNROLL_FOR (int i = 0; i < Acc::kElements; i += 2)
            rt::st_shared((i / 4 ? ptr.odd : ptr.even).pair(c) + down + 8 * Acc::lane_row(i) * row_bytes, pack(p.x + i));
    }
    template <int row_bytes>
    FA_MEMBER static SwizzledPtr transposed_ptr(const char* tile, int row, int lane) {
        return k_ptr<row_bytes>(tile, row, lane);
    }
    template <int row_bytes>
    FA_MEMBER static void load_transposed(FragmentA& a, const SwizzledPtr& ptr, int down, int i) {
        rt::ldmatrix_x4_trans(ptr.pair(i) + down, a.r);
    }
    // Where a lane reads or writes step i of 16 dims or columns and those behind it.
    FA_MEMBER static SwizzledPtr advance(const SwizzledPtr& ptr, int i) { return ptr.advance(i); }
    FA_MEMBER static SwizzledPtrPair advance(const SwizzledPtrPair& ptr, int i) { return {ptr.even.advance(i), ptr.odd.advance(i)}; }
};

// f32 as the sum of two tf32 each, and a product as three: what is left out is below 2^-21 of it. A matrix core truncates sums
// where an FADD would round, so chains are short: a few products each, the small ones by themselves, and their results are added by
// FADD. Elements are halved first, for the largest must not be rounded to infinity: products of q and k are a quarter of their
// value, and probabilities twice as large as kHeadroomUnit says.
struct MmaTf32 : MmaPolicy<F32, F32> {
    template <class M>
    using Products = SplitProducts<M>;
    using Acc = AccFragment;
    static constexpr int kLanes = 32, kTile = 16;
    static constexpr const char* kFamily = "fwd_mma";
    static constexpr bool kAsyncCopies = true, kClusters = true, kQInShared = true, kOutputInPasses = false, kAvailable = rt::kHasMma;
    using General = MmaTf32;
    static constexpr auto& kRows = kMmaTf32Rows;
    static constexpr bool kMayHoldQ = false, kSplitTf32 = true;
    static constexpr Copies kCopies = Copies::async;
    static constexpr float kExponent = 0.f, kRowSumUnit = 0x1p-32f, kOutputUnit = 1.f, kScoreUnit = 4.f;
    FA_MEMBER static int output_column(int c, int i) { return kTile * c + Acc::column(i); }

    // Register 4 · step + i: of the 16 deep, elements 8 · step … 8 · step + 7.
    struct FragmentA {
        uint32_t large[8], small[8];
    };
    struct FragmentB {
        uint32_t large[8], small[8];
    };  // [half of the columns][step][2]

    // The large part is rounded; the product cuts off what the small one has too much, one bit at most. Not a number: the small one
    // is not, whatever has become of the large one. Infinite: the small one is not a number, too, see mma_chain.
    FA_MEMBER static void split_tf32(float x, uint32_t* large, uint32_t* small) {
        *large = (bits_of(x) + 0x1000u) & 0xffffe000u;
        *small = bits_of(x - float_of(*large));
    }

    template <int row_bytes>
    FA_MEMBER static SwizzledPtr q_ptr(const char* tile, int row, int lane = rt::thread() % 32) {
        return SwizzledPtr(rt::smem_addr(tile) + swizzle_offset<row_bytes>(row + lane % 16, lane / 16));
    }
    template <int row_bytes>
    FA_MEMBER static SwizzledPtr k_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return SwizzledPtr(rt::smem_addr(tile) + swizzle_offset<row_bytes>(key + lane % 8, lane / 8));
    }
    // Positions t and t + 4 of a step's depth are keys 2t and 2t + 1, those whose probabilities the lane's row holds: an even key
    // and an odd one.
    template <int row_bytes, int keys>
    FA_MEMBER static SwizzledPtrPair v_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        const uint32_t at = rt::smem_addr(tile) + uint32_t(lane / 4 % 4 * 4);
        return {SwizzledPtr(at + swizzle_offset<row_bytes>(key + 2 * (lane % 4), lane / 16)),
                SwizzledPtr(at + swizzle_offset<row_bytes>(key + 2 * (lane % 4) + 1, lane / 16))};
    }

    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) {
        FA_UNROLL_FOR (int step = 0; step < 2; step++) {
            uint32_t r[4];
            rt::ldmatrix_x4(ptr.pair(2 * i + step) + down, r);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) split_tf32(0.5f * float_of(r[e]), a.large + 4 * step + e, a.small + 4 * step + e);
        }
    }
    template <int row_bytes>
    FA_MEMBER static void load_k(FragmentB& b, const SwizzledPtr& ptr, int down, int i) {
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            uint32_t r[4];
            rt::ldmatrix_x4(ptr.pair(2 * i) + down + 8 * half * row_bytes, r);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) split_tf32(0.5f * float_of(r[e]), b.large + 4 * half + e, b.small + 4 * half + e);
        }
    }
    template <int row_bytes, int keys>
    FA_MEMBER static void load_v(FragmentB& b, const SwizzledPtrPair& ptr, int n, int i) {
        FA_UNROLL_FOR (int half = 0; half < 2; half++)
            FA_UNROLL_FOR (int e = 0; e < 4; e++) {
                const uint32_t at = (e % 2 ? ptr.odd : ptr.even).pair(2 * i + half) + kTile * n * row_bytes + 8 * (e / 2) * row_bytes;
                split_tf32(0.5f * rt::ld_shared(at), b.large + 4 * half + e, b.small + 4 * half + e);
            }
    }
    // d += Σ a[i] · b[i]. Where an operand was infinite the small products are NaN: the large ones alone have the answer
    // (`infinities`: it matters).
    template <bool infinities = true, int n>
    FA_MEMBER static void mma_chain(Acc& d, const FragmentA (&a)[n], const FragmentB (&b)[n]) {
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            float large[4] = {}, small[4] = {};
            FA_UNROLL_FOR (int i = 0; i < n; i++)
                FA_UNROLL_FOR (int step = 0; step < 2; step++) {
                    const uint32_t *al = a[i].large + 4 * step, *as = a[i].small + 4 * step;
                    const uint32_t *bl = b[i].large + 4 * half + 2 * step, *bs = b[i].small + 4 * half + 2 * step;
                    rt::mma_m16n8k8_tf32(small, as, bl);
                    rt::mma_m16n8k8_tf32(small, al, bs);
                    rt::mma_m16n8k8_tf32(large, al, bl);
                }
            FA_UNROLL_FOR (int e = 0; e < 4; e++)
                d.x[4 * half + e] += !infinities || fabsf(large[e]) < kPosInf ? large[e] + small[e] : large[e];
        }
    }
    FA_MEMBER static float tanh(float x) { return tanhf(x); }
    FA_MEMBER static void store4(F32* to, const float x[4]) { rt::store4(&to->x, x); }
    FA_MEMBER static void round_probs(FragmentA& a, const Acc& p) {
        FA_UNROLL_FOR (int step = 0; step < 2; step++)
            FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                const float prob = p.x[4 * step + 2 * (i % 2) + i / 2] * (2.f * kHeadroomUnit);
                split_tf32(prob, a.large + 4 * step + i, a.small + 4 * step + i);
            }
    }

    // For the backward, as in MmaSync. Of each eight columns a row of the tile has the even ones first: read by load_q they match
    // the depths that load_v reads.
    static constexpr bool kHoldsProbs = false, kHoldsOwned = false;
    static constexpr float kProbExponent = kExponent, kProbUnit = 1.f, kProductUnit = 4.f;
    static constexpr bool kNarrow = false;
    template <int row_bytes>
    FA_MEMBER static SwizzledPtrPair prob_ptr(const char* tile, int row) {
        return SwizzledPtrPair::for_store<row_bytes>(tile, row);
    }
    template <int row_bytes>
    FA_MEMBER static void store_probs(const SwizzledPtrPair& ptr, int down, int c, const Acc& p) {
        FA_UNROLL_FOR (int i = 0; i < Acc::kElements; i++)
            rt::st_shared((i % 2 ? ptr.odd : ptr.even).pair(2 * c + i / 4) + down + 8 * Acc::lane_row(i) * row_bytes, bits_of(p.x[i]));
    }
    template <int row_bytes>
    FA_MEMBER static SwizzledPtrPair transposed_ptr(const char* tile, int row, int lane) {
        const uint32_t at = rt::smem_addr(tile) + uint32_t(lane / 8 * 4);
        return {SwizzledPtr(at + swizzle_offset<row_bytes>(row + 2 * (lane % 4), lane / 4 % 2)),
                SwizzledPtr(at + swizzle_offset<row_bytes>(row + 2 * (lane % 4) + 1, lane / 4 % 2))};
    }
    template <int row_bytes>
    FA_MEMBER static void load_transposed(FragmentA& a, const SwizzledPtrPair& ptr, int down, int i) {
        FA_UNROLL_FOR (int step = 0; step < 2; step++)
            FA_UNROLL_FOR (int e = 0; e < 4; e++) {
                const uint32_t at = (e / 2 ? ptr.odd : ptr.even).pair(2 * i + e % 2) + down + 8 * step * row_bytes;
                split_tf32(0.5f * rt::ld_shared(at), a.large + 4 * step + e, a.small + 4 * step + e);
            }
    }
    FA_MEMBER static SwizzledPtrPair advance(const SwizzledPtrPair& ptr, int i) {
        return {ptr.even.advance(2 * i), ptr.odd.advance(2 * i)};
    }
};

}  // namespace gpu
}  // namespace fa
