// The portable kernels: compiler vector extensions, which become SSE2, NEON, VSX, LSX, … or plain scalars.
#include "kernel.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_generic;

namespace {

constexpr int kLanes = 4;
constexpr int kVectors = 3, kKeyRows[] = {0, 8, 4, 4};
typedef float V __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));

inline V splat(float x) { return V{x, x, x, x}; }
inline V fma_v(V a, V b, V c) { return a * b + c; }
inline V max_v(V a, V b) { return a > b ? a : b; }

// 1.5 · 2^23: a float this large has no fraction, so that adding it rounds, and the integer is left in the low bits. What is below
// kFaintest leaves rubbish in f and in the bits, which scale2 replaces by 0.
constexpr float kRounder = 0x1.8p+23f;

inline V exp2_parts(V x, V& f) {
    const V n = x - 0.5f + kRounder;
    f = x - (n - kRounder);
    return n;
}
inline V scale2(V p, V n) {
    VI bits;
    memcpy(&bits, &n, sizeof bits);
    bits = (bits << 23) + (127 << 23);
    V power;
    memcpy(&power, &bits, sizeof power);
    return n < kRounder + kFaintest ? V{} : p * power;
}

#include "kernels.inc"

}  // namespace

const Kernels kKernels_generic = FA_KERNELS("generic", FA_ISA_GENERIC);

}  // namespace cpu
}  // namespace fa
