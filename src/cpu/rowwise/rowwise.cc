// fa_merge, fa_append_kv and fa_rotary: each row by itself, in chunks of rows that workers take from one counter.
#include "cpu/rowwise/rowwise.h"
#include <atomic>
#include <float.h>
#include "backend/factors.h"
#include "cpu/rowwise/rotate.h"
#include "spec/shape.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

constexpr int64_t kChunk = 64;

struct RowsJob {
    void (*row)(const void*, int64_t);
    const void* context;
    int64_t count;
    alignas(64) std::atomic<int64_t> next;  // apart from what every worker reads
};

void worker_loop(void* arg, int64_t) {
    RowsJob& rows = *static_cast<RowsJob*>(arg);
    for (int64_t i; (i = rows.next.fetch_add(kChunk, std::memory_order_relaxed)) < rows.count;)
        for (int64_t r = i; r < min_of(i + kChunk, rows.count); r++) rows.row(rows.context, r);
}

// The rows of a tensor, of one head: packed sequences' as many as they have, for most of them may have none; else `seqlen` of each.
int64_t rows_of(const int32_t* cu_seqlens, int64_t batch, int64_t seqlen) {
    return cu_seqlens ? int64_t(cu_seqlens[batch]) - cu_seqlens[0] : batch * seqlen;
}

// Where row n of these is: in which sequence, and where there.
struct Place {
    int64_t sequence, row;
};
Place place_of(int64_t n, const int32_t* cu_seqlens, int64_t batch, int64_t seqlen) {
    if (!cu_seqlens) return {n / seqlen, n % seqlen};
    const int64_t row = cu_seqlens[0] + n;
    int64_t low = 0, high = batch;  // cu_seqlens[low] <= row < cu_seqlens[high]
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (cu_seqlens[middle] <= row ? low : high) = middle;
    }
    return {low, row - cu_seqlens[low]};
}

struct Merge {
    const Problem& p;
    const fa_merge_args_t& a;
    const Kernels& k;
    bool heads_inside;  // a row's heads follow each other: memory is read in order where they are numbered so
};

// A row's merged state; acc in the units of kHeadroomUnit: several parts at the type's limit must not overflow before they are
// normalised.
struct MergedRow {
    RowState state;
    int64_t dim;
    float acc[kMaxDim];  // of which `dim` are used, and zeroed
    explicit MergedRow(int64_t dim_) : state(empty_row()), dim(dim_) { memset(acc, 0, size_t(dim) * sizeof(float)); }
    void add(const float* part, float part_lse) {
        const RowState s = from_lse(part_lse);
        if (s.l == 0.f) return;
        const Merged f = merge(state, s);
        state = f.state;
        const float of_part = f.scale_b / kHeadroomFactor;
        for (int64_t c = 0; c < dim; c++) acc[c] = acc[c] * f.scale_a + part[c] * of_part;
    }
    // Rounded to f32. An average of finite values is finite, though its sum times the factor may not be: a rare row, for whose sake the
    // others' loop has no branch.
    void normalise(float factor, float scale) {
        float sum[kMaxDim];
        bool infinite = false;
        for (int64_t c = 0; c < dim; c++) {
            sum[c] = acc[c];
            const float average = acc[c] * factor;
            infinite |= fabsf(average) > FLT_MAX;
            acc[c] = average * scale;
        }
        for (int64_t c = 0; infinite && c < dim; c++)
            if (isinf(sum[c] * factor) && isfinite(sum[c])) acc[c] = copysignf(FLT_MAX, sum[c]) * scale;
    }
};

