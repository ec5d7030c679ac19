// The key side: rows of k and v from dense, packed, cached or paged memory, as f32.
#include "call.h"
#include "types.h"

namespace fa {
namespace cpu {
namespace {

struct Source {
    const void* data;
    const int64_t* stride;
    const float* descale;  // NULL: none
    const int64_t* descale_stride;
    int64_t dim;
};

// Where a slot's row lies: `outer` is the page, the cache's sequence or the sequence; `row` counts within it.
struct Slot {
    int64_t outer, row;
};

Slot find_slot(const Problem& p, const fa_forward_args_t& a, const RowTile& t, int64_t key) {
    const int64_t slot = t.seq.k_begin + key;
    if (!p.paged()) return {t.seq.kv_index, slot};
    const int64_t page = a.page_table[t.seq.kv_index * p.d.page_table_stride + slot / p.d.page_size];
    return {page, slot % p.d.page_size};
}

int64_t row_index(const Problem& p, const Source& s, Slot at, int64_t head) {
    return (p.packed_k() ? 0 : at.outer * s.stride[0]) + at.row * s.stride[1] + head * s.stride[2];
}

KeyRows load(const Call& c, const RowTile& t, const Source& s, int64_t key, int keys, float* buffer, Scratch& w) {
    const Problem& p = *c.p;
    const int32_t type = p.d.kv_dtype;
    if (c.count) w.counters.read += keys * s.dim * type_bytes(type);
    const Slot first = find_slot(p, *c.a, t, key);
    const bool straight = !p.paged() || first.row + keys <= p.d.page_size;
    // Rows far apart are copied even so: at the usual strides, powers of two, a tile's rows would fight for the same few cache sets, and
    // each needs a page of its own.
    const bool close = s.stride[1] <= 2 * s.dim;
    if (type == FA_F32 && !s.descale && straight && close)
        return {static_cast<const float*>(s.data) + row_index(p, s, first, t.kv_head), s.stride[1]};
    for (int j = 0; j < keys; j++) {
        const Slot at = straight ? Slot{first.outer, first.row + j} : find_slot(p, *c.a, t, key + j);
        float* to = buffer + j * s.dim;
        c.k->widen[type](element(s.data, row_index(p, s, at, t.kv_head), type), s.dim, to);
        if (!s.descale) continue;
        const float factor = s.descale[at.outer * s.descale_stride[0] + at.row * s.descale_stride[1] + t.kv_head * s.descale_stride[2]];
        for (int64_t x = 0; x < s.dim; x++) to[x] *= factor;
    }
    return {buffer, s.dim};
}

void point(const Call& c, const RowTile& t, const Source& s, int64_t key, int keys, const char** rows) {
    const Problem& p = *c.p;
    for (int j = 0; j < keys; j++)
        rows[j] = element(static_cast<const char*>(s.data), row_index(p, s, find_slot(p, *c.a, t, key + j), t.kv_head), p.d.kv_dtype);
}

Source k_of(const Call& c) {
    const Problem& p = *c.p;
    return {c.a->k, p.d.k_stride, p.has(FA_OPERAND_K_DESCALE) ? c.a->k_descale : nullptr, p.d.k_descale_stride, p.d.dim_qk};
}

Source v_of(const Call& c) {
    const Problem& p = *c.p;
    return {c.a->v, p.d.v_stride, p.has(FA_OPERAND_V_DESCALE) ? c.a->v_descale : nullptr, p.d.v_descale_stride, p.d.dim_v};
}

}  // namespace

void point_k(const Call& c, const RowTile& t, int64_t key, int keys, const char** rows) { point(c, t, k_of(c), key, keys, rows); }
void point_v(const Call& c, const RowTile& t, int64_t key, int keys, const char** rows) { point(c, t, v_of(c), key, keys, rows); }

KeyRows load_k(const Call& c, const RowTile& t, int64_t key, int keys, float* buffer, Scratch& w) {
    return load(c, t, k_of(c), key, keys, buffer, w);
}
KeyRows load_v(const Call& c, const RowTile& t, int64_t key, int keys, float* buffer, Scratch& w) {
    return load(c, t, v_of(c), key, keys, buffer, w);
}

}  // namespace cpu
}  // namespace fa
