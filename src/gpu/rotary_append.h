// fa_rotary and fa_append_kv, which move rows: rotate them, convert their type, and store them, the latter into a cache. A row
// belongs to a team of 16 lanes, each of which takes eight neighbouring elements at a time, in one 16-byte access where alignment
// allows it. No lane waits for another: it rotates whole pairs, and writes only what it has read itself.
#pragma once
#include "gpu/merge_partials.h"

namespace fa {
namespace gpu {

struct AppendParams {
    Problem p;
    fa_append_kv_args_t a;
    bool copies;         // see copies_rows
    int32_t page_shift;  // a page has 2^page_shift keys; −1: another number
};
struct RotaryParams {
    Problem p;
    fa_rotary_args_t a;
};

constexpr int kTeam = 16, kVec8 = 8, kMoveThreads = 128, kTeams = kMoveThreads / kTeam;

// Up to eight elements of q's type as they lie in memory: one a word, or two of 16 bits in each of the first four.
struct Vec8 {
    float word[kVec8];
};

FA_DEVICE Vec8 load_vec8(const void* base, int64_t at, int32_t dtype, int n) {
    Vec8 e{};
    const char* p = static_cast<const char*>(base) + at * type_bytes(dtype);
    if (n == kVec8 && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
        rt::load4(reinterpret_cast<const float*>(p), e.word);
        if (dtype == FA_F32) rt::load4(reinterpret_cast<const float*>(p) + 4, e.word + 4);
        return e;
    }
    FA_UNROLL
    for (int i = 0; i < kVec8; i++) {
        if (i >= n) continue;
        if (dtype == FA_F32) e.word[i] = reinterpret_cast<const float*>(p)[i];
        else e.word[i / 2] = float_of(bits_of(e.word[i / 2]) | uint32_t(reinterpret_cast<const uint16_t*>(p)[i]) << 16 * (i & 1));
    }
    return e;
}

FA_DEVICE uint16_t half_word(const Vec8& e, int i) { return uint16_t(bits_of(e.word[i / 2]) >> 16 * (i & 1)); }

FA_DEVICE void widen(const Vec8& e, int32_t dtype, float* x) {
    if (dtype == FA_F32) {
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) x[i] = e.word[i];
    } else if (dtype == FA_F16) {
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) x[i] = f16_to_f32(half_word(e, i));
    } else {
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) x[i] = bf16_to_f32(half_word(e, i));
    }
}

struct alignas(8) Vec8Bytes {
    uint32_t word[2];
};

// Each element by itself, for rows that lie unevenly. Registers have no index: it is compared with each.
FA_COLD void store_singly(void* base, int64_t at, int32_t dtype, int n, Vec8 x) {
    for (int i = 0; i < n; i++) {
        float value = x.word[0];
        FA_UNROLL
        for (int j = 1; j < kVec8; j++) value = i == j ? x.word[j] : value;
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
        FA_UNROLL
        for (int i = 0; i < 4; i++) word[i] = float_of(f32_to_f16(x[2 * i]) | uint32_t(f32_to_f16(x[2 * i + 1])) << 16);
        rt::store4(reinterpret_cast<float*>(p), word);
    } else if (dtype == FA_BF16) {
        FA_UNROLL
        for (int i = 0; i < 4; i++) word[i] = float_of(f32_to_bf16(x[2 * i]) | uint32_t(f32_to_bf16(x[2 * i + 1])) << 16);
        rt::store4(reinterpret_cast<float*>(p), word);
    } else {
        Vec8Bytes packed{};
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) {
            const uint8_t byte = dtype == FA_E4M3   ? f32_to_e4m3(x[i])
                                 : dtype == FA_E5M2 ? f32_to_e5m2(x[i])
                                                    : uint8_t(f32_to_i8(x[i]));
            packed.word[i / 4] |= uint32_t(byte) << 8 * (i & 3);
        }
        *reinterpret_cast<Vec8Bytes*>(p) = packed;
    }
}

// How a row is partitioned into steps: those that rotate first, then those that copy. `rotated`: the number of elements that
// rotate, 0 for none.
struct RowSteps {
    int dim, rotated;
    bool interleaved;

    FA_MEMBER int rotating_per_side() const { return interleaved ? rotated : rotated / 2; }
    FA_MEMBER int rotating() const { return (rotating_per_side() + kVec8 - 1) / kVec8; }
    FA_MEMBER int count() const { return rotating() + (dim - rotated + kVec8 - 1) / kVec8; }
};

