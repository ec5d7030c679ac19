// Runs a forward call: partitions it into work items (panels of query tiles, or their splits), distributes these to workers, and
// merges the states of splits. The mainloop itself is the method's (tile.cc, decode/, matrix/).
#include "cpu/forward/forward.h"
#include "cpu/decode/decode.h"
#include "cpu/forward/key_lists.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/sparse_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/matrix/forward_matrix.h"
#include "cpu/study/study.h"
#include <atomic>
#include "cpu/kernels/matrix_table.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

// Splits are worth their merge only where panels of query tiles alone cannot occupy a machine, and where each still has some
// hundred keys.
constexpr int64_t kMinPanels = 32, kMinSplitKeys = 512;
// Accumulators of a split by matrix instructions have room for so many values at their type's limit.
constexpr int64_t kMaxMatrixSplitKeys = 1 << 16;
// Beyond this much memory for the splits' states, splits of a tile run one after the other instead (to the same bits).
constexpr int64_t kMaxSplitStateBytes = 16 << 20;

// Query tiles of a sequence: `count` blocks of one kv head, or one block of so many kv heads, beginning with these.
struct WorkItem {
    int64_t batch, kv_head, block;
    int count;
    bool heads;
};

int64_t panels_of_batch(const Problem& problem, const Method& method, int64_t blocks, int64_t panel) {
    return method.panel_of_heads ? blocks * ceil_div(problem.kv_heads, panel) : problem.kv_heads * ceil_div(blocks, panel);
}

// Items of one head are neighbours, so that its k and v stay in cache; causal heads begin with their longest rows, and so do those
// with a mask, which mostly is causal, too.
WorkItem item_at(const Call& call, int panel, int64_t index) {
    const int64_t heads = call.p->kv_heads, batch_panels = panels_of_batch(*call.p, call.method, call.blocks, panel);
    const int64_t batch = index / batch_panels, within = index % batch_panels;
    if (call.method.panel_of_heads) {  // of lists of slots, each has a block of its own
        const int64_t head = within / call.blocks * panel;
        return {batch, head, within % call.blocks, int(min_of(panel, heads - head)), true};
    }
    const int64_t panels = ceil_div(call.blocks, panel);
    const bool longest_last =
        call.p->causal() || call.p->has(FA_OPERAND_MASK | FA_OPERAND_KEY_RANGES | FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST);
    const int64_t block = (longest_last ? panels - 1 - within % panels : within % panels) * panel;
    return {batch, within / panels, block, int(min_of(panel, call.blocks - block)), false};
}

int64_t head_of(const WorkItem& item, int n) { return item.kv_head + (item.heads ? n : 0); }
int64_t block_of(const WorkItem& item, int n) { return item.block + (item.heads ? 0 : n); }

// Address of a tile's states, one for each split.
char* split_states(const Call& call, const WorkItem& item, int n, int64_t splits, char* shared) {
    const int64_t tile = (item.batch * call.p->kv_heads + head_of(item, n)) * call.blocks + block_of(item, n);
    return shared + tile * splits * state_bytes(*call.p, call.method);
}

// Consecutive work indices that some workers begin with, in a cache line of their own.
struct alignas(64) IndexRange {
    std::atomic<int64_t> next;
    int64_t end;
};
constexpr int kMaxRanges = 64;

struct ForwardJob {
    const Call* c;
    const Schedule* s;
    int panel;  // query tiles of an item
    char* shared;
    char* shares;
    int64_t workers;
    void (*run)(const ForwardJob&, int64_t index, char* share, Scratch&);
    int64_t of_sequence;  // indices of a sequence, all of which are passed over where it has no row; 0: all are run
    int ranges;
    IndexRange range[kMaxRanges];
    alignas(64) std::atomic<int64_t> flops, read, written;
};

// Static partition with stealing: each worker begins with its own range of [begin, begin + count), in every step, so that it finds
// in its caches what it packed of a head itself. Then it takes indices of other workers' ranges.
void partition_indices(ForwardJob& job, int64_t begin, int64_t count, int64_t workers) {
    job.workers = workers;
    job.ranges = int(min_of(workers, kMaxRanges));
    for (int i = 0; i < job.ranges; i++) {
        job.range[i].next.store(begin + count * i / job.ranges, std::memory_order_relaxed);
        job.range[i].end = begin + count * (i + 1) / job.ranges;
    }
}

bool claim(IndexRange& range, int64_t* index) {
    if (range.next.load(std::memory_order_relaxed) >= range.end) return false;
    *index = range.next.fetch_add(1, std::memory_order_relaxed);
    return *index < range.end;
}

