// The forward by matrix instructions (matrix_table.h): packs q, k and v into operand tiles, once for all panels where that fits,
// and lists the mainloop steps that a panel of row blocks takes over each chunk of keys.
#include "cpu/kernels/matrix_table.h"
#include "cpu/matrix/forward_matrix.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/visible_keys.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kPanel = 8;
constexpr int kPrepareSteps = 16;                      // key blocks that a worker packs as one item
constexpr int64_t kMaxPackedBytes = int64_t(1) << 28;  // beyond it, each panel packs the keys that it needs for itself

int32_t product_type(const fa_attention_desc_t& desc) { return rounds_q_to_bf16(desc) ? int32_t(FA_BF16) : desc.q_dtype; }

MatrixShape shape_of(const Problem& problem) {
    MatrixShape s;
    s.type = product_type(problem.d);
    s.dim_qk = int(problem.d.dim_qk);
    s.dim_v = int(problem.d.dim_v);
    s.depth = int(ceil_div(problem.d.dim_qk, 32));
    s.columns = 2 * int(ceil_div(problem.d.dim_v, 32));
    return s;
}

// Key blocks of a chunk, whose k and v stay in the second-level cache: with heads of 128 dims 512 KB of 1 MB (Zen) or of 2 MB, of which a
// neighbour's hyperthread may have half (AMX). At each end of a chunk a row block's accumulators go to memory and come back, and products
// of tiles have no softmax interleaved.
constexpr int64_t kChunkSteps = 16;

// A worker's memory, of which this is the beginning.
struct MatrixScratch {
    MatrixShape shape;
    RowBlock* blocks;
    MainloopStep* steps;
    uint64_t* visible;  // [steps][kRowBlock], with ranges of keys
    char* stages;
    uint16_t* packed;     // a chunk of keys, where they are not packed for all
    uint16_t* converted;  // rows of k or v
};

// With NULL memory the sizes alone count. Returns the number of bytes.
int64_t lay_out_scratch(const Problem& problem, char* memory) {
    const MatrixShape s = shape_of(problem);
    Arena arena{memory, 0};
    MatrixScratch* const header = arena.allocate<MatrixScratch>(1);
    MatrixScratch scratch;
    scratch.shape = s;
    scratch.blocks = arena.allocate<RowBlock>(kPanel);
    for (int i = 0; i < kPanel; i++) {
        RowBlock block{};
        block.q = arena.allocate<uint16_t>(s.q_bytes() / 2);
        block.o = arena.allocate<float>(s.o_bytes() / 4);
        for (float*& l : block.l) l = arena.allocate<float>(kRowBlock * 16);
        block.neg_ref = arena.allocate<float>(kRowBlock);
        block.rescale = arena.allocate<float>(kRowBlock);
        block.factor = arena.allocate<float>(kRowBlock);
        block.rows = arena.allocate<MatrixRow>(kRowBlock);
        if (memory) scratch.blocks[i] = block;
    }
    scratch.steps = arena.allocate<MainloopStep>(kPanel * kChunkSteps);
    scratch.visible = arena.allocate<uint64_t>(problem.has(kRowSetOperands) ? kPanel * kChunkSteps * kRowBlock : 0);
    scratch.stages = arena.allocate<char>(kMatrixStageBytes);
    scratch.packed = arena.allocate<uint16_t>(kChunkSteps * (s.k_bytes() + s.v_bytes()) / 2);
    scratch.converted = arena.allocate<uint16_t>(int64_t(kKeyBlock) * max_of(s.dim_qk, s.dim_v));
    if (memory) *header = scratch;
    return arena.used;
}

void init_scratch(const Problem& problem, const Kernels&, char* scratch) { lay_out_scratch(problem, scratch); }

const MatrixScratch& scratch_of(const Scratch& scratch) { return *reinterpret_cast<const MatrixScratch*>(scratch.method_memory); }

using Pack = void (*)(const MatrixShape&, const uint16_t* const*, uint16_t*);
using Widen = void (*)(const void*, int64_t, float*);

