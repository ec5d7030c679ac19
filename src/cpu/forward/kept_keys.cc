// Which keys boolean masks and biases of −inf leave the rows of a tile, beside bands, ranges and lists: a word of 64 keys for each row, so
// that what no row sees is not read. Words are compared a vector at a time; rows that share a mask have theirs compared once.
#include "cpu/forward/kept_keys.h"
#include "cpu/forward/score_mod.h"
#include "cpu/forward/visible_keys.h"

namespace fa {
namespace cpu {
namespace {

// Bits of a mask of bits, from column `column` on, of columns [first, end) from there.
uint64_t bits_of_mask(const uint8_t* row, int64_t step, int64_t column, int first, int end) {
    uint64_t bits = 0;
    for (int64_t byte = (column + first) >> 3; byte <= (column + end - 1) >> 3; byte++) {
        const int64_t at = 8 * byte - column;
        const uint64_t eight = row[byte * step];
        bits |= at < 0 ? eight >> -at : eight << at;
    }
    return bits;
}

// The keys of [key, key + kTileKeys) that a mask keeps, as far as `seen` has them, which is not 0. Elements before and behind those are not
// read: a caller may not have them.
uint64_t kept_by_mask(const Call& call, const QueryTile& tile, const uint8_t* row, int64_t key, uint64_t seen) {
    const Problem& p = *call.p;
    const int64_t step = p.d.mask_stride[3], column = key - first_masked_key(p.d.mask_keys, tile.seq.k_len);
    const int first = int(max_of(int64_t(__builtin_ctzll(seen)), -column)), end = kWordKeys - __builtin_clzll(seen);
    const uint64_t before = low_bits(-column);  // there are columns for the last keys alone
    if (first >= end) return before;
    if (p.d.mask_dtype == FA_BIT) return before | bits_of_mask(row, step, column, first, end);
    if (step == 1) return before | call.k->other_bytes(row + column + first, 0, end - first) << first;
    uint64_t bits = 0;
    for (int j = first; j < end; j++) bits |= uint64_t(row[(column + j) * step] != 0) << j;
    return before | bits;
}

// The same of a bias, which removes where it is −inf.
uint64_t kept_by_bias(const Call& call, int64_t row, int64_t key, uint64_t seen) {
    const Problem& p = *call.p;
    const int64_t step = p.d.bias_stride[3];
    const int first = __builtin_ctzll(seen), end = kWordKeys - __builtin_clzll(seen);
    const int64_t at = row + (key + first) * step;
    if (step == 1 && p.d.bias_dtype == FA_F32)
        return call.k->other_words(static_cast<const uint32_t*>(call.a->bias) + at, 0xff800000u, end - first) << first;
    if (step == 1)
        return call.k->other_halves(static_cast<const uint16_t*>(call.a->bias) + at, p.d.bias_dtype == FA_F16 ? 0xfc00 : 0xff80,
                                    end - first)
               << first;
    uint64_t bits = 0;
    for (int j = first; j < end; j++) bits |= uint64_t(bias_value(p, call.a->bias, row + (key + j) * step) != kNegInf) << j;
    return bits;
}

// Finds the keys of one row after the other.
struct KeptKeysOfRows {
    const Call& c;
    const QueryTile& t;
    int64_t key;
    const bool mask = c.p->has(FA_OPERAND_MASK), bias = c.p->has(FA_OPERAND_BIAS);
    int64_t mask_at = -1, bias_at = -1;  // of the row before
    RowKeys before{};
    uint64_t kept = 0;

    uint64_t operator()(int64_t position, int64_t head, uint64_t within) {
        const Problem& p = *c.p;
        RowKeys row = visible_bits(c, t, position, head, key);
        row.visible &= within;
        const int64_t mask_row_at = mask ? mask_row(p, t.batch, head, position) : 0;
        const int64_t bias_row_at = bias ? bias_row(p, t.batch, head, position) : 0;
        if (row.visible == before.visible && row.unmasked == before.unmasked && mask_row_at == mask_at && bias_row_at == bias_at)
            return kept;
        before = row;
        mask_at = mask_row_at;
        bias_at = bias_row_at;
        kept = row.visible;
        if (const uint64_t masked = kept & ~row.unmasked; mask && masked != 0)
            kept = (masked & kept_by_mask(c, t, c.a->mask + mask_at, key, masked)) | (kept & row.unmasked);
        if (bias && kept != 0) kept &= kept_by_bias(c, bias_at, key, kept);
        return kept;
    }
};

bool share_heads(const int64_t period[2], const int64_t stride[4]) { return period[1] == 1 || stride[1] == 0; }

}  // namespace

uint64_t kept_words(const Call& call, const QueryTile& tile, int64_t key, uint64_t within, uint64_t* words) {
    KeptKeysOfRows kept_keys{call, tile, key};
    RowCursor at(tile, call.p->group);
    uint64_t any = 0;
    for (int lane = 0; lane < tile.rows; lane++, at.next())
        any |= words[lane] = kept_keys(at.position, tile.kv_head * at.group + at.group_head, within);
    return any;
}

bool keeps_keys(const Call& call, const QueryTile& tile, int64_t key, uint64_t within) {
    KeptKeysOfRows kept_keys{call, tile, key};
    for (int lane = tile.rows - 1; lane >= 0; lane--)  // under a causal mask, the last row sees most
        if (kept_keys(tile.position(lane, call.p->group), tile.head(lane, call.p->group), within) != 0) return true;
    return false;
}

bool heads_share_masks(const Call& call) {
    const Problem& p = *call.p;
    return !call.sets.any() && (!p.has(FA_OPERAND_MASK) || share_heads(p.d.mask_period, p.d.mask_stride)) &&
           (!p.has(FA_OPERAND_BIAS) || share_heads(p.d.bias_period, p.d.bias_stride));
}

void gather_kept_addend(const Call& call, const QueryTile& tile, int64_t key, const uint64_t* kept, float* addend) {
    const Problem& p = *call.p;
    const bool bias = p.has(FA_OPERAND_BIAS), alibi = p.has(FA_OPERAND_ALIBI), scaled = p.has(FA_OPERAND_BIAS_SCALE);
    int64_t before = -1;
    RowCursor cursor(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, cursor.next()) {
        float* const line = addend + lane * kTileKeys;
        const int64_t head = tile.kv_head * cursor.group + cursor.group_head;
        const int64_t row = bias ? bias_row(p, tile.batch, head, cursor.position) : 0;
        if (lane > 0 && row == before && kept[lane] == kept[lane - 1] && !alibi && !scaled) {
            memcpy(line, line - kTileKeys, kTileKeys * sizeof *line);
            continue;
        }
        before = row;
        memset(line, 0, kTileKeys * sizeof *line);
        if (kept[lane] == 0) continue;
        const int first = __builtin_ctzll(kept[lane]), end = kWordKeys - __builtin_clzll(kept[lane]);
        if (bias) read_bias(call, head, row + (key + first) * p.d.bias_stride[3], end - first, line + first);
        if (!alibi) continue;
        const float slope = call.a->alibi_slopes[tile.batch * p.d.alibi_batch_stride + head];
        for (int j = first; j < end; j++) line[j] -= slope * float(llabs(cursor.position + tile.rule.off - (key + j)));
    }
}

}  // namespace cpu
}  // namespace fa
