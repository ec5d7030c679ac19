// The two baselines that FlashAttention-2 is compared with, built from the same tile functions.
//
//   standard  S = q kᵀ for a whole head goes to memory; softmax reads S and writes P; o = P v reads P.
//   flash1    keys in the outer loop: each block of k and v is read once, and all tiles' q, o, m and l are loaded and stored for it.
//
// Tiles count their traffic here rather than in the loaders, because what is "in fast memory" differs between the two.
#include "cpu/study/study.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

struct Study {
    Call quiet;  // without the loaders' own counting
    bool count;
    Counters* counters;
    int64_t q_row, o_row, k_row, v_row;  // bytes
    void add(int64_t flops, int64_t read, int64_t written) const {
        if (!count) return;
        counters->flops += flops;
        counters->read += read;
        counters->written += written;
    }
};

Study make_study(const Call& call, Scratch& scratch) {
    const fa_attention_desc_t& d = call.p->d;
    Study s{.quiet = call,
            .count = call.count,
            .counters = &scratch.counters,
            .q_row = d.dim_qk * type_bytes(d.q_dtype),
            .o_row = d.dim_v * type_bytes(d.o_dtype),
            .k_row = d.dim_qk * type_bytes(d.k_dtype),
            .v_row = d.dim_v * type_bytes(d.v_dtype)};
    s.quiet.count = false;
    return s;
}

// A row tile's scores of all keys, [key][width], within the head's matrix.
float* tile_scores(const Call& call, const QueryTile& tile, float* matrix) { return matrix + tile.first * call.p->d.seqlen_k; }

void finish(const Call& call, const QueryTile& tile, PartialState& state, Scratch& scratch) {
    write_rows(call, tile, state, scratch);
    if (!call.p->has(FA_OPERAND_SCORES)) return;
    QueryTile packed = tile;
    pack_q(call, packed, 0, scratch);
    write_scores(call, packed, state, scratch);
}

// The accumulators of a tile are kept in o between two key blocks of flash1; these move them.
float* o_row(const Call& call, const QueryTile& tile, int lane) {
    const Problem& p = *call.p;
    const int64_t position = tile.position(lane, p.group), head = tile.head(lane, p.group);
    return static_cast<float*>(call.a->o) + query_index(p, p.d.o_stride, tile.seq, tile.batch, position, head);
}

void load_o(const Call& call, const QueryTile& tile, float* o) {
    for (int lane = 0; lane < tile.rows; lane++) {
        const float* row = o_row(call, tile, lane);
        for (int64_t x = 0; x < call.p->d.dim_v; x++) o[x * tile.width + lane] = row[x];
    }
}

void store_o(const Call& call, const QueryTile& tile, const float* o) {
    for (int lane = 0; lane < tile.rows; lane++) {
        float* row = o_row(call, tile, lane);
        for (int64_t x = 0; x < call.p->d.dim_v; x++) row[x] = o[x * tile.width + lane];
    }
}

}  // namespace

int64_t study_bytes(const Problem& problem, const Kernels& kernels) {
    const int64_t rows = round_up(problem.d.seqlen_q * problem.group, kernels.rows);
    if (problem.d.algorithm == FA_ALGORITHM_STANDARD) return round_up(rows * problem.d.seqlen_k * int64_t(sizeof(float)), 64);
    return round_up(2 * rows * int64_t(sizeof(float)), 64);
}

