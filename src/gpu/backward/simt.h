// The SIMT backward kernels: f32 arithmetic, f32, f16 or bf16 tensors, any head dimension, every option, on every GPU; always with
// the same bits. They take what the mma kernels do not.
//
// Tiles of 64 rows of one query head against 64 keys, by blocks of 256 threads. A tile's products q·k and dout·v, 4 × 4 in each
// thread, become P and dS; these go through shared memory into a product with 16·TV columns of another operand, of which each
// thread accumulates 4 × TV elements. Three kernels are built so: by keys (dk and dv, over all rows and heads of the group), by
// rows (dq), and by elements of dbias (backward/bias.h). Rows in shared memory are 4 floats longer than their data, as in simt/forward.h.
#pragma once
#include "gpu/common/backward_params.h"
#include "gpu/simt/forward.h"

namespace fa {
namespace gpu {

constexpr int kTile = 64;  // rows, and keys
static_assert(kTile == kKeys && kPaddedRows % kTile == 0, "tiles fill the buffers of simt/forward.h, and padded rows fill tiles");

// A block's tile, in shared memory. What does not change during the mainloop is read from here each time, too: registers are
// scarce.
struct BackwardTile {
    int64_t column0, own_head, own0;  // whose gradients the block sums: columns from column0 on, of 64 keys or rows from own0 on
    int64_t begin, end;               // the rows or keys that are streamed: [begin, end), from the begin of a tile on
    Sequence seq;
    MaskRule rule;
    SequenceDropout dropout;
    int64_t batch, head, row0, key0;
    int64_t q_at[kTile], dout_at[kTile], k_at[kTile], v_at[kTile];  // where rows lie; −1: not there, or without keys
    float lse_log2[kTile], delta[kTile];
    uint64_t visible[kTile], unmasked[kTile];  // keys that a row sees, and those where masks do not act, as bits
    uint8_t kept[kTile][kTile / 4];            // by dropout: a bit for each of four keys
    alignas(16) bool plain;
};
static_assert(sizeof(BackwardTile) % 16 == 0, "rows of floats behind it are read 16 bytes at a time");

constexpr int64_t kBackwardShared = int64_t(sizeof(BackwardTile)) + 3 * kKvFloats * int64_t(sizeof(float));
struct BackwardShared {
    BackwardTile* tile;
    float *left, *p, *ds;  // the left operand; the right one, then P; dS
};
FA_DEVICE BackwardShared backward_shared() {
    char* const memory = rt::shared_memory();
    float* const floats = reinterpret_cast<float*>(memory + sizeof(BackwardTile));
    return {reinterpret_cast<BackwardTile*>(memory), floats, floats + kKvFloats, floats + 2 * kKvFloats};
}

// Rows of q, k, v or dout that a tile has located.
struct Rows {
    const void* data;
    const int64_t* at;
    int64_t dim;
    int32_t dtype;
    bool aligned;
};
FA_DEVICE Rows rows_of_q(const SimtBackwardParams& params, const BackwardTile& tile) {
    return {params.q, tile.q_at, params.dim_qk, params.q_dtype, params.q_aligned};
}
FA_DEVICE Rows rows_of_dout(const SimtBackwardParams& params, const BackwardTile& tile) {
    return {params.dout, tile.dout_at, params.dim_v, params.q_dtype, params.dout_aligned};
}
FA_DEVICE Rows rows_of_k(const SimtBackwardParams& params, const BackwardTile& tile) {
    return {params.k, tile.k_at, params.dim_qk, params.k_dtype, params.k_aligned};
}
FA_DEVICE Rows rows_of_v(const SimtBackwardParams& params, const BackwardTile& tile) {
    return {params.v, tile.v_at, params.dim_v, params.k_dtype, params.v_aligned};
}

// Gathers rows, converts them to f32 and stores them, times `factor`, in a buffer.
template <int width>
FA_DEVICE void load_rows(const Rows& rows, int first, int64_t column0, float factor, int stride, float* to) {
    const auto store = [&](int n, float* value) {
        const int i = rt::thread() + n * kThreads;
        FA_UNROLL_FOR (int e = 0; e < 4; e++) value[e] *= factor;
        rt::store4(to + i / (width / 4) * stride + i % (width / 4) * 4, value);
    };
    if (rows.dtype == FA_F32) {
        float value[kVec4s][4];
        gather<width>(rows.data, rows.at, first, column0, rows.dim, rows.aligned, value);
        FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) store(n, value[n]);
    } else {
        uint16_t bits[kVec4s][4];
        gather<width>(rows.data, rows.at, first, column0, rows.dim, rows.aligned, bits);
        FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) {
            float value[4];
            FA_UNROLL_FOR (int e = 0; e < 4; e++) value[e] = rows.dtype == FA_F16 ? f16_to_f32(bits[n][e]) : bf16_to_f32(bits[n][e]);
            store(n, value);
        }
    }
}