// No index before this one is claimed any more.
void pass_over(IndexRange& range, int64_t to) {
    int64_t next = range.next.load(std::memory_order_relaxed);
    while (next < to && !range.next.compare_exchange_weak(next, to, std::memory_order_relaxed)) {
    }
}

// Of packed sequences most may have no row, and then there are more of them, times heads, than memory that a call could touch.
bool has_no_rows(const Call& call, int64_t sequence) { return call.p->packed_q() && sequence_of(call.sequences, sequence).q_len == 0; }

void worker_loop(void* arg, int64_t worker) {
    ForwardJob& job = *static_cast<ForwardJob*>(arg);
    char* share = job.shares + worker * job.s->worker_bytes;
    Scratch w = locate_scratch(*job.c->p, job.c->method, job.c->decode, share);
    if (job.c->method.init_scratch) job.c->method.init_scratch(*job.c->p, *job.c->k, w.method_memory);
    const int64_t first = worker * job.ranges / job.workers;
    for (int n = 0; n < job.ranges; n++)
        for (int64_t i; claim(job.range[(first + n) % job.ranges], &i);) {
            if (job.of_sequence > 0 && has_no_rows(*job.c, i / job.of_sequence))
                pass_over(job.range[(first + n) % job.ranges], (i / job.of_sequence + 1) * job.of_sequence);
            else job.run(job, i, share, w);
        }
    if (!job.c->count) return;
    job.flops.fetch_add(w.counters.flops, std::memory_order_relaxed);
    job.read.fetch_add(w.counters.read, std::memory_order_relaxed);
    job.written.fetch_add(w.counters.written, std::memory_order_relaxed);
}

void finish_tile(const Call& call, const QueryTile& tile, PartialState& state, Scratch& scratch) {
    write_rows(call, tile, state, scratch);
    if (call.p->has(FA_OPERAND_SCORES)) write_scores(call, tile, state, scratch);
}

KeyBand split_range(const Schedule& schedule, int64_t keys, int64_t split) {
    const int64_t size = split_keys(keys, schedule.num_splits, schedule.split_size);
    return {split * size, min_of((split + 1) * size, keys)};
}

// Initialises the tiles of an item that hold rows, and packs their q; returns their number.
int init_tiles(const Call& call, const WorkItem& item, QueryTile* tiles, Scratch& scratch) {
    int n = 0;
    while (n < item.count && init_tile(call, item.batch, head_of(item, n), block_of(item, n), &tiles[n])) {
        if (call.slots.any()) list_slots(call, tiles[n], n == 0 ? nullptr : &tiles[0], scratch);
        tiles[n].panel_index = n;
        tiles[n].method->pack_q(call, tiles[n], n, scratch);
        n++;
    }
    return n;
}

void run_split_mainloop(const Call& call, const Schedule& schedule, const QueryTile* tiles, int count, int64_t split, PartialState* states,
                        Scratch& scratch) {
    const KeyBand range = split_range(schedule, tiles[0].seq.k_len, split);
    for (int i = 0; i < count; i++) init_state(tiles[i], call.p->d.dim_v, states[i]);
    uint64_t sparse[kMaxPanel] = {};
    bool all = schedule.may_stream_rows && streams_sparse_rows(call, tiles[0]);
    for (int i = 0; schedule.may_stream_rows && i < count; i++) {
        sparse[i] = streams_sparse_rows(call, tiles[i]) ? find_sparse_rows(call, tiles[i], range.begin, range.end) : 0;
        all &= sparse[i] == low_bits(tiles[i].rows);
    }
    if (!all) tiles[0].method->mainloop(call, tiles, count, range.begin, range.end, states, scratch);
    for (int i = 0; i < count; i++)
        if (sparse[i]) run_sparse_rows(call, tiles[i], sparse[i], range.begin, range.end, states[i], scratch);
}

void write_tile_padding(const Call& call, const WorkItem& item, Scratch& scratch) {
    for (int n = 0; n < item.count; n++) write_padding(call, item.batch, head_of(item, n), block_of(item, n), scratch);
}

