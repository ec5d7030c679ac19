// Few query rows for a kv head: decoding, small batches. Keys and values are read once for all of them, where they lie and as they are
// stored; lanes are elements of a head, and nothing but q, the weights and the sums is ever widened in memory.
#include "cpu/driver/call.h"
#include "cpu/kernels/matrix_table.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

// From so many rows on that share a kv head, matrix instructions keep up with memory better than vectors, which widen bf16 for next to
// nothing, and fp8 for most of their time.
int fewest_matrix_rows(int32_t type) { return type == FA_BF16 ? 4 : type == FA_I8 ? 2 : 1; }
// Where heads are neighbours in memory, a worker takes several: for each part of some keys, one head after the other, and of them all each
// page of memory is used up at once. Of a block so large, a quarter and the next one are on their way at a time.
constexpr int64_t kPanelBytes = 1024 * 1024;
// While one head's part is read, the next one's is fetched: it should take as long as memory takes to answer.
constexpr int64_t kPartBytes = 4096;
constexpr int kMostPartKeys = kFewPartKeys;
int part_keys(bool matrix, int64_t row_bytes) { return matrix || 16 * row_bytes < kPartBytes ? kMostPartKeys : 16; }
// Addresses of so many keys are looked up at once.
constexpr int kStretch = 4 * kTileKeys;
constexpr int kMostHeads = 32;  // of a panel
// De-scale factors go into scores and weights where that cannot overflow nor lose bits; others meet the stored values first.
constexpr float kLeastFactor = 0x1p-40f, kMostFactor = 0x1p40f;

int64_t padded(const Kernels& k, int64_t dim) { return round_up(dim, 2 * k.lanes); }

// One operand's rows for a stretch of keys, of kv head 0, and what they are read with.
struct Side {
    Operand operand;
    int dim;
    int64_t head_step;  // bytes
    const char** rows;  // [kStretch + kTileKeys]
    bool as_stored;     // the kernel takes all keys as they are
};

// A worker's memory for this method. q, its factors, o, and, twice, s and rescale: of each tile of the panel; scores and weights lie
// [row][kTileKeys].
struct Own {
    float *q, *factor, *o, *s, *rescale, *addend, *widened;
    const char **k, **v;
    char* digits;  // of each tile of the panel
    bool* exact;   // whether they are all of q
    FewMemory matrix;
};

// Scores of int8 k by products of integers.
bool by_digits(const Problem& p, int64_t rows) {
    return p.d.k_dtype == FA_I8 && rows <= kDigitRows && p.d.dim_qk % 64 == 0;
}
int64_t digit_bytes(const Problem& p) { return 16 * p.d.dim_qk + kDigitRows * int64_t(sizeof(float)); }

// Of a tile's q in either form.
int64_t q_floats(const Problem& p, const Kernels& k, int rows) { return max_of(rows, kFewRows / 2) * padded(k, p.d.dim_qk); }

// Whether matrix instructions can take a call, in tiles of so many rows.
bool by_matrix(const Problem& p, const Kernels& k, int64_t rows) {
    const fa_attention_desc_t& d = p.d;
    if (!k.matrix || !k.matrix->few || d.q_dtype != FA_BF16 || !(d.k_dtype == FA_BF16 || type_bytes(d.k_dtype) == 1)) return false;
    if (d.dim_qk % 32 != 0 || d.dim_v % 32 != 0 || rows < fewest_matrix_rows(d.k_dtype) || !mild_scale(d.scale)) return false;
    return one_for_all(p, FA_OPERAND_K_DESCALE, d.k_descale_stride) && one_for_all(p, FA_OPERAND_V_DESCALE, d.v_descale_stride);
}
bool by_matrix(const Problem& p, const Kernels& k) { return by_matrix(p, k, p.d.seqlen_q * p.group); }

