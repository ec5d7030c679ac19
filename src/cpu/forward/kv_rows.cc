// The key side: finds rows of k and v in dense, packed, cached or paged memory by their key index, and converts them to f32 with
// their de-scale factors.
#include "cpu/driver/call.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

struct KvTensor {
    const void* data;
    int32_t dtype;
    const int64_t* stride;
    const float* descale;  // NULL: none
    const int64_t* descale_stride;
    int64_t dim;
};

KeyLocation locate(const Call& c, const QueryTile& t, int64_t key) {
    return locate_key(pages_of(*c.p, c.a->page_table), t.seq, key);
}

int64_t row_index(const Problem& p, const KvTensor& s, const KeyLocation& at, int64_t head) {
    return (p.packed_k() ? 0 : at.outer * s.stride[0]) + at.row * s.stride[1] + head * s.stride[2];
}

int64_t descale_index(const KvTensor& s, const KeyLocation& at, int64_t head) {
    return at.outer * s.descale_stride[0] + at.row * s.descale_stride[1] + head * s.descale_stride[2];
}

KvRowsF32 load(const Call& c, const QueryTile& t, const KvTensor& s, int64_t head, int64_t key, int keys, float* buffer, Scratch& w) {
    const Problem& p = *c.p;
    if (c.count) w.counters.read += keys * row_bytes(s.dtype, s.dim);
    const KeyLocation first = locate(c, t, key);
    const bool evenly_spaced = !p.paged() || first.row + keys <= p.d.page_size;
    // Rows far apart are copied even so: at the usual strides, powers of two, a tile's rows would map to the same few cache sets,
    // and each needs a page of its own.
    const bool close = s.stride[1] <= 2 * s.dim;
    if (s.dtype == FA_F32 && !s.descale && evenly_spaced && close)
        return {static_cast<const float*>(s.data) + row_index(p, s, first, head), s.stride[1]};
    for (int j = 0; j < keys; j++) {
        const KeyLocation at = evenly_spaced ? KeyLocation{first.outer, first.row + j, true} : locate(c, t, key + j);
        float* to = buffer + j * s.dim;
        c.k->widen[type_index(s.dtype)](element(s.data, row_index(p, s, at, head), s.dtype), s.dim, to);
        if (!s.descale) continue;
        const float factor = s.descale[descale_index(s, at, head)];
        for (int64_t x = 0; x < s.dim; x++) to[x] *= factor;
    }
    return {buffer, s.dim};
}

// How many of `keys` slots from `first` on are contiguous.
int contiguous_slots(const Problem& p, const KeyLocation& first, int keys) {
    return p.paged() ? int(min_of(keys, p.d.page_size - first.row)) : keys;
}

KvTensor kv_tensor(const Call& c, KvOperand operand) {
    const auto factors = [](bool given, const void* base) { return given ? static_cast<const float*>(base) : nullptr; };
    const Problem& p = *c.p;
    if (operand == KvOperand::k)
        return {.data = c.a->k,
                .dtype = p.d.k_dtype,
                .stride = p.d.k_stride,
                .descale = factors(p.has(FA_OPERAND_K_DESCALE), c.a->k_descale),
                .descale_stride = p.d.k_descale_stride,
                .dim = p.d.dim_qk};
    return {.data = c.a->v,
            .dtype = p.d.v_dtype,
            .stride = p.d.v_stride,
            .descale = factors(p.has(FA_OPERAND_V_DESCALE), c.a->v_descale),
            .descale_stride = p.d.v_descale_stride,
            .dim = p.d.dim_v};
}

int64_t own_head(const Call& c, const QueryTile& t, KvOperand operand) {
    return operand == KvOperand::k ? c.p->k_head(t.kv_head) : c.p->v_head(t.kv_head);
}

}  // namespace

KvRowsF32 load_k(const Call& c, const QueryTile& t, int64_t key, int keys, float* buffer, Scratch& w) {
    return load(c, t, kv_tensor(c, KvOperand::k), c.p->k_head(t.kv_head), key, keys, buffer, w);
}

KvRowsF32 load_v(const Call& c, const QueryTile& t, int64_t key, int keys, float* buffer, Scratch& w) {
    return load(c, t, kv_tensor(c, KvOperand::v), c.p->v_head(t.kv_head), key, keys, buffer, w);
}

void locate_kv_rows(const Call& c, const QueryTile& t, KvOperand operand, int64_t head, int64_t key, int keys, const char** rows) {
    const KvTensor s = kv_tensor(c, operand);
    const int64_t step = s.stride[1] * type_bytes(s.dtype);
    for (int j = 0; j < keys;) {
        const KeyLocation first = locate(c, t, key + j);
        const int end = j + contiguous_slots(*c.p, first, keys - j);
        const char* row = element(s.data, row_index(*c.p, s, first, head), s.dtype);
        for (; j < end; j++, row += step) rows[j] = row;
    }
}

void load_descales(const Call& c, const QueryTile& t, KvOperand operand, int64_t key, int keys, float* factors) {
    const KvTensor s = kv_tensor(c, operand);
    for (int j = 0; j < keys;) {
        const KeyLocation first = locate(c, t, key + j);
        const int end = j + contiguous_slots(*c.p, first, keys - j);
        const float* factor = s.descale + descale_index(s, first, own_head(c, t, operand));
        for (; j < end; j++, factor += s.descale_stride[1]) factors[j] = *factor;
    }
}

}  // namespace cpu
}  // namespace fa
