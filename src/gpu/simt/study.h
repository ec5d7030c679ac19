// The two baselines that the fused kernels are measured against, built from the functions of simt/forward.h.
//
// standard  three kernels over a matrix in memory: S = q kᵀ is written, softmax replaces S by P, and o = P v reads P.
// flash1    a block for each head, as in FlashAttention-1: keys in the outer loop, row tiles in the inner one, and each row's o, m and l
//           come from memory and go back there for every block of keys.
//
// For the one translation unit of a module that compiles them.
#pragma once
#include "gpu/common/merge.h"
#include "gpu/simt/forward.h"
#include "gpu/simt/study_kernels.h"

namespace fa {
namespace gpu {

// What all tiles of a head have in common.
template <class S>
FA_DEVICE void init_head(const SimtForwardParams& params, const typename S::Shared& shared, int64_t head, int64_t column0) {
    if (rt::thread() == 0) {
        typename S::Tile tile{};
        tile.kv_head = head % params.kv_heads;
        tile.batch = head / params.kv_heads;
        tile.k_head = tile.kv_head / params.kv_heads_per_k;
        tile.v_head = tile.kv_head / params.kv_heads_per_v;
        tile.seq = bounded_sequence(params.sequences, tile.batch);
        tile.rule = mask_rule(params.rule, tile.seq);
        tile.dropout = dropout_of(params, tile.batch);
        tile.column0 = column0;
        *shared.tile = tile;
    }
    rt::barrier();
}

// Goes to a row tile of the head; false when it holds no valid row.
template <class S>
FA_DEVICE bool init_tile(const SimtForwardParams& params, const typename S::Shared& shared, int64_t block) {
    rt::barrier();  // the tile before is done with
    if (rt::thread() == 0) {
        shared.tile->first = block * S::rows;
        shared.tile->valid = min_of(shared.tile->seq.q_len * params.group - shared.tile->first, S::rows);
    }
    rt::barrier();
    if (shared.tile->valid <= 0) return false;
    S::init_rows(params);
    rt::barrier();
    return true;
}

// Final scores of the row tile against the tile of keys that locate_keys has placed; false when no mask keeps any of them.
// Has a barrier behind locate_keys().
template <class S, int TR>
FA_DEVICE bool score_tile(const SimtForwardParams& params, const typename S::Shared& shared, int64_t key, int keys, float score[TR][4]) {
    const typename S::Tile& tile = *shared.tile;
    S::find_visible(params, key);
    rt::barrier();
    const TileClass kind = S::class_of(params, key, keys);
    if (kind == TileClass::empty) return false;
    if (params.dim_qk <= params.q_dims) S::load_q(params, 0, params.q_dims);
    S::compute_qk(params, shared, score);
    S::mask_scores(params, tile, shared, key, kind == TileClass::full, score);
    return true;
}

// (m, l) of the row tile, in study.states. One thread of a row stores them.
template <int TR>
FA_DEVICE void fetch_states(const RowState* states, int64_t valid, float m[TR], float l[TR]) {
    FA_UNROLL_FOR (int r = 0; r < TR; r++) {
        const RowState state = states[min_of(rt::thread() / 16 * TR + r, valid - 1)];
        m[r] = state.m;
        l[r] = state.l;
    }
}
template <int TR>
FA_DEVICE void store_states(RowState* states, int64_t valid, const float m[TR], const float l[TR]) {
    FA_UNROLL_FOR (int r = 0; r < TR; r++)
        if (rt::thread() % 16 == 0 && rt::thread() / 16 * TR + r < valid) states[rt::thread() / 16 * TR + r] = {m[r], l[r]};
}

// ---- standard

// S: a block for each tile of 64 rows and 64 keys.
FA_KERNEL void FA_BOUNDS(kThreads, 2) standard_scores(FA_PARAM StudyParams study) {
    constexpr int TR = kStudyRows / 16;
    using S = Simt<TR, 4>;
    const SimtForwardParams& params = study.x;
    const int64_t tiles = study.pitch / kKeys, key = rt::block() % tiles * kKeys, item = rt::block() / tiles, head = item / params.blocks;
    const S::Shared shared = S::layout(rt::shared_memory(), params.q_dims);
    const S::Tile& tile = *shared.tile;
    init_head<S>(params, shared, study.first_head + head, 0);
    if (key >= tile.seq.k_len || !init_tile<S>(params, shared, item % params.blocks)) return;
    const int keys = int(min_of(kKeys, tile.seq.k_len - key));
    S::locate_keys(params, key, keys);
    float score[TR][4];
    if (!score_tile<S, TR>(params, shared, key, keys, score))
        FA_UNROLL_FOR (int r = 0; r < TR; r++)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) score[r][n] = kNegInf;
    const int tx = rt::thread() % 16, ty = rt::thread() / 16;
    float* to = study.s_matrix + (head * params.rows + tile.first) * study.pitch + key + tx;
    FA_UNROLL_FOR (int r = 0; r < TR; r++)
        if (ty * TR + r < tile.valid)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) to[(ty * TR + r) * study.pitch + 16 * n] = score[r][n];
}

