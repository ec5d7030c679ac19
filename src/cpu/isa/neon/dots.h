// What kernels/decode_dots.h asks of NEON with products of bf16 and of integers (FEAT_BF16, FEAT_I8MM).
#pragma once
#include "cpu/isa/neon/formats.h"

namespace fa {
namespace cpu {
namespace {

typedef uint16x8_t Halves;
typedef int8x16_t SignedBytes;

inline V dot(V sum, Halves a, Halves b) { return vbfdotq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b)); }
inline Halves splat_pair(const uint16_t* at) {
    uint32_t pair;
    memcpy(&pair, at, sizeof pair);
    return vreinterpretq_u16_u32(vdupq_n_u32(pair));
}
inline void interleave(Halves a, Halves b, Halves* to) {
    to[0] = vzip1q_u16(a, b);
    to[1] = vzip2q_u16(a, b);
}
inline Halves pair_values(V even, V odd) { return vtrn2q_u16(vreinterpretq_u16_f32(even), vreinterpretq_u16_f32(odd)); }

inline Halves repeat_quads(const uint16_t* at) { return vld1q_u16(at); }
inline V multiply_quads(V sum, Halves a, Halves b) { return vbfmmlaq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b)); }

inline void interleave_eights(SignedBytes a, SignedBytes b, SignedBytes* to) {
    to[0] = vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
    to[1] = vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline VI multiply_eights(VI sum, SignedBytes a, SignedBytes b) { return vmmlaq_s32(sum, a, b); }

}  // namespace
}  // namespace cpu
}  // namespace fa
