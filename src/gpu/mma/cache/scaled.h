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

template <class M>
struct ScaledProducts;
// Of few rows, in one storage type: see scaled_decode.h.
template <class T, class Type>
struct MmaScaledDecode;
template <int32_t dtype>
struct StoredBlocks;
template <class Byte>
struct StoredBytes;
template <bool halves>
struct StoredE2m1;
struct StoredInt4;

template <class T>
struct MmaScaled : MmaQuantised<T> {
    template <class M>
    using Products = ScaledProducts<M>;
    using typename MmaQuantised<T>::FragmentA;
    using typename MmaQuantised<T>::FragmentB;
    using typename MmaQuantised<T>::Acc;
    static constexpr const char* kFamily = "fwd_mma_scaled";
    using General = MmaScaled;
    using Beside =
        PolicyList<MmaScaledDecode<T, StoredBlocks<FA_Q4_1>>, MmaScaledDecode<T, StoredBlocks<FA_Q5_0>>,
                   MmaScaledDecode<T, StoredBlocks<FA_Q5_1>>, MmaScaledDecode<T, StoredBytes<I8>>, MmaScaledDecode<T, StoredBytes<E4m3>>,
                   MmaScaledDecode<T, StoredE2m1<false>>, MmaScaledDecode<T, StoredE2m1<true>>, MmaScaledDecode<T, StoredInt4>>;
    static constexpr auto& kRows = kMmaScaledRows;
    FA_MEMBER static constexpr Loops loops(int) { return Loops::general; }
    template <class Instance>
    FA_MEMBER static constexpr void describe(Instance& one, int keys) {
        one.keys = keys;
        one.scaled = true;
    }
    FA_MEMBER static constexpr TileLayout layout(int dims) {
        return {scaled_pitch(dims), dims / 16, 16, stored_pitch(dims), scaled_pitch(dims)};
    }
    FA_MEMBER static constexpr int blocks_held(Kind, int resident) { return resident; }
    static constexpr bool kMayHoldQ = false;
    static constexpr Copies kCopies = Copies::scaled;
    // Factors may be of any size: probabilities keep theirs. See v_unit.
    static constexpr float kExponent = 0.f, kRowSumUnit = kHeadroomUnit, kOutputUnit = kHeadroomUnit;

    FA_MEMBER static int output_column(int c, int i) { return MmaSync<T>::output_column(c, i); }
    FA_MEMBER static constexpr int permuted_q_byte(int at) { return at; }
    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) { MmaSync<T>::load_q(a, ptr, down, i); }

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

// Products of blocks with offsets, or with factors of halves.
template <class M>
struct ScaledProducts : BlockProducts<M, false> {
    using Base = BlockProducts<M, false>;
    using typename Base::Acc, typename Base::FragmentA, typename Base::FragmentB, typename Base::Held, typename Base::Mma,
        typename Base::Output, typename Base::Score;
    using Factors = float[Mma::kFactors];

    FA_MEMBER static float v_factor(const MmaForwardParams& params, bool) { return 1.f / params.v_unit; }

    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type, const Held& held, const char* k, int row0, int key0,
                                     Score& score) {
        const auto q_ptr = Base::q_ptr(params, row0, rt::thread() % Mma::kLanes);
        const auto k_ptr = Mma::template k_ptr<M::kRowBytes>(k, key0);
        const char* const factors = Mma::template factor_ptr<M::kRowBytes>(k, key0);
        typename Base::template QBlock<decltype(q_ptr)> q(held, q_ptr);
        FA_UNROLL_FOR (int block = 0; block < M::kSteps / 2; block++) {
            q.load(block);
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++)
                add_scores_of_block(q, block, k_ptr + M::kTile * n * M::kRowBytes, factors + M::kTile * n * M::kRowBytes, n, score);
            if (M::shared().tile.features & kKeyOffsets) add_offsets(q, block, factors, score);
        }
    }
    template <class Q>
    FA_MEMBER static void add_scores_of_block(const Q& q, int block, uint32_t k, const char* factors, int n, Score& score) {
        FragmentB right[2];
        Factors factor;
        Mma::template load_k<int, M::kRowBytes>(right, k, block);
        Mma::template load_factors<int, M::kRowBytes>(factor, factors, block);
        if (M::shared().tile.features & kKeyHalves) {
            Factors second;
            Mma::template load_offsets<M::kRowBytes>(second, factors, block);
            FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                FA_UNROLL_FOR (int c = 0; c < 2; c++) {
                    Acc products{};
                    Mma::mma(products, q.tile(block, m, c), right[c]);
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                        score[m][n].x[e] = fmaf(products.x[e], (c ? second : factor)[Mma::factor_of(e)], score[m][n].x[e]);
                }
            return;
        }
        Base::add_products(q, block, right, factor, n, score);
    }
    // Times sums of rows of q over the block.
    template <class Q>
    FA_MEMBER static void add_offsets(const Q& q, int block, const char* factors, Score& score) {
        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) {
            Acc q_sum{};
            FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma(q_sum, q.tile(block, m, c), Mma::template ones<typename Mma::Element>());
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) {
                Factors offset;
                Mma::template load_offsets<M::kRowBytes>(offset, factors + M::kTile * n * M::kRowBytes, block);
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                    score[m][n].x[e] = fmaf(q_sum.x[e], offset[Mma::factor_of(e)], score[m][n].x[e]);
            }
        }
    }
    template <class Type, class Probs>
    FA_MEMBER static void add_outputs(Type, Score& score, Probs compute_probs, const char* v, int key0, int, Output& o) {
        const auto ptr = Mma::template v_ptr<M::kRowBytes, M::keys>(v, key0);
        const char* const factors = Mma::template factor_ptr<M::kRowBytes>(v, key0);
        Base::for_each_block(compute_probs, [&](int n, int block) {
            add_outputs_of_block(score, n, block, ptr + M::kTile * n * M::kRowBytes, factors + M::kTile * n * M::kRowBytes, o);
        });
    }
    FA_MEMBER static void add_outputs_of_block(const Score& score, int n, int block, uint32_t v, const char* factors, Output& o) {
        const uint32_t features = M::shared().tile.features;
        FragmentB right[2];
        Factors factor;
        Mma::template load_v<int, M::kRowBytes>(right, v, block);
        Mma::template load_factors<int, M::kRowBytes>(factor, factors, block);
        if (features & kValueOffsets) {
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::add_both_parts(o[i] + 2 * block, score[i][n], factor, right[0], right[1]);
            const FragmentB ones = Mma::template ones<Bf16>();
            Mma::template load_offsets<M::kRowBytes>(factor, factors, block);
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::add_both_parts(o[i] + 2 * block, score[i][n], factor, ones, ones);
            return;
        }
        if (features & kValueHalves) {
            Factors second;
            Mma::template load_offsets<M::kRowBytes>(second, factors, block);
            FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                FA_UNROLL_FOR (int c = 0; c < 2; c++) {
                    FragmentA left, rest;
                    Mma::round_products(left, rest, score[i][n], c ? second : factor);
                    Mma::mma_v(o[i][2 * block + c], left, rest, right[c]);
                }
            return;
        }
        Base::add_outputs_of_block(score, n, block, right, factor, o);
    }
};

}  // namespace gpu
}  // namespace fa
