// AMX: bf16 products of 16 × 16 tiles (Sapphire Rapids and later), beside AVX-512 with its bf16 conversions.
//
// Products and exponents take about the same time at 64 dims, so they run at once: while step i's weights are computed, the products
// o += p v of step i − 1 and q kᵀ of step i + 1 are issued, with a row of exponents after each (the reorder buffer is too short to overlap
// longer runs of either). In each phase a tile of k or v that is loaded meets both row tiles of the pair, and one of q or p meets two of
// the other side: one load to a product, which is what loads have time for.
#include <immintrin.h>
#include "kernel.h"
#include "matrix.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_amx;

namespace {

#include "avx512.inc"
#include "kernels.inc"

// gcc 12's intrinsics for these have no memory clobber, and its ldtilecfg reads 8 of the 64 bytes.
#define FA_TILE_LOAD(t, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(stride)) : "memory")
#define FA_TILE_STORE(t, p, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(int64_t(stride)) : "memory")
#define FA_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define FA_TILE_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

constexpr int kTile = kTileBytes / 2;           // bf16 values
constexpr int kRowBytes = kStepKeys * 4;        // of scores
constexpr float kOldest = -1e30f;               // a reference below every score, of rows that have seen none

void configure_tiles() {
    struct alignas(64) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {};
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
}

// Scores and weights of one step.
struct Slot {
    float* s;         // [2 row tiles][16][kStepKeys]
    uint16_t* p;      // [parts][2 row tiles][16][kStepKeys]
    bool rescale;
};
constexpr int kScores = kPairRows * kStepKeys;

int64_t slot_bytes(int parts) { return 2 * (kScores * 4 + parts * kScores * 2); }

// 2^x: with one bf16 part, whose rounding is 4e-3, a polynomial to 9e-5 is enough. Its constant is exactly 1, so that equal scores weigh 1.
template <int Parts>
inline V power(V x) {
    if (Parts == 2) return exp2_v(x, 1.f);
    V f;
    const V n = exp2_parts(x, f);
    V p = fma_v(splat(7.70672403e-2f), f, splat(2.27644978e-1f));
    p = fma_v(p, f, splat(6.95116631e-1f));
    p = fma_v(p, f, splat(1.f));
    return scale2(p, n);
}

// The weights of a row tile: a row at each call, while there are any.
template <int Parts>
struct Weights {
    const float* s;
    uint16_t* p;
    const float *m, *l_before;
    float* l;
    V factor;
    __m512i largest;
    int row, due, rate;  // rows to do after a product are rate / 16

