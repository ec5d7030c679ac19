// matrix_hip.h's names on the emulator: AMD's matrix instructions, for waves of 64 (MFMA) and of 32 (WMMA). Operands are gathered and
// results scattered by the lane maps of matrix_maps.h. The order of a sum within an instruction is not AMD's.
#pragma once
#include "emu/banks.h"
#include "emu/matrix_maps.h"
#include "emu/mma_emu.h"

namespace fa {
namespace rt {

constexpr bool kHasMfma = true, kHasMfmaF32 = true, kHasDeepMfma = false, kPacksBf16 = false, kHasWmmaGfx11 = true, kHasWmmaGfx12 = true;

template <int n>
using AccVec = float[n];

struct MatrixArgs {
    float* d;
    const uint32_t *a, *b;
};

// Operands' elements, by the type that an instruction has.
enum class Operand { f16, bf16, f32 };
template <bool f16>
constexpr Operand kOperand16 = f16 ? Operand::f16 : Operand::bf16;
template <Operand type>
static inline float operand_element(const uint32_t* r, int i) {
    if (type == Operand::f32) return float_of(r[i]);
    const uint16_t bits = uint16_t(r[i / 2] >> i % 2 * 16);
    return type == Operand::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
template <class Map, Operand type>
static inline void multiply_wave(void** lanes, int n) {
    if (n != Map::kLanes) lockstep::die("a matrix instruction in a wave of another size");
    if (lockstep::Banks* const banks = lockstep::Banks::counting()) banks->meet();
    float a[Map::kRows][Map::kDepth], b[Map::kDepth][Map::kRows];
    for (int lane = 0; lane < n; lane++) {
        const MatrixArgs& x = *static_cast<const MatrixArgs*>(lanes[lane]);
        for (int i = 0; i < Map::kOperands; i++) {
            const MatrixElement of_a = Map::a(lane, i), of_b = Map::b(lane, i);
            a[of_a.row][of_a.column] = operand_element<type>(x.a, i);
            b[of_b.row][of_b.column] = operand_element<type>(x.b, i);
        }
    }
    for (int lane = 0; lane < n; lane++) {
        const MatrixArgs& x = *static_cast<const MatrixArgs*>(lanes[lane]);
        for (int i = 0; i < Map::kResults; i++) {
            const MatrixElement of_d = Map::d(lane, i);
            float sum = x.d[i];
            for (int k = 0; k < Map::kDepth; k++)
                sum = type == Operand::f32 ? fmaf(a[of_d.row][k], b[k][of_d.column], sum) : sum + a[of_d.row][k] * b[k][of_d.column];
            x.d[i] = sum;
        }
    }
}
template <class Map, Operand type>
static inline void multiply(float* d, const uint32_t* a, const uint32_t* b) {
    MatrixArgs args{d, a, b};
    meet_wave(args, multiply_wave<Map, type>);
}
FA_DEVICE void mfma_f32_32x32x2(AccVec<16>& d, uint32_t a, uint32_t b) { multiply<MfmaMap<32, 2>, Operand::f32>(d, &a, &b); }
FA_DEVICE void mfma_f32_16x16x4(AccVec<4>& d, uint32_t a, uint32_t b) { multiply<MfmaMap<16, 4>, Operand::f32>(d, &a, &b); }
template <bool f16>
FA_DEVICE void mfma_f32_32x32x8(AccVec<16>& d, const uint32_t a[2], const uint32_t b[2]) {
    multiply<MfmaMap<32, 8>, kOperand16<f16>>(d, a, b);
}
template <bool f16>
FA_DEVICE void mfma_f32_32x32x16(AccVec<16>& d, const uint32_t a[4], const uint32_t b[4]) {
    multiply<MfmaMap<32, 16>, kOperand16<f16>>(d, a, b);
}
template <bool f16>
FA_DEVICE void mfma_f32_16x16x16(AccVec<4>& d, const uint32_t a[2], const uint32_t b[2]) {
    multiply<MfmaMap<16, 16>, kOperand16<f16>>(d, a, b);
}
template <bool f16>
FA_DEVICE void wmma_f32_16x16x16_gfx11(AccVec<8>& d, const uint32_t a[8], const uint32_t b[8]) {
    multiply<WmmaGfx11Map, kOperand16<f16>>(d, a, b);
}
template <bool f16>
FA_DEVICE void wmma_f32_16x16x16_gfx12(AccVec<8>& d, const uint32_t a[4], const uint32_t b[4]) {
    multiply<WmmaGfx12Map, kOperand16<f16>>(d, a, b);
}

// What lane ^ mask has, in waves of `lanes`.
template <int lanes>
FA_DEVICE float exchange(float x, int mask) { return lockstep::shuffle_xor(x, mask, lanes); }
FA_DEVICE void order_products() {}
template <int n>
FA_DEVICE void multiply(float (&x)[n], float factor) {
    for (float& each : x) each *= factor;
}
template <int n>
FA_DEVICE float sum_of(const float (&x)[n]) {
    float sum[n];
    for (int i = 0; i < n; i++) sum[i] = x[i];
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}
template <int n>
FA_DEVICE void multiply_add(float (&x)[n], float a, float b) {
    for (float& each : x) each = fmaf(each, a, b);
}
FA_DEVICE const char* uniform_pointer(const char* p) { return p; }
FA_DEVICE int64_t warp_uniform64(int64_t x) { return x; }
template <int n>
FA_DEVICE void finish_products(float (&)[n]) {}
FA_DEVICE uint32_t cvt_pk_f16(float low, float high) { return pack_f16(low, high); }
FA_DEVICE uint32_t cvt_pk_bf16(float low, float high) { return pack_bf16(low, high); }
FA_DEVICE float cvt_f32_f16(uint16_t bits) { return f16_to_f32(bits); }
// n words of a tile in shared memory.
template <int n>
FA_DEVICE void load_shared(uint32_t address, uint32_t to[n]) {
    const char* const p = shared_memory() + address;
    if (lockstep::Banks* const banks = lockstep::Banks::counting()) banks->access(p, 4 * n, false);
    load_words<n>(reinterpret_cast<const uint8_t*>(p), to);
}
template <int n>
FA_DEVICE void load_global(const char* p, uint32_t to[n]) { load_words<n>(reinterpret_cast<const uint8_t*>(p), to); }
template <int n>
FA_DEVICE void store_words(char* to, const uint32_t from[n]) {
    lockstep::check_aligned(to, 4 * n);
    memcpy(to, from, 4 * n);
}
template <int n>
FA_DEVICE void store_shared(char* to, const uint32_t from[n]) {
    if (lockstep::Banks* const banks = lockstep::Banks::counting()) banks->access(to, 4 * n, true);
    store_words<n>(to, from);
}

}  // namespace rt
}  // namespace fa
