// matrix_hip.h's names on the emulator: AMD's matrix instructions, for waves of 64 (MFMA) and of 32 (WMMA). Operands are gathered and
// results scattered by the lane maps of matrix_maps.h. The order of a sum within an instruction is not AMD's.
#pragma once
#include "emu/banks.h"
#include "emu/matrix_maps.h"
#include "emu/mma_emu.h"

namespace fa {
namespace rt {

constexpr bool kHasMfma = true, kHasWmmaGfx11 = true, kHasWmmaGfx12 = true;
template <int generation>
struct Cdna {
    static constexpr bool kMultipliesF16 = true;
    static constexpr bool kDeepProducts = generation == 4, kPacksBf16 = generation == 4, kTransposedLoads = generation == 4;
};

template <int n>
using AccVec = float[n];

struct MatrixArgs {
    float* d;
    const uint32_t *a, *b;
};

// CDNA 2 takes subnormal numbers of 16 bits for 0, and results beside them.
static inline float as_multiplied(float x) {
    static const bool flushes = matrix_unit() == gpu::MatrixUnit::mfma_gfx90a;
    return flushes && fabsf(x) < 0x1p-126f ? 0.f : x;
}
// Operands' elements, by the type that an instruction has.
enum class Operand { f16, bf16, f32 };
template <bool f16>
constexpr Operand kOperand16 = f16 ? Operand::f16 : Operand::bf16;
template <Operand type>
static inline float operand_element(const uint32_t* r, int i) {
    if (type == Operand::f32) return float_of(r[i]);
    const uint16_t bits = uint16_t(r[i / 2] >> i % 2 * 16);
    return type == Operand::f16 ? f16_to_f32(bits) : as_multiplied(bf16_to_f32(bits));
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
            constexpr bool of_f32 = type == Operand::f32;
            float sum = of_f32 ? x.d[i] : as_multiplied(x.d[i]);
            for (int k = 0; k < Map::kDepth; k++)
                sum = of_f32 ? fmaf(a[of_d.row][k], b[k][of_d.column], sum) : sum + a[of_d.row][k] * b[k][of_d.column];
            x.d[i] = of_f32 ? sum : as_multiplied(sum);
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
FA_DEVICE float exchange(float x, int mask) {
    return lockstep::shuffle_xor(x, mask, lanes);
}
template <int lanes>
FA_DEVICE float sum_across(float x, int mask) {
    return x + exchange<lanes>(x, mask);
}
template <int lanes>
FA_DEVICE float max_across(float x, int mask) {
    return fmaxf(x, exchange<lanes>(x, mask));
}
FA_DEVICE void order_products() {}
template <int n>
FA_DEVICE void multiply(float (&x)[n], float factor) {
    for (float& each : x) each *= factor;
}
template <int n>
FA_DEVICE void add_pairs(float (&sum)[2], const float (&x)[n], bool first) {
    float own[n];
    for (int i = 0; i < n; i++) own[i] = x[i];
    for (int half = n / 2; half > 1; half /= 2)
        for (int i = 0; i < half; i++) own[i] += own[i + half];
    for (int i = 0; i < 2; i++) sum[i] = first ? own[i] : sum[i] + own[i];
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
struct TransposedArgs {
    const char* from;
    uint32_t* to;
};
FA_DEVICE void load_transposed(uint32_t address, uint32_t to[2]) {
    TransposedArgs args{shared_memory() + address, to};
    lockstep::check_aligned(args.from, 8);
    if (lockstep::Banks* const banks = lockstep::Banks::counting()) banks->access(args.from, 8, false);
    meet_wave(args, [](void** lanes, int n) {
        for (int lane = 0; lane < n; lane++)
            for (int i = 0; i < 4; i++) {
                const MatrixElement at = TransposedLoad::source(lane, i);
                uint16_t bits;
                memcpy(&bits, static_cast<TransposedArgs*>(lanes[at.row])->from + 2 * at.column, 2);
                uint32_t& word = static_cast<TransposedArgs*>(lanes[lane])->to[i / 2];
                word = i % 2 ? word | uint32_t(bits) << 16 : bits;
            }
    });
}
FA_DEVICE void load_to_shared(uint32_t to, const char* base, uint32_t offset) {
    cp_async16(to + uint32_t(16 * (thread() % 64)), base + offset, true);
}
FA_DEVICE void finish_loads_to_shared() {
    cp_async_commit();
    cp_async_wait<0>();
}
template <int n>
FA_DEVICE void load_global(const char* p, uint32_t to[n]) {
    load_words<n>(reinterpret_cast<const uint8_t*>(p), to);
}
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