    inline __attribute__((always_inline)) void one() {
        const V from = -splat(m[row]) - 32.f;  // kHeadroomUnit
        V sum = load(l_before + row * 16);
        const float* at = s + row * kStepKeys;
#pragma GCC unroll 2
        for (int j = 0; j < kStepKeys; j += 32) {
            V a = power<Parts>(fma_v(load(at + j), factor, from)), b = power<Parts>(fma_v(load(at + j + 16), factor, from));
            sum += a + b;
            uint16_t* to = p + row * kStepKeys + j;
            if (Parts == 2) {  // what truncation leaves is exact
                const V top_a = (V)((VI)a & -65536), top_b = (V)((VI)b & -65536);
                const __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(top_b, top_a);
                largest = _mm512_max_epu16(largest, packed);
                _mm512_storeu_si512(to, packed);
                _mm512_storeu_si512(to + kScores, (__m512i)_mm512_cvtne2ps_pbh(b - top_b, a - top_a));
            } else {
                const __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(b, a);
                largest = _mm512_max_epu16(largest, packed);
                _mm512_storeu_si512(to, packed);
            }
        }
        store(l + row * 16, sum);
        row++;
    }
    inline __attribute__((always_inline)) void operator()() {
        for (due += rate; due >= 16; due -= 16)
            if (row < 16) one();
    }
    inline void rest() {
        while (row < 16) one();
    }
};
struct Nothing {
    void operator()() {}
};

// Four sums (2 × 2 tiles) += two left tiles times two right ones, over one slice of the inner dimension. `a` and `b` point to a slice's
// tiles; parts of a lie a_part apart, the two of b follow each other, and the next part of both follows them.
template <int Parts, class Between>
inline __attribute__((always_inline)) void product(const uint16_t* a0, const uint16_t* a1, int64_t a_stride, int64_t a_part, const uint16_t* b,
                                                   Between& between) {
#define FA_FOUR_PRODUCTS()    \
    FA_TILE_PRODUCT(0, 4, 6); \
    between();                \
    FA_TILE_PRODUCT(1, 4, 7); \
    between();                \
    FA_TILE_PRODUCT(2, 5, 6); \
    between();                \
    FA_TILE_PRODUCT(3, 5, 7); \
    between();
    FA_TILE_LOAD(4, a0, a_stride);
    FA_TILE_LOAD(6, b, 64);
    FA_TILE_LOAD(7, b + kTile, 64);
    FA_TILE_LOAD(5, a1, a_stride);
    FA_FOUR_PRODUCTS()
    if (Parts == 1) return;
    FA_TILE_LOAD(6, b + 2 * kTile, 64);
    FA_TILE_LOAD(7, b + 3 * kTile, 64);
    FA_FOUR_PRODUCTS()
    FA_TILE_LOAD(4, a0 + a_part, a_stride);
    FA_TILE_LOAD(6, b, 64);
    FA_TILE_LOAD(7, b + kTile, 64);
    FA_TILE_LOAD(5, a1 + a_part, a_stride);
    FA_FOUR_PRODUCTS()
#undef FA_FOUR_PRODUCTS
}

// s = q kᵀ
template <int Parts, class Between>
inline void multiply_k(const MatrixShape& shape, const Step& step, Slot& slot, Between& between) {
    const uint16_t *q = step.pair->q, *k = step.k;
    const int64_t q_tile = int64_t(shape.depth) * Parts * kTile;
    for (int half = 0; half < 2; half++) {
        FA_TILE_ZERO(0);
        FA_TILE_ZERO(1);
        FA_TILE_ZERO(2);
        FA_TILE_ZERO(3);
        for (int c = 0; c < shape.depth; c++, k += 2 * Parts * kTile) {
            const uint16_t* a = q + c * Parts * kTile;
            product<Parts>(a, a + q_tile, 64, kTile, k, between);
        }
        float* s = slot.s + half * 32;
        FA_TILE_STORE(0, s, kRowBytes);
        FA_TILE_STORE(1, s + 16, kRowBytes);
        FA_TILE_STORE(2, s + 16 * kStepKeys, kRowBytes);
        FA_TILE_STORE(3, s + 16 * kStepKeys + 16, kRowBytes);
    }
}

void rescale_o(const MatrixShape& shape, const Pair& pair) {
    float* o = pair.o;
    for (int tile = 0; tile < 2 * shape.columns; tile++)
        for (int row = 0; row < 16; row++, o += 16) store(o, load(o) * pair.rescale[tile / shape.columns * 16 + row]);
}

// o += p v
template <int Parts, class Between>
inline void multiply_v(const MatrixShape& shape, const Step& step, const Slot& slot, Between& between) {
    float *o0 = step.pair->o, *o1 = o0 + int64_t(shape.columns) * 256;
    const uint16_t *p = slot.p, *v = step.v;
    if (__builtin_expect(slot.rescale, 0)) rescale_o(shape, *step.pair);
    for (int column = 0; column < shape.columns; column += 2, o0 += 512, o1 += 512) {
        FA_TILE_LOAD(0, o0, 64);
        FA_TILE_LOAD(1, o0 + 256, 64);
        FA_TILE_LOAD(2, o1, 64);
        FA_TILE_LOAD(3, o1 + 256, 64);
        for (int half = 0; half < 2; half++, v += 2 * Parts * kTile)
            product<Parts>(p + half * 32, p + 16 * kStepKeys + half * 32, kStepKeys * 2, kScores, v, between);
        FA_TILE_STORE(0, o0, 64);
        FA_TILE_STORE(1, o0 + 256, 64);
        FA_TILE_STORE(2, o1, 64);
        FA_TILE_STORE(3, o1 + 256, 64);
    }
}

float largest_score(const float* s) {
    V top = load(s);
    for (int j = 16; j < kStepKeys; j += 16) top = max_v(load(s + j), top);
    return _mm512_reduce_max_ps(top);
}

// The first references of a pair.
void begin_pair(const MatrixTask& t, Pair& pair, const Slot& slot) {
    for (int row = 0; row < kPairRows; row++) {
        const float top = largest_score(slot.s + row * kStepKeys) * t.factor;
        pair.m[row] = top > kOldest ? top : kOldest;
    }
    pair.fresh = false;
}

// A reference may lag behind its row's largest score by 8 (weights to 2^8); rows of the tile that it lags behind more get it anew, and their
// weights. Others keep all their bits.
template <int Parts>
__attribute__((noinline, cold)) void renew(const MatrixTask& t, Pair& pair, Slot& slot, int tile, Weights<Parts>& w, int limit) {
    if (!slot.rescale)
        for (int row = 0; row < kPairRows; row++) pair.rescale[row] = 1.f;
    slot.rescale = true;
    for (int row = 0; row < 16; row++) {
        const uint16_t* p = w.p + row * kStepKeys;
        const __m512i top = _mm512_max_epu16(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32));
        if (!_mm512_cmpgt_epu16_mask(top, _mm512_set1_epi16(short(limit)))) continue;
        float* m = pair.m + tile * 16 + row;
        const float before = *m, found = largest_score(w.s + row * kStepKeys) * t.factor;
        *m = found > before ? found : before;
        const float factor = before == *m ? 1.f : power<2>(splat(before - *m))[0];
        pair.rescale[tile * 16 + row] = factor;
        float scaled[16 * 16];  // the row's sum where Weights reads it
        store(scaled + row * 16, load(w.l_before + row * 16) * factor);
        Weights<Parts> again = w;
        again.l_before = scaled;
        again.row = row;
        again.one();
    }
}

