// Products of 8-bit queries (e4m3, e5m2) with k and v of 8 bits: an Mma policy of mma/forward.h, that of an f16 query beside such k and v.
// q is widened to f16, exactly, on its way to shared memory, and so P is f16: all products and sums are exact as those of f16 are.
//
// From sm_89 on mma.sync has a product of 8 bits, m16n8k32. On sm_90 and sm_100 the assembler makes conversions of both sides and two
// products of f16 of it, which are here done once for many; sm_89 and sm_120 alone have it as an instruction.
#pragma once
#include "gpu/mma/cache/bytes.h"

namespace fa {
namespace gpu {

template <class M>
struct Fp8Products;

struct MmaFp8 : MmaByte<F16> {
    template <class M>
    using Products = Fp8Products<M>;
    static constexpr const char* kFamily = "fwd_mma_fp8";
    using General = MmaFp8;
    static constexpr auto& kRows = kMmaFp8Rows;
    FA_MEMBER static constexpr bool takes(const MmaRow&) { return true; }
    FA_MEMBER static constexpr Loops loops(int) { return Loops::each; }
    static constexpr bool kWidensQ = true;

    // Four bytes of a row of q, whose number there is `word`: to the places of their 16 dims' order (permuted_q_byte), in a row of f16.
    template <int row_bytes>
    FA_MEMBER static void store_q(char* tile, int row, int word, uint32_t bytes, int32_t type) {
        uint32_t pair[2];
        if (type == FA_E4M3) widen<false>(E4m3{}, bytes, pair[0], pair[1]);
        else widen<false>(E5m2{}, bytes, pair[0], pair[1]);
        FA_UNROLL_FOR (int i = 0; i < 2; i++)
            rt::st_shared(rt::smem_addr(tile) + uint32_t(swizzle_offset<row_bytes>(row, word / 4 * 2 + i) + word % 4 * 4), pair[i]);
    }

    // Mainloops for one type alone: with others, which caches under such queries seldom have, the general kernel's tests the type.
    template <class Pass>
    FA_MEMBER static float by_type(int32_t, Pass pass) {
        return pass(E4m3{});
    }
};

template <class M>
struct Fp8Products : WidenedProducts<M> {
    using Base = WidenedProducts<M>;
    using typename Base::Held, typename Base::Mma, typename Base::Score;

    // Four at a time, each row's as its address allows.
    FA_MEMBER static void load_q(const MmaForwardParams& params) {
        constexpr int words = M::dims / 4;
        const int dims = int(params.dim_qk), valid = M::shared().tile.valid;
        FA_UNROLL_BY(4)
        for (int i = rt::thread(); i < M::rows * words; i += M::threads) {
            const int r = i / words, first = i % words * 4, count = r < valid ? dims - first : 0;
            const uint8_t* const from = static_cast<const uint8_t*>(params.q) + M::q_index(params, r < valid ? r : 0) + first;
            uint32_t bytes = 0;
            if (count >= 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) rt::load_words<1>(from, &bytes);
            else
                for (int e = 0; e < 4 && e < count; e++) bytes |= uint32_t(from[e]) << 8 * e;
            Mma::template store_q<M::kQRowBytes>(M::q_tile(), r, first / 4, bytes, params.q_dtype);
        }
    }
    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type type, const Held& held, const char* k, int row0, int key0,
                                     Score& score) {
        // Registers are too few to keep where q is read from tile to tile.
        constexpr bool registers_lack = !M::kHoldQ && kind == Kind::plain;
        const int lane = (registers_lack ? rt::opaque(rt::thread()) : rt::thread()) % Mma::kLanes;
        Base::add_scores_of(params, type, held, k, row0, lane, key0, score);
    }
};

}  // namespace gpu
}  // namespace fa
