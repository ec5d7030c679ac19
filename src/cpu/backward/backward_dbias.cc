// dbias = dS, summed over what shares an element. Tiles are computed once more for it: a block owns its elements, so that each sum
// is taken in one order, whatever the number of threads.
#include "cpu/backward/backward_call.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/forward/visible_keys.h"

namespace fa {
namespace cpu {
namespace {

// What a block covers: every batch_step-th sequence and head_step-th kv head from the first on, which share elements, of keys a range or
// all.
struct DbiasBlock {
    int64_t batch_begin, batch_step, head_begin, head_step, key_begin, key_end;
};

constexpr int64_t kDbiasBlockKeys = 4 * kTileKeys;

struct DbiasGrid {
    int64_t batches, heads, keys;
};

DbiasGrid dbias_grid(const BackwardCall& backward) {
    const fa_attention_desc_t& d = backward.c.p->d;
    const int64_t* s = backward.a->dbias_stride;
    const int64_t group = backward.c.p->group;
    const bool whole_groups = s[1] && d.bias_period[1] % group == 0;  // no two kv heads share a part of their query heads
    return {s[0] ? d.bias_period[0] : 1, whole_groups ? d.bias_period[1] / group : 1, s[3] ? ceil_div(d.seqlen_k, kDbiasBlockKeys) : 1};
}

DbiasBlock dbias_block(const BackwardCall& backward, int64_t index) {
    const fa_attention_desc_t& d = backward.c.p->d;
    const DbiasGrid grid = dbias_grid(backward);
    const int64_t key = index % grid.keys, head = index / grid.keys % grid.heads, batch = index / grid.keys / grid.heads;
    DbiasBlock p{.batch_begin = batch,
                 .batch_step = grid.batches,
                 .head_begin = head,
                 .head_step = grid.heads,
                 .key_begin = 0,
                 .key_end = d.seqlen_k};
    if (backward.a->dbias_stride[3]) p.key_begin = key * kDbiasBlockKeys, p.key_end = min_of(p.key_begin + kDbiasBlockKeys, d.seqlen_k);
    return p;
}

float* line_at(const BackwardCall& backward, int64_t batch, int64_t head, int64_t position) {
    return backward.a->dbias + pair_row(backward.c.p->d.bias_period, backward.a->dbias_stride, batch, head, position);
}

void clear_block(const BackwardCall& backward, const DbiasBlock& block) {
    const int64_t group = backward.c.p->group, step = backward.a->dbias_stride[3];
    const fa_attention_desc_t& d = backward.c.p->d;
    for (int64_t b = block.batch_begin; b < d.batch; b += block.batch_step)
        for (int64_t kv_head = block.head_begin; kv_head < d.heads_k; kv_head += block.head_step)
            for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
                for (int64_t i = 0; i < d.seqlen_q; i++)
                    for (int64_t j = block.key_begin; j < block.key_end; j++) line_at(backward, b, h, i)[j * step] = 0.f;
}

void add_tile(const BackwardCall& backward, const QueryTile& tile, int64_t key, int keys, const float* ds) {
    const int64_t step = backward.a->dbias_stride[3];
    RowCursor at(tile, backward.c.p->group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        const int64_t head = tile.kv_head * at.group + at.group_head;
        const float scale = backward.c.p->has(FA_OPERAND_BIAS_SCALE) ? backward.c.a->bias_scale[head] : 1.f;
        float* const line = line_at(backward, tile.batch, head, at.position) + key * step;
        for (int j = 0; j < keys; j++) line[j * step] += scale * ds[j * tile.width + lane];
    }
}

void add_head(const BackwardCall& backward, const DbiasBlock& block, int64_t batch, int64_t kv_head, BackwardScratch& scratch) {
    const Call& c = backward.c;
    compute_deltas(backward, batch, kv_head, 0, c.p->d.seqlen_q * c.p->group, scratch.item_delta, scratch);
    scratch.row_delta = scratch.item_delta;
    QueryTile t;
    for (int64_t n = 0; init_tile(c, batch, kv_head, n, &t); n++) {
        const KeyBand visible = visible_keys(c, t, block.key_begin, min_of(block.key_end, t.seq.k_len));
        if (visible.begin >= visible.end) continue;
        load_rows(backward, t, scratch);
        const int64_t first = block.key_begin + (visible.begin - block.key_begin) / kTileKeys * kTileKeys;
        for (int64_t key = first; key < visible.end; key += kTileKeys) {
            const int keys = int(min_of(kTileKeys, visible.end - key));
            KeyBlock tile{key, keys, {}, load_v(c, t, key, keys, scratch.v, scratch.w)};
            if (softmax_backward_tile(backward, t, tile, key, keys, false, scratch)) add_tile(backward, t, key, keys, scratch.dp);
        }
    }
}

}  // namespace

int64_t dbias_blocks(const BackwardCall& backward) {
    const DbiasGrid grid = dbias_grid(backward);
    return grid.batches * grid.heads * grid.keys;
}

void write_dbias(const BackwardCall& backward, int64_t index, BackwardScratch& scratch) {
    const DbiasBlock block = dbias_block(backward, index);
    if (!(backward.a->flags & FA_BACKWARD_ACCUMULATE)) clear_block(backward, block);
    const fa_attention_desc_t& d = backward.c.p->d;
    for (int64_t b = block.batch_begin; b < d.batch; b += block.batch_step)
        for (int64_t h = block.head_begin; h < d.heads_k; h += block.head_step) add_head(backward, block, b, h, scratch);
}

}  // namespace cpu
}  // namespace fa