// The sequence, masks and dropout of a block's tiles, by one thread.
FA_DEVICE void init_sequence(const SimtBackwardParams& params, int64_t batch) {
    BackwardTile& tile = *backward_shared().tile;
    tile.batch = batch;
    tile.seq = bounded_sequence(params.sequences, batch);
    tile.rule = mask_rule(params.rule, tile.seq);
    tile.dropout = dropout_of(params, batch);
}

// What a block is to do, of `heads` heads of `length` keys or rows each; `last_first`: in descending order of these. By one thread.
FA_DEVICE void init_item(const SimtBackwardParams& params, int64_t columns, int64_t length, int64_t heads, bool last_first) {
    BackwardTile& tile = *backward_shared().tile;
    const int64_t tiles = ceil_div(length, kTile), index = rt::block() / params.parts, tile_index = index % tiles;
    tile.column0 = rt::block() % params.parts * columns;
    tile.own0 = (last_first ? tiles - 1 - tile_index : tile_index) * kTile;
    tile.own_head = index / tiles % heads;
    tile.begin = tile.end = 0;
    init_sequence(params, index / tiles / heads);
}

// Rows [row0, row0 + 64) of a head. Those without keys may hold anything, and count as 0.
FA_DEVICE void init_rows(const SimtBackwardParams& params, int64_t head, int64_t row0) {
    BackwardTile& tile = *backward_shared().tile;
    const int r = rt::thread();
    if (r == 0) {
        tile.head = head;
        tile.row0 = row0;
    }
    if (r >= kTile) return;
    const int64_t from = head * params.padded_rows + padded_row0(params.sequences, tile.seq, tile.batch) + row0 + r;
    const float lse_log2 = params.lse_log2[from];
    tile.lse_log2[r] = lse_log2;
    tile.delta[r] = params.delta[from];
    tile.q_at[r] = lse_log2 == kPosInf ? -1 : query_index(params.q_strides, tile.seq, tile.batch, row0 + r, head);
    tile.dout_at[r] = lse_log2 == kPosInf ? -1 : query_index(params.dout_strides, tile.seq, tile.batch, row0 + r, head);
}

FA_DEVICE void locate_keys(const SimtBackwardParams& params, int64_t kv_head, int64_t key0) {
    BackwardTile& tile = *backward_shared().tile;
    const int j = rt::thread();
    if (j == 0) tile.key0 = key0;
    if (j >= kTile) return;
    const KeyLocation location{tile.batch, tile.seq.k_begin + key0 + j, true};
    const bool there = key0 + j < tile.seq.k_len;
    tile.k_at[j] = there ? key_index(params.k_strides, location, kv_head) : -1;
    tile.v_at[j] = there ? key_index(params.v_strides, location, kv_head) : -1;
}