void merge_row(const void* context, int64_t index) {
    const Merge& x = *static_cast<const Merge*>(context);
    const fa_attention_desc_t& d = x.p.d;
    const fa_merge_args_t& a = x.a;
    const QuerySpans spans = query_spans(x.p, a.cu_seqlens_q, a.seqused_q);
    const int64_t rows = rows_of(spans.cu_seqlens, d.batch, d.seqlen_q), h = x.heads_inside ? index % d.heads_q : index / rows;
    const Place place = place_of(x.heads_inside ? index / d.heads_q : index % rows, spans.cu_seqlens, d.batch, d.seqlen_q);
    const Span span = span_of(spans, place.sequence);
    const int64_t i = place.row, batch = spans.packed() ? 0 : place.sequence, row = span.begin + i;
    if (i >= span.length && spans.packed()) return;  // gaps of a packed tensor are not ours

    void* o = element(a.o, batch * d.o_stride[0] + row * d.o_stride[1] + h * d.o_stride[2], d.o_dtype);
    float* lse = a.lse ? a.lse + batch * d.lse_stride[0] + h * d.lse_stride[1] + row * d.lse_stride[2] : nullptr;
    MergedRow merged(d.dim_v);
    if (i < span.length) {
        if (a.flags & FA_MERGE_ACCUMULATE) merged.add(static_cast<const float*>(o), *lse);
        for (int64_t part = 0; part < a.parts; part++) {
            const int64_t* so = a.o_parts_stride;
            const int64_t* sl = a.lse_parts_stride;
            merged.add(a.o_parts + part * so[0] + batch * so[1] + row * so[2] + h * so[3],
                       a.lse_parts[part * sl[0] + batch * sl[1] + h * sl[2] + row * sl[3]]);
        }
        if (x.p.has(FA_OPERAND_SINKS)) {
            const Merged f = merge(merged.state, sink_state(a.sinks[h]));
            for (int64_t c = 0; c < d.dim_v; c++) merged.acc[c] *= f.scale_a;
            merged.state = f.state;
        }
    }
    const float factor = normaliser(merged.state) * kHeadroomFactor, scale = x.p.has(FA_OPERAND_O_SCALE) ? a.o_scale[0] : 1.f;
    merged.normalise(factor, scale);
    x.k.narrow[type_index(d.o_dtype)](merged.acc, d.dim_v, o);
    if (lse) *lse = log_sum_exp(merged.state);
}

struct Append {
    const Problem& p;
    const fa_append_kv_args_t& a;
    const Kernels& k;
};

// k or v: rows of new tokens, and the cache that they go to. cos NULL: no rotation.
struct AppendOperand {
    int32_t dtype;  // of the cache
    int64_t heads;
    const void* from;
    const int64_t* from_stride;
    int64_t dim, own;  // of a row, and of those dims the ones before the tail
    const float *cos, *sin;
    void* cache;
    const int64_t* stride;
    Factors factors;
    void *factor, *shift;  // the same, to be written
    void* tail;
};

// A row's values over their factors, which are computed under FA_APPEND_DYNAMIC_SCALE.
void divide_by_factors(const AppendOperand& operand, int64_t index, bool dynamic, float* line) {
    const Factors& f = operand.factors;
    for (int64_t first = 0; first < operand.own; first += f.block[1], index += f.stride[3]) {
        const int64_t end = min_of(first + f.block[1], operand.own);
        if (dynamic) {
            ValueRange range = no_values();
            for (int64_t c = first; c < end; c++) add_value(&range, line[c]);
            const Scaling s = dynamic_scaling(range, operand.dtype, f.dtype, f.shift != nullptr);
            store_factor(operand.factor, index, f.dtype, s.factor);
            if (f.shift) store_factor(operand.shift, index, f.dtype, s.shift);
        }
        const float factor = load_factor(f.factor, index, f.dtype), shift = f.shift ? load_factor(f.shift, index, f.dtype) : 0.f;
        for (int64_t c = first; c < end; c++) line[c] = (line[c] - shift) / factor;
    }
}

