// The portable kernel table: compiler vector extensions, which become SSE2, NEON, VSX, LSX, … or plain scalars. The vector
// primitives and storage formats are here, the kernels in kernels/.
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_generic;

namespace {

constexpr int kLanes = 4;
constexpr int kTileVectors = 3, kGemmRows[] = {0, 8, 4, 4};
typedef float V __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));

inline V splat(float x) { return V{x, x, x, x}; }
inline V fma_v(V a, V b, V c) { return a * b + c; }
inline V max_v(V a, V b) { return a > b ? a : b; }

// 1.5 · 2^23: a float this large has no fraction, so that adding it rounds, and the integer is left in the low bits. What is below
// kMinLog2P leaves arbitrary bits in f and in n, which exp2_scale replaces by 0.
constexpr float kRoundToInt = 0x1.8p+23f, kExp2Scale = 1;

inline V exp2_split(V x, V& f) {
    const V n = x - 0.5f + kRoundToInt;
    f = x - (n - kRoundToInt);
    return n;
}
inline V exp2_scale(V p, V n) {
    VI bits;
    memcpy(&bits, &n, sizeof bits);
    bits = (bits << 23) + (127 << 23);
    V power;
    memcpy(&power, &bits, sizeof power);
    return n < kRoundToInt + kMinLog2P ? V{} : p * power;
}

#include "cpu/kernels/storage_formats.inc"

constexpr bool kMaskedReads = false;

// Four values of a small type, each in a lane of its own.
template <class T>
inline VI read_four(const char* at) {
    typedef T Small __attribute__((vector_size(4 * sizeof(T))));
    Small x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, VI);
}

// As widen_small() of the specification, for the bits of a magnitude shifted to where a float has them.
inline VI widen_small_v(VI magnitude, int32_t bias) {
    const V low = (V)(magnitude + (bias + 0x00800000)) - (V)(VI{} + (bias + 0x00800000));
    return magnitude < 0x00800000 ? (VI)low : magnitude + bias;
}
inline V widen_half(VI x) {
    const VI magnitude = (x & 0x7fff) << 13;
    return (V)((magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : widen_small_v(magnitude, 0x38000000)) | (x & 0x8000) << 16);
}
inline V widen_e4m3(VI x) {
    const VI magnitude = (x & 0x7f) << 20;
    return (V)((magnitude == 0x07f00000 ? VI{} + 0x7fc00000 : widen_small_v(magnitude, 0x3c000000)) | (x & 0x80) << 24);
}

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) {
        VecPair x;
        memcpy(&x, at, sizeof x);
        return x;
    }
};
struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {widen_half(read_four<uint16_t>(at)), widen_half(read_four<uint16_t>(at + 8))}; }
};
struct Bf16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {(V)(read_four<uint16_t>(at) << 16), (V)(read_four<uint16_t>(at + 8) << 16)}; }
};
struct E4m3 : StorageFormat<1> {
    static VecPair read(const char* at) { return {widen_e4m3(read_four<uint8_t>(at)), widen_e4m3(read_four<uint8_t>(at + 4))}; }
};
struct E5m2 : StorageFormat<1> {
    static VecPair read(const char* at) {
        return {widen_half(read_four<uint8_t>(at) << 8), widen_half(read_four<uint8_t>(at + 4) << 8)};
    }
};
struct I8 : StorageFormat<1> {
    static V half(const char* at) { return __builtin_convertvector(read_four<int8_t>(at), V); }
    static VecPair read(const char* at) { return {half(at), half(at + 4)}; }
};

inline void keep_in_register(V&) {}

template <int H>
inline V blend_lanes(V a, V b) {
    if (H == 2) return __builtin_shufflevector(a, b, 0, 1, 6, 7);
    return __builtin_shufflevector(a, b, 0, 5, 2, 7);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    if (H == 2) return __builtin_shufflevector(a, b, 2, 3, 4, 5);
    return __builtin_shufflevector(a, b, 1, 4, 3, 6);
}

#include "cpu/kernels/tile_kernels.inc"

}  // namespace

const Kernels kKernels_generic = FA_KERNELS("generic", FA_ISA_GENERIC);

}  // namespace cpu
}  // namespace fa