// Elements [at, at + n) of a row; under rotation by halves also their partners, half of what rotates further on.
struct Step {
    int at, partner, n;
    bool rotates;
};
FA_DEVICE Step step_of(const RowSteps& steps, int number) {
    const int rotating = steps.rotating();
    if (number < rotating) {
        const int at = number * kVec8, n = steps.rotating_per_side() - at;
        return {at, steps.interleaved ? 0 : steps.rotating_per_side() + at, n < kVec8 ? n : kVec8, true};
    }
    const int at = steps.rotated + (number - rotating) * kVec8, n = steps.dim - at;
    return {at, 0, n < kVec8 ? n : kVec8, false};
}

// What a lane holds of a row.
struct LoadedStep {
    Vec8 own, partner;
};
FA_DEVICE LoadedStep load_step(const void* base, int64_t row, int32_t dtype, const Step& s) {
    LoadedStep h{};
    h.own = load_vec8(base, row + s.at, dtype, s.n);
    if (s.partner) h.partner = load_vec8(base, row + s.partner, dtype, s.n);
    return h;
}

// Rotation by a position's angles: `cos` and `sin` hold one for each pair.
FA_DEVICE void rotate_step(const LoadedStep& loaded, int32_t dtype, const Step& s, const float* cos, const float* sin, float* own,
                           float* partner) {
    widen(loaded.own, dtype, own);
    if (!s.rotates) return;
    const int pair = s.partner ? s.at : s.at / 2, pairs = s.partner ? s.n : s.n / 2;
    const Vec8 c = load_vec8(cos, pair, FA_F32, pairs), d = load_vec8(sin, pair, FA_F32, pairs);
    if (s.partner) {
        widen(loaded.partner, dtype, partner);
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) {
            const float x = own[i], y = partner[i];
            own[i] = x * c.word[i] - y * d.word[i];
            partner[i] = x * d.word[i] + y * c.word[i];
        }
        return;
    }
    FA_UNROLL
    for (int i = 0; i < kVec8; i += 2) {
        const float x = own[i], y = own[i + 1];
        own[i] = x * c.word[i / 2] - y * d.word[i / 2];
        own[i + 1] = x * d.word[i / 2] + y * c.word[i / 2];
    }
}

FA_KERNEL void FA_BOUNDS(kMoveThreads, 1) rotate_rows(FA_PARAM RotaryParams x) {
    rt::fetch_parameters(x);
    rt::wait_for_predecessor();
    rt::release_successor();
    const fa_attention_desc_t& d = x.p.d;
    const fa_rotary_args_t& a = x.a;
    const int64_t team = rt::block() * kTeams + rt::thread() / kTeam, line = team / d.heads_q, h = team % d.heads_q;
    const int64_t b = line / d.seqlen_q, i = line % d.seqlen_q;
    if (b >= d.batch) return;
    const Span span = query_span(x.p, a.cu_seqlens, a.seqused, b);
    if (i >= span.length) return;
    const int64_t batch = x.p.packed_q() ? 0 : b, row = span.begin + i;
    const int64_t from = batch * d.q_stride[0] + row * d.q_stride[1] + h * d.q_stride[2];
    const int64_t to = batch * a.out_stride[0] + row * a.out_stride[1] + h * a.out_stride[2];
    const RowSteps steps{int(d.dim_qk), int(a.rotary_dim), (a.flags & FA_ROTARY_INTERLEAVED) != 0};
    int64_t position = i + (a.position_offset ? a.position_offset[b] : 0);
    if (a.positions) position = a.positions[x.p.packed_q() ? row : b * d.seqlen_q + i];
    position = clamp(position, 0, a.max_position - 1);
    const float* cos = a.cos + position * (a.rotary_dim / 2);
    const float* sin = a.sin + position * (a.rotary_dim / 2);
    for (int n = rt::thread() % kTeam; n < steps.count(); n += kTeam) {
        const Step s = step_of(steps, n);
        float own[kVec8], partner[kVec8];
        rotate_step(load_step(a.x, from, d.q_dtype, s), d.q_dtype, s, cos, sin, own, partner);
        store_vec8(a.out, to + s.at, d.q_dtype, s.n, own);
        if (s.partner) store_vec8(a.out, to + s.partner, d.q_dtype, s.n, partner);
    }
}

// ---- append