// Packs `count` rows of a storage type; those with a NULL pointer are zeros. `widen`: by type, for those of another than the
// shape's.
void pack_rows(const Call& call, const MatrixShape& shape, Pack pack, const Widen* widen, int32_t dtype, const char* const* rows, int count,
               int64_t dim, uint16_t* to, Scratch& scratch) {
    const uint16_t* values[kKeyBlock];
    for (int i = 0; i < count; i++) {
        values[i] = reinterpret_cast<const uint16_t*>(rows[i]);
        if (dtype == shape.type || !rows[i]) continue;
        uint16_t* const converted = scratch_of(scratch).converted + i * dim;
        values[i] = converted;
        if (is_byte_type(dtype)) {
            call.k->matrix->convert(dtype, rows[i], int(dim), shape.type, converted);
        } else {
            widen[type_index(dtype)](rows[i], dim, scratch.line);
            call.k->narrow[type_index(shape.type)](scratch.line, dim, converted);
        }
    }
    pack(shape, values, to);
}

int64_t step_values(const MatrixShape& shape) { return (shape.k_bytes() + shape.v_bytes()) / 2; }

// Keys [key, key + kKeyBlock) of the tile's sequence, k before v.
void pack_step(const Call& call, const QueryTile& tile, int64_t key, uint16_t* to, Scratch& scratch) {
    const MatrixShape& s = scratch_of(scratch).shape;
    const char* rows[kKeyBlock] = {};
    const int keys = int(min_of(kKeyBlock, tile.seq.k_len - key));
    locate_kv_rows(call, tile, KvOperand::k, tile.kv_head, key, keys, rows);
    pack_rows(call, s, call.k->matrix->pack_k, call.k->widen_k, call.p->d.k_dtype, rows, kKeyBlock, s.dim_qk, to, scratch);
    locate_kv_rows(call, tile, KvOperand::v, tile.kv_head, key, keys, rows);
    pack_rows(call, s, call.k->matrix->pack_v, call.k->widen, call.p->d.v_dtype, rows, kKeyBlock, s.dim_v, to + s.k_bytes() / 2, scratch);
}

// What is packed next is prefetched: rows may lie on a page each, which hardware prefetchers do not follow.
void prefetch_rows(const char* const* rows, int count, int64_t bytes) {
    for (int i = 0; i < count; i++) prefetch_bytes(rows[i], bytes);
}

void prefetch_step(const Call& call, const QueryTile& tile, int64_t key) {
    const fa_attention_desc_t& d = call.p->d;
    const char* rows[kKeyBlock];
    const int keys = int(min_of(kKeyBlock, tile.seq.k_len - key));
    locate_kv_rows(call, tile, KvOperand::k, tile.kv_head, key, keys, rows);
    prefetch_rows(rows, keys, row_bytes(d.k_dtype, d.dim_qk));
    locate_kv_rows(call, tile, KvOperand::v, tile.kv_head, key, keys, rows);
    prefetch_rows(rows, keys, row_bytes(d.v_dtype, d.dim_v));
}

void prefetch_next_q(const Call& call, const QueryTile& tile) {
    const char* rows[kRowBlock];
    QueryTile next = tile;
    next.first += tile.rows;
    next.rows = int(min_of(kRowBlock, tile.seq.q_len * call.p->group - next.first));
    if (next.rows <= 0) return;
    q_pointers(call, next, rows);
    prefetch_rows(rows, next.rows, row_bytes(call.p->d.q_dtype, call.p->d.dim_qk));
}

int64_t max_steps(const Problem& problem) { return ceil_div(problem.d.seqlen_k, kKeyBlock); }

uint16_t* shared_step(const Call& call, const QueryTile& tile, int64_t step) {
    const int64_t head = tile.batch * call.p->d.heads_k + tile.kv_head - call.first_head;
    return reinterpret_cast<uint16_t*>(call.shared) + (head * max_steps(*call.p) + step) * step_values(shape_of(*call.p));
}

// Packs a range of key blocks of a sequence and kv head, for all panels.
void prepare(const Call& call, int64_t index, Scratch& scratch) {
    const int64_t chunks = ceil_div(max_steps(*call.p), kPrepareSteps), head = index / chunks;
    QueryTile t;
    t.batch = head / call.p->d.heads_k;
    t.kv_head = head % call.p->d.heads_k;
    t.seq = sequence_of(call.sequences, t.batch);
    const int64_t first = index % chunks * kPrepareSteps, end = min_of(first + kPrepareSteps, ceil_div(t.seq.k_len, kKeyBlock));
    for (int64_t step = first; step < end; step++) {
        if (step + 1 < end) prefetch_step(call, t, (step + 1) * kKeyBlock);
        pack_step(call, t, step * kKeyBlock, shared_step(call, t, step), scratch);
    }
}

