// Attention by matrix instructions: packing, and the list of steps that a panel of row tiles takes over its keys.
#include "cpu/kernels/matrix_table.h"
#include "cpu/driver/call.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kPanel = 8;
constexpr int kPieceSteps = 16;                         // that a worker packs at once for all
constexpr int64_t kMostPackedBytes = int64_t(1) << 28;  // beyond it, each panel packs the keys that it needs for itself

MatrixShape shape_of(const Problem& p) {
    MatrixShape s;
    s.type = p.d.q_dtype;
    s.dim_qk = int(p.d.dim_qk);
    s.dim_v = int(p.d.dim_v);
    s.depth = int(ceil_div(p.d.dim_qk, 32));
    s.columns = 2 * int(ceil_div(p.d.dim_v, 32));
    return s;
}

// Steps of a panel that follow each other, whose k and v stay in the second-level cache: 1 MB of it with heads of 128 dims. At each end of
// them a row tile's sums go to memory and come back, and products have no weights beside them.
int64_t chunk_steps(const MatrixShape& s) { return s.k_bytes() + s.v_bytes() <= 32 << 10 ? 32 : 16; }

// A worker's memory, of which this is the beginning.
struct Own {
    MatrixShape shape;
    Pair* pairs;
    Step* steps;
    char* slots;
    uint16_t* packed;   // a chunk of keys, where they are not packed for all
    uint16_t* converted;  // rows of k or v
};

// With NULL memory the sizes alone count. Returns the number of bytes.
int64_t carve_own(const Problem& p, char* memory) {
    const MatrixShape s = shape_of(p);
    Arena arena{memory, 0};
    Own* const place = arena.allocate<Own>(1);
    Own own;
    own.shape = s;
    own.pairs = arena.allocate<Pair>(kPanel);
    for (int i = 0; i < kPanel; i++) {
        Pair pair{};
        pair.q = arena.allocate<uint16_t>(s.q_bytes() / 2);
        pair.o = arena.allocate<float>(s.o_bytes() / 4);
        for (float*& l : pair.l) l = arena.allocate<float>(kPairRows * 16);
        pair.from = arena.allocate<float>(kPairRows);
        pair.rescale = arena.allocate<float>(kPairRows);
        pair.factor = arena.allocate<float>(kPairRows);
        pair.rows = arena.allocate<MatrixRow>(kPairRows);
        if (memory) own.pairs[i] = pair;
    }
    own.steps = arena.allocate<Step>(kPanel * chunk_steps(s));
    own.slots = arena.allocate<char>(kMatrixSlots);
    own.packed = arena.allocate<uint16_t>(chunk_steps(s) * (s.k_bytes() + s.v_bytes()) / 2);
    own.converted = arena.allocate<uint16_t>(int64_t(kStepKeys) * max_of(s.dim_qk, s.dim_v));
    if (memory) *place = own;
    return arena.used;
}

void begin(const Problem& p, const Kernels&, char* own) { carve_own(p, own); }

const Own& own_of(const Scratch& w) { return *reinterpret_cast<const Own*>(w.own); }

using Pack = void (*)(const MatrixShape&, const uint16_t* const*, uint16_t*);

// Packs `count` rows of a storage type; those with a NULL pointer are zeros.
void pack_rows(const Call& c, const MatrixShape& s, Pack pack, int32_t dtype, const char* const* rows, int count, int64_t dim, uint16_t* to,
               const Own& own) {
    const uint16_t* values[kStepKeys];
    for (int i = 0; i < count; i++) {
        values[i] = reinterpret_cast<const uint16_t*>(rows[i]);
        if (dtype == s.type || !rows[i]) continue;
        c.k->matrix->convert(dtype, rows[i], int(dim), s.type, own.converted + i * dim);
        values[i] = own.converted + i * dim;
    }
    pack(s, values, to);
}

int64_t step_values(const MatrixShape& s) { return (s.k_bytes() + s.v_bytes()) / 2; }

