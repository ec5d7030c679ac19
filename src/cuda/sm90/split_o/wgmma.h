// The wgmma of the latent kernel. A product's descriptors are put together within its asm statement, from one 32-bit start and
// immediate offsets: left to the compiler, all hundred of them are computed before the mainloop, and spilled.
#pragma once
#include "cuda/sm90/common/ptx.h"

namespace fa {
namespace gpu {

// The upper word of smem_desc. `start`: of shared memory, in units of 16 bytes; a, b: offsets from it, in the same units, and with b
// MN-major the bytes between panels, in the same units, from bit 16 on.
constexpr int kSmemDescHigh = 1 << 30 | 1024 >> 4;

template <bool f16>
struct LatentWgmma;
#define FA_LATENT_WGMMA(type)                                                                                                             \
    /* 64 × 64, d = x · yᵀ, or d += where scale_d, both K-major in shared memory */                                                       \
    template <int a, int b>                                                                                                               \
    FA_MEMBER static void qk(float (&d)[32], uint32_t start, int scale_d) {                                                               \
        asm volatile(                                                                                                                     \
            "{\n.reg .pred p;\n.reg .b32 x, y;\n.reg .b64 a, b;\nsetp.ne.b32 p, %33, 0;\nadd.u32 x, %32, %34;\n"                          \
            "add.u32 y, %32, %35;\nmov.b64 a, {x, %36};\nmov.b64 b, {y, %36};\n"                                                          \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" FA_N24 "}, a, b, p, 1, 1, 0, 0;\n}"                          \
            : FA_D32                                                                                                                      \
            : "r"(start), "r"(scale_d), "n"(a), "n"(b), "n"(kSmemDescHigh));                                                              \
    }                                                                                                                                     \
    /* 64 × 256, d += x · y, x K-major and y MN-major in shared memory, each from a start of its own */                                   \
    template <int a, int b>                                                                                                               \
    FA_MEMBER static void pv(float (&d)[128], uint32_t x_start, uint32_t y_start) {                                                       \
        asm volatile(                                                                                                                     \
            "{\n.reg .b32 x, y;\n.reg .b64 a, b;\nadd.u32 x, %128, %130;\nadd.u32 y, %129, %131;\nmov.b64 a, {x, %132};\n"                \
            "mov.b64 b, {y, %132};\nwgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" FA_N120 "}, a, b, 1, 1, 1, 0, 1;\n}" \
            : FA_D128                                                                                                                     \
            : "r"(x_start), "r"(y_start), "n"(a), "n"(b), "n"(kSmemDescHigh));                                                            \
    }                                                                                                                                     \
    /* the same with x in registers */                                                                                                    \
    template <int b>                                                                                                                      \
    FA_MEMBER static void pv(float (&d)[128], const uint32_t* x, uint32_t start) {                                                        \
        asm volatile(                                                                                                                     \
            "{\n.reg .b32 y;\n.reg .b64 b;\nadd.u32 y, %132, %133;\nmov.b64 b, {y, %134};\n"                                              \
            "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" FA_N120 "}, {%128, %129, %130, %131}, b, 1, 1, 1, 1;\n}"    \
            : FA_D128                                                                                                                     \
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(start), "n"(b), "n"(kSmemDescHigh));                                        \
    }
template <>
struct LatentWgmma<true> {
    FA_LATENT_WGMMA("f16")
};
template <>
struct LatentWgmma<false> {
    FA_LATENT_WGMMA("bf16")
};
#undef FA_LATENT_WGMMA

}  // namespace gpu
}  // namespace fa