void pack_q_tiles(const Call& call, QueryTile& tile, int panel_index, Scratch& w) {
    const MatrixScratch& scratch = scratch_of(w);
    const MatrixShape& s = scratch.shape;
    const char* rows[kRowBlock] = {};
    q_pointers(call, tile, rows);
    prefetch_next_q(call, tile);
    if (tile.method->rounds_q) round_q_to_bf16(call, tile, rows, scratch.converted, w);
    pack_rows(call, s, call.k->matrix->pack_q, nullptr, s.type, rows, kRowBlock, s.dim_qk, scratch.blocks[panel_index].q, w);
}

void init_block(RowBlock& block) {
    memset(block.l[0], 0, kRowBlock * 16 * sizeof(float));
    for (int lane = 0; lane < kRowBlock; lane++) block.neg_ref[lane] = kPosInf;
    block.l_index = 0;
    block.ref_unset = block.acc_empty = true;
}

void init_matrix_rows(const Call& call, const QueryTile& tile, int64_t begin, int64_t end, MatrixRow* rows) {
    const Problem& p = *call.p;
    for (int lane = tile.rows; lane < kRowBlock; lane++) rows[lane] = {};
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        const int64_t head = tile.kv_head * p.group + at.group_head;
        const KeyBand band = key_band(tile.rule, at.position, tile.seq.k_len);
        const int64_t slope = tile.batch * p.d.alibi_batch_stride + head;
        rows[lane] = {.begin = max_of(band.begin, begin),
                      .end = min_of(band.end, end),
                      .bias = bias_row(p, tile.batch, head, at.position),
                      .mask = mask_row(p, tile.batch, head, at.position),
                      .bias_scale = p.has(FA_OPERAND_BIAS_SCALE) ? call.a->bias_scale[head] : 1.f,
                      .slope = p.has(FA_OPERAND_ALIBI) ? log2_slope(call.a->alibi_slopes[slope]) : 0.f,
                      .diagonal = at.position + tile.rule.off};
    }
}

// Of a sequence without keys nothing is read.
float head_descale(const void* base, const int64_t* stride, const QueryTile& tile) {
    const float* const factors = static_cast<const float*>(base);
    return factors && tile.seq.k_len > 0 ? factors[tile.seq.kv_index * stride[0] + tile.kv_head * stride[2]] : 1.f;
}

float v_descale(const Call& call, const QueryTile& tile) {
    return head_descale(call.p->has(FA_OPERAND_V_DESCALE) ? call.a->v_descale : nullptr, call.p->d.v_descale_stride, tile);
}

MatrixTask task_of(const Call& call, const QueryTile& tile, const MatrixScratch& scratch) {
    const Problem& p = *call.p;
    MatrixTask task{};
    task.shape = scratch.shape;
    task.scale =
        finite_or_nan(p.d.scale * head_descale(p.has(FA_OPERAND_K_DESCALE) ? call.a->k_descale : nullptr, p.d.k_descale_stride, tile));
    task.factor = task.scale * kLog2e;
    task.cap = p.d.softcap;
    task.bias = p.has(FA_OPERAND_BIAS) ? call.a->bias : nullptr;
    task.bias_dtype = p.d.bias_dtype;
    task.bias_step = p.d.bias_stride[3];
    task.mask = p.has(FA_OPERAND_MASK) ? call.a->mask : nullptr;
    task.mask_step = p.d.mask_stride[3];
    task.alibi = p.has(FA_OPERAND_ALIBI);
    // A mask alone leaves products as they are, unless −inf times the factor would not remove a key.
    task.has_score_mod = task.cap > 0 || task.bias || task.alibi || !(task.scale > 0);
    task.lse = p.has(FA_OPERAND_LSE);
    task.stages = scratch.stages;
    return task;
}

void finish_block(const Call& call, const MatrixShape& shape, const QueryTile& tile, const RowBlock& block, PartialState& state) {
    const float scale = v_descale(call, tile);
    if (block.acc_empty) memset(block.o, 0, size_t(shape.o_bytes()));
    call.k->matrix->finish_state(shape, block, tile.rows, scale, state.acc, state.m, state.l);
}

void write_o(const Call& call, const QueryTile& tile, const float* factor, float o_scale, char* const* to, Scratch& w) {
    const MatrixScratch& scratch = scratch_of(w);
    call.k->matrix->write_o(scratch.shape, scratch.blocks[tile.panel_index], tile.rows, v_descale(call, tile), factor, o_scale, to);
}

// Keys of a split that some row of a block sees, and those that all of its rows see.
struct VisibleKeys {
    KeyBand split, some, all;
};

