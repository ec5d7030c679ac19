// Score mods and masks of a matrix mainloop's step, between its product and its softmax: ALiBi, softcap and bias, and keys that a
// band or a mask removes.
#pragma once
#include "cpu/kernels/matrix_softmax.h"

namespace fa {
namespace cpu {
namespace {

constexpr float kMinLog2Normal = -126.f;  // log2 of the smallest normal f32

// −inf removes a key, whatever its score.
inline V load_bias(const MatrixTask& task, int64_t at, __mmask16 visible) {
    if (task.bias_step == 1 && task.bias_dtype == FA_F32) return _mm512_maskz_loadu_ps(visible, static_cast<const float*>(task.bias) + at);
    if (task.bias_step == 1) {
        const __m256i x = _mm256_maskz_loadu_epi16(visible, static_cast<const uint16_t*>(task.bias) + at);
        return task.bias_dtype == FA_F16 ? _mm512_cvtph_ps(x) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    float values[16] = {};
    for (int j = 0; j < 16; j++)
        if (visible >> j & 1) values[j] = bias_element(task, at + j * task.bias_step);
    return load(values);
}

// The visible keys that the mask keeps.
inline uint64_t kept_keys(const MatrixTask& task, const MatrixRow& row, int64_t key, uint64_t visible) {
    if (!task.mask || !visible) return visible;
    if (task.mask_step == 1) {
        const uint8_t* mask = task.mask + row.mask + key;
        __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(mask) + kKeyBlock));
        const __m512i bytes = _mm512_maskz_loadu_epi8(visible, mask);
        return _mm512_test_epi8_mask(bytes, bytes);
    }
    return keys_of_mask(task, row, key, visible);
}

// Kept::all is found only where there is a mask: without one, bands say it by themselves.
KeptKeys classify_keys(const MatrixTask& task, const MatrixRow* rows, int64_t key, const uint64_t* given) {
    bool some = false, all = task.mask != nullptr;
    for (int r = 0; r < kRowBlock && (all || !some); r++) {
        const uint64_t visible = kept_keys(task, rows[r], key, visible_keys(rows, r, key, given));
        all &= visible == ~uint64_t(0);
        some |= visible != 0 && !task.bias;
        for (int j = 0; j < kKeyBlock && task.bias && !some; j += 16) {
            const __mmask16 part = __mmask16(visible >> j);
            some = part && _mm512_mask_cmp_ps_mask(part, load_bias(task, rows[r].bias + (key + j) * task.bias_step, part), splat(kNegInf),
                                                   _CMP_NEQ_UQ);
        }
    }
    return !some ? KeptKeys::none : all ? KeptKeys::all : KeptKeys::some;
}

// What turns a row's products into log2 scores.
struct RowScoreMod {
    float factor, slope;  // to natural units if there is a cap, to log2 units if not; ALiBi's in log2 units
    float limit;          // Below, P would be subnormal as f32, which no 16-bit type keeps and which takes a hundred times as long.
                          // ALiBi has many of them.
};

inline V flush_small(V x, float limit) { return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, splat(limit), _CMP_LT_OQ), splat(kNegInf)); }

// `distance` is that of the first key.
inline void add_alibi(const RowScoreMod& score_mod, float distance, float* s) {
    const V steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, factor = splat(score_mod.factor),
            slope = splat(-score_mod.slope), first = steps + distance;
#pragma GCC unroll 4
    for (int j = 0; j < kKeyBlock; j += 16)
        store(s + j, flush_small(fma_v(slope, _mm512_abs_ps(first + float(j)), load(s + j) * factor), score_mod.limit));
}

// All other score mods, bias for the keys of `visible`.
template <bool Capped>
__attribute__((noinline)) void score_mod_row(const MatrixTask& task, const MatrixRow& row, int64_t key, const RowScoreMod& score_mod,
                                             uint64_t visible, float* s) {
    const V steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, none = splat(kNegInf);
    const bool invertible = task.cap > kMinInvertible && task.cap < kMaxInvertible;
    const float factor = Capped && invertible ? score_mod.factor / task.cap : score_mod.factor, distance = float(key - row.diagonal);
#pragma GCC unroll 4
    for (int j = 0; j < kKeyBlock; j += 16) {
        V x = load(s + j) * factor;
        if (Capped) x = task.cap * tanh_v(invertible ? x : x / task.cap) * kLog2e;
        if (task.bias) {
            const V bias = load_bias(task, row.bias + (key + j) * task.bias_step, __mmask16(visible >> j));
            x = _mm512_mask_mov_ps(fma_v(bias * row.bias_scale, splat(kLog2e), x), _mm512_cmp_ps_mask(bias, none, _CMP_EQ_OQ), none);
        }
        if (task.alibi) x = fma_v(splat(-score_mod.slope), _mm512_abs_ps(steps + (distance + float(j))), x);
        store(s + j, flush_small(x, score_mod.limit));
    }
}

// Turns the step's rows [first, end) from products into scores that P is computed of, and masks keys.
__attribute__((noinline)) void apply_score_mod(const MatrixTask& task, const MainloopStep& step, float* s, int first, int end) {
    const V none = splat(kNegInf);
    const bool all = !step.masked, distances_alone = task.alibi && !task.bias && !(task.cap > 0);
    const float factor = task.cap > 0 ? task.scale : task.scale * kLog2e;
    for (int r = first; r < end; r++, s += kKeyBlock) {
        const MatrixRow& row = step.block->rows[r];
        const uint64_t kept =
            all ? ~uint64_t(0) : kept_keys(task, row, step.key, visible_keys(step.block->rows, r, step.key, step.visible));
        const RowScoreMod e{factor, row.slope, kMinLog2Normal - step.block->neg_ref[r]};
        if (distances_alone) add_alibi(e, float(step.key - row.diagonal), s);
        else if (task.cap > 0) score_mod_row<true>(task, row, step.key, e, kept, s);
        else if (task.has_score_mod) score_mod_row<false>(task, row, step.key, e, kept, s);
        if (kept == ~uint64_t(0)) continue;
        for (int j = 0; j < kKeyBlock; j += 16) _mm512_mask_storeu_ps(s + j, __mmask16(~kept >> j), none);
    }
}

inline void maybe_score_mod(const MatrixTask& task, const MainloopStep& step, float* s, int first, int end) {
    if (task.has_score_mod || step.masked) apply_score_mod(task, step, s, first, end);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
