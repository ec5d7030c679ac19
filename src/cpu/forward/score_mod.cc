// Score mods of the f32 tiles: ALiBi added lane by lane, bias and mask gathered row by row as memory has them, then transposed into
// the tile's layout. A tile whose mask keeps no key is skipped.
#include "cpu/forward/score_mod.h"
#include "cpu/forward/tile.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

// The row's band among keys [key, key + keys), counted from the first.
KeyBand band_within(const QueryTile& tile, int64_t position, int64_t key, int keys) {
    const KeyBand b = key_band(tile.rule, position, tile.seq.k_len);
    return {min_of(max_of(b.begin - key, 0), keys), min_of(max_of(b.end - key, 0), keys)};
}

bool unit_key_stride(const Problem& problem) {
    if (problem.options & (option::mask_dtype | option::mask_keys)) return false;
    return (!problem.has(FA_OPERAND_BIAS) || problem.d.bias_stride[3] == 1) &&
           (!problem.has(FA_OPERAND_MASK) || problem.d.mask_stride[3] == 1);
}

// One row's bias, −inf where the band or the mask removes the key.
void gather_line(const Call& call, const QueryTile& tile, int64_t position, int64_t head, int64_t key, int keys, float* line) {
    const Problem& p = *call.p;
    // Bias and mask elements of keys that a band removes are not read: a caller may not have them.
    const KeyBand band = band_within(tile, position, key, keys);
    const int begin = int(band.begin), count = int(max_of(band.end - band.begin, 0));
    for (int j = 0; j < begin; j++) line[j] = kNegInf;
    for (int j = begin + count; j < keys; j++) line[j] = kNegInf;
    if (count == 0) return;
    const int64_t at = key + begin, size = type_bytes(p.d.bias_dtype);
    if (p.has(FA_OPERAND_BIAS)) {
        const int64_t first = bias_row(p, tile.batch, head, position) + at;
        read_bias(call, head, first, count, line + begin);
        prefetch_bytes(static_cast<const char*>(call.a->bias) + (first + count) * size, kTileKeys * size);
    } else {
        memset(line + begin, 0, size_t(count) * sizeof(float));
    }
    if (p.has(FA_OPERAND_MASK)) {
        const uint8_t* mask = call.a->mask + mask_row(p, tile.batch, head, position) + at;
        call.k->apply_mask(mask, line + begin, count);
        prefetch_bytes(mask + count, kTileKeys);
    }
}

void locate_masks(const Call& call, const QueryTile& tile, int64_t key, int keys, const uint8_t** masks) {
    RowCursor at(tile, call.p->group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        masks[lane] = call.a->mask + mask_row(*call.p, tile.batch, tile.kv_head * at.group + at.group_head, at.position) + key;
        prefetch_bytes(masks[lane] + keys, kTileKeys);
    }
}

// The masks of keys that no band removes; returns how many keys they keep. Only where that is some but not all does it fill
// `lines`.
int gather_masks(const Call& call, const QueryTile& tile, int64_t key, int keys, float* lines) {
    const uint8_t* masks[kMaxRows];
    locate_masks(call, tile, key, keys, masks);
    const int kept = call.k->count_masks(masks, tile.rows, keys);
    if (kept > 0 && kept < tile.rows * keys) call.k->expand_masks(masks, tile.rows, keys, lines);
    return kept;
}

// Does a mask have columns for some of these keys? One of the last keys keeps those before them.
bool masks_keys(const Call& call, const QueryTile& tile, int64_t key, int keys) {
    return call.p->has(FA_OPERAND_MASK) && key + keys > first_masked_key(call.p->d.mask_keys, tile.seq.k_len);
}

}  // namespace

void read_bias(const Call& call, int64_t head, int64_t first, int count, float* to) {
    const Problem& p = *call.p;
    const int64_t step = p.d.bias_stride[3];
    if (step == 1)
        call.k->widen[type_index(p.d.bias_dtype)](static_cast<const char*>(call.a->bias) + first * type_bytes(p.d.bias_dtype), count, to);
    else
        for (int j = 0; j < count; j++) to[j] = bias_value(p, call.a->bias, first + j * step);
    if (!p.has(FA_OPERAND_BIAS_SCALE)) return;
    for (int j = 0; j < count; j++) to[j] = scaled_bias(to[j], call.a->bias_scale[head]);
}

bool alibi_by_lanes(const Problem& problem) {
    return problem.has(FA_OPERAND_ALIBI) && !(problem.d.softcap > 0) && unit_key_stride(problem) && !problem.has(FA_OPERAND_FULL_LIST);
}

void add_alibi(const Call& call, const QueryTile& tile, int64_t key, int keys, float* s) {
    float slope[kMaxRows] = {}, distance[kMaxRows] = {};
    RowCursor at(tile, call.p->group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        slope[lane] = call.a->alibi_slopes[tile.batch * call.p->d.alibi_batch_stride + tile.kv_head * at.group + at.group_head];
        distance[lane] = float(at.position + tile.rule.off - key);
    }
    call.k->add_alibi(s, tile.vectors, keys, slope, distance);
}

AddendKind gather_addend(const Call& call, const QueryTile& tile, TileClass kind, int64_t key, int keys, Scratch& scratch) {
    const Problem& p = *call.p;
    const bool bias = p.has(FA_OPERAND_BIAS), mask = masks_keys(call, tile, key, keys);
    if (!bias && !mask && (!call.has_addend || alibi_by_lanes(p))) return AddendKind::none;
    const bool unmasked = call.sets.lists.full >= 0 && call.sets.lists.words;  // keys that neither bands nor masks remove
    if (!unit_key_stride(p) || unmasked || (p.has(FA_OPERAND_ALIBI) && !alibi_by_lanes(p))) {
        if (tile.rows < tile.width) memset(scratch.addend, 0, size_t(keys) * tile.width * sizeof(float));
        build_addend(call, tile, key, keys, tile.width, 1, scratch.addend);
        return AddendKind::some;
    }
    const float* lines = scratch.s;
    int64_t stride = kTileKeys;
    int kept = -1;  // not counted yet
    if (kind == TileClass::full && !mask && p.d.bias_dtype == FA_F32 && p.group == 1 && !p.has(FA_OPERAND_BIAS_SCALE)) {
        lines = static_cast<const float*>(call.a->bias) + bias_row(p, tile.batch, tile.kv_head, tile.first) + key;
        stride = p.d.bias_stride[2];
        for (int r = 0; r < tile.rows; r++) prefetch_bytes(lines + r * stride + keys, kTileKeys * sizeof(float));
    } else if (kind == TileClass::full && !bias) {
        kept = gather_masks(call, tile, key, keys, scratch.s);
    } else {
        RowCursor at(tile, p.group);
        for (int lane = 0; lane < tile.rows; lane++, at.next())
            gather_line(call, tile, at.position, tile.kv_head * at.group + at.group_head, key, keys, scratch.s + lane * kTileKeys);
    }
    if (kept < 0) kept = call.k->count_kept(lines, stride, tile.rows, keys);
    if (kept == 0) return AddendKind::nothing_kept;
    if (kept == tile.rows * keys && !bias) return AddendKind::none;
    if (tile.rows < tile.width) memset(scratch.addend, 0, size_t(keys) * tile.width * sizeof(float));
    call.k->transpose(lines, stride, tile.rows, keys, nullptr, scratch.addend, tile.width);
    return AddendKind::some;
}

}  // namespace cpu
}  // namespace fa
