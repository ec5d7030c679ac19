#include "cpu/backward/backward.h"
#include "cpu/forward/key_lists.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/forward/visible_keys.h"
#include <atomic>
#include "cpu/backward/backward_call.h"

namespace fa {
namespace cpu {
namespace {

// A worker holds dk and dv of a block of keys while all query tiles are multiplied with it, so that packing these is shared by many
// keys: of f32 tiles that is worth more than that k, v, dk and dv of the block fit a second-level cache of 512 KB.
constexpr int64_t kBlockBytes = 1 << 20, kMaxBlockKeys = 512;
// Blocks are smaller, down to kMinBlockKeys, where there would be too few of them to occupy some cores.
constexpr int64_t kMinBlockKeys = 256, kMinBlocks = 16;
// Keys are partitioned into chunks, each with accumulators of dq of its own, only where sequences and heads alone cannot occupy a
// machine.
constexpr int64_t kMinItems = 64, kMaxChunkAccBytes = 256 << 20;

struct BackwardJob {
    const BackwardCall* g;
    const BackwardSchedule* s;
    char *shared, *shares;
    int64_t count;
    int64_t of_sequence;  // indices of a sequence, all of which are passed over where it has neither rows nor keys; 0: all are run
    void (*run)(const BackwardJob&, int64_t index, BackwardScratch&);
    alignas(64) std::atomic<int64_t> next;  // in a cache line of its own: every worker reads the rest
};

// The part of the forward's scratch that its tiles use here.
Scratch lay_out_forward_scratch(const Problem& problem, Arena& arena) {
    Scratch w{};
    w.q = arena.allocate<float>(problem.d.dim_qk * kMaxRows);
    w.s = arena.allocate<float>(kTileKeys * kMaxRows);
    w.addend = arena.allocate<float>(kTileKeys * kMaxRows);
    w.k = arena.allocate<float>(kTileKeys * problem.d.dim_qk);
    w.band_begin = arena.allocate<int32_t>(kMaxRows);
    w.band_end = arena.allocate<int32_t>(kMaxRows);
    return w;
}

BackwardScratch lay_out_scratch(const BackwardCall& backward, const BackwardSchedule& schedule, Arena& arena) {
    const Problem& p = *backward.c.p;
    const int64_t dim = p.d.dim_qk, dim_v = p.d.dim_v;
    BackwardScratch x{};
    x.w = lay_out_forward_scratch(p, arena);
    x.lines = arena.allocate<float>(kMaxRows * max_of(dim, dim_v));
    x.dout = arena.allocate<float>(dim_v * kMaxRows);
    x.q_rows = arena.allocate<float>(query_panels(backward, dim).size());
    x.dout_rows = arena.allocate<float>(query_panels(backward, dim_v).size());
    x.dp = arena.allocate<float>(kTileKeys * kMaxRows);
    x.slope = arena.allocate<float>(kTileKeys * kMaxRows);
    x.lse = arena.allocate<float>(kBackwardPanel * kMaxRows);
    x.delta = arena.allocate<float>(kBackwardPanel * kMaxRows);
    const int64_t keys = backward.matrix ? kTileKeys : schedule.block_keys;  // dbias alone has f32 tiles then
    x.k = arena.allocate<float>(keys * dim);
    x.v = arena.allocate<float>(keys * dim_v);
    x.dk = arena.allocate<float>(key_panels(backward, dim).size());
    x.dv = arena.allocate<float>(key_panels(backward, dim_v).size());
    x.dq = arena.allocate<float>(schedule.chunks > 1 ? 0 : schedule.tiles * dq_floats(backward));
    x.initialized = arena.allocate<bool>(schedule.tiles);
    if (backward.matrix) lay_out_operands(p, schedule.block_keys, &x.matrix, arena);
    x.item_delta = arena.allocate<float>(schedule.rows);
    return x;
}

// Of packed sequences most may have neither rows nor keys.
bool touches_anything(const BackwardCall& backward, int64_t sequence) {
    const Sequence s = sequence_of(backward.c.sequences, sequence);
    return !(backward.c.p->packed_q() && backward.c.p->packed_k() && s.q_len == 0 && s.k_len == 0);
}

void worker_loop(void* arg, int64_t worker) {
    BackwardJob& job = *static_cast<BackwardJob*>(arg);
    Arena arena{job.shares + worker * job.s->worker_bytes, 0};
    BackwardScratch x = lay_out_scratch(*job.g, *job.s, arena);
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) {
        if (job.of_sequence == 0 || touches_anything(*job.g, i / job.of_sequence)) {
            job.run(job, i, x);
            continue;
        }
        const int64_t to = (i / job.of_sequence + 1) * job.of_sequence;
        int64_t next = job.next.load(std::memory_order_relaxed);
        while (next < to && !job.next.compare_exchange_weak(next, to, std::memory_order_relaxed)) {
        }
    }
}

// All query tiles against one block of keys, whose dk and dv are then complete.
void backward_block(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t key, int keys, const DqAcc& dq,
                    BackwardScratch& scratch) {
    const Call& c = backward.c;
    QueryTile t;
    t.seq = sequence_of(c.sequences, batch);
    t.batch = batch;
    t.kv_head = kv_head;
    memset(scratch.dk, 0, size_t(key_panels(backward, c.p->d.dim_qk).size()) * sizeof(float));
    memset(scratch.dv, 0, size_t(key_panels(backward, c.p->d.dim_v).size()) * sizeof(float));
    if (backward.matrix) {
        backward_block_matrix(backward, batch, kv_head, key, keys, dq, scratch);
        return write_dkv(backward, t, key, keys, scratch);
    }
    KeyBlock block{key, keys, load_k(c, t, key, keys, scratch.k, scratch.w), load_v(c, t, key, keys, scratch.v, scratch.w)};
    for (int64_t n = 0; init_tile(c, batch, kv_head, n, &t); n++) {
        const KeyBand visible = visible_keys(c, t, key, key + keys);
        if (visible.begin >= visible.end) continue;
        load_rows(backward, t, scratch);
        for (int64_t at = key + (visible.begin - key) / kTileKeys * kTileKeys; at < visible.end; at += kTileKeys) {
            const int count = int(min_of(kTileKeys, visible.end - at));
            if (softmax_backward_tile(backward, t, block, at, count, true, scratch))
                accumulate_dqkv(backward, t, block, at, count, backward.a->dq ? dq.tile(n) : nullptr, scratch);
        }
    }
    write_dkv(backward, t, key, keys, scratch);
}

void finish_tiles(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t tile, float* acc, BackwardScratch& scratch) {
    QueryTile t;
    if (init_rows(backward, batch, kv_head, tile, &t)) write_dq(backward, t, acc, scratch);
    write_dq_padding(backward, batch, kv_head, tile, scratch);
}

DqAcc chunk_dq_acc(const BackwardJob& job, int64_t head, int64_t chunk) {
    const int64_t index = (head * job.s->chunks + chunk) * job.s->tiles, floats = dq_floats(*job.g);
    return {reinterpret_cast<float*>(job.shared) + index * floats, reinterpret_cast<bool*>(job.shared + job.s->initialized_offset) + index,
            floats};
}

float* chunk_deltas(const BackwardJob& job, int64_t head) {
    return reinterpret_cast<float*>(job.shared + job.s->deltas_offset) + head * job.s->rows;
}

// What all chunks need of one query tile.
void compute_tile_deltas(const BackwardJob& job, int64_t index, BackwardScratch& scratch) {
    const BackwardCall& g = *job.g;
    const int64_t tile = index % job.s->tiles, head = index / job.s->tiles, heads = g.c.p->d.heads_k;
    compute_deltas(g, head / heads, head % heads, tile * g.c.k->rows, (tile + 1) * g.c.k->rows, chunk_deltas(job, head), scratch);
}

// One chunk of the keys of one sequence and kv head. Items are ordered by chunk first: of causal chunks those with the most rows
// come first.
void backward_chunk(const BackwardJob& job, int64_t index, BackwardScratch& scratch) {
    const BackwardCall& g = *job.g;
    const BackwardSchedule& s = *job.s;
    const int64_t chunk = index / s.heads, head = index % s.heads;
    const int64_t batch = head / g.c.p->d.heads_k, kv_head = head % g.c.p->d.heads_k;
    const DqAcc dq = s.chunks > 1 ? chunk_dq_acc(job, head, chunk) : DqAcc{scratch.dq, scratch.initialized, dq_floats(g)};
    const int64_t k_len = sequence_of(g.c.sequences, batch).k_len, end = min_of((chunk + 1) * s.chunk_keys, k_len);
    memset(dq.initialized, 0, size_t(s.tiles));
    scratch.row_delta = s.chunks > 1 ? chunk_deltas(job, head) : scratch.item_delta;
    if (s.chunks == 1) compute_deltas(g, batch, kv_head, 0, s.rows, scratch.item_delta, scratch);
    for (int64_t key = chunk * s.chunk_keys; key < end; key += s.block_keys)
        backward_block(g, batch, kv_head, key, int(min_of(s.block_keys, end - key)), dq, scratch);
    if (chunk == 0) write_dkv_padding(g, batch, kv_head, scratch);
    for (int64_t tile = 0; g.a->dq && s.chunks == 1 && tile < s.tiles; tile++)
        finish_tiles(g, batch, kv_head, tile, dq.tile(tile), scratch);
}

// dq of one query tile from the accumulators of all chunks, in ascending order.
void merge_chunks(const BackwardJob& job, int64_t index, BackwardScratch& scratch) {
    const BackwardCall& g = *job.g;
    const BackwardSchedule& s = *job.s;
    const int64_t tile = index % s.tiles, head = index / s.tiles, floats = dq_floats(g);
    float* const acc = chunk_dq_acc(job, head, 0).tile(tile);
    for (int64_t chunk = 1; chunk < s.chunks; chunk++) {
        const DqAcc part = chunk_dq_acc(job, head, chunk);
        for (int64_t i = 0; part.initialized[tile] && i < floats; i++) acc[i] += part.acc[tile * floats + i];
    }
    finish_tiles(g, head / g.c.p->d.heads_k, head % g.c.p->d.heads_k, tile, acc, scratch);
}

void run_dbias(const BackwardJob& job, int64_t index, BackwardScratch& scratch) {
    BackwardCall g = *job.g;
    g.matrix = false;  // dS is written as f32
    write_dbias(g, index, scratch);
}
void run_expansion(const BackwardJob& job, int64_t index, BackwardScratch&) { expand_list(job.g->c, index); }
void run_dsink(const BackwardJob& job, int64_t index, BackwardScratch& scratch) { write_dsink(*job.g, index, scratch); }

// The steps of a call, one after the other: in each, workers take all indices.
struct BackwardRun {
    const Threads* threads;
    int64_t workers;
    Message* m;
    fa_status_t status;
    BackwardJob job;