template <int Parts>
inline Weights<Parts> weights_of(const MatrixTask& t, const Pair& pair, const Slot& slot, int tile, int products) {
    const int at = tile * 16 * kStepKeys, row = tile * 16;
    return {slot.s + at, slot.p + at, pair.m + row, pair.l[pair.now] + row * 16, pair.l[!pair.now] + row * 16, splat(t.natural ? 1.f : t.factor),
            _mm512_setzero_si512(), 0, 0, products < 256 ? 256 / products : 1};
}

template <int Parts>
inline void end_weights(const MatrixTask& t, Pair& pair, Slot& slot, int tile, Weights<Parts>& w) {
    constexpr int limit = (127 + 8 - 32) << 7;  // 2^8 in units of kHeadroomUnit, as bf16; NaN is above it
    w.rest();
    if (__builtin_expect(_mm512_cmpgt_epu16_mask(w.largest, _mm512_set1_epi16(limit)) != 0, 0)) renew<Parts>(t, pair, slot, tile, w, limit);
}

inline V bias_of(const MatrixTask& t, int64_t at, __mmask16 seen) {
    if (t.bias_step == 1 && t.bias_dtype == FA_F32) return _mm512_maskz_loadu_ps(seen, static_cast<const float*>(t.bias) + at);
    if (t.bias_step == 1) {
        const __m256i x = _mm256_maskz_loadu_epi16(seen, static_cast<const uint16_t*>(t.bias) + at);
        return t.bias_dtype == FA_F16 ? _mm512_cvtph_ps(x) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    float values[16] = {};
    for (int j = 0; j < 16; j++) {
        if (!(seen >> j & 1)) continue;
        const int64_t i = at + j * t.bias_step;
        if (t.bias_dtype == FA_F32) values[j] = static_cast<const float*>(t.bias)[i];
        else if (t.bias_dtype == FA_F16) values[j] = f16_to_f32(static_cast<const uint16_t*>(t.bias)[i]);
        else values[j] = bf16_to_f32(static_cast<const uint16_t*>(t.bias)[i]);
    }
    return load(values);
}

inline __mmask16 mask_of(const MatrixTask& t, int64_t at, __mmask16 seen) {
    if (t.mask_step == 1) return _mm_mask_test_epi8_mask(seen, _mm_maskz_loadu_epi8(seen, t.mask + at), _mm_set1_epi8(-1));
    __mmask16 kept = 0;
    for (int j = 0; j < 16; j++)
        if (seen >> j & 1 && t.mask[at + j * t.mask_step]) kept |= __mmask16(1 << j);
    return kept;
}

// Keys of [key, key + 16) that the row sees.
inline __mmask16 seen_keys(const MatrixRow& row, int64_t key) {
    const int64_t begin = row.begin - key, end = row.end - key;
    const uint32_t below = end >= 16 ? 0xffffu : end <= 0 ? 0u : (1u << end) - 1, out = begin <= 0 ? 0u : begin >= 16 ? 0xffffu : (1u << begin) - 1;
    return __mmask16(below & ~out);
}

// Takes the step's scores from products to what weights are computed of, and removes keys.
__attribute__((noinline)) void edit_scores(const MatrixTask& t, const Step& step, Slot& slot) {
    const V none = splat(kNegInf), steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int r = 0; r < kPairRows; r++) {
        const MatrixRow& row = step.pair->rows[r];
        for (int j = 0; j < kStepKeys; j += 16) {
            float* s = slot.s + r * kStepKeys + j;
            const int64_t key = step.key + j;
            __mmask16 seen = seen_keys(row, key);
            V x = load(s);
            if (t.natural) {
                x *= t.scale;
                if (t.cap > 0) x = t.cap * tanh_v(x / t.cap);
                if (t.bias) {  // −inf there removes the key, whatever its score
                    const V bias = bias_of(t, row.bias + key * t.bias_step, seen);
                    seen = _mm512_mask_cmp_ps_mask(seen, bias, none, _CMP_NEQ_UQ);
                    x += bias;
                }
                if (t.alibi) x -= row.slope * _mm512_abs_ps(steps + float(key - row.diagonal));
                if (t.mask) seen = mask_of(t, row.mask + key * t.mask_step, seen);
                x *= kLog2e;
            }
            store(s, _mm512_mask_mov_ps(none, seen, x));
        }
    }
}