// Keys [key, key + kStepKeys) of the tile's sequence, k before v.
void pack_step(const Call& c, const QueryTile& t, int64_t key, uint16_t* to, const Own& own) {
    const MatrixShape& s = own.shape;
    const char* rows[kStepKeys] = {};
    const int keys = int(min_of(kStepKeys, t.seq.k_len - key));
    locate_kv_rows(c, t, KvOperand::k, t.kv_head, key, keys, rows);
    pack_rows(c, s, c.k->matrix->pack_k, c.p->d.k_dtype, rows, kStepKeys, s.dim_qk, to, own);
    locate_kv_rows(c, t, KvOperand::v, t.kv_head, key, keys, rows);
    pack_rows(c, s, c.k->matrix->pack_v, c.p->d.k_dtype, rows, kStepKeys, s.dim_v, to + s.k_bytes() / 2, own);
}

int64_t most_steps(const Problem& p) { return ceil_div(p.d.seqlen_k, kStepKeys); }

uint16_t* shared_step(const Call& c, const QueryTile& t, int64_t step) {
    const int64_t head = t.batch * c.p->d.heads_k + t.kv_head - c.first_head;
    return reinterpret_cast<uint16_t*>(c.shared) + (head * most_steps(*c.p) + step) * step_values(shape_of(*c.p));
}

// Work of all panels of a sequence and kv head, done once: a piece of its steps.
void prepare(const Call& c, int64_t index, Scratch& w) {
    const int64_t pieces = ceil_div(most_steps(*c.p), kPieceSteps), head = index / pieces;
    QueryTile t;
    t.batch = head / c.p->d.heads_k;
    t.kv_head = head % c.p->d.heads_k;
    t.seq = sequence_of(*c.p, *c.a, t.batch);
    const Own& own = own_of(w);
    const int64_t first = index % pieces * kPieceSteps, end = min_of(first + kPieceSteps, ceil_div(t.seq.k_len, kStepKeys));
    for (int64_t step = first; step < end; step++) pack_step(c, t, step * kStepKeys, shared_step(c, t, step), own);
}

void pack_q_tiles(const Call& c, QueryTile& t, int panel_index, Scratch& w) {
    const Own& own = own_of(w);
    const MatrixShape& s = own.shape;
    const char* rows[kPairRows] = {};
    q_pointers(c, t, rows);
    pack_rows(c, s, c.k->matrix->pack_q, c.p->d.q_dtype, rows, kPairRows, s.dim_qk, own.pairs[panel_index].q, own);
}

void begin_pair(Pair& pair) {
    memset(pair.l[0], 0, kPairRows * 16 * sizeof(float));
    for (int lane = 0; lane < kPairRows; lane++) pair.from[lane] = kPosInf;
    pair.now = 0;
    pair.fresh = pair.empty = true;
}

void init_rows(const Call& c, const QueryTile& t, int64_t begin, int64_t end, MatrixRow* rows) {
    const Problem& p = *c.p;
    const int64_t *bs = p.d.bias_stride, *ms = p.d.mask_stride;
    for (int lane = t.rows; lane < kPairRows; lane++) rows[lane] = {};
    RowCursor at(t, p.group);
    for (int lane = 0; lane < t.rows; lane++, at.next()) {
        const int64_t head = t.kv_head * p.group + at.group_head;
        const KeyBand band = key_band(t.rule, at.position, t.seq.k_len);
        rows[lane] = {max_of(band.begin, begin),
                      min_of(band.end, end),
                      t.batch * bs[0] + head * bs[1] + at.position * bs[2],
                      t.batch * ms[0] + head * ms[1] + at.position * ms[2],
                      p.has(FA_OPERAND_ALIBI) ? log2_slope(c.a->alibi_slopes[t.batch * p.d.alibi_batch_stride + head]) : 0.f,
                      at.position + t.rule.off};
    }
}

// Of a sequence without keys nothing is read.
float descale_of(const void* base, const int64_t* stride, const QueryTile& t) {
    const float* const factors = static_cast<const float*>(base);
    return factors && t.seq.k_len > 0 ? factors[t.seq.kv_index * stride[0] + t.kv_head * stride[2]] : 1.f;
}

float scale_of_v(const Call& c, const QueryTile& t) {
    return descale_of(c.p->has(FA_OPERAND_V_DESCALE) ? c.a->v_descale : nullptr, c.p->d.v_descale_stride, t);
}

