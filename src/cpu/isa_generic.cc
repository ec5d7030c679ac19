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

inline V exp2_parts(V x, V& f) {
    const V inside = x < -127.f ? splat(-127.f) : x;  // NaN passes through the comparison
    const V whole = __builtin_convertvector(__builtin_convertvector(inside, VI), V);
    const V n = whole > inside ? whole - 1.f : whole;
    f = inside - n;
    return n;
}
inline V scale2(V p, V n) {
    const VI bits = (__builtin_convertvector(n, VI) + 127) << 23;
    V power;
    memcpy(&power, &bits, sizeof power);
    return n < kFaintest ? V{} : p * power;
}

#include "kernels.inc"

}  // namespace

const Kernels kKernels_generic = FA_KERNELS("generic", FA_ISA_GENERIC);

}  // namespace cpu
}  // namespace fa