template <int Parts>
void run_parts(const MatrixTask& t, const Step* steps, int64_t count) {
    const MatrixShape& shape = t.shape;
    constexpr int kinds = Parts == 2 ? 3 : 1;
    const int k_products = 8 * shape.depth * kinds, v_products = 4 * shape.columns * kinds;
    Slot slots[2];
    for (int i = 0; i < 2; i++) {
        slots[i].s = reinterpret_cast<float*>(t.slots) + i * kScores;
        slots[i].p = reinterpret_cast<uint16_t*>(t.slots + 2 * kScores * 4) + i * Parts * kScores;
    }
    MatrixTask scaled = t;
    scaled.factor = t.natural ? 1.f : t.factor;
    const auto edit = [&](const Step& step, Slot& slot) {
        if (t.natural || step.cut) edit_scores(t, step, slot);
    };
    Nothing nothing;
    configure_tiles();
    multiply_k<Parts>(shape, steps[0], slots[0], nothing);
    edit(steps[0], slots[0]);
    for (int64_t i = 0; i < count; i++) {
        Slot &now = slots[i & 1], &other = slots[(i + 1) & 1];
        Pair& pair = *steps[i].pair;
        now.rescale = false;
        if (pair.fresh) begin_pair(scaled, pair, now);
        Weights<Parts> upper = weights_of<Parts>(scaled, pair, now, 0, v_products);
        if (i > 0) multiply_v<Parts>(shape, steps[i - 1], other, upper);
        end_weights<Parts>(scaled, pair, now, 0, upper);
        Weights<Parts> lower = weights_of<Parts>(scaled, pair, now, 1, k_products);
        if (i + 1 < count) multiply_k<Parts>(shape, steps[i + 1], other, lower);
        end_weights<Parts>(scaled, pair, now, 1, lower);
        pair.now = !pair.now;
        if (i + 1 < count) edit(steps[i + 1], other);
    }
    multiply_v<Parts>(shape, steps[count - 1], slots[(count - 1) & 1], nothing);
    __asm__ volatile("tilerelease");  // or every switch of context carries 8 KB of tiles
}

void run(const MatrixTask& t, const Step* steps, int64_t count) {
    if (count == 0) return;
    if (t.shape.parts == 2) run_parts<2>(t, steps, count);
    else run_parts<1>(t, steps, count);
}

float finish_row(const MatrixShape& shape, const Pair& pair, int row, float scale, float* o) {
    const float* from = pair.o + row / 16 * int64_t(shape.columns) * 256 + row % 16 * 16;
    for (int column = 0; column < shape.dim_v; column += 16, from += 256) {
        const __mmask16 inside = shape.dim_v - column >= 16 ? 0xffff : __mmask16((1u << (shape.dim_v - column)) - 1);
        _mm512_mask_storeu_ps(o + column, inside, load(from) * scale);
    }
    return _mm512_reduce_add_ps(load(pair.l[pair.now] + row * 16));
}

#include "pack_amx.inc"

const MatrixKernels kMatrix = {slot_bytes, split, pack_q, pack_k, pack_v, run, finish_row};

}  // namespace

const Kernels kKernels_amx = FA_KERNELS("amx", FA_ISA_AMX, &kMatrix);

}  // namespace cpu
}  // namespace fa
