// What kernels/decode_dots.h asks of SVE with products of bf16 and of integers (FEAT_BF16, FEAT_I8MM), vectors of a fixed length.
#pragma once
#include "cpu/isa/sve/formats.h"

namespace fa {
namespace cpu {
namespace {

typedef svuint16_t Halves __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svint8_t SignedBytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));

inline V dot(V sum, Halves a, Halves b) { return svbfdot(sum, svreinterpret_bf16(a), svreinterpret_bf16(b)); }
inline Halves splat_pair(const uint16_t* at) {
    uint32_t pair;
    memcpy(&pair, at, sizeof pair);
    return svreinterpret_u16(svdup_u32(pair));
}
inline void interleave(Halves a, Halves b, Halves* to) {
    to[0] = svzip1(a, b);
    to[1] = svzip2(a, b);
}
inline Halves pair_values(V even, V odd) { return svtrn2(svreinterpret_u16(even), svreinterpret_u16(odd)); }

inline Halves repeat_quads(const uint16_t* at) { return svld1rq(svptrue_b16(), at); }
inline V multiply_quads(V sum, Halves a, Halves b) { return svbfmmla(sum, svreinterpret_bf16(a), svreinterpret_bf16(b)); }

inline void interleave_eights(SignedBytes a, SignedBytes b, SignedBytes* to) {
    to[0] = svreinterpret_s8(svzip1(svreinterpret_s64(a), svreinterpret_s64(b)));
    to[1] = svreinterpret_s8(svzip2(svreinterpret_s64(a), svreinterpret_s64(b)));
}
inline VI multiply_eights(VI sum, SignedBytes a, SignedBytes b) { return svmmla(sum, a, b); }

}  // namespace
}  // namespace cpu
}  // namespace fa