// Where a new token's row lies in k_new and v_new.
struct NewRow {
    int64_t batch, row;
    bool valid;
};
FA_DEVICE NewRow new_row_of(const AppendParams& x, int64_t b, int64_t t) {
    const fa_append_kv_args_t& a = x.a;
    int64_t begin = 0, length = a.seqlen_new;
    if (a.cu_seqlens_new) {
        begin = clamp(a.cu_seqlens_new[b], 0, a.total_new);
        length = clamp(a.cu_seqlens_new[b + 1] - begin, 0, min_of(a.seqlen_new, a.total_new - begin));
    }
    if (a.seqused_new) length = clamp(a.seqused_new[b], 0, length);
    return {a.cu_seqlens_new ? 0 : b, begin + t, t < length};
}

// Where a new token's row of the cache is read from: its key's number, or that of the sequence's first new one, and the cache's
// sequence.
struct KeySource {
    const int32_t *key, *index;  // NULL: 0; b
    int64_t b, later;            // tokens behind that key
};
FA_DEVICE KeySource key_source_of(const AppendParams& x, int64_t b, int64_t t, int64_t row) {
    const fa_append_kv_args_t& a = x.a;
    const int32_t* const position = a.positions ? a.positions + (a.cu_seqlens_new ? row : b * a.seqlen_new + t) : nullptr;
    const int32_t* const leftpad = x.p.has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k + b : nullptr;
    const int32_t* const first = x.p.has(FA_OPERAND_SEQUSED_K) ? a.seqused_k + b : leftpad;
    const int32_t* const index = x.p.has(FA_OPERAND_KV_BATCH_IDX) ? a.kv_batch_idx + b : nullptr;
    return {position ? position : first, index, b, position ? 0 : t};
}

// The place, of any row. Not valid: it goes nowhere.
struct CacheRow {
    int64_t outer, row, key;
    bool valid;
};
FA_DEVICE CacheRow cache_row_of(const AppendParams& x, const KeySource& key_source) {
    const fa_attention_desc_t& d = x.p.d;
    constexpr CacheRow none{0, 0, 0, false};
    const int64_t key = key_source.later + (key_source.key ? *key_source.key : 0),
                  outer = key_source.index ? *key_source.index : key_source.b;
    if (key < 0 || key >= d.seqlen_k || outer < 0 || outer >= (key_source.index ? d.kv_batch : d.batch)) return none;
    if (!x.p.paged()) return {outer, key, key, true};
    const int64_t number = key / d.page_size, page = x.a.page_table[outer * d.page_table_stride + number];
    return {page, key - number * d.page_size, key, page >= 0 && page < d.num_pages};
}

FA_FN float largest_value(int32_t dtype) { return dtype == FA_E4M3 ? kMaxE4M3 : dtype == FA_E5M2 ? kMaxE5M2 : kMaxI8; }

// A team's largest value. Every lane of the wave comes here.
FA_DEVICE float team_max(float x) {
    for (int mask = kTeam / 2; mask > 0; mask /= 2) x = max_fn(x, rt::shuffle_xor16(x, mask));
    return x;
}

FA_DEVICE float update_amax(const float* x, int n, float amax) {
    FA_UNROLL
    for (int i = 0; i < kVec8; i++)
        if (i < n) amax = max_fn(amax, fabsf(x[i]));
    return amax;
}

// Do rows go into the cache as they are, in aligned 16-byte vectors, as many of each sequence? And have numbers of keys
// and pages 32 bits, and a page a power of two of keys?
FA_FN bool copies_rows(const Problem& p, const fa_append_kv_args_t& a, int32_t page_shift) {
    constexpr int64_t limit = int64_t(1) << 31;
    const fa_attention_desc_t& d = p.d;
    const auto is_vec16 = [](const void* base, const int64_t stride[4], int64_t dim, int32_t dtype) {
        return copy_width(base, stride, dim, dtype) == 16;
    };
    const bool counted = a.cu_seqlens_new || a.seqused_new, scaled = p.has(FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE);
    return d.k_dtype == d.q_dtype && !counted && !scaled && !a.cos && !(a.flags & FA_APPEND_DYNAMIC_SCALE) &&
           d.seqlen_k <= limit && a.seqlen_new <= limit && d.kv_batch <= limit && d.num_pages <= limit && page_shift >= 0 &&
           is_vec16(a.k, d.k_stride, d.dim_qk, d.k_dtype) && is_vec16(a.v, d.v_stride, d.dim_v, d.k_dtype) &&
           is_vec16(a.k_new, a.k_new_stride, d.dim_qk, d.q_dtype) && is_vec16(a.v_new, a.v_new_stride, d.dim_v, d.q_dtype);
}