MatrixTask task_of(const Call& c, const QueryTile& t, const Own& own) {
    const Problem& p = *c.p;
    MatrixTask task{};
    task.shape = own.shape;
    task.scale = finite_or_nan(p.d.scale * descale_of(p.has(FA_OPERAND_K_DESCALE) ? c.a->k_descale : nullptr, p.d.k_descale_stride, t));
    task.factor = task.scale * kLog2e;
    task.cap = p.d.softcap;
    task.bias = p.has(FA_OPERAND_BIAS) ? c.a->bias : nullptr;
    task.bias_dtype = p.d.bias_dtype;
    task.bias_step = p.d.bias_stride[3];
    task.mask = p.has(FA_OPERAND_MASK) ? c.a->mask : nullptr;
    task.mask_step = p.d.mask_stride[3];
    task.alibi = p.has(FA_OPERAND_ALIBI);
    // A mask alone leaves products as they are, unless −inf times the factor would not remove a key.
    task.has_score_mod = task.cap > 0 || task.bias || task.alibi || !(task.scale > 0);
    task.lse = p.has(FA_OPERAND_LSE);
    task.slots = own.slots;
    return task;
}

void end_pair(const Call& c, const MatrixShape& shape, const QueryTile& t, const Pair& pair, PartialState& sums) {
    const float scale = scale_of_v(c, t);
    if (pair.empty) memset(pair.o, 0, size_t(shape.o_bytes()));
    c.k->matrix->finish_rows(shape, pair, t.rows, scale, sums.acc, sums.m, sums.l);
}

void write_o(const Call& c, const QueryTile& t, const float* factor, float o_scale, char* const* to, Scratch& w) {
    const Own& own = own_of(w);
    c.k->matrix->write_o(own.shape, own.pairs[t.panel_index], t.rows, scale_of_v(c, t), factor, o_scale, to);
}

// Keys that some row of a pair sees, and those that all of its rows see.
struct Seen {
    KeyBand some, all;
};

Seen seen_by(const Call& c, const QueryTile& t, int64_t begin, int64_t end) {
    const KeyBand first = key_band(t.rule, t.position(0, c.p->group), t.seq.k_len);
    const KeyBand last = key_band(t.rule, t.position(t.rows - 1, c.p->group), t.seq.k_len);
    return {visible_keys(t, *c.p, begin, end), {max_of(begin, last.begin), min_of(end, first.end)}};
}

// The steps of a pair among those of a chunk, whose operands begin at `packed`.
int64_t list_steps(const Call& c, const MatrixTask& task, const Seen& seen, Pair* pair, int64_t chunk, int64_t steps, const uint16_t* packed,
                   Step* to) {
    const MatrixShape& shape = task.shape;
    const int64_t first = max_of(seen.some.begin / kStepKeys, chunk), end = min_of(ceil_div(seen.some.end, kStepKeys), chunk + steps);
    int64_t n = 0;
    if (seen.some.begin >= seen.some.end) return n;
    for (int64_t step = first; step < end; step++) {
        const int64_t key = step * kStepKeys;
        bool cut = key < seen.all.begin || key + kStepKeys > seen.all.end;
        if (task.mask || task.bias) {
            const Kept kept = c.k->matrix->kept(task, pair->rows, key);
            if (kept == Kept::none) continue;
            if (task.mask) cut = kept == Kept::some;
        }
        const uint16_t* k = packed + (step - chunk) * step_values(shape);
        to[n++] = {pair, k, k + shape.k_bytes() / 2, key, cut};
    }
    return n;
}

// ALiBi's scores mostly rise up to the diagonal. Measured from there at once, a row is not scaled anew at each step on the way.
void settle_pair(const Call& c, const QueryTile& t, const MatrixTask& task, const Own& own, Pair& pair) {
    for (int lane = 0; lane < t.rows;) {
        const MatrixRow& row = pair.rows[lane++];
        if (row.diagonal < row.begin || row.diagonal >= row.end) continue;
        const int64_t step = row.diagonal / kStepKeys;
        uint16_t* const packed = c.shared ? shared_step(c, t, step) : own.packed;
        if (!c.shared) pack_step(c, t, step * kStepKeys, packed, own);
        c.k->matrix->settle_diagonal(task, {&pair, packed, nullptr, step * kStepKeys, true});
        while (lane < t.rows && pair.rows[lane].diagonal < (step + 1) * kStepKeys) lane++;
    }
}

