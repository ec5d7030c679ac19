// The gradient of the bias, dbias = dS, by a kernel of its own that computes P and dS of its tiles once more, with backward/simt.h's
// functions. A block owns the elements of one tile of dbias and sums whatever they are shared by (sequences, heads, rows or keys
// along which the bias is broadcast), always in one order: no atomics, the same bits every time.
#pragma once
#include "gpu/backward/simt.h"

namespace fa {
namespace gpu {

// Blocks along (batch, head, row, key): one for all of a dimension that dbias sums over; none where dbias has no elements.
struct BiasBlocks {
    int64_t count[4];
    int64_t all() const { return count[0] * count[1] * count[2] * count[3]; }
};
FA_FN BiasBlocks bias_blocks(const SimtBackwardParams& params) {
    const int64_t *s = params.dbias_stride, rows = params.sequences.q.seqlen, keys = params.sequences.seqlen_k;
    if (params.batch == 0 || params.heads_q == 0 || rows == 0 || keys == 0) return {{0, 0, 0, 0}};
    return {{s[0] ? params.bias_period[0] : 1, s[1] ? params.bias_period[1] : 1, s[2] ? ceil_div(rows, kTile) : 1,
             s[3] ? ceil_div(keys, kTile) : 1}};
}

FA_DEVICE void add_bias_tiles(const SimtBackwardParams& params, int64_t batch, int64_t head, const int64_t begin[4], const int64_t end[4],
                              float sum[4][4]) {
    const BackwardTile& tile = *backward_shared().tile;
    rt::barrier();  // behind the last use of another sequence
    if (rt::thread() == 0) init_sequence(params, batch);
    rt::barrier();
    const float scale = params.bias_scale ? params.bias_scale[head] : 1.f;
    const int64_t row_end = min_of(end[2] * kTile, tile.seq.q_len), key_end = min_of(end[3] * kTile, tile.seq.k_len);
    for (int64_t row0 = begin[2] * kTile; row0 < row_end; row0 += kTile)
        for (int64_t key0 = begin[3] * kTile; key0 < key_end; key0 += kTile) {
            if (!params.sets.lists.words && tile_class(tile.rule, row0, kTile, key0, kTile, tile.seq.k_len) == TileClass::empty) continue;
            rt::barrier();  // behind the last use of another tile
            init_rows(params, head, row0);
            locate_keys(params, head / params.group, key0);
            rt::barrier();
            if (!find_visible(params)) continue;
            compute_p_ds<true>(params, true, false);
            // Elements of rows and keys that this sequence lacks are other sequences', in whose sums its NaN must not show.
            FA_UNROLL_FOR (int r = 0; r < 4; r++)
                FA_UNROLL_FOR (int n = 0; n < 4; n++) {
                    const int row = rt::thread() / 16 * 4 + r, key = rt::thread() % 16 + 16 * n;
                    if (row0 + row < tile.seq.q_len && key0 + key < tile.seq.k_len)
                        sum[r][n] = fmaf(scale, backward_shared().ds[element_at<true>(r, n)], sum[r][n]);
                }
        }
}

FA_KERNEL void FA_BOUNDS(kThreads, 2) sum_bias(FA_PARAM SimtBackwardParams params) {
    rt::fetch_parameters(params);
    const int64_t* const stride = params.dbias_stride;
    const BiasBlocks blocks = bias_blocks(params);
    const int64_t extent[4] = {params.batch, params.heads_q, ceil_div(params.sequences.q.seqlen, kTile),
                               ceil_div(params.sequences.seqlen_k, kTile)};
    int64_t begin[4], end[4], item = rt::block();
    for (int i = 3; i >= 0; i--) {
        begin[i] = stride[i] ? item % blocks.count[i] : 0;
        end[i] = stride[i] ? begin[i] + 1 : extent[i];
        item /= blocks.count[i];
    }
    float sum[4][4];
    FA_UNROLL_FOR (int r = 0; r < 4; r++)
        FA_UNROLL_FOR (int n = 0; n < 4; n++) sum[r][n] = 0.f;
    for (int64_t batch = begin[0]; batch < params.batch; batch += blocks.count[0])
        for (int64_t head = begin[1]; head < params.heads_q; head += blocks.count[1]) add_bias_tiles(params, batch, head, begin, end, sum);

    float* const tile = backward_shared().ds;
    const int thread = rt::thread();
    FA_UNROLL_FOR (int r = 0; r < 4; r++)
        FA_UNROLL_FOR (int n = 0; n < 4; n++) tile[element_at<true>(r, n)] = sum[r][n];
    rt::barrier();
    if (!stride[2] && thread < kTile)
        for (int r = 1; r < kTile; r++) tile[thread] += tile[r * kRowStride + thread];
    rt::barrier();
    if (!stride[3] && thread < kTile)
        for (int j = 1; j < kTile; j++) tile[thread * kRowStride] += tile[thread * kRowStride + j];
    // No barrier: such a sum is written out by the thread that made it.
    const int64_t row0 = begin[2] * kTile, key0 = begin[3] * kTile;
    const int rows = stride[2] ? int(min_of(params.sequences.q.seqlen - row0, kTile)) : 1,
              keys = stride[3] ? int(min_of(params.sequences.seqlen_k - key0, kTile)) : 1;
    float* const to = params.dbias + begin[0] * stride[0] + begin[1] * stride[1];
    for (int i = thread; i < rows * keys; i += kThreads) {
        float* const element = to + (row0 + i / keys) * stride[2] + (key0 + i % keys) * stride[3];
        const float value = tile[i / keys * kRowStride + i % keys];
        *element = params.accumulate ? *element + value : value;
    }
}

}  // namespace gpu
}  // namespace fa
