// fa_append_kv: one kernel that stores new rows of k and v into a cache, where they are rotated, change their type or are scaled on
// the way. A team of lanes moves a row by the steps of rotary.h; rows that stay as they are have a path of their own, for in decode
// the latency of this kernel is all that counts.
#pragma once
#include "gpu/rows/rotary.h"

namespace fa {
namespace gpu {

// k or v: the new rows, and the cache.
struct AppendOperand {
    const void* from;
    void* to;
    int64_t heads;
    int32_t to_dtype;
    float* descale;              // a factor for each row of the cache, NULL: none
    RowStrides from_strides;     // of sequences, tokens and heads
    RowStrides to_strides;       // of pages or the cache's sequences, rows and heads
    RowStrides descale_strides;  // likewise
    RowSteps steps;
    bool dynamic;  // factors are computed
    bool scaled;   // by store_scaled(), which knows blocks, types of 4 bits, every kind of factor, and tails
    ScaledRows rows;
    void *factor, *shift, *tail;  // those of `rows`, to be written
};
// What append_rows reads.
struct AppendParams {
    AppendOperand k, v;
    int64_t batch, heads, seqlen_new, total_new;  // heads: of k or of v, whichever has more
    const int32_t *cu_seqlens_new, *seqused_new;  // NULL: as in QuerySpans
    const int32_t* positions;                     // of each token's key; NULL: keys follow each other,
    const int32_t* first;                         // from this key of a sequence on; NULL: 0
    int64_t positions_stride;                     // between sequences
    const int32_t *leftpad, *kv_batch_idx;        // NULL: none; sequence b
    int64_t seqlen_k, sequences;
    Pages pages;
    const float *cos, *sin;  // NULL: no rotation
    int64_t max_position, pairs;
    int32_t from_dtype;
    int32_t page_shift;  // a page has 2^page_shift keys; −1: another number
    bool dynamic_scale;  // of k or v
    bool copies;         // see copies_rows
};

// Do rows go into the cache as they are, in aligned 16-byte vectors, as many of each sequence? And have numbers of keys and pages
// 32 bits, and a page a power of two of keys?
inline bool copies_rows(const Problem& problem, const fa_append_kv_args_t& args, int32_t page_shift) {
    constexpr int64_t limit = int64_t(1) << 31;
    const fa_attention_desc_t& d = problem.d;
    const auto is_vec16 = [](const void* base, const int64_t stride[4], int64_t dim, int32_t dtype) {
        return copy_width(base, row_strides(stride, false), dim, dtype) == 16;
    };
    const bool counted = args.cu_seqlens_new || args.seqused_new,
               scaled = problem.has(FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_TAIL);
    return d.k_dtype == d.q_dtype && d.v_dtype == d.q_dtype && !counted && !scaled && !args.cos &&
           !(args.flags & FA_APPEND_DYNAMIC_SCALE) && d.seqlen_k <= limit && args.seqlen_new <= limit && d.kv_batch <= limit &&
           d.num_pages <= limit && page_shift >= 0 && is_vec16(args.k, d.k_stride, d.dim_qk, d.k_dtype) &&
           is_vec16(args.v, d.v_stride, d.dim_v, d.v_dtype) && is_vec16(args.k_new, args.k_new_stride, d.dim_qk, d.q_dtype) &&
           is_vec16(args.v_new, args.v_new_stride, d.dim_v, d.q_dtype);
}

inline AppendParams append_params(const Problem& problem, const fa_append_kv_args_t& args) {
    const fa_attention_desc_t& d = problem.d;
    const bool packed = args.cu_seqlens_new != nullptr;
    AppendParams params{};
    params.k.from = args.k_new;
    params.k.to = args.k;
    params.k.heads = d.heads_k;
    params.k.to_dtype = d.k_dtype;
    params.k.descale = problem.has(FA_OPERAND_K_DESCALE) ? static_cast<float*>(args.k_descale) : nullptr;
    params.k.from_strides = row_strides(args.k_new_stride, packed);
    params.k.to_strides = row_strides(d.k_stride, false);
    params.k.descale_strides = row_strides(d.k_descale_stride, false);
    params.k.steps = {int(d.dim_qk), int(args.rotary_begin), int(args.rotary_dim), (args.flags & FA_ROTARY_INTERLEAVED) != 0};
    params.v.from = args.v_new;
    params.v.to = args.v;
    params.v.heads = d.heads_v;
    params.v.to_dtype = d.v_dtype;
    params.v.descale = problem.has(FA_OPERAND_V_DESCALE) ? static_cast<float*>(args.v_descale) : nullptr;
    params.v.from_strides = row_strides(args.v_new_stride, packed);
    params.v.to_strides = row_strides(d.v_stride, false);
    params.v.descale_strides = row_strides(d.v_descale_stride, false);
    params.v.steps = {int(d.dim_v), 0, 0, false};
    params.batch = d.batch;
    params.heads = max_of(d.heads_k, d.heads_v);
    params.seqlen_new = args.seqlen_new;
    params.total_new = args.total_new;
    params.cu_seqlens_new = args.cu_seqlens_new;
    params.seqused_new = args.seqused_new;
    params.positions = args.positions;
    params.positions_stride = packed ? 0 : args.seqlen_new;
    params.leftpad = problem.has(FA_OPERAND_LEFTPAD_K) ? args.leftpad_k : nullptr;
    params.first = problem.has(FA_OPERAND_SEQUSED_K) ? args.seqused_k : params.leftpad;
    params.kv_batch_idx = problem.has(FA_OPERAND_KV_BATCH_IDX) ? args.kv_batch_idx : nullptr;
    params.pages = pages_of(problem, args.page_table);
    params.seqlen_k = d.seqlen_k;
    params.sequences = params.kv_batch_idx ? d.kv_batch : d.batch;
    params.cos = args.cos;
    params.sin = args.sin;
    params.max_position = args.max_position;
    params.pairs = args.rotary_dim / 2;
    params.from_dtype = d.q_dtype;
    while (params.page_shift < 31 && int64_t(1) << params.page_shift < d.page_size) params.page_shift++;
    if (problem.paged() && int64_t(1) << params.page_shift != d.page_size) params.page_shift = -1;
    params.dynamic_scale = (args.flags & FA_APPEND_DYNAMIC_SCALE) != 0;
    params.k.dynamic = params.dynamic_scale && type_bytes(d.k_dtype) == 1;
    params.v.dynamic = params.dynamic_scale && type_bytes(d.v_dtype) == 1;
    params.k.rows = {k_factors(problem, args.k_descale, args.k_shift), problem.k_dims(), args.k_tail, row_strides(d.k_tail_stride, false),
                     d.k_tail_dtype};
    params.v.rows = {v_factors(problem, args.v_descale, args.v_shift), d.dim_v, nullptr, {}, 0};
    params.k.factor = args.k_descale;
    params.k.shift = args.k_shift;
    params.k.tail = args.k_tail;
    params.v.factor = args.v_descale;
    params.v.shift = args.v_shift;
    params.k.scaled = is_block_type(d.k_dtype) || !problem.plain_k();
    params.v.scaled = is_block_type(d.v_dtype) || !problem.plain_v();
    // Where factors of whole rows are computed, the lanes of a wave exchange values, and so take one way.
    if (params.dynamic_scale) params.k.scaled = params.v.scaled = params.k.scaled || params.v.scaled;
    params.copies = copies_rows(problem, args, params.page_shift);
    return params;
}

// What a team appends: the row of token t of sequence b, for one head, to k or v.
struct AppendRow {
    int64_t b, t, h;
    bool is_v;
};

// Where a new token's row lies in k_new and v_new.
struct NewRow {
    int64_t row;
    bool valid;
};
FA_DEVICE NewRow new_row_of(const AppendParams& params, int64_t b, int64_t t) {
    int64_t begin = 0, length = params.seqlen_new;
    if (params.cu_seqlens_new) {
        begin = clamp(params.cu_seqlens_new[b], 0, params.total_new);
        length = clamp(params.cu_seqlens_new[b + 1] - begin, 0, min_of(params.seqlen_new, params.total_new - begin));
    }
    if (params.seqused_new) length = clamp(params.seqused_new[b], 0, length);
    return {begin + t, t < length};
}

// Where a new token's row of the cache is read from: its key's number, or that of the sequence's first new one, and the cache's
// sequence.
struct KeySource {
    const int32_t *key, *index;  // NULL: 0; b
    int64_t b, later;            // tokens behind that key
};
FA_DEVICE KeySource key_source_of(const AppendParams& params, int64_t b, int64_t t, int64_t row) {
    const int32_t* const position = params.positions ? params.positions + b * params.positions_stride + row : nullptr;
    const int32_t* const first = params.first ? params.first + b : nullptr;
    return {position ? position : first, params.kv_batch_idx ? params.kv_batch_idx + b : nullptr, b, position ? 0 : t};
}

// A row of the cache. Not valid: there is none.
struct CacheRow {
    int64_t outer, row, key;
    bool valid;
};
FA_DEVICE CacheRow cache_row_of(const AppendParams& params, const KeySource& source) {
    constexpr CacheRow none{0, 0, 0, false};
    const int64_t key = source.later + (source.key ? *source.key : 0), outer = source.index ? *source.index : source.b;
    if (key < 0 || key >= params.seqlen_k || outer < 0 || outer >= params.sequences) return none;
    const KeyLocation at = locate_slot(params.pages, outer, key);
    return {at.outer, at.row, key, at.valid};
}

// A team's largest value. Every lane of the wave comes here.
FA_DEVICE float team_max(float x) {
    for (int mask = kTeam / 2; mask > 0; mask /= 2) x = max_fn(x, rt::shuffle_xor16(x, mask));
    return x;
}

FA_DEVICE float update_amax(const float* x, int n, float amax) {
    FA_UNROLL_FOR (int i = 0; i < kVec8; i++)
        if (i < n) amax = max_fn(amax, fabsf(x[i]));
    return amax;
}

// Makes the compiler compute x here, and not where it is used: it cannot know that the branch, which would do no harm, is never
// taken.
FA_DEVICE void force_evaluation(int64_t x) {
    if (uint32_t(x ^ x >> 32) == 0xdeadbeefu) rt::release_successor();
}

// Rows of calls for which copies_rows() is true. What follows from the parameters is computed before the wait, and numbers have 32
// bits: what remains is a chain of dependent reads, whose latency should be all that it takes.
FA_DEVICE void copy_row(const AppendParams& params, const AppendRow& row) {
    const AppendOperand& operand = row.is_v ? params.v : params.k;
    const int64_t bytes = type_bytes(operand.to_dtype), outer_bytes = operand.to_strides.batch * bytes,
                  row_bytes = operand.to_strides.row * bytes;
    const int all = int(operand.steps.dim * bytes), first = rt::thread() % kTeam * 16;
    const char* const from = static_cast<const char*>(operand.from) + operand.from_strides.index(row.b, row.t, row.h) * bytes + first;
    const KeySource source = key_source_of(params, row.b, row.t, row.t);
    const bool paged = params.pages.table != nullptr;
    const int64_t table_stride = paged ? params.pages.row_stride : 0, sequence_bytes = paged ? 0 : outer_bytes;
    const int64_t b = source.index ? 0 : row.b;
    char* cache = static_cast<char*>(operand.to) + row.h * operand.to_strides.head * bytes + b * sequence_bytes + first;
    const int32_t* table = params.pages.table + b * table_stride;
    const uint32_t later = uint32_t(source.later), keys = uint32_t(params.seqlen_k), sequences = uint32_t(params.sequences);
    const uint32_t pages = uint32_t(params.pages.count), within = paged ? uint32_t(params.pages.size) - 1 : ~0u,
                   shift = uint32_t(params.page_shift);
    force_evaluation(outer_bytes ^ row_bytes ^ all ^ int64_t(from) ^ int64_t(cache) ^ int64_t(table) ^ table_stride ^ sequence_bytes);
    force_evaluation(int64_t(source.key) ^ int64_t(source.index) ^ int64_t(later ^ keys ^ shift) << 32 ^ sequences ^ pages ^ within);
    rt::wait_for_predecessor();
    if (row.b >= params.batch || row.h >= operand.heads || first >= all) return;
    float vec[4];
    rt::load4(reinterpret_cast<const float*>(from), vec);
    const uint32_t key = later + (source.key ? uint32_t(*source.key) : 0);
    if (source.index) {
        const uint32_t outer = uint32_t(*source.index);
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
FA_DEVICE void convert_row(const AppendParams& params, const AppendRow& row) {
    rt::wait_for_predecessor();
    const AppendOperand& operand = row.is_v ? params.v : params.k;
    const NewRow source = row.b < params.batch && row.h < operand.heads ? new_row_of(params, row.b, row.t) : NewRow{0, false};
    const int64_t from_row = operand.from_strides.index(row.b, source.row, row.h);
    const RowSteps steps = operand.steps;
    const int lane = rt::thread() % kTeam;
    LoadedStep loaded{};  // in flight while its row of the cache is looked up
    if (source.valid && lane < steps.count()) loaded = load_step(operand.from, from_row, params.from_dtype, step_of(steps, lane));

    CacheRow cache_row = source.valid ? cache_row_of(params, key_source_of(params, row.b, row.t, source.row)) : CacheRow{0, 0, 0, false};
    const int64_t position = cache_row.key - (cache_row.valid && params.leftpad ? params.leftpad[row.b] : 0);
    if (params.cos && (position < 0 || position >= params.max_position)) cache_row.valid = false;
    const float *const cos = params.cos + position * params.pairs, *const sin = params.sin + position * params.pairs;
    float own[kVec8], partner[kVec8];
    const auto take = [&](int number, const Step& step) {
        if (number != lane) loaded = load_step(operand.from, from_row, params.from_dtype, step);
        rotate_step(loaded, params.from_dtype, step, cos, sin, own, partner);
    };

    float* const descale = operand.descale && cache_row.valid
                               ? operand.descale + operand.descale_strides.index(cache_row.outer, cache_row.row, row.h)
                               : nullptr;
    float factor = 1.f;
    if (params.dynamic_scale) {
        float amax = 0.f;
        for (int n = lane; cache_row.valid && n < steps.count(); n += kTeam) {
            const Step step = step_of(steps, n);
            take(n, step);
            amax = update_amax(own, step.n, amax);
            if (step.partner) amax = update_amax(partner, step.n, amax);
        }
        amax = team_max(amax);
        if (operand.dynamic) {
            factor = dynamic_descale(amax, largest_value(operand.to_dtype));
            if (descale && lane == 0) *descale = factor;
        }
        if (steps.count() > kTeam && cache_row.valid) loaded = load_step(operand.from, from_row, params.from_dtype, step_of(steps, lane));
    }
    if (descale && !operand.dynamic) factor = *descale;

    if (!cache_row.valid) return;
    const int64_t to_row = operand.to_strides.index(cache_row.outer, cache_row.row, row.h);
    for (int n = lane; n < steps.count(); n += kTeam) {
        const Step step = step_of(steps, n);
        take(n, step);
        FA_UNROLL_FOR (int i = 0; i < kVec8; i++) {
            if (descale) own[i] /= factor;
            if (descale && step.partner) partner[i] /= factor;
        }
        store_vec8(operand.to, to_row + step.at, operand.to_dtype, step.n, own);
        if (step.partner) store_vec8(operand.to, to_row + step.partner, operand.to_dtype, step.n, partner);
    }
}

// Element c of a new row, rotated by the angles of its position.
FA_DEVICE float new_element(const AppendParams& params, const AppendOperand& operand, int64_t row, int64_t c, const float* cos,
                            const float* sin) {
    const RowSteps& steps = operand.steps;
    const float own = load_element(operand.from, row + c, params.from_dtype);
    const int turned = int(c) - steps.begin;
    if (turned < 0 || turned >= steps.rotated) return own;
    const int half = steps.rotated / 2, pair = steps.interleaved ? turned / 2 : turned % half;
    const bool second = steps.interleaved ? (turned & 1) != 0 : turned >= half;
    const int distance = steps.interleaved ? 1 : half;
    const float other = load_element(operand.from, row + (second ? c - distance : c + distance), params.from_dtype);
    return second ? other * sin[pair] + own * cos[pair] : own * cos[pair] - other * sin[pair];
}

// One row of those that store_scaled() moves.
struct ScaledRow {
    int64_t from, to, factor;  // first elements or units, and the first factor
    const float *cos, *sin;
};

// Dims [first, end), which begin with a byte and a block of factors.
FA_COLD void store_dims(const AppendParams& params, const AppendOperand& operand, const ScaledRow& row, int64_t first, int64_t end) {
    const Factors& factors = operand.rows.factors;
    const int32_t dtype = operand.to_dtype;
    const bool nibbles = is_nibble_type(dtype);
    uint32_t low = 0;
    for (int64_t next; first < end; first = next) {
        next = factors.factor ? min_of(first + factors.block[1], end) : end;
        const int64_t index = factors.factor ? row.factor + first / factors.block[1] * factors.stride[3] : 0;
        if (operand.dynamic && factors.factor) {
            ValueRange range = no_values();
            FA_UNROLL_BY(1)
            for (int64_t c = first; c < next; c++) add_value(&range, new_element(params, operand, row.from, c, row.cos, row.sin));
            const Scaling scaling = dynamic_scaling(range, dtype, factors.dtype, factors.shift != nullptr);
            store_factor(operand.factor, index, factors.dtype, scaling.factor);
            if (factors.shift) store_factor(operand.shift, index, factors.dtype, scaling.shift);
        }
        const float factor = factors.factor ? load_factor(operand.factor, index, factors.dtype) : 1.f;
        const float shift = factors.shift ? load_factor(operand.shift, index, factors.dtype) : 0.f;
        FA_UNROLL_BY(1)
        for (int64_t c = first; c < next; c++) {
            float value = new_element(params, operand, row.from, c, row.cos, row.sin);
            if (factors.factor) value = (value - shift) / factor;
            if (!nibbles) store_element(operand.to, row.to + c, dtype, value);
            else if (c % 2 == 0) low = f32_to_nibble(value, dtype);
            else static_cast<uint8_t*>(operand.to)[row.to + c / 2] = uint8_t(low | f32_to_nibble(value, dtype) << 4);
        }
    }
}

FA_COLD void store_block(const AppendParams& params, const AppendOperand& operand, const ScaledRow& row, int64_t n) {
    float values[kBlockDims];
    FA_UNROLL_BY(1)
    for (int i = 0; i < kBlockDims; i++) values[i] = new_element(params, operand, row.from, n * kBlockDims + i, row.cos, row.sin);
    quantise_block(values, block_format(operand.to_dtype), static_cast<uint8_t*>(operand.to) + (row.to + n) * type_bytes(operand.to_dtype));
}

// Rows that become blocks, bytes of two values, or values by factors of parts: each lane has some of these to itself.
FA_COLD void store_scaled(const AppendParams& params, const AppendRow& row) {
    rt::wait_for_predecessor();
    const AppendOperand& operand = row.is_v ? params.v : params.k;
    if (row.b >= params.batch || row.h >= operand.heads) return;
    const NewRow source = new_row_of(params, row.b, row.t);
    if (!source.valid) return;
    const CacheRow at = cache_row_of(params, key_source_of(params, row.b, row.t, source.row));
    const int64_t position = at.key - (params.leftpad ? params.leftpad[row.b] : 0);
    if (!at.valid || (params.cos && (position < 0 || position >= params.max_position))) return;
    const Factors& factors = operand.rows.factors;
    const ScaledRow to{operand.from_strides.index(row.b, source.row, row.h), operand.to_strides.index(at.outer, at.row, row.h),
                       factors.factor ? factor_index(factors, at.outer, at.row, row.h) : 0, params.cos + position * params.pairs,
                       params.sin + position * params.pairs};
    const int64_t dims = operand.rows.dims;
    const bool blocks = is_block_type(operand.to_dtype),
               odd = is_nibble_type(operand.to_dtype) && factors.factor && factors.block[1] % 2 != 0;
    const int64_t part = odd ? dims : factors.factor ? factors.block[1] : kBlockDims;
    for (int64_t n = rt::thread() % kTeam; n * part < dims; n += kTeam)
        if (blocks) store_block(params, operand, to, n);
        else store_dims(params, operand, to, n * part, min_of((n + 1) * part, dims));
    const int64_t tail = operand.rows.tail_strides.index(at.outer, at.row, row.h);
    for (int64_t c = dims + rt::thread() % kTeam; c < operand.steps.dim; c += kTeam)
        store_element(operand.tail, tail + c - dims, operand.rows.tail_dtype, new_element(params, operand, to.from, c, to.cos, to.sin));
}

// A team for each token, head, and k or v. It is launched early, so that indices are computed when the kernel before it ends.
FA_KERNEL void FA_BOUNDS(kMoveThreads, 1) append_rows(FA_PARAM AppendParams params) {
    rt::release_successor();
    rt::fetch_parameters(params);
    const int64_t team = rt::block() * kTeams + rt::thread() / kTeam, line = team / params.heads;
    const AppendRow row{line / 2 / params.seqlen_new, line / 2 % params.seqlen_new, team % params.heads, (line & 1) != 0};
    if (params.copies) copy_row(params, row);
    else if ((row.is_v ? params.v : params.k).scaled) store_scaled(params, row);
    else convert_row(params, row);
}

}  // namespace gpu
}  // namespace fa
