// The wgmma of the backward kernel for heads of 136 to 256 dims. A descriptor is put together within the asm statement from its lower
// word, the upper one being the same for all: the compiler would add to all 64 bits, in four instructions instead of one.
#pragma once
#include "cuda/sm90/common/ptx.h"

namespace fa {
namespace gpu {

FA_DEVICE uint32_t smem_desc_low(uint32_t address, uint32_t leading_bytes) { return uint32_t(rt::smem_desc(address, leading_bytes)); }
constexpr uint32_t kSmemDescUpper = 1u << 30 | 1024 >> 4;

// As rt::Wgmma, of lower words: 64 × 64 from shared memory, 64 × 256 with x in registers.
template <bool f16>
struct WideWgmma;
#define FA_WIDE_SS(name, type, signs, major)                                                                               \
    FA_MEMBER static void name(float (&d)[32], uint32_t x, uint32_t y, int scale_d) {                                      \
        asm volatile(                                                                                                      \
            "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"  \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" FA_N24 "}, a, b, p, " signs ", " major ";\n}" \
            : FA_D32                                                                                                       \
            : "r"(x), "r"(y), "r"(scale_d), "n"(kSmemDescUpper));                                                          \
    }
#define FA_WIDE_WGMMA(type)                                                                                                               \
    FA_WIDE_SS(mma, type, "1, 1", "0, 0")                                                                                                 \
    FA_WIDE_SS(mma_negated, type, "-1, 1", "0, 0")                                                                                        \
    FA_WIDE_SS(mma_ab_mn_major, type, "1, 1", "1, 1")                                                                                     \
    FA_MEMBER static void mma(float (&d)[128], const uint32_t* x, uint32_t y) {                                                           \
        asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%132, %133};\nwgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" FA_N120 \
                     "}, {%128, %129, %130, %131}, b, 1, 1, 1, 1;\n}"                                                                     \
                     : FA_D128                                                                                                            \
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y), "n"(kSmemDescUpper));                                          \
    }
template <>
struct WideWgmma<true> {
    FA_WIDE_WGMMA("f16")
};
template <>
struct WideWgmma<false> {
    FA_WIDE_WGMMA("bf16")
};
#undef FA_WIDE_SS
#undef FA_WIDE_WGMMA

}  // namespace gpu
}  // namespace fa
