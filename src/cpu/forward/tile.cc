// The f32 tile method: one tile of scores, from Q Kᵀ over the score mod to masked log2 units, and the mainloop that runs tiles of
// keys through online softmax into a PartialState. It supports every feature; other methods are faster for some calls.
#include <stdlib.h>
#include "cpu/forward/tile.h"
#include "cpu/forward/kept_keys.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/score_mod.h"
#include "cpu/forward/visible_keys.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kMaxVectors = 4;  // of a tile

// How many of a tile's keys some row of each vector sees, from the first key on. What lies behind is neither multiplied nor, as P, added: a
// band that ends with the row's own key leaves the tiles on the diagonal three eighths less to do.
struct SeenKeys {
    int of_vector[kMaxVectors];
    // visit(first vector, vectors, keys) for neighbours that see equally many.
    template <class Visit>
    void each(int vectors, Visit visit) const {
        for (int n = 0, end; n < vectors; n = end) {
            for (end = n + 1; end < vectors && of_vector[end] == of_vector[n];) end++;
            if (of_vector[n] > 0) visit(n, end - n, of_vector[n]);
        }
    }
};

SeenKeys seen_keys(const Call& call, const QueryTile& tile, TileClass kind, int64_t key, int keys) {
    SeenKeys seen = {{keys, keys, keys, keys}};
    if (kind != TileClass::partial || call.sets.any() || tile.rows != call.k->rows) return seen;
    for (int n = 0; n < tile.vectors; n++) {
        const int64_t last = tile.position((n + 1) * call.k->lanes - 1, call.p->group);
        seen.of_vector[n] = int(max_of(min_of(key_band(tile.rule, last, tile.seq.k_len).end - key, keys), 0));
    }
    return seen;
}

void qk(const Call& call, const QueryTile& tile, const SeenKeys& seen, const KvRowsF32& k, float* s) {
    int done = 0;  // a key that a row sees is seen by those behind it, too
    seen.each(tile.vectors, [&](int first, int, int keys) {
        const int lane = first * call.k->lanes;
        call.k->qk(tile.q + lane, tile.vectors - first, tile.vectors, k.data + done * k.stride, k.stride, keys - done,
                   int(call.p->d.dim_qk), s + done * tile.width + lane);
        done = keys;
    });
}

void pv(const Call& call, const QueryTile& tile, const SeenKeys& seen, const KvRowsF32& v, const float* p, const float* rescale,
        float* acc) {
    seen.each(tile.vectors, [&](int first, int vectors, int keys) {
        const int lane = first * call.k->lanes;
        call.k->pv(p + lane, vectors, tile.vectors, v.data, v.stride, keys, int(call.p->d.dim_v), rescale + lane, acc + lane);
    });
}

// The product and its factor.
void raw_scores(const Call& call, const QueryTile& tile, const SeenKeys& seen, int keys, const KvRowsF32& k, Scratch& scratch) {
    qk(call, tile, seen, k, scratch.s);
    if (call.factor.product != 1.f) call.k->scale_scores(scratch.s, call.factor.product, keys * tile.width);
    if (call.count) scratch.counters.flops += 2 * call.p->d.dim_qk * keys * tile.rows;
}

}  // namespace

void build_addend(const Call& call, const QueryTile& tile, int64_t key, int keys, int64_t key_step, int64_t row_step, float* addend) {
    const Problem& p = *call.p;
    const fa_forward_args_t& a = *call.a;
    const bool bias = p.has(FA_OPERAND_BIAS), mask = p.has(FA_OPERAND_MASK), alibi = p.has(FA_OPERAND_ALIBI);
    const bool bits = p.d.mask_dtype == FA_BIT;
    for (int lane = 0; lane < tile.rows; lane++) {
        const int64_t i = tile.position(lane, p.group), h = tile.head(lane, p.group);
        const int64_t* bs = p.d.bias_stride;
        const int64_t* ms = p.d.mask_stride;
        const int64_t first = first_masked_key(p.d.mask_keys, tile.seq.k_len);
        const int64_t bias_begin = bias_row(p, tile.batch, h, i), mask_begin = mask_row(p, tile.batch, h, i);
        const float bias_scale = p.has(FA_OPERAND_BIAS_SCALE) ? a.bias_scale[h] : 1.f;
        const float slope = alibi ? a.alibi_slopes[tile.batch * p.d.alibi_batch_stride + h] : 0.f;
        const RowKeys row = visible_bits(call, tile, i, h, key);
        for (int j = 0; j < keys; j++) {
            const int64_t at = key + j;
            float* to = addend + j * key_step + lane * row_step;
            *to = 0.f;
            // Bias and mask elements of keys that a band removes are not read: a caller may not have them.
            if (!(row.visible >> j & 1) ||
                (mask && !(row.unmasked >> j & 1) && !mask_keeps(a.mask + mask_begin, ms[3], bits, at - first))) {
                *to = kNegInf;
                continue;
            }
            if (bias) *to = scaled_bias(bias_value(p, a.bias, bias_begin + at * bs[3]), bias_scale);
            if (alibi) *to -= slope * float(llabs(i + tile.rule.off - at));
        }
    }
}