// Whether some row of the pair does not see some key of its steps.
bool is_cut(const Seen& seen) {
    const int64_t begin = seen.some.begin / kStepKeys * kStepKeys, end = ceil_div(seen.some.end, kStepKeys) * kStepKeys;
    return begin < seen.all.begin || end > seen.all.end;
}

void matrix_mainloop(const Call& c, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState* sums, Scratch& w) {
    const Own& own = own_of(w);
    const MatrixShape& shape = own.shape;
    const MatrixTask task = task_of(c, tiles[0], own);
    Seen seen[kPanel];
    int64_t first = end, last = begin;
    for (int i = 0; i < count; i++) {
        begin_pair(own.pairs[i]);
        seen[i] = seen_by(c, tiles[i], begin, end);
        if (seen[i].some.begin >= seen[i].some.end) continue;
        if (task.has_score_mod || task.mask || is_cut(seen[i])) init_rows(c, tiles[i], begin, end, own.pairs[i].rows);
        if (task.alibi) settle_pair(c, tiles[i], task, own, own.pairs[i]);
        first = min_of(first, seen[i].some.begin);
        last = max_of(last, seen[i].some.end);
    }
    // Steps lie at multiples of kStepKeys, wherever the split begins.
    for (int64_t chunk = first / kStepKeys; chunk * kStepKeys < last; chunk += chunk_steps(shape)) {
        const int64_t steps = min_of(chunk_steps(shape), ceil_div(last, kStepKeys) - chunk);
        uint16_t* const packed = c.shared ? shared_step(c, tiles[0], chunk) : own.packed;
        if (!c.shared)
            for (int64_t s = 0; s < steps; s++) pack_step(c, tiles[0], (chunk + s) * kStepKeys, packed + s * step_values(shape), own);
        int64_t n = 0;
        for (int i = 0; i < count; i++) n += list_steps(c, task, seen[i], &own.pairs[i], chunk, steps, packed, own.steps + n);
        c.k->matrix->run(task, own.steps, n);
    }
    for (int i = 0; i < count; i++) end_pair(c, shape, tiles[i], own.pairs[i], sums[i]);
}

}  // namespace

bool matrix_method(const Problem& p, const Kernels& k, Method* m) {
    const fa_attention_desc_t& d = p.d;
    if (!k.matrix || !(d.q_dtype == FA_BF16 || (d.q_dtype == FA_F16 && k.matrix->halves))) return false;
    if (d.k_dtype != d.q_dtype && type_bytes(d.k_dtype) != 1) return false;
    // Weights as f16 have not the range that outputs of wider types can show.
    if (d.q_dtype == FA_F16 && (d.o_dtype == FA_F32 || d.o_dtype == FA_BF16)) return false;
    if (d.dropout_p > 0 || p.has(FA_OPERAND_Q_DESCALE) || !mild_scale(d.scale)) return false;
    if (!descale_per_head(p, FA_OPERAND_K_DESCALE, d.k_descale_stride) || !descale_per_head(p, FA_OPERAND_V_DESCALE, d.v_descale_stride)) return false;
    const MatrixShape s = shape_of(p);
    *m = {"matrix", kPairRows, kPanel, false, carve_own(p, nullptr), true, 0, 0, prepare, begin, pack_q_tiles, matrix_mainloop,
          d.o_dtype == FA_BF16 ? write_o : nullptr, k.matrix->speed};
    const int64_t heads = d.batch * d.heads_k, steps = most_steps(p);
    if (d.seqlen_q * p.group > kPairRows && steps <= kMostPackedBytes / (step_values(s) * 2) / max_of(heads, 1)) {
        m->shared_bytes = heads * steps * step_values(s) * 2;
        m->prepare_count = heads * ceil_div(steps, kPieceSteps);
    }
    return true;
}

}  // namespace cpu
}  // namespace fa