inline AppendParams append_params(const Problem& p, const fa_append_kv_args_t& a) {
    int32_t shift = 0;
    while (shift < 31 && int64_t(1) << shift < p.d.page_size) shift++;
    if (p.paged() && int64_t(1) << shift != p.d.page_size) shift = -1;
    return {p, a, copies_rows(p, a, shift), shift};
}

// What a team appends: the row of token t of sequence b, for one head, to k or v.
struct AppendRow {
    int64_t b, t, h;
    bool is_v;
};
FA_DEVICE int64_t source_index(const AppendParams& x, const AppendRow& row, const NewRow& source) {
    const int64_t* stride = row.is_v ? x.a.v_new_stride : x.a.k_new_stride;
    return source.batch * stride[0] + source.row * stride[1] + row.h * stride[2];
}

// Makes the compiler compute x here, and not where it is used: it cannot know that the branch, which would do no harm, is never
// taken.
FA_DEVICE void force_evaluation(int64_t x) {
    if (uint32_t(x ^ x >> 32) == 0xdeadbeefu) rt::release_successor();
}

// Rows of calls for which copies_rows() is true. What follows from the descriptor is computed before the wait, and numbers have 32
// bits: what remains is a chain of dependent reads, whose latency should be all that it takes.
FA_DEVICE void copy_row(const AppendParams& x, const AppendRow& row) {
    const fa_attention_desc_t& d = x.p.d;
    const fa_append_kv_args_t& a = x.a;
    const int64_t* const stride = row.is_v ? d.v_stride : d.k_stride;
    const int64_t bytes = type_bytes(d.k_dtype), outer_bytes = stride[0] * bytes, row_bytes = stride[1] * bytes;
    const int all = int((row.is_v ? d.dim_v : d.dim_qk) * bytes), first = rt::thread() % kTeam * 16;
    const char* const source = static_cast<const char*>(row.is_v ? a.v_new : a.k_new);
    const char* const from = source + source_index(x, row, {row.b, row.t, true}) * bytes + first;
    const KeySource key_source = key_source_of(x, row.b, row.t, row.t);
    const bool paged = x.p.paged();
    const int64_t table_stride = paged ? d.page_table_stride : 0, sequence_bytes = paged ? 0 : outer_bytes;
    const int64_t b = key_source.index ? 0 : row.b;
    char* cache = static_cast<char*>(row.is_v ? a.v : a.k) + row.h * stride[2] * bytes + b * sequence_bytes + first;
    const int32_t* table = a.page_table + b * table_stride;
    const uint32_t later = uint32_t(key_source.later), keys = uint32_t(d.seqlen_k), sequences = uint32_t(d.kv_batch);
    const uint32_t pages = uint32_t(d.num_pages), within = paged ? uint32_t(d.page_size) - 1 : ~0u, shift = uint32_t(x.page_shift);
    force_evaluation(outer_bytes ^ row_bytes ^ all ^ int64_t(from) ^ int64_t(cache) ^ int64_t(table) ^ table_stride ^
                     sequence_bytes);
    force_evaluation(int64_t(key_source.key) ^ int64_t(key_source.index) ^ int64_t(later ^ keys ^ shift) << 32 ^ sequences ^ pages ^
                     within);
    rt::wait_for_predecessor();
    if (row.b >= d.batch || first >= all) return;
    float vec[4];
    rt::load4(reinterpret_cast<const float*>(from), vec);
    const uint32_t key = later + (key_source.key ? uint32_t(*key_source.key) : 0);
    if (key_source.index) {
        const uint32_t outer = uint32_t(*key_source.index);
        if (outer >= sequences) return;
        table += outer * table_stride;
        cache += outer * sequence_bytes;
    }
    if (key >= keys) return;  // as is one below 0
    char* to = cache + (key & within) * row_bytes;
    if (paged) {
        const uint32_t page = uint32_t(table[key >> shift]);
        if (page >= pages) return;
        to += page * outer_bytes;
    }
    rt::store4(reinterpret_cast<float*>(to), vec);
    for (int at = 16 * kTeam; first + at < all; at += 16 * kTeam) {
        rt::load4(reinterpret_cast<const float*>(from + at), vec);
        rt::store4(reinterpret_cast<float*>(to + at), vec);
    }
}