// All splits of an item, one after the other.
void run_item(const ForwardJob& job, int64_t index, char*, Scratch& scratch) {
    const Call& c = *job.c;
    const WorkItem item = item_at(c, job.panel, index);
    QueryTile tiles[kMaxPanel];
    const int count = init_tiles(c, item, tiles, scratch);
    if (count > 0) {
        const int64_t splits = split_count(tiles[0].seq.k_len, job.s->num_splits, job.s->split_size);
        PartialState total[kMaxPanel];
        for (int i = 0; i < count; i++) {
            total[i] = scratch.total[i];
            if (splits == 1 && tiles[0].method->write_o) total[i].acc = nullptr;
        }
        run_split_mainloop(c, *job.s, tiles, count, 0, total, scratch);
        for (int64_t split = 1; split < splits; split++) {
            run_split_mainloop(c, *job.s, tiles, count, split, scratch.partial, scratch);
            for (int i = 0; i < count; i++) merge_states(c, tiles[i], scratch.partial[i], total[i]);
        }
        for (int i = 0; i < count; i++) finish_tile(c, tiles[i], total[i], scratch);
    }
    write_tile_padding(c, item, scratch);
}

// One split of an item; its states stay in the workspace.
void run_split(const ForwardJob& job, int64_t index, char*, Scratch& scratch) {
    const Call& c = *job.c;
    const int64_t split = index % job.s->max_splits;
    const WorkItem item = item_at(c, job.panel, index / job.s->max_splits);
    QueryTile tiles[kMaxPanel];
    PartialState states[kMaxPanel];
    const int count = init_tiles(c, item, tiles, scratch);
    if (count == 0 || split >= split_count(tiles[0].seq.k_len, job.s->num_splits, job.s->split_size)) return;
    for (int n = 0; n < count; n++)
        states[n] =
            locate_state(*c.p, c.method, split_states(c, item, n, job.s->max_splits, job.shared) + split * state_bytes(*c.p, c.method));
    run_split_mainloop(c, *job.s, tiles, count, split, states, scratch);
}

// Merges an item's split states, in ascending order.
void merge_splits(const ForwardJob& job, int64_t index, char*, Scratch& scratch) {
    const Call& c = *job.c;
    const WorkItem item = item_at(c, job.panel, index);
    QueryTile tiles[kMaxPanel];
    const int count = init_tiles(c, item, tiles, scratch);
    for (int n = 0; n < count; n++) {
        const int64_t splits = split_count(tiles[n].seq.k_len, job.s->num_splits, job.s->split_size);
        char* kept = split_states(c, item, n, job.s->max_splits, job.shared);
        PartialState total = locate_state(*c.p, c.method, kept);
        for (int64_t split = 1; split < splits; split++) {
            const PartialState part = locate_state(*c.p, c.method, kept + split * state_bytes(*c.p, c.method));
            merge_states(c, tiles[n], part, total);
        }
        finish_tile(c, tiles[n], total, scratch);
    }
    write_tile_padding(c, item, scratch);
}

void run_study(const ForwardJob& job, int64_t index, char* share, Scratch& scratch) {
    const Call& c = *job.c;
    const int64_t batch = index / c.p->kv_heads, kv_head = index % c.p->kv_heads;
    char* memory = share + scratch_bytes(*c.p, c.method, c.decode);
    if (c.p->d.algorithm == FA_ALGORITHM_STANDARD) run_standard(c, batch, kv_head, memory, scratch);
    else run_flash1(c, batch, kv_head, memory, scratch);
    for (int64_t block = 0; block < c.blocks; block++) write_padding(c, batch, kv_head, block, scratch);
}

// Scores of query-key pairs outside the valid lengths, of one sequence and query head. Valid pairs are written with their tile.
void fill_scores(const ForwardJob& job, int64_t index, char*, Scratch&) {
    const Call& c = *job.c;
    const fa_attention_desc_t& d = c.p->d;
    const int64_t batch = index / d.heads_q, head = index % d.heads_q;
    const Sequence seq = sequence_of(c.sequences, batch);
    const float value = d.scores_stage == FA_SCORES_BIASED ? kNegInf : 0.f;
    for (int64_t i = 0; i < d.seqlen_q; i++) {
        float* row = c.a->scores + batch * d.scores_stride[0] + head * d.scores_stride[1] + i * d.scores_stride[2];
        for (int64_t j = i < seq.q_len ? seq.k_len : 0; j < d.seqlen_k; j++) row[j * d.scores_stride[3]] = value;
    }
}

