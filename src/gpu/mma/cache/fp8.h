// Products of 8-bit queries (e4m3, e5m2) with k and v of 8 bits: an Mma policy of mma/forward.h, that of an f16 query beside such k and v.
// q is widened to f16, exactly, on its way to shared memory, and so P is f16: all products and sums are exact as those of f16 are.
//
// From sm_89 on mma.sync has a product of 8 bits, m16n8k32. On sm_90 and sm_100 the assembler makes conversions of both sides and two
// products of f16 of it, which are here done once for many; sm_89 and sm_120 alone have it as an instruction.
#pragma once
#include "gpu/mma/cache/bytes.h"

namespace fa {
namespace gpu {

struct MmaFp8 : MmaByte<F16> {
    static constexpr const char* kFamily = "fwd_mma_fp8";
    using General = MmaFp8;
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

}  // namespace gpu
}  // namespace fa
