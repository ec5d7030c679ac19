// Products of f16 or bf16 queries with k and v of 8 bits or fewer, each of a type of its own, whose factors are those of 16 dims, or of
// multiples of 32 with or without shifts: an Mma policy of mma/forward.h for what others do not take (q4_1 and q5_1, k and v of unlike
// types, factors of rows or along the dims, types of 4 bits). A value is a number that 16 bits hold exactly, times a factor, plus an
// offset. What is stored is read in one place, scaled_pipe.h, which leaves a tile of such numbers in shared memory, each row's factors and
// offsets behind it; so one loop serves all types.
//
// As with the blocks of mma/cache/blocks.h no factor touches the numbers: those of k multiply, in f32, the products of 32 dims with q;
// those of v the probabilities, which are then rounded. An offset is the factor of as many ones.
#pragma once
#include "gpu/mma/cache/blocks.h"

namespace fa {
namespace gpu {

// Of a 32 dims' numbers: value = number * factor + offset; where 16 dims share a factor, the second half's is in the offset's place.
struct alignas(8) Scaling32 {
    float factor, offset;
};

template <class T>
struct MmaScaled : MmaQuantised<T> {
    using typename MmaQuantised<T>::FragmentA;
    using typename MmaQuantised<T>::FragmentB;
    using typename MmaQuantised<T>::Acc;
    static constexpr const char* kFamily = "fwd_mma_scaled";
    using General = MmaScaled;
    static constexpr bool kScaled = true;
    static constexpr Copies kCopies = Copies::scaled;
    // Factors may be of any size: probabilities keep theirs. See v_unit.
    static constexpr float kExponent = 0.f, kRowSumUnit = kHeadroomUnit, kOutputUnit = kHeadroomUnit;

    FA_MEMBER static int output_column(int c, int i) { return MmaSync<T>::output_column(c, i); }
    FA_MEMBER static constexpr int permuted_q_byte(int at) { return at; }
    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) { MmaSync<T>::load_q(a, ptr, down, i); }

    template <class Pass>
    FA_MEMBER static void in_loop(int32_t, Pass pass) {
        pass(0);
    }

    template <int pitch>
    FA_MEMBER static uint32_t k_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return rt::smem_addr(tile) + uint32_t((key + lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16);
    }
    template <int pitch, int keys>
    FA_MEMBER static uint32_t v_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return rt::smem_addr(tile) + uint32_t((key + lane % 16) * pitch + lane / 16 * 16);
    }
    template <class, int pitch>
    FA_MEMBER static void load_k(FragmentB (&b)[2], uint32_t ptr, int block) {
        FA_UNROLL_FOR (int c = 0; c < 2; c++) rt::ldmatrix_x4(ptr + uint32_t(64 * block + 32 * c), b[c].r);
    }
    template <class, int pitch>
    FA_MEMBER static void load_v(FragmentB (&b)[2], uint32_t ptr, int block) {
        FA_UNROLL_FOR (int c = 0; c < 2; c++) rt::ldmatrix_x4_trans(ptr + uint32_t(64 * block + 32 * c), b[c].r);
    }
    template <int pitch>
    FA_MEMBER static const Scaling32& scaling(const char* ptr, int i, int block) {
        return *reinterpret_cast<const Scaling32*>(ptr + (i / 2 * 8 + i % 2) * pitch + 2 * scaled_dims(pitch) + 8 * block);
    }
    template <class, int pitch>
    FA_MEMBER static void load_factors(float (&factor)[4], const char* ptr, int block) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) factor[i] = scaling<pitch>(ptr, i, block).factor;
    }
    template <int pitch>
    FA_MEMBER static void load_offsets(float (&offset)[4], const char* ptr, int block) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) offset[i] = scaling<pitch>(ptr, i, block).offset;
    }
    // Where values have offsets both parts of one may be much larger than it is, so that neither may lose what rounding takes away.
    FA_MEMBER static void add_both_parts(Acc* d, const Acc& p, const float (&factor)[4], const FragmentB& b0, const FragmentB& b1) {
        FragmentA left, rest;
        FA_UNROLL_FOR (int i = 0; i < 4; i++) {
            float x[2];
            FA_UNROLL_FOR (int e = 0; e < 2; e++) x[e] = p.x[2 * i + e] * factor[MmaQuantised<T>::factor_of(2 * i + e)];
            left.r[i] = rt::pack_bf16(x[0], x[1]);
            rest.r[i] = rt::pack_bf16(x[0] - float_of(left.r[i] << 16), x[1] - float_of(left.r[i] & 0xffff0000u));
        }
        MmaQuantised<T>::mma_bf16(d[0], left, b0);
        MmaQuantised<T>::mma_bf16(d[1], left, b1);
        MmaQuantised<T>::mma_bf16(d[0], rest, b0);
        MmaQuantised<T>::mma_bf16(d[1], rest, b1);
    }
    // What an offset is the factor of: beside q, and beside probabilities.
    template <class E>
    FA_MEMBER static FragmentB ones() {
        const uint32_t pair = kIsF16<E> ? 0x3c003c00u : 0x3f803f80u;
        return {{pair, pair, pair, pair}};
    }
};

}  // namespace gpu
}  // namespace fa
