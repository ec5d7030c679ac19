// The kernel table of NEON, which every aarch64 CPU has: 32 registers of 4 floats. The vector primitives and storage formats are
// here, the kernels in kernels/.
#include <arm_neon.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_neon;

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

#include "cpu/kernels/storage_formats.inc"

constexpr bool kMaskedReads = false;

inline V widen_halves(int16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_s16(x)); }
inline int16x4_t read_four(const char* at) {
    int16x4_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) {
        VecPair x;
        memcpy(&x, at, sizeof x);
        return x;
    }
};
struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {widen_halves(read_four(at)), widen_halves(read_four(at + 8))}; }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair read(const char* at) {
        VI x;
        memcpy(&x, at, sizeof x);
        return {V(x << 16), V(x & int32_t(0xffff0000u))};
    }
};
// Shifted by one bit, sign, exponent and mantissa of e4m3 are those of an f16 2^-8 as large, subnormals included.
struct E4m3 : StorageFormat<1, true, 256, true> {
    static V half(int16x4_t high_bytes) { return widen_halves((high_bytes >> 1) & int16_t(0xbf80)); }
    static VecPair read(const char* at) { return {half(read_four(at) << 8), half(read_four(at))}; }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair read(const char* at) {
        return {widen_halves(read_four(at) << 8), widen_halves(read_four(at) & int16_t(0xff00))};
    }
};
struct I8 : StorageFormat<1> {
    static V half(int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); }
    static VecPair read(const char* at) {
        const int16x8_t x = vmovl_s8(vreinterpret_s8_s16(read_four(at)));
        return {half(vget_low_s16(x)), half(vget_high_s16(x))};
    }
};

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

#include "cpu/kernels/tile_kernels.inc"

}  // namespace

const Kernels kKernels_neon = FA_KERNELS("neon", FA_ISA_NEON);

}  // namespace cpu
}  // namespace fa