bool prepare_score_mod(const Call& call, const QueryTile& tile, int64_t key, int keys, Scratch& scratch, TileScoreMod* task) {
    task->kind = classify(call, tile, key, keys);
    if (task->kind == TileClass::empty) return false;
    task->addend = gather_addend(call, tile, task->kind, key, keys, scratch);
    return task->addend != AddendKind::nothing_kept;
}

void apply_score_mod(const Call& call, const QueryTile& tile, int64_t key, int keys, const TileScoreMod& task, Scratch& scratch,
                     float* slope) {
    const Problem& p = *call.p;
    if (alibi_by_lanes(p)) add_alibi(call, tile, key, keys, scratch.s);
    if (slope) call.k->softcap(scratch.s, slope, p.d.softcap, keys * tile.width);
    if (call.has_score_mod)
        call.k->score_mod(scratch.s, task.addend == AddendKind::some ? scratch.addend : nullptr, slope ? 0.f : p.d.softcap,
                          keys * tile.width);
    if (task.kind == TileClass::partial) mask_tile(call, tile, key, keys, scratch);
}

// score_tile(), which also says of which keys.
static bool score_seen_keys(const Call& call, const QueryTile& tile, KeyBlock& block, int64_t key, int keys, Scratch& scratch, float* slope,
                            SeenKeys* seen) {
    TileScoreMod task;
    if (!prepare_score_mod(call, tile, key, keys, scratch, &task)) return false;
    if (!block.k.data) block.k = load_k(call, tile, block.key, block.keys, scratch.k, scratch);
    *seen = seen_keys(call, tile, task.kind, key, keys);
    raw_scores(call, tile, *seen, keys, {block.k.data + (key - block.key) * block.k.stride, block.k.stride}, scratch);
    apply_score_mod(call, tile, key, keys, task, scratch, slope);
    return true;
}

bool score_tile(const Call& call, const QueryTile& tile, KeyBlock& block, int64_t key, int keys, Scratch& scratch, float* slope) {
    SeenKeys seen;
    return score_seen_keys(call, tile, block, key, keys, scratch, slope, &seen);
}

static int64_t dropout_batch_head(const Call& call, int64_t batch, int64_t head) {
    return batch * call.dropout_at.heads + call.dropout_at.head + head;
}

void apply_dropout(const Call& call, const QueryTile& tile, int64_t key, int keys, int64_t key_step, int64_t row_step, float* p) {
    const int64_t group = call.p->group;
    for (int lane = 0; lane < tile.rows; lane++) {
        const int64_t row = call.dropout_at.row + tile.position(lane, group),
                      batch_head = dropout_batch_head(call, tile.batch, tile.head(lane, group));
        Philox4 words{};
        for (int j = 0; j < keys; j++) {
            const int64_t at = call.dropout_at.key + key + j;
            if (j == 0 || (at & 3) == 0) words = dropout_words(call.dropout, batch_head, row, at >> 2);
            if (words.word[at & 3] < call.dropout.threshold) p[j * key_step + lane * row_step] = 0.f;
        }
    }
}

void apply_dropout_tile(const Call& call, const QueryTile& tile, int64_t key, int keys, float* p) {
    DropoutRows rows{};
    RowCursor row(tile, call.p->group);
    for (int lane = 0; lane < tile.rows; lane++, row.next()) {
        const uint64_t batch_head = uint64_t(dropout_batch_head(call, tile.batch, tile.kv_head * row.group + row.group_head));
        rows.position[lane] = uint32_t(call.dropout_at.row + row.position);
        rows.low[lane] = uint32_t(batch_head);
        rows.high[lane] = uint32_t(batch_head >> 32);
    }
    call.k->apply_dropout(p, tile.vectors, keys, call.dropout_at.key + key, call.dropout, rows);
}