// Finds which of the located tile's keys each row sees; false when that is none. Barriers must lie before it and before the next.
FA_COLD bool find_visible(const SimtBackwardParams& params) {
    static_assert(kTile == kWordKeys, "a bit for each key of a tile");
    BackwardTile& tile = *backward_shared().tile;
    const int r = rt::thread();
    if (r < kTile) {
        const KeyBand band = key_band(tile.rule, tile.row0 + r, tile.seq.k_len);
        const bool there = tile.row0 + r < tile.seq.q_len;
        const RowKeys keys = there ? row_keys(params.sets, tile.seq, band, tile.batch, tile.head, tile.row0 + r, tile.key0) : RowKeys{0, 0};
        tile.visible[r] = keys.visible;
        tile.unmasked[r] = keys.unmasked;
    }
    rt::barrier();
    uint64_t some = 0;
    for (int i = 0; i < kTile; i++) some |= tile.visible[i];
    return some != 0;
}

// Does every row see every key, and are their scores as the product has them? Calls with chunks count as not plain: the test would
// take long.
FA_DEVICE bool plain_tile(const SimtBackwardParams& params, const BackwardTile& tile) {
    const MaskRule rule{tile.rule.off, tile.rule.left, tile.rule.right, 0};
    return !params.score_mod && !(params.dropout_p > 0) && !params.sets.any() && tile.rule.chunk == 0 &&
           tile.key0 + kTile <= tile.seq.k_len && tile_class(rule, tile.row0, kTile, tile.key0, kTile, tile.seq.k_len) == TileClass::full;
}

// Which of the tile's probabilities dropout keeps: one draw serves four keys, where these lie so in the whole's mask.
FA_COLD void draw_tile() {
    BackwardTile& tile = *backward_shared().tile;
    for (int i = rt::thread(); i < kTile * kTile / 4; i += kThreads) {
        const int r = i / (kTile / 4), quad = i % (kTile / 4);
        const int64_t row = tile.row0 + r, key = tile.key0 + quad * 4;
        uint8_t bits = 0;
        if (tile.dropout.key % 4 == 0) {
            const Philox4 words =
                dropout_words(tile.dropout, tile.dropout.batch_head + tile.head, row + tile.dropout.row, (key + tile.dropout.key) / 4);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) bits |= uint8_t((words.word[e] >= tile.dropout.threshold) << e);
        } else {
            FA_UNROLL_BY(1)
            for (int e = 0; e < 4; e++) bits |= uint8_t(keeps(tile.dropout, tile.head, row, key + e) << e);
        }
        tile.kept[r][quad] = bits;
    }
}

// product[r][n] = Σ left · right over all dims. Leaves a barrier behind the last use of the buffers.
FA_DEVICE void multiply(const Rows& left, const Rows& other, float factor, float product[4][4]) {
    const BackwardShared shared = backward_shared();
    const int tx = rt::thread() % 16, ty = rt::thread() / 16;
    FA_UNROLL_FOR (int r = 0; r < 4; r++)
        FA_UNROLL_FOR (int n = 0; n < 4; n++) product[r][n] = 0.f;
    for (int64_t dim0 = 0; dim0 < left.dim; dim0 += kDims) {
        load_rows<kDims>(left, 0, dim0, factor, kRowStride, shared.left);
        load_rows<kDims>(other, 0, dim0, 1.f, kRowStride, shared.p);
        rt::barrier();
        const float *const a = shared.left + ty * 4 * kRowStride, *const b = shared.p + tx * kRowStride;
        for (int first = 0; first < kDims && dim0 + first < left.dim; first += kChain) {
            float chain[4][4];
            FA_UNROLL_FOR (int r = 0; r < 4; r++)
                FA_UNROLL_FOR (int n = 0; n < 4; n++) chain[r][n] = 0.f;
            FA_UNROLL_BY(1)
            for (int c = first; c < first + kChain; c += 4) {
                float of_b[4][4];
                FA_UNROLL_FOR (int n = 0; n < 4; n++) rt::load4(b + n * 16 * kRowStride + c, of_b[n]);
                FA_UNROLL_FOR (int r = 0; r < 4; r++) {
                    float of_a[4];
                    rt::load4(a + r * kRowStride + c, of_a);
                    FA_UNROLL_FOR (int n = 0; n < 4; n++)
                        FA_UNROLL_FOR (int e = 0; e < 4; e++) chain[r][n] = fmaf(of_a[e], of_b[n][e], chain[r][n]);
                }
            }
            FA_UNROLL_FOR (int r = 0; r < 4; r++)
                FA_UNROLL_FOR (int n = 0; n < 4; n++) product[r][n] += chain[r][n];
        }
        rt::barrier();
    }
}