Own carve(const Problem& p, const Kernels& k, int rows, int panel, char* memory, int64_t* bytes) {
    Own own{};
    Carver carver{memory, 0};
    const auto floats = [&](int64_t count) { return carver.take<float>(count); };
    const auto list = [&] { return carver.take<const char*>(kStretch + kTileKeys); };
    own.q = floats(panel * q_floats(p, k, rows));
    own.factor = floats(panel * kFewRows);
    own.o = floats(panel * rows * padded(k, p.d.dim_v));
    own.s = floats(2 * panel * rows * kTileKeys);
    own.rescale = floats(2 * panel * rows);
    own.addend = floats(rows * kTileKeys);
    own.widened = floats(kMostPartKeys * padded(k, max_of(p.d.dim_qk, p.d.dim_v)));
    own.k = list();
    own.v = list();
    if (by_matrix(p, k)) {
        const int64_t dim = max_of(p.d.dim_qk, p.d.dim_v);
        own.matrix.converted = carver.take<uint16_t>(kFewPartKeys * dim);
        own.matrix.zeros = carver.take<uint16_t>(dim);
        own.matrix.products = floats(kFewProducts);
        own.matrix.weights = carver.take<uint16_t>(kFewPartKeys * kFewRows);
        own.matrix.pairs = carver.take<uint16_t>(4 * kTileBytes / 2);
        own.digits = carver.take<char>(panel * digit_bytes(p));
        own.exact = carver.take<bool>(panel);
        if (memory) memset(own.matrix.zeros, 0, size_t(dim) * 2);
    }
    *bytes = carver.used;
    return own;
}

Own carve(const Call& c, const Scratch& w) {
    int64_t bytes;
    return carve(*c.p, *c.k, c.few.rows, c.few.panel, w.few_own, &bytes);
}

// A row's elements in the kernel's order, zeros behind, the pairs `step` apart; and back.
void arrange(const Kernels& k, bool split, const float* from, int64_t dim, float* to, int64_t step) {
    const int64_t lanes = k.lanes, pair = 2 * lanes;
    for (int64_t first = 0; first < dim; first += pair, to += step) {
        const int64_t count = min_of(pair, dim - first);
        for (int64_t x = count; x < pair; x++) to[split ? x / 2 + (x & 1) * lanes : x] = 0.f;
        for (int64_t x = 0; x < count; x++) to[split ? x / 2 + (x & 1) * lanes : x] = from[first + x];
    }
}
void restore(const Kernels& k, bool split, const float* from, int64_t dim, float* to) {
    const int64_t lanes = k.lanes, pair = 2 * lanes;
    for (int64_t first = 0; first < dim; first += pair)
        for (int64_t x = first; x < min_of(first + pair, dim); x++)
            to[x] = from[split ? first + (x - first) / 2 + (x & 1) * lanes : x];
}

// Its own rows choose for a sequence, not those of longer ones in the call.
bool by_matrix(const Call& c, const RowTile& t) { return t.method->matrix && by_matrix(*c.p, *c.k, t.rows); }

void pack_matrix(const Call& c, const RowTile& t, int slot, const Own& own) {
    const Problem& p = *c.p;
    const char* rows[kFewRows];
    point_q(c, t, rows);
    const FewMatrixKernels& few = *c.k->matrix->few;
    const uint16_t* const* const values = reinterpret_cast<const uint16_t* const*>(rows);
    own.exact[slot] = by_digits(p, t.rows) && few.pack_digits(values, t.rows, int(p.d.dim_qk), own.digits + slot * digit_bytes(p));
    if (!own.exact[slot]) few.pack_q(values, t.rows, p.d.k_dtype, int(p.d.dim_qk), reinterpret_cast<uint16_t*>(t.q));
    for (int r = 0; r < t.rows; r++) own.factor[slot * kFewRows + r] = q_factor(c, t, t.position(r, p.group), t.head(r, p.group));
}