void run_standard(const Call& call, int64_t batch, int64_t kv_head, char* memory, Scratch& scratch) {
    const Study s = make_study(call, scratch);
    const Problem& p = *call.p;
    float* matrix = reinterpret_cast<float*>(memory);
    QueryTile t;
    for (int64_t block = 0; block < call.blocks && init_tile(call, batch, kv_head, block, &t); block++) {
        pack_q(s.quiet, t, 0, scratch);
        s.add(0, t.rows * s.q_row, 0);
        float* scores = tile_scores(call, t, matrix);
        for (int64_t key = 0; key < t.seq.k_len; key += kTileKeys) {
            const int keys = int(min_of(kTileKeys, t.seq.k_len - key));
            KeyBlock block_of_keys{key, keys, {}, {}};
            if (!score_tile(s.quiet, t, block_of_keys, key, keys, scratch))
                for (int i = 0; i < keys * t.width; i++) scratch.s[i] = kNegInf;
            memcpy(scores + key * t.width, scratch.s, size_t(keys) * t.width * sizeof(float));
            s.add(2 * t.rows * keys * p.d.dim_qk, keys * s.k_row, int64_t(t.rows) * keys * 4);
        }
    }
    for (int64_t block = 0; block < call.blocks && init_tile(call, batch, kv_head, block, &t); block++) {
        float* scores = tile_scores(call, t, matrix);
        PartialState& state = scratch.total[0];
        init_state(t, p.d.dim_v, state);
        call.k->online_softmax(scores, t.vectors, int(t.seq.k_len), state.m, state.l, scratch.rescale);
        if (call.has_dropout) apply_dropout(call, t, 0, int(t.seq.k_len), t.width, 1, scores);
        s.add(0, t.rows * t.seq.k_len * 4, t.rows * t.seq.k_len * 4);
        for (int lane = 0; lane < t.width; lane++) scratch.rescale[lane] = 1.f;
        for (int64_t key = 0; key < t.seq.k_len; key += kTileKeys) {
            const int keys = int(min_of(kTileKeys, t.seq.k_len - key));
            const KvRowsF32 v = load_v(s.quiet, t, key, keys, scratch.v, scratch);
            call.k->pv(scores + key * t.width, t.vectors, t.vectors, v.data, v.stride, keys, int(p.d.dim_v), scratch.rescale, state.acc);
            s.add(2 * t.rows * keys * p.d.dim_v, keys * s.v_row + int64_t(t.rows) * keys * 4, 0);
        }
        finish(s.quiet, t, state, scratch);
        s.add(0, 0, t.rows * s.o_row);
    }
}

void run_flash1(const Call& call, int64_t batch, int64_t kv_head, char* memory, Scratch& scratch) {
    const Study s = make_study(call, scratch);
    const Problem& p = *call.p;
    const int64_t rows = call.blocks * call.method.rows;
    float* m = reinterpret_cast<float*>(memory);
    float* l = m + rows;
    QueryTile t;
    for (int64_t i = 0; i < rows; i++) {
        m[i] = kNegInf;
        l[i] = 0.f;
    }
    for (int64_t block = 0; block < call.blocks && init_tile(call, batch, kv_head, block, &t); block++) {
        init_state(t, p.d.dim_v, scratch.total[0]);
        store_o(call, t, scratch.total[0].acc);
    }
    const int64_t k_len = sequence_of(call.sequences, batch).k_len;
    for (int64_t key = 0; key < k_len; key += kTileKeys) {
        const int keys = int(min_of(kTileKeys, k_len - key));
        s.add(0, keys * (s.k_row + s.v_row), 0);
        for (int64_t block = 0; block < call.blocks && init_tile(call, batch, kv_head, block, &t); block++) {
            pack_q(s.quiet, t, 0, scratch);
            KeyBlock block_of_keys{key, keys, {}, {}};
            if (!score_tile(s.quiet, t, block_of_keys, key, keys, scratch)) continue;
            load_o(call, t, scratch.total[0].acc);
            call.k->online_softmax(scratch.s, t.vectors, keys, m + t.first, l + t.first, scratch.rescale);
            if (call.has_dropout) apply_dropout(call, t, key, keys, t.width, 1, scratch.s);
            const KvRowsF32 v = load_v(s.quiet, t, key, keys, scratch.v, scratch);
            call.k->pv(scratch.s, t.vectors, t.vectors, v.data, v.stride, keys, int(p.d.dim_v), scratch.rescale, scratch.total[0].acc);
            store_o(call, t, scratch.total[0].acc);
            s.add(2 * t.rows * keys * (p.d.dim_qk + p.d.dim_v), t.rows * (s.q_row + s.o_row + 8), t.rows * (s.o_row + 8));
        }
    }
    for (int64_t block = 0; block < call.blocks && init_tile(call, batch, kv_head, block, &t); block++) {
        load_o(call, t, scratch.total[0].acc);
        PartialState state{scratch.total[0].acc, m + t.first, l + t.first};
        finish(s.quiet, t, state, scratch);
        s.add(0, t.rows * s.o_row, t.rows * s.o_row);
    }
}

}  // namespace cpu
}  // namespace fa
