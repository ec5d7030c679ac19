// Vector primitives for kernels/, by NEON: kernels/vector_math.h and kernels/decode_kernels.h say what each is.
#pragma once
#include <arm_neon.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = 4;
constexpr int kTileVectors = 4, kGemmRows[] = {0, 16, 12, 8, 6};  // 24 accumulators, 4 operands and a broadcast of 32 registers
typedef float32x4_t V;
typedef int32x4_t VI;

inline V splat(float x) { return vdupq_n_f32(x); }
inline V fma_v(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V max_v(V a, V b) { return vmaxnmq_f32(a, b); }  // a number rather than a NaN

constexpr float kExp2Scale = 1;
inline V exp2_split(V x, V& f) {
    const V n = vrndmq_f32(x);
    f = x - n;
    return n;
}
inline V exp2_scale(V p, V n) {
    const VI bits = (vcvtq_s32_f32(n) + 127) << 23;
    return n < kMinLog2P ? V{} : p * V(bits);
}

inline V widen_halves(const uint16_t* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }

inline bool has_nan(V x) { return vminvq_u32(vceqq_f32(x, x)) == 0; }

inline void keep_in_register(V& a) { __asm__("" : "+w"(a)); }

template <int H>
inline V blend_lanes(V a, V b) {
    if (H == 2) return vcombine_f32(vget_low_f32(a), vget_high_f32(b));
    return vbslq_f32(uint32x4_t{0, ~0u, 0, ~0u}, b, a);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    return H == 2 ? vextq_f32(a, b, 2) : vrev64q_f32(blend_lanes<1>(b, a));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