    BackwardRun(const Threads* threads_, int64_t workers_, Message* m_) : threads(threads_), workers(workers_), m(m_), status(FA_OK) {}
    void all(int64_t count, void (*step)(const BackwardJob&, int64_t, BackwardScratch&), int64_t of_sequence = 0) {
        if (status != FA_OK) return;
        job.of_sequence = of_sequence;
        job.next = 0;
        job.count = count;
        job.run = step;
        status = run_workers(*threads, workers < count ? workers : max_of(count, 1), worker_loop, &job, m);
    }
};

}  // namespace

BackwardSchedule make_backward_schedule(const Problem& problem, const Kernels& kernels) {
    const fa_attention_desc_t& d = problem.d;
    BackwardSchedule s{};
    s.matrix = use_matrix_backward(problem, kernels);
    s.heads = d.batch * d.heads_k;
    s.rows = d.seqlen_q * problem.group;
    s.tiles = ceil_div(s.rows, kernels.rows);
    const int64_t fitting = min_of(kBlockBytes / (2 * (d.dim_qk + d.dim_v) * int64_t(sizeof(float))), kMaxBlockKeys),
                  enough = max_of(ceil_div(d.seqlen_k * min_of(s.heads, kMinBlocks), kMinBlocks), kMinBlockKeys);
    s.block_keys = int(max_of(min_of(fitting, enough) / kTileKeys, 1) * kTileKeys);
    BackwardCall g{};  // what sizes depend on
    g.c.p = &problem;
    g.c.k = &kernels;
    g.block_keys = s.block_keys;
    g.matrix = s.matrix;
    const int64_t blocks = max_of(ceil_div(d.seqlen_k, s.block_keys), 1), acc = s.tiles * dq_floats(g) * int64_t(sizeof(float));
    s.chunks = 1;
    if (s.heads > 0 && s.heads < kMinItems && acc > 0)
        s.chunks = max_of(min_of(min_of(ceil_div(kMinItems, s.heads), blocks), kMaxChunkAccBytes / acc / s.heads), 1);
    s.chunk_keys = ceil_div(blocks, s.chunks) * s.block_keys;
    s.chunks = ceil_div(blocks * s.block_keys, s.chunk_keys);
    if (s.chunks > 1) {
        Arena shared{nullptr, 0};
        shared.allocate<char>(s.heads * s.chunks * acc);
        s.initialized_offset = shared.used;
        shared.allocate<bool>(s.heads * s.chunks * s.tiles);
        s.deltas_offset = shared.used;
        shared.allocate<float>(s.heads * s.rows);
        s.shared_bytes = shared.used;
    }
    s.list_bytes = round_up(key_list_bytes(problem), 64);
    s.shared_bytes = round_up(s.shared_bytes, 64) + s.list_bytes;
    s.flops = 2.0 * double(d.batch * d.heads_q) * double(d.seqlen_q) * double(d.seqlen_k) * double(3 * d.dim_qk + 2 * d.dim_v);
    if (problem.causal() && d.seqlen_q > 1) s.flops /= 2;
    if (s.matrix) s.flops /= kernels.matrix->backward_speed;
    Arena arena{nullptr, 0};
    lay_out_scratch(g, s, arena);
    s.worker_bytes = arena.used;
    return s;
}

fa_status_t run_backward(const Problem& problem, const fa_backward_args_t& args, const Kernels& kernels, const BackwardSchedule& schedule,
                         const Threads& threads, int64_t workers, char* memory, Message* message) {
    BackwardCall g;
    g.inputs = *args.forward;
    g.c = make_call(plan_call(problem, kernels, tile_method(problem, kernels), Method{}, false), problem, g.inputs);
    g.a = &args;
    g.block_keys = schedule.block_keys;
    g.matrix = schedule.matrix;
    BackwardRun run{&threads, workers, message};
    run.job.g = &g;
    run.job.s = &schedule;
    run.job.shared = memory;
    run.job.shares = memory + schedule.shared_bytes;
    // What has no elements takes no time, however many sequences and heads there are.
    const bool rows = problem.d.seqlen_q > 0, keys = problem.d.seqlen_k > 0, dq = args.dq && rows, dkv = (args.dk || args.dv) && keys;
    g.c.sets.lists = key_lists(problem, memory + schedule.shared_bytes - schedule.list_bytes);
    if (g.c.sets.lists.count > 0) run.all(g.c.sets.lists.count, run_expansion);
    if ((dq || dkv) && schedule.chunks > 1) run.all(schedule.heads * schedule.tiles, compute_tile_deltas);
    if (dq || dkv) run.all(schedule.items(), backward_chunk, schedule.chunks == 1 ? problem.d.heads_k : 0);
    if (dq && schedule.chunks > 1) run.all(schedule.heads * schedule.tiles, merge_chunks);
    if (args.dbias && rows && keys) run.all(dbias_blocks(g), run_dbias);
    if (args.dsinks) run.all(problem.d.heads_q, run_dsink);
    return run.status;
}

}  // namespace cpu
}  // namespace fa