// Counted calls, the baselines and the scores output are those of the f32 tiles.
void choose_methods(const Problem& problem, const Kernels& kernels, bool count, Schedule& schedule) {
    schedule.method = tile_method(problem, kernels);
    if (problem.d.algorithm != FA_ALGORITHM_FLASH) schedule.method.panel = 1;  // the baselines take one row tile at a time
    if (count || problem.d.algorithm != FA_ALGORITHM_FLASH || problem.has(FA_OPERAND_SCORES)) return;
    // So few keys are not worth streaming, and rows that fill most of their vectors' lanes want no reductions across lanes.
    const int64_t rows = rows_together(problem);
    if (problem.d.seqlen_k <= kTileKeys && 2 * rows > kernels.lanes && rows <= kDecodeRows) return;
    if (!decode_method(problem, kernels, &schedule.decode)) return;
    if (rows <= schedule.decode.rows) schedule.method = schedule.decode;
    else schedule.may_stream_rows = !matrix_method(problem, kernels, &schedule.method);
}

// Of `decode`: by vectors.
void leave_matrix(Method& method) {
    if (method.matrix) method.matrix = method.rounds_q = false;
}

// Query tiles of an item: as many as the method allows, but fewer where there would not be enough items for all workers. Coarser
// items for equal shares would load keys less often, and lose a fifth on 16 cores, of which some are always slower than others.
// Where memory bandwidth is the limit, pages of neighbouring heads count for more: with one item each, 16 cores decode a tenth
// faster than with four.
int panel_for(const Call& call, int64_t tiles, int64_t workers) {
    const int64_t max_panel = call.method.panel, items_per_worker = call.method.panel_of_heads ? 1 : 4;
    if (workers == 1 && call.blocks > 0 && !call.method.panel_of_heads && call.method.prepare_count == 0)
        return int(ceil_div(call.blocks, ceil_div(call.blocks, max_panel)));  // equal parts of a head, which load its keys by themselves
    return int(max_of(min_of(max_panel, tiles / (items_per_worker * workers)), 1));
}

void run_preparation(const ForwardJob& job, int64_t index, char*, Scratch& scratch) { job.c->method.prepare(*job.c, index, scratch); }

void run_expansion(const ForwardJob& job, int64_t index, char*, Scratch&) { expand_list(*job.c, index); }

// The steps of a call, one after the other: in each, workers take all indices of a range.
struct ForwardRun {
    using Step = void (*)(const ForwardJob&, int64_t index, char* share, Scratch&);
    Call* c;
    ForwardJob job;
    const Threads* threads;
    int64_t workers;
    Message* m;
    fa_status_t status = FA_OK;

    // in_all: how many indices the step has; 0: those of sequences without rows are not passed over.
    void range(int64_t begin, int64_t count, Step step, int64_t in_all) {
        if (status != FA_OK) return;
        job.of_sequence = c->p->packed_q() && c->p->d.batch > 0 ? in_all / c->p->d.batch : 0;
        const int64_t team = workers < count ? workers : max_of(count, 1);
        partition_indices(job, begin, count, team);
        job.run = step;
        status = run_workers(*threads, team, worker_loop, &job, m);
    }
    void all(int64_t count, Step step) { range(0, count, step, count); }

    int64_t items() const { return job.s->items > 0 ? c->p->d.batch * panels_of_batch(*c->p, c->method, c->blocks, job.panel) : 0; }
    // A single worker takes head after head, so that what it prepares of one is still in cache when it is wanted. Several would
    // wait for each other after each.
    void prepared_items() {
        const int64_t heads = c->p->d.batch * c->p->kv_heads, at_once = workers == 1 ? 1 : max_of(heads, 1);
        const int64_t panels = items() / max_of(heads, 1), chunks = job.s->method.prepare_count / max_of(heads, 1);
        while (c->first_head < heads) {
            const int64_t sequence = c->first_head / c->p->kv_heads;
            if (at_once == 1 && has_no_rows(*c, sequence)) {
                c->first_head = (sequence + 1) * c->p->kv_heads;
                continue;
            }
            range(c->first_head * chunks, at_once * chunks, run_preparation, heads * chunks);
            range(c->first_head * panels, at_once * panels, run_item, heads * panels);
            c->first_head += at_once;
        }
    }
    void flash_steps() {
        const Schedule& s = *job.s;
        const int64_t parts = s.parallel_splits ? s.max_splits : 1;
        const bool one_tile_items = c->count || (s.parallel_splits && !c->method.panel_of_heads);  // as the formulas count
        job.panel = one_tile_items ? 1 : panel_for(*c, s.items * parts, workers);
        if (s.parallel_splits) {
            all(items() * parts, run_split);
            job.panel = 1;  // merging is short, and everything waits for it
            all(items(), merge_splits);
        } else if (s.method.prepare_count > 0) {
            prepared_items();
        } else {
            all(items(), run_item);
        }
    }
    void all_steps() {
        const Schedule& s = *job.s;
        const fa_attention_desc_t& d = c->p->d;
        if (c->sets.lists.count > 0) range(0, c->sets.lists.count, run_expansion, 0);
        if (s.method.prepare_count > 0 && s.parallel_splits) all(s.method.prepare_count, run_preparation);
        if (c->p->has(FA_OPERAND_SCORES) && d.seqlen_q > 0 && d.seqlen_k > 0) range(0, d.batch * d.heads_q, fill_scores, 0);
        if (d.algorithm != FA_ALGORITHM_FLASH) all(s.items, run_study);
        else flash_steps();
    }
};

}  // namespace