void pack_few(const Call& c, RowTile& t, int slot, Scratch& w) {
    const Problem& p = *c.p;
    const int64_t stride = padded(*c.k, p.d.dim_qk);
    const Own own = carve(c, w);
    t.q = own.q + slot * q_floats(p, *c.k, c.few.rows);
    t.width = t.rows;
    if (by_matrix(c, t)) return pack_matrix(c, t, slot, own);
    for (int first = 0, block; first < t.rows; first += block) {
        block = few_block(t.rows - first, c.k->lanes);
        for (int r = 0; r < block; r++) {
            const float factor = load_q(c, t, t.position(first + r, p.group), t.head(first + r, p.group), w.line);
            for (int64_t x = 0; x < p.d.dim_qk; x++) w.line[x] *= factor;
            arrange(*c.k, c.k->few[type_index(p.d.k_dtype)].split, w.line, p.d.dim_qk, t.q + first * stride + r * 2 * c.k->lanes, block * 2 * c.k->lanes);
        }
    }
}

Side make_side(const Call& c, Operand operand, const char** rows) {
    const Problem& p = *c.p;
    const bool k = operand == Operand::k, scaled = p.has(k ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE);
    return {operand, int(k ? p.d.dim_qk : p.d.dim_v), (k ? p.d.k_stride : p.d.v_stride)[2] * type_bytes(p.d.k_dtype), rows,
            !scaled && !c.k->few[type_index(p.d.k_dtype)].plain};
}

// Addresses for keys [key, key + kStretch), as far as they lie before `end`, and of the block behind them; up to whole blocks, the last
// one stands for those that are missing.
void find_stretch(const Call& c, const RowTile& t, int64_t key, int64_t end, const Side& side) {
    const int known = int(min_of(kStretch + kTileKeys, end - key));
    find_rows(c, t, side.operand, 0, key, known, side.rows);
    for (int j = known; j < min_of(round_up(known, kTileKeys) + kTileKeys, kStretch + kTileKeys); j++) side.rows[j] = side.rows[known - 1];
}

bool tame(const float* factors, int n) {
    bool all = true;
    for (int i = 0; i < n; i++) all &= fabsf(factors[i]) >= kLeastFactor && fabsf(factors[i]) <= kMostFactor;
    return all;
}

// Some keys of a part, as the kernels get them.
struct Part {
    const FewKernels* kernels;
    FewRows rows;
    int dim;
    bool scaled;
    float factors[kMostPartKeys];
    const char* widened[kMostPartKeys];
};

// The `keys` keys from `key` on, whose rows of kv head 0 are listed. Those that the kernel cannot take as they are stored, it gets widened
// and multiplied by their factors.
void find_part(const Call& c, const RowTile& t, const Side& side, const FewRows& rows, int64_t key, int keys, const Own& own, Part& part,
               Scratch& w) {
    const Problem& p = *c.p;
    const bool k = side.operand == Operand::k;
    const FewKernels& kernels = c.k->few[type_index(p.d.k_dtype)];
    part.kernels = &kernels;
    part.rows = rows;
    part.dim = side.dim;
    part.scaled = p.has(k ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE);
    if (part.scaled) {
        for (float& factor : part.factors) factor = 1.f;
        find_factors(c, t, side.operand, key, keys, part.factors);
    }
    const bool plain = !kernels.plain || kernels.plain(rows.at, rows.offset, keys, part.dim);
    if (plain && (!part.scaled || tame(part.factors, keys))) return;
    const KeyRows whole = k ? load_k(c, t, key, keys, w.k, w) : load_v(c, t, key, keys, w.v, w);
    part.kernels = &c.k->few[FA_F32];
    part.rows.at = part.widened;
    part.rows.offset = 0;
    part.dim = int(padded(*c.k, side.dim));
    part.scaled = false;
    for (int j = 0; j < kMostPartKeys; j++) {
        float* row = own.widened + min_of(j, keys - 1) * part.dim;
        if (j < keys) arrange(*c.k, kernels.split, whole.data + j * whole.stride, side.dim, row, 2 * c.k->lanes);
        part.widened[j] = reinterpret_cast<const char*>(row);
    }
}

void scale(float* s, int rows, int keys, const float* factors) {
    for (int r = 0; r < rows; r++, s += kTileKeys)
        for (int j = 0; j < keys; j++) s[j] *= factors[j];
}

