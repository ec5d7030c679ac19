// Vector primitives for kernels/, by AVX-512: kernels/vector_math.h and kernels/decode_kernels.h say what each is.
#pragma once
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kTileVectors = 4, kGemmRows[] = {0, 16, 12, 8, 6};  // 24 accumulators, 4 operands and a broadcast of 32 registers
typedef float V __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));

inline V splat(float x) { return _mm512_set1_ps(x); }
inline V fma_v(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V max_v(V a, V b) { return _mm512_max_ps(a, b); }  // the instruction gives b when either is NaN

constexpr float kExp2Scale = 1;
inline V exp2_split(V x, V& f) {
    f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x − floor(x); 0 for −inf
    return x;
}
// The instruction floors its exponent by itself.
inline V exp2_scale(V p, V x) { return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(kMinLog2P), _CMP_NLT_UQ), p, x); }

inline V widen_halves(const uint16_t* x) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }

// Division proper takes 16 cycles. b in [1, 2^60], where nothing below leaves the normal range.
inline V divide(V a, V b) {
    const V r = _mm512_rcp14_ps(b);
    return a * r * fma_v(-b, r, splat(2.f));
}

// Index for permutex2var_epi16: values 0 … 15 of two vectors, interleaved.
inline __m512i interleave_index() {
    return _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a, 0x00290009, 0x00280008, 0x00270007,
                            0x00260006, 0x00250005, 0x00240004, 0x00230003, 0x00220002, 0x00210001, 0x00200000);
}

// The lowest `count` bits, of up to 64.
inline uint64_t first_bits(int64_t count) { return count >= 64 ? ~uint64_t(0) : count <= 0 ? 0 : (uint64_t(1) << count) - 1; }

inline bool has_nan(V x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

inline void keep_in_register(V& a) { __asm__("" : "+v"(a)); }

template <int H>
inline V blend_lanes(V a, V b) {
    constexpr uint16_t second = H == 8 ? 0xff00 : H == 4 ? 0xf0f0 : H == 2 ? 0xcccc : 0xaaaa;
    return _mm512_mask_blend_ps(second, a, b);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    if (H == 8) return _mm512_shuffle_f32x4(a, b, 0x4e);
    if (H == 4) return _mm512_permutex2var_ps(a, _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27), b);
    if (H == 2) return _mm512_shuffle_ps(a, b, 0x4e);
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30), b);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