Schedule make_schedule(const Problem& problem, const Kernels& kernels, bool count) {
    const fa_attention_desc_t& d = problem.d;
    const int64_t heads = d.batch * problem.kv_heads;
    Schedule s{};
    choose_methods(problem, kernels, count, s);
    const int64_t blocks = tile_count(row_tiles(problem, s.method.rows), d.seqlen_q * problem.group);
    s.items = heads * blocks;
    s.num_splits = d.num_splits;
    s.split_size = d.split_size;
    s.flops = 2.0 * double(d.batch * d.heads_q) * double(d.seqlen_q) * double(d.seqlen_k) * double(d.dim_qk + d.dim_v);
    if (problem.causal() && d.seqlen_q > 1) s.flops /= 2;
    const double bytes = double(d.batch) * double(d.seqlen_k) *
                         (double(d.heads_k) * double(row_bytes(d.k_dtype, problem.k_dims())) +
                          double(d.heads_v) * double(row_bytes(d.v_dtype, problem.v_dims())));
    s.flops /= s.method.speed;
    if (s.flops < kFlopsOfByte * bytes) s.flops = kFlopsOfByte * bytes;
    s.worker_bytes = scratch_bytes(problem, s.method, s.decode);
    if (d.algorithm != FA_ALGORITHM_FLASH) {
        s.items = heads;
        s.max_splits = 1;
        s.worker_bytes += study_bytes(problem, kernels);
        s.extra_bytes = study_bytes(problem, kernels);
        return s;
    }
    const int64_t panels = s.method.panel_of_heads ? d.batch * panels_of_batch(problem, s.method, blocks, s.method.panel) : s.items;
    if (s.num_splits == 0 && s.split_size == 0 && panels > 0 && panels < kMinPanels)
        s.num_splits = int64_t(min_of(ceil_div(kMinPanels, panels), d.seqlen_k / kMinSplitKeys));
    if (split_keys(d.seqlen_k, s.num_splits, s.split_size) > kMaxMatrixSplitKeys) leave_matrix(s.method), leave_matrix(s.decode);
    if (s.split_size > 0) s.max_splits = ceil_div(max_of(d.seqlen_k, 1), s.split_size);
    else s.max_splits = max_of(min_of(s.num_splits, ceil_div(d.seqlen_k, kSplitQuantum)), 1);
    s.parallel_splits = s.max_splits > 1 && s.items > 0 && s.max_splits <= kMaxSplitStateBytes / state_bytes(problem, s.method) / s.items;
    if (s.parallel_splits) s.shared_bytes = s.extra_bytes = s.items * s.max_splits * state_bytes(problem, s.method);
    s.shared_bytes += s.method.shared_bytes;
    s.list_bytes = round_up(key_list_bytes(problem), 64);
    s.shared_bytes = round_up(s.shared_bytes, 64) + s.list_bytes;
    s.extra_bytes += s.list_bytes;
    return s;
}

fa_status_t run_forward(Call call, const Schedule& schedule, const Threads& threads, int64_t workers, char* memory, Counters* counters,
                        Message* message) {
    ForwardRun run;
    if (schedule.method.shared_bytes > 0) call.shared = memory;
    call.sets.lists = key_lists(*call.p, memory + schedule.shared_bytes - schedule.list_bytes);
    run.c = &call;
    run.threads = &threads;
    run.workers = workers;
    run.m = message;
    ForwardJob& job = run.job;
    job.c = &call;
    job.s = &schedule;
    job.shared = memory + schedule.method.shared_bytes;
    job.shares = memory + schedule.shared_bytes;
    job.flops = job.read = job.written = 0;
    run.all_steps();
    *counters = {job.flops, job.read, job.written};
    return run.status;
}

}  // namespace cpu
}  // namespace fa