// Removes what lies outside each row's band, and outside the block's keys.
void clip(const Call& c, const RowTile& t, int64_t key, int to, float* s) {
    for (int r = 0; r < t.rows; r++, s += kTileKeys) {
        const KeyBand band = key_band(t.rule, t.position(r, c.p->group), t.seq.k_len);
        const int64_t end = max_of(min_of(band.end - key, to), 0), begin = min_of(max_of(band.begin - key, 0), end);
        for (int64_t j = 0; j < begin; j++) s[j] = kNegInf;
        for (int64_t j = end; j < kTileKeys; j++) s[j] = kNegInf;
    }
}

// Scores of the block at `key` into weights.
void weigh(const Call& c, const RowTile& t, int64_t key, int to, RowSums& sums, float* s, float* rescale, const Own& own) {
    if (c.factor.product != 1.f) c.k->scale_scores(s, c.factor.product, t.rows * kTileKeys);
    if (c.addend) build_addend(c, t, key, to, 1, kTileKeys, own.addend);
    if (c.natural) c.k->modify(s, c.addend ? own.addend : nullptr, c.p->d.softcap, t.rows * kTileKeys);
    clip(c, t, key, to, s);
    c.k->few_fold(s, t.rows, sums.m, sums.l, rescale);
    if (c.drop) drop_weights(c, t, key, to, 1, kTileKeys, s);
}

// A panel on its way through the keys of a range.
struct Walk {
    const Call* c;
    const RowTile* tiles;
    int count;
    RowSums* sums;
    Side k, v;
    KeyBand seen[kMostPanel];
    int part;       // keys
    int64_t start;  // of the first block
    int64_t at(int64_t key) const { return (key - start) % kStretch; }  // in the lists of addresses
    Own own;
    const FewKernels* kernels;
    bool matrix;          // by matrix instructions
    mutable bool digits;  // whose tiles are laid out for scores by products of integers
    int rows;             // there is room for in a tile
    int64_t o_step;       // floats from a tile's sums to the next one's
    float k_factor[kMostPanel], v_factor[kMostPanel];  // where matrix instructions have left them out
    int from(int i, int64_t key) const { return int(max_of(seen[i].begin - key, 0)); }
    int to(int i, int64_t key) const { return int(min_of(seen[i].end - key, kTileKeys)); }
    // Scores and weights of one block live beside those of the next.
    float* s(int i, int64_t key) const { return own.s + place(i, key) * kTileKeys; }
    float* rescale(int i, int64_t key) const { return own.rescale + place(i, key); }
    int64_t place(int i, int64_t key) const { return ((key & kTileKeys ? c->few.panel : 0) + i) * rows; }
    float* o(int i) const { return own.o + i * o_step; }
};

// A tile's rows of keys from key + first + skip on, and meanwhile those of the next tile, or of the first one's next part.
FewRows rows_of(const Walk& walk, const Side& side, int i, int64_t key, int first, int skip) {
    const char* const* const rows = side.rows + walk.at(key) + first + skip;
    const bool last = i + 1 == walk.count;
    return {rows, walk.tiles[i].kv_head * side.head_step, last ? rows + walk.part : rows, walk.tiles[last ? 0 : i + 1].kv_head * side.head_step};
}

void score_part_matrix(const Walk& walk, int i, const FewPart& part, float* s) {
    const Call& c = *walk.c;
    const FewMatrixKernels& few = *c.k->matrix->few;
    float factor[kFewRows];
    for (int r = 0; r < walk.tiles[i].rows; r++) factor[r] = seen_factor(walk.own.factor[i * kFewRows + r] * walk.k_factor[i]);
    if (part.digits != walk.digits) few.begin(walk.tiles[i].rows, walk.digits = part.digits);
    const void* const q = part.digits ? static_cast<const void*>(walk.own.digits + i * digit_bytes(*c.p)) : walk.tiles[i].q;
    few.scores(static_cast<const uint16_t*>(q), walk.tiles[i].rows, factor, part, walk.k.dim, walk.own.matrix, s);
}

