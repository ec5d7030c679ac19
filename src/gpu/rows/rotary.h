// fa_rotary: one kernel that rotates rows of q or k. A row belongs to a team of 16 lanes, each of which takes eight neighbouring
// elements at a time, in one 16-byte access where alignment allows it. No lane waits for another: it rotates whole pairs, and
// writes only what it has read itself. append.h moves rows by the same steps.
#pragma once
#include "gpu/rows/merge_partials.h"

namespace fa {
namespace gpu {

constexpr int kTeam = 16, kVec8 = 8, kMoveThreads = 128, kTeams = kMoveThreads / kTeam;

// Up to eight elements of q's type as they lie in memory: one a word, or two of 16 bits in each of the first four.
struct Vec8 {
    float word[kVec8];
};

FA_DEVICE Vec8 load_vec8(const void* base, int64_t at, int32_t dtype, int n) {
    Vec8 vec{};
    const char* p = static_cast<const char*>(base) + at * type_bytes(dtype);
    if (n == kVec8 && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
        rt::load4(reinterpret_cast<const float*>(p), vec.word);
        if (dtype == FA_F32) rt::load4(reinterpret_cast<const float*>(p) + 4, vec.word + 4);
        return vec;
    }
    FA_UNROLL_FOR (int i = 0; i < kVec8; i++) {
        if (i >= n) continue;
        if (dtype == FA_F32) vec.word[i] = reinterpret_cast<const float*>(p)[i];
        else vec.word[i / 2] = float_of(bits_of(vec.word[i / 2]) | uint32_t(reinterpret_cast<const uint16_t*>(p)[i]) << 16 * (i & 1));
    }
    return vec;
}

FA_DEVICE uint16_t half_word(const Vec8& vec, int i) { return uint16_t(bits_of(vec.word[i / 2]) >> 16 * (i & 1)); }

FA_DEVICE void widen(const Vec8& vec, int32_t dtype, float* x) {
    if (dtype == FA_F32) {
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) x[i] = vec.word[i];
    } else if (dtype == FA_F16) {
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) x[i] = f16_to_f32(half_word(vec, i));
    } else {
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) x[i] = bf16_to_f32(half_word(vec, i));
    }
}

struct alignas(8) Vec8Bytes {
    uint32_t word[2];
};

// Each element by itself, for rows that lie unevenly. Registers have no index: it is compared with each.
FA_COLD void store_singly(void* base, int64_t at, int32_t dtype, int n, Vec8 vec) {
    for (int i = 0; i < n; i++) {
        float value = vec.word[0];
        FA_UNROLL_FOR (int j = 1; j < kVec8; j++) value = i == j ? vec.word[j] : value;
        store_element(base, at + i, dtype, value);
    }
}

// Of the n elements in x, rounded to the type.
FA_DEVICE void store_vec8(void* base, int64_t at, int32_t dtype, int n, const float* x) {
    char* p = static_cast<char*>(base) + at * type_bytes(dtype);
    const uintptr_t alignment = type_bytes(dtype) == 1 ? 8 : 16;
    float word[4];
    if (n != kVec8 || reinterpret_cast<uintptr_t>(p) % alignment != 0) {
        store_singly(base, at, dtype, n, Vec8{{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}});
    } else if (dtype == FA_F32) {
        rt::store4(reinterpret_cast<float*>(p), x);
        rt::store4(reinterpret_cast<float*>(p) + 4, x + 4);
    } else if (dtype == FA_F16) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) word[i] = float_of(f32_to_f16(x[2 * i]) | uint32_t(f32_to_f16(x[2 * i + 1])) << 16);
        rt::store4(reinterpret_cast<float*>(p), word);
    } else if (dtype == FA_BF16) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) word[i] = float_of(f32_to_bf16(x[2 * i]) | uint32_t(f32_to_bf16(x[2 * i + 1])) << 16);
        rt::store4(reinterpret_cast<float*>(p), word);
    } else {
        Vec8Bytes packed{};
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) {
            const uint8_t byte = dtype == FA_E4M3 ? f32_to_e4m3(x[i]) : dtype == FA_E5M2 ? f32_to_e5m2(x[i]) : uint8_t(f32_to_i8(x[i]));
            packed.word[i / 4] |= uint32_t(byte) << 8 * (i & 3);
        }
        *reinterpret_cast<Vec8Bytes*>(p) = packed;
    }
}

// How a row is partitioned into steps: those that rotate first, then those that copy what lies before and behind. `rotated`: the number of
// elements that rotate, from `begin` on; 0 for none.
struct RowSteps {
    int dim, begin, rotated;
    bool interleaved;

    FA_MEMBER int rotating_per_side() const { return interleaved ? rotated : rotated / 2; }
    FA_MEMBER int rotating() const { return (rotating_per_side() + kVec8 - 1) / kVec8; }
    FA_MEMBER int before() const { return (begin + kVec8 - 1) / kVec8; }
    FA_MEMBER int count() const { return rotating() + before() + (dim - begin - rotated + kVec8 - 1) / kVec8; }
};

