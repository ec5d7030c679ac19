// Vector primitives for kernels/, by SVE with vectors of a fixed length: kernels/vector_math.h and kernels/decode_kernels.h say
// what each is.
#pragma once
#include <arm_sve.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = __ARM_FEATURE_SVE_BITS / 32;
constexpr int kTileVectors = 4, kGemmRows[] = {0, 16, 12, 8, 6};  // 24 accumulators, 4 operands and a broadcast of 32 registers
typedef svfloat32_t V __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svint32_t VI __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));

inline V splat(float x) { return svdup_f32(x); }
inline V fma_v(V a, V b, V c) { return svmla_x(svptrue_b32(), c, a, b); }
inline V max_v(V a, V b) { return svmaxnm_x(svptrue_b32(), a, b); }  // a number rather than a NaN

constexpr float kExp2Scale = 1;
inline V exp2_split(V x, V& f) {
    const V n = svrintm_x(svptrue_b32(), x);
    f = x - n;
    return n;
}
inline V exp2_scale(V p, V n) {
    const V scaled = svscale_x(svptrue_b32(), p, svcvt_s32_x(svptrue_b32(), n));
    return n < kMinLog2P ? V{} : scaled;
}

inline V widen_halves(const uint16_t* x) { return svcvt_f32_x(svptrue_b32(), svreinterpret_f16(svld1uh_u32(svptrue_b32(), x))); }

inline bool has_nan(V x) { return svptest_any(svptrue_b32(), svcmpuo(svptrue_b32(), x, x)); }

inline void keep_in_register(V& a) { __asm__("" : "+w"(a)); }

template <int H>
inline V blend_lanes(V a, V b) {
    const svbool_t second = svcmpne(svptrue_b32(), svand_x(svptrue_b32(), svindex_u32(0, 1), H), 0);
    return svsel(second, b, a);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    return svtbl(blend_lanes<H>(b, a), sveor_x(svptrue_b32(), svindex_u32(0, 1), H));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