// P of a score in log2 units, with dropout applied, and its gradient dP to that of the score. Rows without keys have none, whatever
// comes.
FA_DEVICE void softmax_backward(float lse_log2, float delta, float kept, float slope, float* score, float* ds) {
    const float p = lse_log2 == kPosInf ? 0.f : exp2_fn(exponent_below(*score, lse_log2));
    *score = p * kept;
    *ds = p == 0.f ? 0.f : p * (*ds * kept - delta) * slope;
}

// Where a thread keeps its elements of a tile: they go through shared memory between one product and the next, for registers are
// short. A kernel by keys reads them by rows, one by rows by keys.
template <bool by_keys>
FA_DEVICE int element_at(int r, int n) {
    const int row = rt::thread() / 16 * 4 + r, key = rt::thread() % 16 + 16 * n;
    return by_keys ? row * kRowStride + key : key * kRowStride + row;
}

// Scores in `p` to probabilities, and gradients in `ds`, in a tile with masks, dropout or a score mod; through the softcap's
// derivative if `through_cap`.
template <bool by_keys>
FA_COLD void softmax_backward_any(const SimtBackwardParams& params, bool through_cap) {
    const BackwardShared shared = backward_shared();
    const BackwardTile& tile = *shared.tile;
    FA_UNROLL_BY(1)
    for (int i = 0; i < 16; i++) {
        const int row = rt::thread() / 16 * 4 + i / 4, j = rt::thread() % 16 + i % 4 * 16, at = element_at<by_keys>(i / 4, i % 4);
        const int64_t key = tile.key0 + j;
        const bool visible = (tile.visible[row] >> j & 1) != 0 && tile.lse_log2[row] != kPosInf;
        float score = shared.p[at], ds = shared.ds[at], slope = 1.f, kept = 1.f;
        score = cap_score(params, score, &slope);
        if (!through_cap) slope = 1.f;
        if (params.score_mod && visible)
            score = kLog2e * apply_score_mod(params, tile.rule.off, tile.seq.k_len, tile.batch, tile.head, tile.row0 + row, key,
                                             !(tile.unmasked[row] >> j & 1), score);
        if (params.dropout_p > 0) kept = tile.kept[row][j / 4] >> j % 4 & 1 ? params.dropout_scale : 0.f;
        if (!visible) score = kNegInf;
        softmax_backward(tile.lse_log2[row], tile.delta[row], kept, slope, &score, &ds);
        shared.p[at] = score;
        shared.ds[at] = ds;
    }
}

// Of the located tile: probabilities into `p` and, if wanted, the gradients of its scores into `ds`. A barrier must come before
// others' elements are read.
template <bool by_keys>
FA_DEVICE void compute_p_ds(const SimtBackwardParams& params, bool with_ds, bool through_cap) {
    const BackwardShared shared = backward_shared();
    const BackwardTile& tile = *shared.tile;
    float product[4][4];
    if (params.dropout_p > 0) draw_tile();
    if (rt::thread() == 0) shared.tile->plain = plain_tile(params, tile);
    if (with_ds) multiply(rows_of_dout(params, tile), rows_of_v(params, tile), 1.f, product);
    FA_UNROLL_FOR (int r = 0; r < 4; r++)
        FA_UNROLL_FOR (int n = 0; n < 4; n++) shared.ds[element_at<by_keys>(r, n)] = with_ds ? product[r][n] : 0.f;
    multiply(rows_of_q(params, tile), rows_of_k(params, tile), params.factor.q, product);
    if (params.factor.product != 1.f)
        FA_UNROLL_FOR (int r = 0; r < 4; r++)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) product[r][n] *= params.factor.product;
    FA_UNROLL_FOR (int r = 0; r < 4; r++)
        FA_UNROLL_FOR (int n = 0; n < 4; n++) {
            const int row = rt::thread() / 16 * 4 + r, at = element_at<by_keys>(r, n);
            if (tile.plain) softmax_backward(tile.lse_log2[row], tile.delta[row], 1.f, 1.f, &product[r][n], &shared.ds[at]);
            shared.p[at] = product[r][n];
        }
    if (!tile.plain) softmax_backward_any<by_keys>(params, through_cap);
}

