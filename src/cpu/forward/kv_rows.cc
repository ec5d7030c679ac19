// The key side: finds rows of k and v in dense, packed, cached or paged memory by their key index, and converts them to f32 with
// their de-scale factors.
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

struct KvTensor {
    const void* data;
    int32_t dtype;
    void (*widen)(const void* from, int64_t count, float* to);
    const int64_t* stride;
    Factors factors;
    bool of_k_head;    // there is one for each head of k
    int64_t dim, own;  // of a row, and of those dims the ones before the tail
    const void* tail;
    int32_t tail_dtype;
    const int64_t* tail_stride;
};

KeyLocation locate(const Call& call, const QueryTile& tile, int64_t key) {
    if (tile.slots) return locate_slot(call.slots, tile.slots[key]);
    return locate_key(pages_of(*call.p, call.a->page_table), tile.seq, key);
}

int64_t row_index(const Problem& problem, const int64_t* stride, const KeyLocation& at, int64_t head) {
    return (problem.packed_k() ? 0 : at.outer * stride[0]) + at.row * stride[1] + head * stride[2];
}

// How many of `keys` keys, of which the first lies there, do so one behind the other.
int contiguous_slots(const Call& call, const KeyLocation& first, int keys) {
    if (call.slots.any()) return int(min_of(keys, 1));
    return call.p->paged() ? int(min_of(keys, call.p->d.page_size - first.row)) : keys;
}

void load_row(const Call& call, const KvTensor& source, const KeyLocation& at, int64_t head, float* to) {
    source.widen(element(source.data, row_index(*call.p, source.stride, at, head), source.dtype), source.own, to);
    if (source.factors.factor) {
        const int64_t index = factor_index(source.factors, at.outer, at.row, head);
        apply_factors(source.factors, index, source.own, to);
        // Of a head of k it counts as nan_if_infinite() says: other methods multiply scores by it.
        if (source.of_k_head) to[0] += 0.f * load_factor(source.factors.factor, index, source.factors.dtype);
    }
    if (source.own == source.dim) return;
    const char* const tail = element(source.tail, row_index(*call.p, source.tail_stride, at, head), source.tail_dtype);
    call.k->widen[type_index(source.tail_dtype)](tail, source.dim - source.own, to + source.own);
}

KvRowsF32 load(const Call& call, const QueryTile& tile, const KvTensor& source, int64_t head, int64_t key, int keys, float* buffer,
               Scratch& scratch) {
    const Problem& p = *call.p;
    if (call.count)
        scratch.counters.read += keys * (row_bytes(source.dtype, source.own) + row_bytes(source.tail_dtype, source.dim - source.own));
    const KeyLocation first = locate(call, tile, key);
    const bool evenly_spaced = contiguous_slots(call, first, keys) == keys;
    // Rows far apart are copied even so: at the usual strides, powers of two, a tile's rows would map to the same few cache sets,
    // and each needs a page of its own.
    const bool close = source.stride[1] <= 2 * source.dim;
    if (source.dtype == FA_F32 && !source.factors.factor && source.own == source.dim && evenly_spaced && close)
        return {static_cast<const float*>(source.data) + row_index(p, source.stride, first, head), source.stride[1]};
    const bool adjacent = source.stride[1] * type_bytes(source.dtype) == row_bytes(source.dtype, source.dim);
    if (!source.factors.factor && source.own == source.dim && evenly_spaced && adjacent) {
        source.widen(element(source.data, row_index(p, source.stride, first, head), source.dtype), keys * source.dim, buffer);
        return {buffer, source.dim};
    }
    for (int j = 0; j < keys; j++)
        load_row(call, source, evenly_spaced ? KeyLocation{first.outer, first.row + j, true} : locate(call, tile, key + j), head,
                 buffer + j * source.dim);
    return {buffer, source.dim};
}

KvTensor kv_tensor(const Call& call, KvOperand operand) {
    const Problem& p = *call.p;
    const fa_attention_desc_t& d = p.d;
    const fa_forward_args_t& a = *call.a;
    if (operand == KvOperand::k)
        return {a.k,
                d.k_dtype,
                call.k->widen_k[type_index(d.k_dtype)],
                d.k_stride,
                k_factors(p, a.k_descale, a.k_shift),
                p.has(FA_OPERAND_K_DESCALE) && p.plain_k() && !(p.options & option::k_descale_stride),
                d.dim_qk,
                p.k_dims(),
                a.k_tail,
                d.k_tail_dtype,
                d.k_tail_stride};
    return {a.v,
            d.v_dtype,
            call.k->widen[type_index(d.v_dtype)],
            d.v_stride,
            v_factors(p, a.v_descale, a.v_shift),
            false,
            d.dim_v,
            p.v_dims(),
            a.k_tail,
            d.k_tail_dtype,
            d.k_tail_stride};
}

int64_t own_head(const Call& call, const QueryTile& tile, KvOperand operand) {
    return operand == KvOperand::k ? call.p->k_head(tile.kv_head) : call.p->v_head(tile.kv_head);
}

}  // namespace

KvRowsF32 load_k(const Call& call, const QueryTile& tile, int64_t key, int keys, float* buffer, Scratch& scratch) {
    return load(call, tile, kv_tensor(call, KvOperand::k), call.p->k_head(tile.kv_head), key, keys, buffer, scratch);
}

KvRowsF32 load_v(const Call& call, const QueryTile& tile, int64_t key, int keys, float* buffer, Scratch& scratch) {
    return load(call, tile, kv_tensor(call, KvOperand::v), call.p->v_head(tile.kv_head), key, keys, buffer, scratch);
}

void locate_kv_rows(const Call& call, const QueryTile& tile, KvOperand operand, int64_t head, int64_t key, int keys, const char** rows) {
    const KvTensor s = kv_tensor(call, operand);
    const int64_t step = s.stride[1] * type_bytes(s.dtype);
    for (int j = 0; j < keys;) {
        const KeyLocation first = locate(call, tile, key + j);
        const int end = j + contiguous_slots(call, first, keys - j);
        const char* row = element(s.data, row_index(*call.p, s.stride, first, head), s.dtype);
        for (; j < end; j++, row += step) rows[j] = row;
    }
}

void load_descales(const Call& call, const QueryTile& tile, KvOperand operand, int64_t key, int keys, float* factors) {
    const KvTensor s = kv_tensor(call, operand);
    for (int j = 0; j < keys;) {
        const KeyLocation first = locate(call, tile, key + j);
        const int end = j + contiguous_slots(call, first, keys - j);
        const int64_t at = factor_index(s.factors, first.outer, first.row, own_head(call, tile, operand));
        const float* factor = static_cast<const float*>(s.factors.factor) + at;
        for (; j < end; j++, factor += s.factors.stride[1]) factors[j] = *factor;
    }
}

}  // namespace cpu
}  // namespace fa