// Scores of a tile and part [first, first + walk.part) of the block at `key`: all of it, weigh() removes what lies outside the band.
void score_tile_part(const Walk& walk, int i, int64_t key, int first, Scratch& w) {
    const Call& c = *walk.c;
    const RowTile& t = walk.tiles[i];
    const int to = int(min_of(walk.to(i, key), first + walk.part));
    if (walk.from(i, key) >= first + walk.part || first >= to) return;
    const FewRows rows = rows_of(walk, walk.k, i, key, first, 0);
    float* s = walk.s(i, key) + first;
    if (walk.matrix) return score_part_matrix(walk, i, {c.p->d.k_dtype, walk.own.exact[i], rows, to - first}, s);
    if (walk.k.as_stored) return walk.kernels->scores(t.q, t.rows, rows, to - first, walk.k.dim, s);
    Part part;
    find_part(c, t, walk.k, rows, key + first, to - first, walk.own, part, w);
    part.kernels->scores(t.q, t.rows, part.rows, to - first, part.dim, s);
    if (part.scaled) scale(s, t.rows, to - first, part.factors);
}

// Weights of a tile follow its last scores at once: weighing all tiles together, a core would ask memory for nothing for too long.
void score_part(const Walk& walk, int64_t key, int first, Scratch& w) {
    for (int i = 0; i < walk.count; i++) {
        score_tile_part(walk, i, key, first, w);
        if (first + walk.part == kTileKeys && walk.from(i, key) < walk.to(i, key))
            weigh(*walk.c, walk.tiles[i], key, walk.to(i, key), walk.sums[i], walk.s(i, key), walk.rescale(i, key), walk.own);
    }
}

void add_part(const Walk& walk, int64_t key, int first, Scratch& w) {
    const Call& c = *walk.c;
    static const float same[kFewRows] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < walk.count; i++) {
        const RowTile& t = walk.tiles[i];
        const int from = int(max_of(walk.from(i, key), first)), to = int(min_of(walk.to(i, key), first + walk.part));
        if (from >= to) continue;
        const FewRows rows = rows_of(walk, walk.v, i, key, first, from - first);
        float *const p = walk.s(i, key) + from, *const o = walk.o(i);
        const bool rescaled = first > 0 && walk.from(i, key) < first;
        const float* const rescale = rescaled ? same : walk.rescale(i, key);
        if (walk.matrix) {
            const FewPart some{c.p->d.k_dtype, false, rows, to - from};
            c.k->matrix->few->values(p, t.rows, some, walk.v.dim, rescaled ? nullptr : rescale, walk.own.matrix, o);
            continue;
        }
        if (walk.v.as_stored) {
            walk.kernels->values(p, t.rows, rows, to - from, walk.v.dim, rescale, o);
            continue;
        }
        Part part;
        find_part(c, t, walk.v, rows, key + from, to - from, walk.own, part, w);
        if (part.scaled) scale(p, t.rows, to - from, part.factors);
        part.kernels->values(p, t.rows, part.rows, to - from, part.dim, rescale, o);
    }
}

// Scores of the block at `key`, each part before the values of the same part of the block before it: so k and v are read at one steady pace.
void advance(const Walk& walk, int64_t key, int64_t start, int64_t last, Scratch& w) {
    if (key < last && walk.at(key) == 0)
        find_stretch(*walk.c, walk.tiles[0], key, last, walk.k);
    if (key > start && walk.at(key - kTileKeys) == 0)
        find_stretch(*walk.c, walk.tiles[0], key - kTileKeys, last, walk.v);
    for (int first = 0; first < kTileKeys; first += walk.part) {
        if (key < last) score_part(walk, key, first, w);
        if (key > start) add_part(walk, key - kTileKeys, first, w);
    }
}

// The factor of a head's k or v that matrix instructions leave out.
float left_out(const Call& c, const RowTile& t, const Side& side, int64_t key) {
    const Problem& p = *c.p;
    float factor = 1.f;
    if (p.has(side.operand == Operand::k ? FA_OPERAND_K_DESCALE : FA_OPERAND_V_DESCALE)) find_factors(c, t, side.operand, key, 1, &factor);
    return factor;
}