template <int TV>
struct SimtBackward {
    static constexpr int columns = 16 * TV, depth = kDims * kTile / columns;  // rows that the buffer holds at once

    // sum[i][c] += Σ_j probabilities[j][i] · rows[j][c], over the tile's `count` rows; thread (tx, ty) has i from 4·ty and c from
    // tx·4 + 64·n. The probabilities have been written without a barrier; there is one behind their last use.
    FA_MEMBER static void add_product(const float* probs, const Rows& rows, int64_t count, int64_t column0, float sum[4][TV]) {
        const BackwardShared shared = backward_shared();
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        for (int first = 0; first < count; first += depth) {
            load_rows<columns>(rows, first, column0, 1.f, columns, shared.left);
            rt::barrier();
            const int deep = int(min_of(depth, count - first));
            FA_UNROLL_FOR (int c = 0; c < TV; c += 4) {
                float chain[4][4];  // of these rows alone: one long chain would lose accuracy on data of one sign
                FA_UNROLL_FOR (int i = 0; i < 4; i++)
                    FA_UNROLL_FOR (int e = 0; e < 4; e++) chain[i][e] = 0.f;
                FA_UNROLL_BY(4)
                for (int j = 0; j < deep; j++) {
                    float a[4], b[4];
                    rt::load4(probs + (first + j) * kRowStride + ty * 4, a);
                    rt::load4(shared.left + j * columns + tx * 4 + 16 * c, b);
                    FA_UNROLL_FOR (int i = 0; i < 4; i++)
                        FA_UNROLL_FOR (int e = 0; e < 4; e++) chain[i][e] = fmaf(a[i], b[e], chain[i][e]);
                }
                FA_UNROLL_FOR (int i = 0; i < 4; i++)
                    FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[i][c + e] += chain[i][e];
            }
            rt::barrier();
        }
    }

    FA_MEMBER static void write(const SimtBackwardParams& params, void* to, const RowStrides& strides, int32_t dtype, int64_t outer,
                                int64_t row, int64_t count, int64_t head, int64_t column0, int64_t dim, float factor,
                                const float sum[4][TV]) {
        static_assert(kThreads * 4 * TV <= 3 * kKvFloats, "the buffers have room");
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        float* const own = backward_shared().left + rt::thread();  // each thread's: what stores an element is compiled once for all of them
        FA_UNROLL_FOR (int e = 0; e < 4 * TV; e++) own[e * kThreads] = sum[e / TV][e % TV];
        FA_UNROLL_BY(1)
        for (int e = 0; e < 4 * TV; e++) {
            const int i = ty * 4 + e / TV, c = e % TV;
            const int64_t column = column0 + tx * 4 + 16 * (c & ~3) + (c & 3);
            const int64_t at = strides.index(outer, row + i, head) + column;
            if (i < count && column < dim) store_gradient(params, to, at, dtype, own[e * kThreads] * factor);
        }
    }
};

