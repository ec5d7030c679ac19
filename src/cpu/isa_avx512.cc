// AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
#include <immintrin.h>
#include "kernel.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512;

namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 4, kKeyRows[] = {0, 16, 12, 8, 6};  // 24 sums, 4 operands and a broadcast of 32 registers
typedef float V __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));

inline V splat(float x) { return _mm512_set1_ps(x); }
inline V fma_v(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V max_v(V a, V b) { return _mm512_max_ps(a, b); }  // the instruction gives b when either is NaN

inline V exp2_parts(V x, V& f) {
    f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x − floor(x); 0 for −inf
    return x;
}
// The instruction floors its exponent by itself.
inline V scale2(V p, V x) { return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(kFaintest), _CMP_NLT_UQ), p, x); }

inline V widen_halves(const uint16_t* x) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }

// Division proper takes 16 cycles. b in [1, 2^60], where nothing below leaves the normal range.
inline V quotient(V a, V b) {
    const V r = _mm512_rcp14_ps(b);
    return a * r * fma_v(-b, r, splat(2.f));
}

#include "kernels.inc"

}  // namespace

const Kernels kKernels_avx512 = FA_KERNELS("avx512", FA_ISA_AVX512);

}  // namespace cpu
}  // namespace fa
