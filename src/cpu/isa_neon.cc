// NEON, a part of aarch64.
#include <arm_neon.h>
#include "kernel.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_neon;

namespace {

constexpr int kLanes = 4;
constexpr int kVectors = 4, kKeyRows[] = {0, 16, 12, 8, 6};  // 24 sums, 4 operands and a broadcast of 32 registers
typedef float32x4_t V;
typedef int32x4_t VI;

inline V splat(float x) { return vdupq_n_f32(x); }
inline V fma_v(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V max_v(V a, V b) { return vmaxnmq_f32(a, b); }  // a number rather than a NaN

inline V exp2_parts(V x, V& f) {
    const V n = vrndmq_f32(x);
    f = x - n;
    return n;
}
inline V scale2(V p, V n) {
    const VI bits = (vcvtq_s32_f32(n) + 127) << 23;
    return n < kFaintest ? V{} : p * V(bits);
}

inline V widen_halves(const uint16_t* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }

#include "kernels.inc"

}  // namespace

const Kernels kKernels_neon = FA_KERNELS("neon", FA_ISA_NEON);

}  // namespace cpu
}  // namespace fa