// Elements [at, at + n) of a row; under rotation by halves also their partners, half of what rotates further on. turned: the first
// element's number among those that rotate.
struct Step {
    int at, partner, n, turned;
    bool rotates;
};
FA_DEVICE Step step_of(const RowSteps& steps, int number) {
    const int rotating = steps.rotating(), before = steps.before();
    if (number < rotating) {
        const int at = number * kVec8, n = steps.rotating_per_side() - at;
        return {steps.begin + at, steps.interleaved ? 0 : steps.begin + steps.rotating_per_side() + at, n < kVec8 ? n : kVec8, at, true};
    }
    const bool first = number < rotating + before;
    const int at = first ? (number - rotating) * kVec8 : steps.begin + steps.rotated + (number - rotating - before) * kVec8;
    const int n = (first ? steps.begin : steps.dim) - at;
    return {at, 0, n < kVec8 ? n : kVec8, 0, false};
}

// What a lane holds of a row.
struct LoadedStep {
    Vec8 own, partner;
};
FA_DEVICE LoadedStep load_step(const void* base, int64_t row, int32_t dtype, const Step& step) {
    LoadedStep loaded{};
    loaded.own = load_vec8(base, row + step.at, dtype, step.n);
    if (step.partner) loaded.partner = load_vec8(base, row + step.partner, dtype, step.n);
    return loaded;
}

// Rotation by a position's angles: `cos` and `sin` hold one for each pair.
FA_DEVICE void rotate_step(const LoadedStep& loaded, int32_t dtype, const Step& step, const float* cos, const float* sin, float* own,
                           float* partner) {
    widen(loaded.own, dtype, own);
    if (!step.rotates) return;
    const int pair = step.partner ? step.turned : step.turned / 2, pairs = step.partner ? step.n : step.n / 2;
    const Vec8 cosines = load_vec8(cos, pair, FA_F32, pairs), sines = load_vec8(sin, pair, FA_F32, pairs);
    if (step.partner) {
        widen(loaded.partner, dtype, partner);
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) {
            const float x = own[i], y = partner[i];
            own[i] = x * cosines.word[i] - y * sines.word[i];
            partner[i] = x * sines.word[i] + y * cosines.word[i];
        }
        return;
    }
    FA_UNROLL_FOR (int i = 0; i < kVec8; i += 2) {
        const float x = own[i], y = own[i + 1];
        own[i] = x * cosines.word[i / 2] - y * sines.word[i / 2];
        own[i + 1] = x * sines.word[i / 2] + y * cosines.word[i / 2];
    }
}

// What rotate_rows reads.
struct RotaryParams {
    QuerySpans spans;
    int64_t batch, heads;
    const void* x;
    void* out;
    RowStrides x_strides, out_strides;
    const float *cos, *sin;  // [max_position][pairs]
    int64_t max_position, pairs;
    const int32_t* positions;        // of each row; NULL: they count from position_offset
    int64_t positions_stride;        // between sequences
    const int32_t* position_offset;  // of each sequence; NULL: 0
    RowSteps steps;
    int32_t dtype;
};

inline RotaryParams rotary_params(const Problem& problem, const fa_rotary_args_t& args) {
    RotaryParams params{};
    params.spans = query_spans(problem, args.cu_seqlens, args.seqused);
    params.batch = problem.d.batch;
    params.heads = problem.d.heads_q;
    params.x = args.x;
    params.out = args.out;
    params.x_strides = row_strides(problem.d.q_stride, problem.packed_q());
    params.out_strides = row_strides(args.out_stride, problem.packed_q());
    params.cos = args.cos;
    params.sin = args.sin;
    params.max_position = args.max_position;
    params.pairs = args.rotary_dim / 2;
    params.positions = args.positions;
    params.positions_stride = problem.packed_q() ? 0 : problem.d.seqlen_q;
    params.position_offset = args.position_offset;
    params.steps = {int(problem.d.dim_qk), int(args.rotary_begin), int(args.rotary_dim), (args.flags & FA_ROTARY_INTERLEAVED) != 0};
    params.dtype = problem.d.q_dtype;
    return params;
}

FA_KERNEL void FA_BOUNDS(kMoveThreads, 1) rotate_rows(FA_PARAM RotaryParams params) {
    rt::fetch_parameters(params);
    rt::wait_for_predecessor();
    rt::release_successor();
    const int64_t team = rt::block() * kTeams + rt::thread() / kTeam, line = team / params.heads, h = team % params.heads;
    const int64_t b = line / params.spans.seqlen, i = line % params.spans.seqlen;
    if (b >= params.batch) return;
    const Span span = bounded_span_of(params.spans, b);
    if (i >= span.length) return;
    const int64_t row = span.begin + i, from = params.x_strides.index(b, row, h), to = params.out_strides.index(b, row, h);
    int64_t position = i + (params.position_offset ? params.position_offset[b] : 0);
    if (params.positions) position = params.positions[b * params.positions_stride + row];
    position = clamp(position, 0, params.max_position - 1);
    const float *const cos = params.cos + position * params.pairs, *const sin = params.sin + position * params.pairs;
    for (int n = rt::thread() % kTeam; n < params.steps.count(); n += kTeam) {
        const Step step = step_of(params.steps, n);
        float own[kVec8], partner[kVec8];
        rotate_step(load_step(params.x, from, params.dtype, step), params.dtype, step, cos, sin, own, partner);
        store_vec8(params.out, to + step.at, params.dtype, step.n, own);
        if (step.partner) store_vec8(params.out, to + step.partner, params.dtype, step.n, partner);
    }
}

}  // namespace gpu
}  // namespace fa
