// Decoding: few query rows for a kv head, so that memory bandwidth of k and v is the limit. Keys and values are read once for all
// rows, where they lie and as they are stored; lanes are elements of a head. A panel of kv heads goes through chunks of keys, Q Kᵀ
// of one block interleaved with P V of the block before it, while the next chunk is prefetched.
#include "cpu/decode/kv_source.h"

namespace fa {
namespace cpu {
namespace {

// Where heads are neighbours in memory, a worker takes several: for each chunk of keys, one head after the other, so that each page
// of memory is used completely at once. Of a block of this size, a quarter and the next one are being loaded at a time.
constexpr int64_t kPanelBytes = 1024 * 1024;
// While one head's chunk is read, the next one's is prefetched: a chunk should take as long as memory latency.
constexpr int64_t kMinChunkBytes = 4096;
int chunk_keys(int64_t row_bytes) { return 16 * row_bytes < kMinChunkBytes ? kMaxChunkKeys : 16; }
constexpr int kMaxPanelHeads = 32;  // of a panel

// A worker's memory for this method: q, its factors, o, and, twice, s and rescale, of each tile of the panel; S and P lie
// [row][kTileKeys].
struct DecodeScratch {
    float *q, *factor, *s, *rescale, *addend, *widened;
    float** o;  // [panel + 1]: of each tile of the panel, and one to spare
    const char **k, **v;
    char* limbs;      // int8 limbs of q, of each tile of the panel
    bool* has_limbs;  // whether the limbs represent all of q
    DecodeMatrixScratch matrix;
};

// Whether scores of int8 k can be products of integers, with q split into limbs of 8 bits.
bool use_int8_limbs(const Problem& p, const DecodeMatrixKernels& k, int64_t rows) {
    return k.pack_limbs && p.d.k_dtype == FA_I8 && rows <= kLimbRows && p.d.dim_qk % 64 == 0;
}
int64_t limb_bytes(const Problem& p) { return 16 * p.d.dim_qk + kLimbRows * int64_t(sizeof(float)); }

// Floats of a tile's q in the largest of its forms.
int64_t q_floats(const Problem& p, const Kernels& k, int rows) { return round_up(rows, kDecodeRows / 2) * padded(k, p.d.dim_qk) * 11 / 8; }

// What the method implements, and what it does by matrix instructions.
constexpr uint64_t kScaledOperands = FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;
constexpr Implements kDecode = {FA_OPERAND_LSE | FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE |
                                    kScaledOperands | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_ALIBI |
                                    FA_OPERAND_SINKS | kSequenceOperands | kRowSetOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
                                option::list_space | option::bands | option::schedule | FA_V_IN_K | option::v_dtype | option::heads_v |
                                    option::scale | option::softcap | option::dropout_p | option::bias_period | option::mask_period |
                                    option::mask_dtype | option::mask_keys | option::factors};
constexpr Implements kMatrixDecode = {
    kDecode.operands & ~kScaledOperands,
    (kDecode.options & ~(option::factors | option::v_dtype | option::heads_v | option::scale)) | option::q_descale_stride};

bool is_matrix_type(int32_t dtype) {
    return dtype == FA_BF16 || is_byte_type(dtype) || (is_block_type(dtype) && !block_format(dtype).has_min);
}

// The matrix instructions for tiles of so many rows; NULL: none.
const DecodeMatrixKernels* matrix_kernels(const Problem& p, const Kernels& k, int64_t rows) {
    const fa_attention_desc_t& d = p.d;
    if (!k.matrix || !p.within(kMatrixDecode) || !(d.q_dtype == FA_BF16 || rounds_q_to_bf16(d)) || !is_matrix_type(d.k_dtype))
        return nullptr;
    for (const DecodeMatrixKernels* decode : k.matrix->decode)
        if (decode && (d.precision == FA_PRECISION_NATIVE || !decode->rounds_to_8_bits) &&
            decode->takes(d.k_dtype, rows, d.dim_qk, d.dim_v))
            return decode;
    return nullptr;
}
bool use_matrix(const Problem& p, const Kernels& k) { return matrix_kernels(p, k, min_of(rows_together(p), kDecodeRows)); }

DecodeScratch lay_out_scratch(const Problem& p, const Kernels& k, int rows, int panel, char* memory, int64_t* bytes) {
    DecodeScratch scratch{};
    Arena arena{memory, 0};
    const auto floats = [&](int64_t count) { return arena.allocate<float>(count); };
    const auto list = [&] { return arena.allocate<const char*>(kLookupKeys + kTileKeys); };
    scratch.q = floats(panel * q_floats(p, k, rows));
    scratch.factor = floats(panel * kDecodeRows);
    scratch.o = arena.allocate<float*>(panel + 1);
    for (int i = 0; i <= panel; i++) {
        float* const o = floats(rows * padded(k, p.d.dim_v));
        if (memory) scratch.o[i] = o;
    }
    scratch.s = floats(2 * panel * rows * kTileKeys);
    scratch.rescale = floats(2 * panel * rows);
    scratch.addend = floats(rows * kTileKeys);
    scratch.widened = floats(kMaxChunkKeys * padded(k, max_of(p.d.dim_qk, p.d.dim_v)));
    scratch.k = list();
    scratch.v = list();
    if (use_matrix(p, k)) {
        const int64_t dim = max_of(p.d.dim_qk, p.d.dim_v);
        scratch.matrix.converted = arena.allocate<uint16_t>(kDecodeChunkKeys * dim);
        scratch.matrix.zeros = arena.allocate<uint16_t>(dim);
        scratch.matrix.products = floats(kDecodeProducts);
        scratch.matrix.p = arena.allocate<uint16_t>(2 * kDecodeChunkKeys * kDecodeRows);
        scratch.matrix.pairs = arena.allocate<uint16_t>(4 * kTileValues);
        scratch.limbs = arena.allocate<char>(panel * limb_bytes(p));
        scratch.has_limbs = arena.allocate<bool>(panel);
        if (memory) memset(scratch.matrix.zeros, 0, size_t(dim) * 2);
    }
    *bytes = arena.used;
    return scratch;
}

DecodeScratch lay_out_scratch(const Call& c, const Scratch& w) {
    int64_t bytes;
    return lay_out_scratch(*c.p, *c.k, c.decode.rows, c.decode.panel, w.decode_memory, &bytes);
}

// Vector pairs (kv_source.h) back to a row.
void from_vec_pairs(const Kernels& k, bool deinterleaved, const float* from, int64_t dim, float* to) {
    const int64_t lanes = k.lanes, pair = 2 * lanes;
    for (int64_t first = 0; first < dim; first += pair)
        for (int64_t x = first; x < min_of(first + pair, dim); x++)
            to[x] = from[deinterleaved ? first + (x - first) / 2 + (x & 1) * lanes : x];
}

// A sequence's own rows decide, not those of longer ones in the call.
const DecodeMatrixKernels* matrix_kernels(const Call& c, const QueryTile& t) {
    return t.method->matrix ? matrix_kernels(*c.p, *c.k, t.rows) : nullptr;
}

void pack_matrix_q(const Call& c, const QueryTile& t, int panel_index, const DecodeMatrixKernels& decode, const DecodeScratch& scratch,
                   Scratch& w) {
    const Problem& p = *c.p;
    const char* rows[kDecodeRows];
    q_pointers(c, t, rows);
    if (t.method->rounds_q) round_q_to_bf16(c, t, rows, scratch.matrix.converted, w);
    const uint16_t* const* const values = reinterpret_cast<const uint16_t* const*>(rows);
    scratch.has_limbs[panel_index] = use_int8_limbs(p, decode, t.rows) &&
                                     decode.pack_limbs(values, t.rows, int(p.d.dim_qk), scratch.limbs + panel_index * limb_bytes(p));
    if (!scratch.has_limbs[panel_index]) decode.pack_q(values, t.rows, p.d.k_dtype, int(p.d.dim_qk), reinterpret_cast<uint16_t*>(t.q));
    for (int r = 0; r < t.rows; r++)
        scratch.factor[panel_index * kDecodeRows + r] = q_factor(c, t, t.position(r, p.group), t.head(r, p.group));
}

void pack_decode_q(const Call& c, QueryTile& t, int panel_index, Scratch& w) {
    const Problem& p = *c.p;
    const int64_t stride = padded(*c.k, p.d.dim_qk);
    const DecodeScratch scratch = lay_out_scratch(c, w);
    t.q = scratch.q + panel_index * q_floats(p, *c.k, c.decode.rows);
    t.width = t.rows;
    if (const DecodeMatrixKernels* const decode = matrix_kernels(c, t)) return pack_matrix_q(c, t, panel_index, *decode, scratch, w);
    for (int first = 0, block; first < t.rows; first += block) {
        block = decode_block_rows(t.rows - first, c.k->lanes);
        for (int r = 0; r < block; r++) {
            const float factor = load_q(c, t, t.position(first + r, p.group), t.head(first + r, p.group), w.line);
            for (int64_t x = 0; x < p.d.dim_qk; x++) w.line[x] *= factor;
            to_vec_pairs(*c.k, decode_kernels(*c.k, p.d.k_dtype).deinterleaved, w.line, p.d.dim_qk,
                         t.q + first * stride + r * 2 * c.k->lanes, block * 2 * c.k->lanes);
        }
    }
}

void scale_columns(float* s, int rows, int keys, const float* factors) {
    for (int r = 0; r < rows; r++, s += kTileKeys)
        for (int j = 0; j < keys; j++) s[j] *= factors[j];
}

// Masks what each row does not see, and what lies outside the block's keys. `common`: keys that all rows see.
void mask_keys(const Call& c, const QueryTile& t, const KeyBand& common, int64_t key, int to, float* s) {
    if (common.begin <= key && key + kTileKeys <= common.end) return;
    if (has_gaps(c)) {
        uint64_t words[kMaxRows];
        visible_words(c, t, key, low_bits(to), t.rows, words);
        for (int r = 0; r < t.rows; r++, s += kTileKeys)
            for (uint64_t hidden = ~words[r]; hidden; hidden &= hidden - 1) s[__builtin_ctzll(hidden)] = kNegInf;
        return;
    }
    for (int r = 0; r < t.rows; r++, s += kTileKeys) {
        const KeyBand band = key_band(t.rule, t.position(r, c.p->group), t.seq.k_len);
        const int64_t end = max_of(min_of(band.end - key, to), 0), begin = min_of(max_of(band.begin - key, 0), end);
        for (int64_t j = 0; j < begin; j++) s[j] = kNegInf;
        for (int64_t j = end; j < kTileKeys; j++) s[j] = kNegInf;
    }
}

// Turns scores of the block at `key`, once multiplied by `factor`, into P.
void softmax_block(const Call& c, const QueryTile& t, const KeyBand& common, int64_t key, int to, float factor, PartialState& state,
                   float* s, float* rescale, const DecodeScratch& scratch) {
    if (factor != 1.f) c.k->scale_scores(s, factor, t.rows * kTileKeys);
    if (c.factor.product != 1.f) c.k->scale_scores(s, c.factor.product, t.rows * kTileKeys);
    const bool addend = c.has_addend && (c.p->has(FA_OPERAND_BIAS | FA_OPERAND_ALIBI) || masks_keys(c, t, key, to));
    if (addend) build_addend(c, t, key, to, 1, kTileKeys, scratch.addend);
    if (c.has_score_mod) c.k->score_mod(s, addend ? scratch.addend : nullptr, c.p->d.softcap, t.rows * kTileKeys);
    mask_keys(c, t, common, key, to, s);
    c.k->decode_online_softmax(s, t.rows, state.m, state.l, rescale);
    if (c.has_dropout) apply_dropout(c, t, key, to, 1, kTileKeys, s);
}

// The state of a panel of tiles during its mainloop over the keys of a split.
struct DecodePanel {
    const Call* c;
    const QueryTile* tiles;
    int count;
    PartialState* states;
    KvSource k, v;
    KeyBand visible[kMaxPanel], common[kMaxPanel];  // keys that any row sees, and that all rows do
    int chunk_keys;
    int far_chunks, far_tiles;  // chunks of keys, and tiles, to what is prefetched for the second-level cache
    int64_t start, last;        // of a run: the first block's begin, and the end of its keys
    int64_t at(int64_t key) const { return (key - start) % kLookupKeys; }  // in the lists of addresses
    DecodeScratch scratch;
    const DecodeMatrixKernels* matrix;  // NULL: vectors
    mutable bool limbs;                 // tile registers are configured for products of integers
    int rows;                           // there is room for in a tile
    int from(int i, int64_t key) const { return int(max_of(visible[i].begin - key, 0)); }
    int to(int i, int64_t key) const { return int(min_of(visible[i].end - key, kTileKeys)); }
    // S and P of one block lie beside those of the next (two stages).
    float* s(int i, int64_t key) const { return scratch.s + buffer_index(i, key) * kTileKeys; }
    float* rescale(int i, int64_t key) const { return scratch.rescale + buffer_index(i, key); }
    int64_t buffer_index(int i, int64_t key) const { return ((key & kTileKeys ? c->decode.panel : 0) + i) * rows; }
    float*& o(int i) const { return scratch.o[i]; }
    float*& spare() const { return scratch.o[count]; }
};

// A tile's rows of keys from key + first + skip on, and those to prefetch: the next tile's, or the first one's next chunk.
KvRows kv_rows(const DecodePanel& panel, const KvSource& source, int i, int64_t key, int first, int skip) {
    const char* const* const rows = source.rows + panel.at(key) + first + skip;
    const bool last = i + 1 == panel.count;
    int far = i + panel.far_tiles, chunks = panel.far_chunks;
    if (far >= panel.count) far -= panel.count, chunks++;
    return {.row = rows,
            .offset = source.head[i].offset,
            .next_row = last ? rows + panel.chunk_keys : rows,
            .next_offset = source.head[last ? 0 : i + 1].offset,
            .far_row = rows + chunks * panel.chunk_keys,
            .far_offset = source.head[far].offset};
}

void configure(const DecodeMatrixKernels& decode, int rows, bool limbs) {
    if (decode.configure) decode.configure(rows, limbs);
}

void qk_chunk_matrix(const DecodePanel& panel, int i, const DecodeChunk& chunk, float* s) {
    const Call& c = *panel.c;
    const DecodeMatrixKernels& decode = *panel.matrix;
    float factor[kDecodeRows];
    for (int r = 0; r < panel.tiles[i].rows; r++)
        factor[r] = finite_or_nan(panel.scratch.factor[i * kDecodeRows + r] * panel.k.head[i].factor);
    if (chunk.limbs != panel.limbs) configure(decode, panel.tiles[i].rows, panel.limbs = chunk.limbs);
    const void* const q = chunk.limbs ? static_cast<const void*>(panel.scratch.limbs + i * limb_bytes(*c.p)) : panel.tiles[i].q;
    decode.qk(static_cast<const uint16_t*>(q), panel.tiles[i].rows, factor, chunk, panel.k.dim, panel.scratch.matrix, s);
}

// Scores of a tile and chunk [first, first + panel.chunk_keys) of the block at `key`: all of it, softmax_block() masks what lies
// outside the band.
void qk_tile_chunk(const DecodePanel& panel, int i, int64_t key, int first, Scratch& w) {
    const Call& c = *panel.c;
    const QueryTile& t = panel.tiles[i];
    const int to = int(min_of(panel.to(i, key), first + panel.chunk_keys));
    if (panel.from(i, key) >= first + panel.chunk_keys || first >= to) return;
    const KvRows rows = kv_rows(panel, panel.k, i, key, first, 0);
    float* s = panel.s(i, key) + first;
    if (panel.matrix) return qk_chunk_matrix(panel, i, {c.p->d.k_dtype, panel.scratch.has_limbs[i], rows, to - first}, s);
    if (panel.k.head[i].in_place) return panel.k.kernels->qk(t.q, t.rows, rows, to - first, panel.k.dim, s);
    ChunkOperands chunk;
    locate_chunk(c, t, panel.k, panel.k.head[i], rows, key + first, to - first, panel.scratch.widened, chunk, w);
    chunk.kernels->qk(t.q, t.rows, chunk.rows, to - first, chunk.dim, s);
    if (chunk.scaled) scale_columns(s, t.rows, to - first, chunk.factors);
}

// A tile's softmax follows its last scores at once: the softmax of all tiles together would keep memory idle for too long.
void qk_chunk(const DecodePanel& panel, int64_t key, int first, Scratch& w) {
    for (int i = 0; i < panel.count; i++) {
        qk_tile_chunk(panel, i, key, first, w);
        if (first + panel.chunk_keys == kTileKeys && panel.from(i, key) < panel.to(i, key))
            softmax_block(*panel.c, panel.tiles[i], panel.common[i], key, panel.to(i, key), panel.matrix ? 1.f : panel.k.head[i].factor,
                          panel.states[i], panel.s(i, key), panel.rescale(i, key), panel.scratch);
    }
}

void pv_chunk(const DecodePanel& panel, int64_t key, int first, Scratch& w) {
    const Call& c = *panel.c;
    static const float ones[kDecodeRows] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < panel.count; i++) {
        const QueryTile& t = panel.tiles[i];
        const int from = int(max_of(panel.from(i, key), first)), to = int(min_of(panel.to(i, key), first + panel.chunk_keys));
        if (from >= to) continue;
        const KvRows rows = kv_rows(panel, panel.v, i, key, first, from - first);
        float *const p = panel.s(i, key) + from, *const o = panel.o(i);
        const bool already_rescaled = first > 0 && panel.from(i, key) < first;
        const float* const rescale = already_rescaled ? ones : panel.rescale(i, key);
        if (panel.matrix) {
            const DecodeChunk chunk{c.p->d.k_dtype, false, rows, to - from};
            panel.o(i) = panel.matrix->pv(p, t.rows, chunk, panel.v.dim, already_rescaled ? nullptr : rescale, panel.scratch.matrix, o,
                                          panel.spare());
            if (panel.o(i) != o) panel.spare() = o;
            continue;
        }
        if (panel.v.head[i].in_place) {
            panel.v.kernels->pv(p, t.rows, rows, to - from, panel.v.dim, rescale, o);
            continue;
        }
        ChunkOperands chunk;
        locate_chunk(c, t, panel.v, panel.v.head[i], rows, key + from, to - from, panel.scratch.widened, chunk, w);
        if (chunk.scaled) scale_columns(p, t.rows, to - from, chunk.factors);
        chunk.kernels->pv(p, t.rows, chunk.rows, to - from, chunk.dim, rescale, o);
    }
}

// Software pipeline of two blocks: scores of the block at `key`, each chunk before P V of the same chunk of the block before it, so
// that k and v are read at one steady pace.
void process_block(const DecodePanel& panel, int64_t key, Scratch& w) {
    const int64_t start = panel.start, last = panel.last;
    if (key < last && panel.at(key) == 0) look_up_rows(*panel.c, panel.tiles[0], key, last, panel.k);
    if (key > start && panel.at(key - kTileKeys) == 0) look_up_rows(*panel.c, panel.tiles[0], key - kTileKeys, last, panel.v);
    for (int first = 0; first < kTileKeys; first += panel.chunk_keys) {
        if (key < last) qk_chunk(panel, key, first, w);
        if (key > start) pv_chunk(panel, key - kTileKeys, first, w);
    }
}

void write_acc(const DecodePanel& panel, int i, PartialState& state) {
    const Call& c = *panel.c;
    const int64_t dim = c.p->d.dim_v, stride = padded(*c.k, dim);
    for (int r = 0; r < panel.tiles[i].rows; r++) {
        const float* from = panel.o(i) + r * stride;
        float* const to = state.acc + r * dim;
        if (panel.matrix) {
            panel.matrix->finish(from, c.p->d.k_dtype, int(dim), panel.v.head[i].factor, to);
            continue;
        }
        from_vec_pairs(*c.k, panel.v.kernels->deinterleaved, from, dim, to);
        for (int64_t x = 0; x < dim && panel.v.head[i].factor != 1.f; x++) to[x] *= panel.v.head[i].factor;
    }
}

// Blocks of which no row keeps a key are passed over: the first that is not, from `key` on, and the end of the run that begins there.
bool is_masked_block(const DecodePanel& panel, int64_t key, int64_t end) {
    const int keys = int(min_of(kTileKeys, end - key));
    for (int i = 0; i < panel.count; i++)
        if (!mask_removes_all(*panel.c, panel.tiles[i], key, keys)) return false;
    return true;
}
int64_t next_block(const DecodePanel& panel, int64_t key, int64_t begin, int64_t end) {
    for (;; key += kTileKeys) {
        if (key < end && has_gaps(*panel.c)) key = next_visible_block(*panel.c, panel.tiles, panel.count, begin, key);
        if (key >= end || !is_masked_block(panel, key, end)) return key;
    }
}
int64_t end_of_run(const DecodePanel& panel, int64_t key, int64_t begin, int64_t end) {
    if (!has_gaps(*panel.c) && !panel.c->p->has(FA_OPERAND_MASK)) return end;
    do key += kTileKeys;
    while (key < end && next_block(panel, key, begin, end) == key);
    return min_of(key, end);
}

void decode_mainloop(const Call& c, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState* states, Scratch& w) {
    const Problem& p = *c.p;
    DecodePanel panel{};
    panel.c = &c;
    panel.tiles = tiles;
    panel.count = count;
    panel.states = states;
    panel.matrix = matrix_kernels(c, tiles[0]);
    panel.scratch = lay_out_scratch(c, w);
    panel.limbs = panel.matrix && panel.scratch.has_limbs[0];
    const int64_t bytes = row_bytes(p.d.k_dtype, p.k_dims());
    panel.chunk_keys = panel.matrix ? max_of(panel.matrix->min_chunk_keys(tiles[0].rows), chunk_keys(bytes)) : chunk_keys(bytes);
    const int64_t far_bytes = panel.matrix ? panel.matrix->far_bytes : kFarBytes;
    const int64_t far = min_of(far_bytes / (panel.chunk_keys * bytes) + 1, kTileKeys / panel.chunk_keys * count);
    panel.far_chunks = int(far / count);
    panel.far_tiles = int(far % count);
    panel.rows = c.decode.rows;
    const KeyBand range = visible_range(c, tiles, count, begin, end, panel.visible);
    if (range.begin >= range.end) return;
    panel.k = make_source(c, KvOperand::k, tiles, count, range.begin, panel.matrix != nullptr, panel.scratch.k);
    panel.v = make_source(c, KvOperand::v, tiles, count, range.begin, panel.matrix != nullptr, panel.scratch.v);
    const int64_t stride = padded(*c.k, p.d.dim_v);
    for (int i = 0; i < count; i++) {
        panel.common[i] = common_keys(c, tiles[i], begin, end);
        memset(panel.o(i), 0, size_t(tiles[i].rows * stride) * sizeof(float));
    }
    // Blocks start at fixed distances from the split's begin, whatever the band: a row's bits then do not depend on its neighbours.
    const int64_t start = begin + (range.begin - begin) / kTileKeys * kTileKeys;
    CallersTiles callers;
    if (panel.matrix && panel.matrix->acquire) panel.matrix->acquire(&callers);
    if (panel.matrix) configure(*panel.matrix, tiles[0].rows, panel.limbs);
    for (int64_t from = next_block(panel, start, begin, range.end); from < range.end;
         from = next_block(panel, panel.last, begin, range.end)) {
        panel.start = from;
        panel.last = end_of_run(panel, from, begin, range.end);
        for (int64_t key = from; key < panel.last + kTileKeys; key += kTileKeys) process_block(panel, key, w);
    }
    if (panel.matrix && panel.matrix->release) panel.matrix->release(callers);
    for (int i = 0; i < count; i++) write_acc(panel, i, states[i]);
}

}  // namespace

bool decode_method(const Problem& p, const Kernels& k, Method* m) {
    if (!p.within(kDecode)) return false;
    const int64_t rows = min_of(max_of(rows_together(p), 1), kDecodeRows);
    const bool neighbours = p.d.k_stride[2] < p.d.k_stride[1] && p.d.v_stride[2] < p.d.v_stride[1];
    const int64_t fit = kPanelBytes / (kTileKeys * (row_bytes(p.d.k_dtype, p.k_dims()) + row_bytes(p.d.v_dtype, p.v_dims())));
    // A sequence among longer ones has its rows in the tiles of their method, which may be smaller: several tiles, but of one head.
    const int64_t panel = panel_of_slots(p, true, neighbours ? min_of(max_of(min_of(fit, p.kv_heads), 2), kMaxPanelHeads) : 2);
    int64_t scratch;
    lay_out_scratch(p, k, int(rows), int(panel), nullptr, &scratch);
    const DecodeMatrixKernels* const matrix = matrix_kernels(p, k, rows);
    *m = {.name = "decode",
          .rows = int(rows),
          .panel = int(panel),
          .panel_of_heads = true,
          .method_bytes = scratch,
          .o_row_major = true,
          .pack_q = pack_decode_q,
          .mainloop = decode_mainloop,
          .matrix = matrix != nullptr,
          .rounds_q = matrix && rounds_q_to_bf16(p.d),
          .rounds_to_8_bits = matrix && matrix->rounds_to_8_bits};
    return true;
}

}  // namespace cpu
}  // namespace fa