// One token's k or v of all heads into its slot; `block` is the page, or the cache's sequence.
void append_token(const Append& append, const AppendOperand& operand, int64_t batch, int64_t row, int64_t block, int64_t slot) {
    const fa_attention_desc_t& d = append.p.d;
    const bool dynamic = type_bytes(operand.dtype) == 1 && append.a.flags & FA_APPEND_DYNAMIC_SCALE;
    const int64_t from_at = batch * operand.from_stride[0] + row * operand.from_stride[1];
    for (int64_t h = 0; h < operand.heads; h++) {
        float line[kMaxDim];
        append.k.widen[type_index(d.q_dtype)](element(operand.from, from_at + h * operand.from_stride[2], d.q_dtype), operand.dim, line);
        if (operand.cos)
            rotate(line + append.a.rotary_begin, operand.cos, operand.sin, append.a.rotary_dim,
                   (append.a.flags & FA_ROTARY_INTERLEAVED) != 0);
        if (operand.factors.factor) divide_by_factors(operand, factor_index(operand.factors, block, slot, h), dynamic, line);
        const int64_t to = block * operand.stride[0] + slot * operand.stride[1] + h * operand.stride[2];
        append.k.narrow[type_index(operand.dtype)](line, operand.own, element(operand.cache, to, operand.dtype));
        if (operand.own == operand.dim) continue;
        const int64_t tail = block * d.k_tail_stride[0] + slot * d.k_tail_stride[1] + h * d.k_tail_stride[2];
        append.k.narrow[type_index(d.k_tail_dtype)](line + operand.own, operand.dim - operand.own,
                                                    element(operand.tail, tail, d.k_tail_dtype));
    }
}

void append_row(const void* context, int64_t index) {
    const Append& x = *static_cast<const Append*>(context);
    const fa_attention_desc_t& d = x.p.d;
    const fa_append_kv_args_t& a = x.a;
    const Place place = place_of(index, a.cu_seqlens_new, d.batch, a.seqlen_new);
    const int64_t b = place.sequence, t = place.row;
    int64_t begin = 0, length = a.seqlen_new, batch = b;
    if (a.cu_seqlens_new) {
        begin = a.cu_seqlens_new[b];
        length = a.cu_seqlens_new[b + 1] - begin;
        batch = 0;
    }
    if (a.seqused_new) length = a.seqused_new[b];
    if (t >= length) return;

    const int64_t leftpad = x.p.has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k[b] : 0;
    int64_t slot = (x.p.has(FA_OPERAND_SEQUSED_K) ? a.seqused_k[b] : leftpad) + t;
    if (a.positions) slot = a.positions[a.cu_seqlens_new ? begin + t : b * a.seqlen_new + t];
    if (slot < 0) return;
    const int64_t position = slot - leftpad;
    const KeyLocation at = locate_slot(pages_of(x.p, a.page_table), x.p.has(FA_OPERAND_KV_BATCH_IDX) ? a.kv_batch_idx[b] : b, slot);
    const int64_t row = begin + t;
    const float* cos = a.cos ? a.cos + position * (a.rotary_dim / 2) : nullptr;
    const float* sin = a.sin ? a.sin + position * (a.rotary_dim / 2) : nullptr;
    const AppendOperand k{.dtype = d.k_dtype,
                          .heads = d.heads_k,
                          .from = a.k_new,
                          .from_stride = a.k_new_stride,
                          .dim = d.dim_qk,
                          .own = x.p.k_dims(),
                          .cos = cos,
                          .sin = sin,
                          .cache = a.k,
                          .stride = d.k_stride,
                          .factors = k_factors(x.p, a.k_descale, a.k_shift),
                          .factor = a.k_descale,
                          .shift = a.k_shift,
                          .tail = a.k_tail};
    const AppendOperand v{.dtype = d.v_dtype,
                          .heads = d.heads_v,
                          .from = a.v_new,
                          .from_stride = a.v_new_stride,
                          .dim = d.dim_v,
                          .own = d.dim_v,
                          .cos = nullptr,
                          .sin = nullptr,
                          .cache = a.v,
                          .stride = d.v_stride,
                          .factors = v_factors(x.p, a.v_descale, a.v_shift),
                          .factor = a.v_descale,
                          .shift = a.v_shift,
                          .tail = nullptr};
    append_token(x, k, batch, row, at.outer, at.row);
    append_token(x, v, batch, row, at.outer, at.row);
}

