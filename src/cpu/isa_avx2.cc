// AVX2 with FMA (Haswell, Zen and later).
#include <immintrin.h>
#include "kernel.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx2;

namespace {

constexpr int kLanes = 8;
constexpr int kVectors = 3, kKeyRows[] = {0, 8, 6, 4};  // 12 sums, 3 operands and a broadcast fill the 16 registers
typedef float V __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));

inline V splat(float x) { return _mm256_set1_ps(x); }
inline V fma_v(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V max_v(V a, V b) { return _mm256_max_ps(a, b); }  // the instruction gives b when either is NaN

// 1.5 · 2^23: a float this large has no fraction, so that adding it rounds, and the integer is left in the low bits. What is below
// kFaintest leaves rubbish in f and in the bits, which scale2 replaces by 0.
constexpr float kRounder = 0x1.8p+23f;

inline V exp2_parts(V x, V& f) {
    const V n = x - 0.5f + kRounder;
    f = x - (n - kRounder);
    return n;
}
inline V scale2(V p, V n) {
    const VI bits = ((VI)n << 23) + (127 << 23);
    return n < kRounder + kFaintest ? V{} : p * (V)bits;
}

inline V widen_halves(const uint16_t* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }

#include "kernels.inc"

}  // namespace

const Kernels kKernels_avx2 = FA_KERNELS("avx2", FA_ISA_AVX2);

}  // namespace cpu
}  // namespace fa