// dk and dv of one tile of keys, part by part of their columns. Where these are 128, accumulators leave no registers for a second
// block.
template <int TV>
FA_KERNEL void FA_BOUNDS(kThreads, TV > 4 ? 1 : 2) backward_simt_keys(FA_PARAM SimtBackwardParams params) {
    rt::fetch_parameters(params);
    using B = SimtBackward<TV>;
    const BackwardShared shared = backward_shared();
    BackwardTile& tile = *shared.tile;
    const auto keys = [&] { return min_of(tile.seq.k_len - tile.own0, kTile); };
    const auto dk_here = [&] { return params.dk && tile.column0 < params.dim_qk; };
    const auto dv_here = [&] { return params.dv && tile.column0 < params.dim_v; };
    if (rt::thread() == 0) {
        init_item(params, B::columns, params.sequences.seqlen_k, params.kv_heads, false);
        if (keys() > 0 && (dk_here() || dv_here())) {
            const RowBand visible =
                params.sets.lists.words ? RowBand{0, tile.seq.q_len} : row_band(tile.rule, tile.own0, keys(), tile.seq.q_len);
            tile.begin = max_of(visible.begin, 0) / kTile * kTile;
            tile.end = min_of(visible.end, tile.seq.q_len);
        }
    }
    rt::barrier();
    if (keys() <= 0) return;
    locate_keys(params, tile.own_head, tile.own0);
    float dk[4][TV], dv[4][TV];
    FA_UNROLL_FOR (int i = 0; i < 4; i++)
        FA_UNROLL_FOR (int c = 0; c < TV; c++) dk[i][c] = dv[i][c] = 0.f;
    for (int i = 0; i < int(params.group); i++)
        for (int64_t row0 = tile.begin; row0 < tile.end; row0 += kTile) {
            init_rows(params, tile.own_head * params.group + i, row0);
            rt::barrier();
            if (!find_visible(params)) continue;
            compute_p_ds<true>(params, dk_here(), true);
            if (dv_here())
                B::add_product(shared.p, rows_of_dout(params, tile), min_of(tile.seq.q_len - tile.row0, kTile), tile.column0, dv);
            if (dk_here()) B::add_product(shared.ds, rows_of_q(params, tile), min_of(tile.seq.q_len - tile.row0, kTile), tile.column0, dk);
        }
    const int64_t row = tile.seq.k_begin + tile.own0;
    if (dk_here())
        B::write(params, params.dk, params.dk_strides, params.k_dtype, tile.batch, row, keys(), tile.own_head, tile.column0, params.dim_qk,
                 params.scale, dk);
    if (dv_here())
        B::write(params, params.dv, params.dv_strides, params.k_dtype, tile.batch, row, keys(), tile.own_head, tile.column0, params.dim_v,
                 1.f, dv);
}

// dq of one tile of rows, part by part of its columns.
template <int TV>
FA_KERNEL void FA_BOUNDS(kThreads, 2) backward_simt_rows(FA_PARAM SimtBackwardParams params) {
    rt::fetch_parameters(params);
    using B = SimtBackward<TV>;
    const BackwardShared shared = backward_shared();
    BackwardTile& tile = *shared.tile;
    const auto rows = [&] { return min_of(tile.seq.q_len - tile.own0, kTile); };
    if (rt::thread() == 0) {
        init_item(params, B::columns, params.sequences.q.seqlen, params.heads_q, params.causal);  // longest rows first
        if (rows() > 0) {
            const KeyBand first = key_band(tile.rule, tile.own0, tile.seq.k_len),
                          last = key_band(tile.rule, tile.own0 + rows() - 1, tile.seq.k_len);
            tile.begin = params.sets.lists.words ? 0 : max_of(first.begin, 0) / kTile * kTile;
            tile.end = params.sets.lists.words ? tile.seq.k_len : last.end;
        }
    }
    rt::barrier();
    if (rows() <= 0) return;
    init_rows(params, tile.own_head, tile.own0);
    float dq[4][TV];
    FA_UNROLL_FOR (int i = 0; i < 4; i++)
        FA_UNROLL_FOR (int c = 0; c < TV; c++) dq[i][c] = 0.f;
    for (int64_t key0 = tile.begin; key0 < tile.end; key0 += kTile) {
        locate_keys(params, tile.own_head / params.group, key0);
        rt::barrier();
        if (!find_visible(params)) continue;
        compute_p_ds<false>(params, true, true);
        B::add_product(shared.ds, rows_of_k(params, tile), min_of(tile.seq.k_len - tile.key0, kTile), tile.column0, dq);
    }
    B::write(params, params.dq, params.dq_strides, params.q_dtype, tile.batch, tile.seq.q_begin + tile.own0, rows(), tile.own_head,
             tile.column0, params.dim_qk, params.scale, dq);
}

}  // namespace gpu
}  // namespace fa