void finish_sums(const Walk& walk, int i, RowSums& sums) {
    const Call& c = *walk.c;
    const int64_t dim = c.p->d.dim_v, stride = padded(*c.k, dim);
    for (int r = 0; r < walk.tiles[i].rows; r++) {
        const float* from = walk.o(i) + r * stride;
        if (walk.matrix) c.k->matrix->few->finish(from, c.p->d.k_dtype, int(dim), walk.v_factor[i], sums.o + r * dim);
        else restore(*c.k, c.k->few[type_index(c.p->d.k_dtype)].split, from, dim, sums.o + r * dim);
    }
}

void fold_few(const Call& c, const RowTile* tiles, int count, int64_t begin, int64_t end, RowSums* sums, Scratch& w) {
    const Problem& p = *c.p;
    Walk walk{};
    walk.c = &c;
    walk.tiles = tiles;
    walk.count = count;
    walk.sums = sums;
    walk.matrix = by_matrix(c, tiles[0]);
    walk.own = carve(c, w);
    walk.digits = walk.matrix && walk.own.exact[0];
    walk.part = part_keys(walk.matrix, p.d.dim_qk * type_bytes(p.d.k_dtype));
    walk.kernels = &c.k->few[type_index(p.d.k_dtype)];
    walk.rows = c.few.rows;
    walk.o_step = walk.rows * padded(*c.k, p.d.dim_v);
    walk.k = make_side(c, Operand::k, walk.own.k);
    walk.v = make_side(c, Operand::v, walk.own.v);
    int64_t first = end, last = begin;
    for (int i = 0; i < count; i++) {
        const KeyBand seen = walk.seen[i] = visible_keys(tiles[i], p, begin, end);
        if (seen.begin >= seen.end) continue;
        first = min_of(first, seen.begin);
        last = max_of(last, seen.end);
    }
    if (first >= last) return;
    const int64_t stride = padded(*c.k, p.d.dim_v);
    for (int i = 0; i < count; i++) memset(walk.o(i), 0, size_t(tiles[i].rows * stride) * sizeof(float));
    // Blocks start at fixed distances from the split's begin, whatever the band: a row's bits then do not depend on its neighbours.
    const int64_t start = walk.start = begin + (first - begin) / kTileKeys * kTileKeys;
    if (walk.matrix) {
        for (int i = 0; i < count; i++) {
            walk.k_factor[i] = left_out(c, tiles[i], walk.k, first);
            walk.v_factor[i] = left_out(c, tiles[i], walk.v, first);
        }
        c.k->matrix->few->begin(tiles[0].rows, walk.digits);
    }
    for (int64_t key = start; key < last + kTileKeys; key += kTileKeys) advance(walk, key, start, last, w);
    if (walk.matrix) c.k->matrix->few->end();
    for (int i = 0; i < count; i++) finish_sums(walk, i, sums[i]);
}

}  // namespace

Method few_method(const Problem& p, const Kernels& k) {
    const int64_t rows = min_of(max_of(p.d.seqlen_q * p.group, 1), kFewRows), bytes = type_bytes(p.d.k_dtype);
    const bool neighbours = p.d.k_stride[2] < p.d.k_stride[1] && p.d.v_stride[2] < p.d.v_stride[1];
    const int64_t fit = kPanelBytes / (kTileKeys * (p.d.dim_qk + p.d.dim_v) * bytes);
    // A sequence among longer ones has its rows in the tiles of their method, which may be smaller: several tiles, but of one head.
    const int64_t panel = neighbours ? min_of(max_of(min_of(fit, p.d.heads_k), 2), kMostHeads) : 2;
    int64_t own;
    carve(p, k, int(rows), int(panel), nullptr, &own);
    return {"few", int(rows), int(panel), true, own, true, 0, 0, nullptr, nullptr, pack_few, fold_few, nullptr, 1, by_matrix(p, k)};
}

}  // namespace cpu
}  // namespace fa