// Every thread's value reduced to one, which all get: groups of 16 first, then those one after the other.
template <class Operation>
FA_DEVICE float reduce_block(float value, Operation operation) {
    float* group = reinterpret_cast<float*>(rt::shared_memory());
    FA_UNROLL_FOR (int w = 8; w > 0; w /= 2) value = operation(value, rt::shuffle_xor16(value, w));
    rt::barrier();  // whoever still reads the reduction before
    if (rt::thread() % 16 == 0) group[rt::thread() / 16] = value;
    rt::barrier();
    value = group[0];
    for (int i = 1; i < rt::threads() / 16; i++) value = operation(value, group[i]);
    return value;
}

struct MaxOp {
    FA_MEMBER float operator()(float a, float b) const { return max_fn(a, b); }
};
struct SumOp {
    FA_MEMBER float operator()(float a, float b) const { return a + b; }
};

// P in the place of S, and (m, l): a block for each row.
FA_KERNEL void FA_BOUNDS(kMergeThreads, 1) standard_softmax(FA_PARAM StudyParams study) {
    const SimtForwardParams& params = study.x;
    const int64_t head = study.first_head + rt::block() / params.rows, r = rt::block() % params.rows, row = r / params.group;
    const int64_t batch = head / params.kv_heads, query_head = head % params.kv_heads * params.group + r % params.group;
    const Sequence seq = bounded_sequence(params.sequences, batch);
    if (row >= seq.q_len) return;
    float* scores = study.s_matrix + rt::block() * study.pitch;
    float row_max = kNegInf, row_sum = 0.f;
    for (int64_t key = rt::thread(); key < seq.k_len; key += kMergeThreads) row_max = max_fn(row_max, scores[key]);
    row_max = reduce_block(row_max, MaxOp());
    const bool drop = params.dropout_p > 0;
    const SequenceDropout dropout = dropout_of(params, batch);
    for (int64_t key = rt::thread(); key < seq.k_len; key += kMergeThreads) {
        const float p = prob(scores[key], row_max) * kHeadroomUnit;
        row_sum += p;
        scores[key] = !drop || keeps_cold(dropout, query_head, row, key) ? p : 0.f;
    }
    row_sum = reduce_block(row_sum, SumOp());
    if (rt::thread() == 0) study.states[head * params.rows + r] = {row_max, row_sum};
}

// o = P v: a block for each tile of rows and part of the columns.
template <int TV>
FA_KERNEL void FA_BOUNDS(kThreads, TV > 4 ? 1 : 2) standard_values(FA_PARAM StudyParams study) {
    constexpr int TR = kStudyRows / 16;
    using S = Simt<TR, TV>;
    const SimtForwardParams& params = study.x;
    const int64_t column0 = rt::block() % params.value_parts * S::columns, item = rt::block() / params.value_parts;
    const int64_t block = item % params.blocks, head = item / params.blocks;
    const typename S::Shared shared = S::layout(rt::shared_memory(), params.q_dims);
    const typename S::Tile& tile = *shared.tile;
    init_head<S>(params, shared, study.first_head + head, column0);
    write_padding(params, tile.seq, tile.batch, tile.kv_head, block * S::rows, S::rows, column0, S::columns);
    if (!init_tile<S>(params, shared, block)) return;
    const float* probs = study.s_matrix + (head * params.rows + tile.first) * study.pitch;
    float m[TR], l[TR], factor[TR], o[TR][TV];
    FA_UNROLL_FOR (int r = 0; r < TR; r++) {
        factor[r] = 1.f;
        FA_UNROLL_FOR (int c = 0; c < TV; c++) o[r][c] = 0.f;
    }
    for (int64_t key = 0; key < tile.seq.k_len; key += kKeys) {
        const int keys = int(min_of(kKeys, tile.seq.k_len - key));
        S::locate_keys(params, key, keys);
        for (int i = rt::thread(); i < S::rows * kKeys; i += kThreads) {
            const int r = i / kKeys, j = i % kKeys;
            shared.probs[r * kRowStride + j] = r < tile.valid && j < keys ? probs[r * study.pitch + key + j] : 0.f;
        }
        rt::barrier();
        S::compute_pv(params, shared, keys, column0, factor, o);
    }
    fetch_states<TR>(study.states + (study.first_head + head) * params.rows + tile.first, tile.valid, m, l);
    S::write(params, tile, shared, m, l, o);
}