VisibleKeys visible_of(const Call& call, const QueryTile& tile, int64_t begin, int64_t end) {
    return {{begin, end}, visible_keys(call, tile, begin, end), common_keys(call, tile, begin, end)};
}

// The class of a row block's step by bands and ranges; `words`: [kRowBlock], as a step has them.
TileClass class_of_step(const Call& call, const QueryTile& tile, const VisibleKeys& visible, int64_t key, uint64_t* words) {
    if (key >= visible.all.begin && key + kKeyBlock <= visible.all.end) return TileClass::full;
    if (!has_gaps(call)) return TileClass::partial;
    const uint64_t within = key_bits(visible.split.begin, visible.split.end, key);
    const TileClass kind = visible_words(call, tile, key, within, kRowBlock, words);
    return kind == TileClass::full && ~within ? TileClass::partial : kind;
}

// The steps of a row block within a chunk, whose operands begin at `packed`.
int64_t list_steps(const Call& call, const QueryTile& tile, const MatrixTask& task, const VisibleKeys& visible, RowBlock* block,
                   int64_t chunk, int64_t steps, const uint16_t* packed, MainloopStep* to, uint64_t* words) {
    const MatrixShape& shape = task.shape;
    const int64_t first = max_of(visible.some.begin / kKeyBlock, chunk), end = min_of(ceil_div(visible.some.end, kKeyBlock), chunk + steps);
    int64_t n = 0;
    if (visible.some.begin >= visible.some.end) return n;
    for (int64_t step = first; step < end; step++) {
        const int64_t key = step * kKeyBlock;
        const TileClass kind = class_of_step(call, tile, visible, key, words);
        if (kind == TileClass::empty) {
            step = min_of(next_visible_block(call, &tile, 1, 0, key + kKeyBlock) / kKeyBlock, end) - 1;
            continue;
        }
        bool masked = kind == TileClass::partial;
        const uint64_t* const seen = masked && has_gaps(call) ? words : nullptr;
        if (task.mask || task.bias) {
            // Full blocks of lists lie outside bands, too.
            const KeptKeys kept = call.k->matrix->classify_keys(task, block->rows, key, call.sets.lists.words ? words : seen);
            if (kept == KeptKeys::none) continue;
            if (task.mask) masked = kept == KeptKeys::some;
        }
        const uint16_t* k = packed + (step - chunk) * step_values(shape);
        to[n++] = {block, k, k + shape.k_bytes() / 2, key, masked, seen};
        if (seen) words += kRowBlock;
    }
    return n;
}

// Packs the keys of steps that are listed, each once, where they are not packed for all.
void pack_listed(const Call& call, const QueryTile& tile, const MatrixShape& shape, int64_t chunk, const MainloopStep* steps, int64_t count,
                 uint16_t* packed, Scratch& scratch) {
    uint64_t done = 0;
    for (int64_t n = 0; n < count; n++) {
        const int64_t at = steps[n].key / kKeyBlock - chunk;
        if (!(done >> at & 1)) pack_step(call, tile, steps[n].key, packed + at * step_values(shape), scratch);
        done |= uint64_t(1) << at;
    }
}

// ALiBi's scores mostly rise up to the diagonal. With row_ref set from there at once, a row is not rescaled at each step on the
// way.
void init_refs_alibi(const Call& call, const QueryTile& tile, const MatrixTask& task, RowBlock& block, Scratch& scratch) {
    for (int lane = 0; lane < tile.rows;) {
        const MatrixRow& row = block.rows[lane++];
        if (row.diagonal < row.begin || row.diagonal >= row.end) continue;
        const int64_t step = row.diagonal / kKeyBlock;
        uint16_t* const packed = call.shared ? shared_step(call, tile, step) : scratch_of(scratch).packed;
        if (!call.shared) pack_step(call, tile, step * kKeyBlock, packed, scratch);
        uint64_t words[kRowBlock];
        if (has_gaps(call)) visible_words(call, tile, step * kKeyBlock, ~uint64_t(0), kRowBlock, words);
        call.k->matrix->init_refs_at_diagonal(task, {&block, packed, nullptr, step * kKeyBlock, true, has_gaps(call) ? words : nullptr});
        while (lane < tile.rows && block.rows[lane].diagonal < (step + 1) * kKeyBlock) lane++;
    }
}

// Whether some row of the block does not see some key of its steps.
bool is_masked(const VisibleKeys& visible) {
    const int64_t begin = visible.some.begin / kKeyBlock * kKeyBlock, end = ceil_div(visible.some.end, kKeyBlock) * kKeyBlock;
    return begin < visible.all.begin || end > visible.all.end;
}