// Rows that are rotated or change their type. No lane returns early: the lanes of a wave exchange values.
FA_DEVICE void convert_row(const AppendParams& x, int64_t b, int64_t t, int64_t h, bool is_v) {
    rt::wait_for_predecessor();
    const fa_attention_desc_t& d = x.p.d;
    const fa_append_kv_args_t& a = x.a;
    const NewRow source = b < d.batch ? new_row_of(x, b, t) : NewRow{0, 0, false};
    const void* from = is_v ? a.v_new : a.k_new;
    const int64_t from_row = source_index(x, {b, t, h, is_v}, source);
    const RowSteps steps{int(is_v ? d.dim_v : d.dim_qk), is_v ? 0 : int(a.rotary_dim), (a.flags & FA_ROTARY_INTERLEAVED) != 0};
    const int lane = rt::thread() % kTeam;
    LoadedStep loaded{};  // in flight while its row of the cache is looked up
    if (source.valid && lane < steps.count()) loaded = load_step(from, from_row, d.q_dtype, step_of(steps, lane));

    CacheRow cache_row = source.valid ? cache_row_of(x, key_source_of(x, b, t, source.row)) : CacheRow{0, 0, 0, false};
    const int64_t position = cache_row.key - (cache_row.valid && x.p.has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k[b] : 0);
    if (a.cos && (position < 0 || position >= a.max_position)) cache_row.valid = false;
    const int64_t table_row = position * (a.rotary_dim / 2);
    float own[kVec8], partner[kVec8];
    const auto take = [&](int number, const Step& s) {
        if (number != lane) loaded = load_step(from, from_row, d.q_dtype, s);
        rotate_step(loaded, d.q_dtype, s, a.cos + table_row, a.sin + table_row, own, partner);
    };

    const int64_t* fs = is_v ? d.v_descale_stride : d.k_descale_stride;
    float* descale =
        x.p.has(is_v ? FA_OPERAND_V_DESCALE : FA_OPERAND_K_DESCALE) && cache_row.valid
            ? static_cast<float*>(is_v ? a.v_descale : a.k_descale) + cache_row.outer * fs[0] + cache_row.row * fs[1] + h * fs[2]
            : nullptr;
    float factor = 1.f;
    if (a.flags & FA_APPEND_DYNAMIC_SCALE) {
        float amax = 0.f;
        for (int n = lane; cache_row.valid && n < steps.count(); n += kTeam) {
            const Step s = step_of(steps, n);
            take(n, s);
            amax = update_amax(own, s.n, amax);
            if (s.partner) amax = update_amax(partner, s.n, amax);
        }
        amax = team_max(amax);
        factor = dynamic_descale(amax, largest_value(d.k_dtype));
        if (descale && lane == 0) *descale = factor;
        if (steps.count() > kTeam && cache_row.valid) loaded = load_step(from, from_row, d.q_dtype, step_of(steps, lane));
    } else if (descale) {
        factor = *descale;
    }

    if (!cache_row.valid) return;
    const int64_t* cs = is_v ? d.v_stride : d.k_stride;
    void* to = is_v ? a.v : a.k;
    const int64_t to_row = cache_row.outer * cs[0] + cache_row.row * cs[1] + h * cs[2];
    for (int n = lane; n < steps.count(); n += kTeam) {
        const Step s = step_of(steps, n);
        take(n, s);
        FA_UNROLL
        for (int i = 0; i < kVec8; i++) {
            if (descale) own[i] /= factor;
            if (descale && s.partner) partner[i] /= factor;
        }
        store_vec8(to, to_row + s.at, d.k_dtype, s.n, own);
        if (s.partner) store_vec8(to, to_row + s.partner, d.k_dtype, s.n, partner);
    }
}

// A team for each token, head, and k or v. It is launched early, so that indices are computed when the kernel before it ends.
FA_KERNEL void FA_BOUNDS(kMoveThreads, 1) append_rows(FA_PARAM AppendParams x) {
    rt::release_successor();
    rt::fetch_parameters(x);
    const fa_attention_desc_t& d = x.p.d;
    const fa_append_kv_args_t& a = x.a;
    const int64_t team = rt::block() * kTeams + rt::thread() / kTeam, line = team / d.heads_k;
    const AppendRow row{line / 2 / a.seqlen_new, line / 2 % a.seqlen_new, team % d.heads_k, (line & 1) != 0};
    if (x.copies) copy_row(x, row);
    else convert_row(x, row.b, row.t, row.h, row.is_v);
}

}  // namespace gpu
}  // namespace fa