namespace {

// Prefetches a share of k and v of keys [key, end), a tile's at most: their rows may lie on a page each, which hardware prefetchers
// do not follow.
void prefetch_kv(const Call& call, const QueryTile& tile, int64_t key, int64_t end, int share, int shares) {
    const int64_t keys = max_of(min_of(kTileKeys, end - key), 0), first = keys * share / shares,
                  count = keys * (share + 1) / shares - first;
    const char* rows[kTileKeys];
    const Problem& p = *call.p;
    locate_kv_rows(call, tile, KvOperand::k, p.k_head(tile.kv_head), key + first, int(count), rows);
    for (int64_t j = 0; j < count; j++) prefetch_bytes(rows[j], row_bytes(p.d.k_dtype, p.k_dims()));
    locate_kv_rows(call, tile, KvOperand::v, p.v_head(tile.kv_head), key + first, int(count), rows);
    for (int64_t j = 0; j < count; j++) prefetch_bytes(rows[j], row_bytes(p.d.v_dtype, p.v_dims()));
}

constexpr int kSkippedKeys = 8;  // a multiple of the two chains that a row sum is added up in

void mainloop(const Call& call, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState* states, Scratch& scratch) {
    const Problem& p = *call.p;
    KeyBand visible[kMaxPanel];
    const KeyBand range = visible_range(call, tiles, count, begin, end, visible);
    // Tiles start at fixed distances from the split's begin, whatever the band: a row's bits then do not depend on its neighbours.
    const bool masked = p.has(FA_OPERAND_MASK | FA_OPERAND_BIAS);
    const auto is_seen = [&](int64_t key) {
        const int64_t behind = min_of(key + kTileKeys, range.end);
        for (int i = count - 1; i >= 0; i--)
            if (visible[i].begin < behind && visible[i].end > key && keeps_keys(call, tiles[i], key, low_bits(behind - key))) return true;
        return false;
    };
    const auto next = [&](int64_t key) {
        for (;; key += kTileKeys) {
            if (has_gaps(call)) key = next_visible_block(call, tiles, count, begin, key);
            if (key >= range.end || !masked || is_seen(key)) return key;
        }
    };
    for (int64_t key = next(begin + (range.begin - begin) / kTileKeys * kTileKeys), following; key < range.end; key = following) {
        following = next(key + kTileKeys);
        KeyBlock block{key, int(min_of(kTileKeys, range.end - key)), {}, {}};
        for (int i = 0; i < count; i++) {
            const QueryTile& t = tiles[i];
            prefetch_kv(call, t, following, range.end, i, count);
            if (visible[i].begin >= key + block.keys) continue;
            // Leading keys that no row sees are left out by whole register blocks: what remains is summed in the same order.
            const int skipped = int(max_of(visible[i].begin - key, 0) / kSkippedKeys * kSkippedKeys);
            const int keys = int(min_of(block.keys, visible[i].end - key)) - skipped;
            SeenKeys seen;
            if (keys <= 0 || !score_seen_keys(call, t, block, key + skipped, keys, scratch, nullptr, &seen)) continue;
            call.k->online_softmax(scratch.s, t.vectors, keys, states[i].m, states[i].l, scratch.rescale);
            if (call.has_dropout) apply_dropout_tile(call, t, key + skipped, keys, scratch.s);
            if (!block.v.data) block.v = load_v(call, t, key, block.keys, scratch.v, scratch);
            pv(call, t, seen, {block.v.data + skipped * block.v.stride, block.v.stride}, scratch.s, scratch.rescale, states[i].acc);
            if (call.count) scratch.counters.flops += 2 * p.d.dim_v * keys * t.rows;
        }
    }
}

}  // namespace

Method tile_method(const Problem& problem, const Kernels& kernels) {
    // Many tiles share the fetching of k and v, which costs more than q and o do that leave the second-level cache.
    constexpr int64_t kMinTiles = 8, kPanelCacheBytes = 1 << 20, kMaxPanelRows = 1024;
    const int64_t bytes = (problem.d.dim_qk + problem.d.dim_v) * kernels.rows * int64_t(sizeof(float));
    const int64_t most = min_of(kMaxPanel, kMaxPanelRows / kernels.rows);
    return {.name = "tile",
            .rows = kernels.rows,
            .panel = int(panel_of_slots(problem, false, max_of(min_of(kPanelCacheBytes / bytes, most), kMinTiles))),
            .pack_q = pack_q,
            .mainloop = mainloop};
}

void write_scores(const Call& call, const QueryTile& tile, const PartialState& state, Scratch& scratch) {
    const Problem& p = *call.p;
    const int32_t stage = p.d.scores_stage;
    const int64_t* stride = p.d.scores_stride;
    for (int64_t key = 0; key < tile.seq.k_len; key += kTileKeys) {
        const int keys = int(min_of(kTileKeys, tile.seq.k_len - key));
        bool kept = true;
        KeyBlock block{key, keys, load_k(call, tile, key, keys, scratch.k, scratch), {}};
        if (stage == FA_SCORES_RAW || stage == FA_SCORES_CAPPED) {
            raw_scores(call, tile, seen_keys(call, tile, TileClass::full, key, keys), keys, block.k, scratch);
            if (stage == FA_SCORES_CAPPED && p.d.softcap > 0) call.k->score_mod(scratch.s, nullptr, p.d.softcap, keys * tile.width);
        } else {
            kept = score_tile(call, tile, block, key, keys, scratch);
        }
        const float unit = stage == FA_SCORES_RAW || (stage == FA_SCORES_CAPPED && !(p.d.softcap > 0)) ? 1.f : kLn2;
        for (int lane = 0; lane < tile.rows; lane++) {
            const int64_t i = tile.position(lane, p.group), h = tile.head(lane, p.group);
            const RowState final_row{state.m[lane], state.l[lane]};
            float* row = call.a->scores + tile.batch * stride[0] + h * stride[1] + i * stride[2];
            for (int j = 0; j < keys; j++) {
                const float s = kept ? scratch.s[j * tile.width + lane] : kNegInf;
                float* to = row + (key + j) * stride[3];
                if (stage != FA_SCORES_PROBABILITY) *to = s * unit;
                else *to = s == kNegInf ? 0.f : prob(s, final_row.m) * normaliser(final_row);
            }
        }
    }
}

}  // namespace cpu
}  // namespace fa