void matrix_mainloop(const Call& call, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState* states, Scratch& w) {
    const MatrixScratch& scratch = scratch_of(w);
    const MatrixShape& shape = scratch.shape;
    const MatrixTask task = task_of(call, tiles[0], scratch);
    VisibleKeys visible[kPanel];
    int64_t first = end, last = begin;
    for (int i = 0; i < count; i++) {
        init_block(scratch.blocks[i]);
        visible[i] = visible_of(call, tiles[i], begin, end);
        if (visible[i].some.begin >= visible[i].some.end) continue;
        if (task.has_score_mod || task.mask || has_gaps(call) || is_masked(visible[i]))
            init_matrix_rows(call, tiles[i], begin, end, scratch.blocks[i].rows);
        if (task.alibi) init_refs_alibi(call, tiles[i], task, scratch.blocks[i], w);
        first = min_of(first, visible[i].some.begin);
        last = max_of(last, visible[i].some.end);
    }
    // Steps lie at multiples of kKeyBlock, wherever the split begins.
    for (int64_t chunk = first / kKeyBlock; chunk * kKeyBlock < last; chunk += kChunkSteps) {
        const int64_t steps = min_of(kChunkSteps, ceil_div(last, kKeyBlock) - chunk);
        uint16_t* const packed = call.shared ? shared_step(call, tiles[0], chunk) : scratch.packed;
        int64_t n = 0;
        for (int i = 0; i < count; i++)
            n += list_steps(call, tiles[i], task, visible[i], &scratch.blocks[i], chunk, steps, packed, scratch.steps + n,
                            scratch.visible + n * kRowBlock);
        if (!call.shared) pack_listed(call, tiles[0], shape, chunk, scratch.steps, n, packed, w);
        call.k->matrix->mainloop(task, scratch.steps, n);
    }
    for (int i = 0; i < count; i++) finish_block(call, shape, tiles[i], scratch.blocks[i], states[i]);
}

// What the method implements; with values rounded to bf16 v's type is its own.
constexpr Implements kMatrix = {FA_OPERAND_LSE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE | FA_OPERAND_BIAS |
                                    FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS | kSequenceOperands |
                                    kRowSetOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
                                option::bands | option::schedule | FA_V_IN_K | option::softcap | option::bias_period | option::mask_period};
constexpr Implements kMatrixOfOwnV = {kMatrix.operands, kMatrix.options | option::v_dtype};

}  // namespace

bool matrix_method(const Problem& problem, const Kernels& kernels, Method* method) {
    const fa_attention_desc_t& d = problem.d;
    const bool rounds_q = rounds_q_to_bf16(d);
    const int32_t type = product_type(d);
    if (!kernels.matrix || !kernels.matrix->mainloop || !(type == FA_BF16 || (type == FA_F16 && kernels.matrix->has_fp16))) return false;
    if (!problem.within(rounds_q ? kMatrixOfOwnV : kMatrix) || (!rounds_q && d.k_dtype != type && !is_byte_type(d.k_dtype))) return false;
    // P as f16 has not the range that outputs of wider types can show.
    if (type == FA_F16 && (d.o_dtype == FA_F32 || d.o_dtype == FA_BF16)) return false;
    if (problem.has(FA_OPERAND_FULL_LIST) && problem.has(FA_OPERAND_MASK)) return false;  // a step's mask acts on all of its keys
    const MatrixShape s = shape_of(problem);
    *method = {.name = "matrix",
               .rows = kRowBlock,
               .panel = kPanel,
               .method_bytes = lay_out_scratch(problem, nullptr),
               .o_row_major = true,
               .prepare = prepare,
               .init_scratch = init_scratch,
               .pack_q = pack_q_tiles,
               .mainloop = matrix_mainloop,
               .write_o = d.o_dtype == FA_BF16 && kernels.matrix->write_o ? write_o : nullptr,
               .speed = kernels.matrix->speed,
               .rounds_q = rounds_q};
    const int64_t heads = d.batch * d.heads_k, steps = max_steps(problem);
    if (d.seqlen_q * problem.group > kRowBlock && steps <= kMaxPackedBytes / (step_values(s) * 2) / max_of(heads, 1)) {
        method->shared_bytes = heads * steps * step_values(s) * 2;
        method->prepare_count = heads * ceil_div(steps, kPrepareSteps);
    }
    return true;
}

}  // namespace cpu
}  // namespace fa