struct Rotary {
    const Problem& p;
    const fa_rotary_args_t& a;
    const Kernels& k;
};

void rotary_row(const void* context, int64_t index) {
    const Rotary& x = *static_cast<const Rotary*>(context);
    const fa_attention_desc_t& d = x.p.d;
    const fa_rotary_args_t& a = x.a;
    const QuerySpans spans = query_spans(x.p, a.cu_seqlens, a.seqused);
    const Place place = place_of(index, spans.cu_seqlens, d.batch, d.seqlen_q);
    const int64_t b = place.sequence, i = place.row;
    const Span span = span_of(spans, b);
    if (i >= span.length) return;
    const int64_t batch = x.p.packed_q() ? 0 : b, row = span.begin + i;
    int64_t position = i + (a.position_offset ? a.position_offset[b] : 0);
    if (a.positions) position = a.positions[x.p.packed_q() ? row : b * d.seqlen_q + i];
    const float* cos = a.cos + position * (a.rotary_dim / 2);
    const float* sin = a.sin + position * (a.rotary_dim / 2);
    for (int64_t h = 0; h < d.heads_q; h++) {
        float line[kMaxDim];
        x.k.widen[type_index(d.q_dtype)](element(a.x, batch * d.q_stride[0] + row * d.q_stride[1] + h * d.q_stride[2], d.q_dtype), d.dim_qk,
                                         line);
        rotate(line + a.rotary_begin, cos, sin, a.rotary_dim, (a.flags & FA_ROTARY_INTERLEAVED) != 0);
        const int64_t to = batch * a.out_stride[0] + row * a.out_stride[1] + h * a.out_stride[2];
        x.k.narrow[type_index(d.q_dtype)](line, d.dim_qk, element(a.out, to, d.q_dtype));
    }
}

}  // namespace

fa_status_t for_rows(const Threads& threads, int64_t count, double bytes, void (*row)(const void*, int64_t), const void* context,
                     Message* message) {
    RowsJob rows;
    rows.row = row;
    rows.context = context;
    rows.count = count;
    rows.next = 0;
    return run_workers(threads, worker_count(threads, ceil_div(count, kChunk), kFlopsOfByte * bytes), worker_loop, &rows, message);
}

fa_status_t run_merge(const Problem& problem, const fa_merge_args_t& args, const Kernels& kernels, const Threads& threads,
                      Message* message) {
    const Merge x{problem, args, kernels, problem.d.o_stride[2] < problem.d.o_stride[1]};
    const int64_t rows =
        rows_of(query_spans(problem, args.cu_seqlens_q, nullptr).cu_seqlens, problem.d.batch, problem.d.seqlen_q) * problem.d.heads_q;
    return for_rows(threads, rows, 8.0 * double(rows) * double(args.parts + 1) * double(problem.d.dim_v), merge_row, &x, message);
}

fa_status_t run_append_kv(const Problem& problem, const fa_append_kv_args_t& args, const Kernels& kernels, const Threads& threads,
                          Message* message) {
    const Append x{problem, args, kernels};
    const int64_t rows = rows_of(args.cu_seqlens_new, problem.d.batch, args.seqlen_new);
    return for_rows(threads, rows,
                    4.0 * double(rows) * (double(problem.d.heads_k * problem.d.dim_qk) + double(problem.d.heads_v * problem.d.dim_v)),
                    append_row, &x, message);
}

fa_status_t run_rotary(const Problem& problem, const fa_rotary_args_t& args, const Kernels& kernels, const Threads& threads,
                       Message* message) {
    const Rotary x{problem, args, kernels};
    const int64_t rows = rows_of(query_spans(problem, args.cu_seqlens, nullptr).cu_seqlens, problem.d.batch, problem.d.seqlen_q);
    return for_rows(threads, rows, 4.0 * double(rows * problem.d.heads_q) * double(problem.d.dim_qk), rotary_row, &x, message);
}

}  // namespace cpu
}  // namespace fa