// ---- flash1

// A row tile's sums lie in o between two blocks of keys. Each thread fetches and stores the elements that it owns in registers;
// what no row or column owns is 0 to it.
template <int TR, int TV, bool store>
FA_DEVICE void move_o(const SimtForwardParams& params, const typename Simt<TR, TV>::Shared& shared, int64_t column0, float o[TR][TV]) {
    const typename Simt<TR, TV>::Tile& tile = *shared.tile;
    const int tx = rt::thread() % 16, ty = rt::thread() / 16;
    const int columns = int(min_of(params.dim_v - column0, 16 * TV));
    FA_UNROLL_FOR (int r = 0; r < TR; r++) {
        const int row = ty * TR + r;
        const bool mine = row < tile.valid;
        float* line = static_cast<float*>(params.o) + column0;
        if (mine) line += query_index(params.o_strides, tile.seq, tile.batch, shared.position[row], shared.head[row]);
        FA_UNROLL_FOR (int c = 0; c < TV; c++) {
            const int column = tx * 4 + 16 * (c & ~3) + (c & 3);
            if (store && mine && column < columns) line[column] = o[r][c];
            if (!store) o[r][c] = mine && column < columns ? line[column] : 0.f;
        }
    }
}

// A block for each head and part of the columns: few, so that they need not share a multiprocessor's registers.
template <int TV>
FA_KERNEL void FA_BOUNDS(kThreads, 1) flash1_head(FA_PARAM StudyParams study) {
    constexpr int TR = kStudyRows / 16;
    using S = Simt<TR, TV>;
    const SimtForwardParams& params = study.x;
    const int64_t part = rt::block() % params.value_parts, head = rt::block() / params.value_parts, column0 = part * S::columns;
    const typename S::Shared shared = S::layout(rt::shared_memory(), params.q_dims);
    const typename S::Tile& tile = *shared.tile;
    init_head<S>(params, shared, head, column0);
    write_padding(params, tile.seq, tile.batch, tile.kv_head, 0, params.rows, column0, S::columns);
    RowState* states = study.states + part * params.batch * params.kv_heads * params.rows + head * params.rows;
    float m[TR], l[TR], o[TR][TV];
    for (int block = 0; init_tile<S>(params, shared, block); block++) {
        FA_UNROLL_FOR (int r = 0; r < TR; r++) {
            m[r] = kNegInf;
            l[r] = 0.f;
            FA_UNROLL_FOR (int c = 0; c < TV; c++) o[r][c] = 0.f;
        }
        store_states<TR>(states + tile.first, tile.valid, m, l);
        move_o<TR, TV, true>(params, shared, column0, o);
    }
    for (int64_t key = 0; key < tile.seq.k_len; key += kKeys) {
        const int keys = int(min_of(kKeys, tile.seq.k_len - key));
        S::locate_keys(params, key, keys);
        for (int block = 0; init_tile<S>(params, shared, block); block++) {
            float score[TR][4], factor[TR];
            if (!score_tile<S, TR>(params, shared, key, keys, score)) continue;
            fetch_states<TR>(states + tile.first, tile.valid, m, l);
            S::online_softmax(params, shared, key, score, m, l, factor);
            move_o<TR, TV, false>(params, shared, column0, o);
            S::compute_pv(params, shared, keys, column0, factor, o);
            store_states<TR>(states + tile.first, tile.valid, m, l);  // a barrier of compute_pv lies behind every fetch
            move_o<TR, TV, true>(params, shared, column0, o);
        }
    }
    for (int block = 0; init_tile<S>(params, shared, block); block++) {
        fetch_states<TR>(states + tile.first, tile.valid, m, l);
        move_o<TR, TV, false>(params, shared, column0, o);
        S::write(params, tile, shared, m, l, o);
    }
}

template <int TV>
constexpr StudyInstance study_instance() {
    using S = Simt<kStudyRows / 16, TV>;
    return {S::columns, standard_scores, standard_softmax, standard_values<TV>, flash1_head<TV>, S::shared_bytes};
}
const StudyInstance& study_instance(int64_t dim_v) {
    static constexpr StudyInstance list[] = {study_instance<4>(), study_instance<rt::kWideStudyColumns / 16>()};
    return list[dim_v > list[0].columns];
}

}  // namespace gpu
}  // namespace fa
