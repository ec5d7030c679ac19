// What is added to the scores of a tile of rows: ALiBi by lanes, bias and mask gathered row by row as memory has them and transposed.
#include "call.h"
#include "types.h"

namespace fa {
namespace cpu {
namespace {

// Position and head of the tile's lanes in turn, without a division for each.
struct Lanes {
    int64_t position, member, group;
    Lanes(const RowTile& t, int64_t group_) : position(t.first / group_), member(t.first % group_), group(group_) {}
    void next() {
        if (++member < group) return;
        member = 0;
        position++;
    }
};

// The row's band among keys [key, key + keys), counted from the first.
KeyBand band_within(const RowTile& t, int64_t position, int64_t key, int keys) {
    const KeyBand b = key_band(t.rule, position, t.seq.k_len);
    return {min_of(max_of(b.begin - key, 0), keys), min_of(max_of(b.end - key, 0), keys)};
}

bool key_by_key(const Problem& p) {
    return (!p.has(FA_OPERAND_BIAS) || p.d.bias_stride[3] == 1) && (!p.has(FA_OPERAND_MASK) || p.d.mask_stride[3] == 1);
}

// One row's bias, −inf where the band or the mask removes the key; the number of keys left.
int gather_line(const Call& c, const RowTile& t, int64_t position, int64_t head, int64_t key, int keys, float* line) {
    const Problem& p = *c.p;
    const int64_t *bs = p.d.bias_stride, *ms = p.d.mask_stride;
    // Bias and mask elements of keys that a band removes are not read: a caller may not have them.
    const KeyBand band = band_within(t, position, key, keys);
    const int begin = int(band.begin), count = int(max_of(band.end - band.begin, 0));
    for (int j = 0; j < begin; j++) line[j] = kNegInf;
    for (int j = begin + count; j < keys; j++) line[j] = kNegInf;
    if (count == 0) return 0;
    const int64_t at = key + begin;
    if (p.has(FA_OPERAND_BIAS)) {
        const int64_t index = t.batch * bs[0] + head * bs[1] + position * bs[2] + at;
        c.k->widen[p.d.bias_dtype](element(c.a->bias, index, p.d.bias_dtype), count, line + begin);
    } else {
        memset(line + begin, 0, size_t(count) * sizeof(float));
    }
    const uint8_t* mask = p.has(FA_OPERAND_MASK) ? c.a->mask + t.batch * ms[0] + head * ms[1] + position * ms[2] + at : nullptr;
    return c.k->remove_masked(mask, line + begin, count);
}

}  // namespace

bool alibi_by_lanes(const Problem& p) { return p.has(FA_OPERAND_ALIBI) && !(p.d.softcap > 0) && key_by_key(p); }

void add_alibi(const Call& c, const RowTile& t, int64_t key, int keys, float* s) {
    float slope[kMaxRows] = {}, distance[kMaxRows] = {};
    Lanes at(t, c.p->group);
    for (int lane = 0; lane < t.rows; lane++, at.next()) {
        slope[lane] = c.a->alibi_slopes[t.batch * c.p->d.alibi_batch_stride + t.kv_head * at.group + at.member];
        distance[lane] = float(at.position + t.rule.off - key);
    }
    c.k->alibi(s, t.vectors, keys, slope, distance);
}

Addend place_addend(const Call& c, const RowTile& t, int64_t key, int keys, Scratch& w) {
    const Problem& p = *c.p;
    const bool pairs = p.has(FA_OPERAND_BIAS | FA_OPERAND_MASK);
    if (!pairs && (!c.addend || alibi_by_lanes(p))) return Addend::none;
    if (!key_by_key(p) || (p.has(FA_OPERAND_ALIBI) && !alibi_by_lanes(p))) {
        build_addend(c, t, key, keys, w.addend);
        return Addend::some;
    }
    float* const lines = w.s;
    Lanes at(t, p.group);
    int64_t kept = 0;
    for (int lane = 0; lane < t.rows; lane++, at.next())
        kept += gather_line(c, t, at.position, t.kv_head * at.group + at.member, key, keys, lines + lane * kTileKeys);
    if (kept == 0) return Addend::nothing_kept;
    if (kept == int64_t(t.rows) * keys && !p.has(FA_OPERAND_BIAS)) return Addend::none;
    memset(lines + t.rows * kTileKeys, 0, size_t(t.width - t.rows) * kTileKeys * sizeof(float));
    c.k->transpose(lines, kTileKeys, t.width, keys, nullptr, w.addend, t.width);
    return Addend::some;
}

void tile_bands(const Call& c, const RowTile& t, int64_t key, int keys, Scratch& w) {
    Lanes at(t, c.p->group);
    for (int lane = 0; lane < t.width; lane++, at.next()) {
        const KeyBand b = lane < t.rows ? band_within(t, at.position, key, keys) : KeyBand{0, keys};
        w.band_begin[lane] = int32_t(b.begin);
        w.band_end[lane] = int32_t(b.end);
    }
}

}  // namespace cpu
}  // namespace fa
