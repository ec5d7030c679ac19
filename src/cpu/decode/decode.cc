// Decoding: few query rows for a kv head, so that memory bandwidth of k and v is the limit. Keys and values are read once for all
// rows, where they lie and as they are stored; lanes are elements of a head. A panel of kv heads goes through chunks of keys, Q Kᵀ
// of one block interleaved with P V of the block before it, while the next chunk is prefetched.
#include "cpu/decode/kv_source.h"
#include "cpu/decode/decode.h"
#include "cpu/forward/kept_keys.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/q_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/forward/visible_keys.h"

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
bool use_int8_limbs(const Problem& problem, const DecodeMatrixKernels& kernels, int64_t rows) {
    return kernels.pack_limbs && problem.d.k_dtype == FA_I8 && rows <= kLimbRows && problem.d.dim_qk % 64 == 0;
}
int64_t limb_bytes(const Problem& problem) { return 16 * problem.d.dim_qk + kLimbRows * int64_t(sizeof(float)); }

// Floats of a tile's q in the largest of its forms.
int64_t q_floats(const Problem& problem, const Kernels& kernels, int rows) {
    return round_up(rows, kDecodeRows / 2) * padded(kernels, problem.d.dim_qk) * 11 / 8;
}

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
const DecodeMatrixKernels* matrix_kernels(const Problem& problem, const Kernels& kernels, int64_t rows) {
    const fa_attention_desc_t& d = problem.d;
    if (!kernels.matrix || !problem.within(kMatrixDecode) || !(d.q_dtype == FA_BF16 || rounds_q_to_bf16(d)) || !is_matrix_type(d.k_dtype))
        return nullptr;
    for (const DecodeMatrixKernels* decode : kernels.matrix->decode)
        if (decode && (d.precision == FA_PRECISION_NATIVE || !decode->rounds_to_8_bits) &&
            decode->takes(d.k_dtype, rows, d.dim_qk, d.dim_v))
            return decode;
    return nullptr;
}
bool use_matrix(const Problem& problem, const Kernels& kernels) {
    return matrix_kernels(problem, kernels, min_of(rows_together(problem), kDecodeRows));
}

DecodeScratch lay_out_scratch(const Problem& problem, const Kernels& kernels, int rows, int panel, char* memory, int64_t* bytes) {
    DecodeScratch scratch{};
    Arena arena{memory, 0};
    const auto floats = [&](int64_t count) { return arena.allocate<float>(count); };
    const auto list = [&] { return arena.allocate<const char*>(kLookupKeys + kTileKeys); };
    scratch.q = floats(panel * q_floats(problem, kernels, rows));
    scratch.factor = floats(panel * kDecodeRows);
    scratch.o = arena.allocate<float*>(panel + 1);
    for (int i = 0; i <= panel; i++) {
        float* const o = floats(rows * padded(kernels, problem.d.dim_v));
        if (memory) scratch.o[i] = o;
    }
    scratch.s = floats(2 * panel * rows * kTileKeys);
    scratch.rescale = floats(2 * panel * rows);
    scratch.addend = floats(rows * kTileKeys);
    scratch.widened = floats(kMaxChunkKeys * padded(kernels, max_of(problem.d.dim_qk, problem.d.dim_v)));
    scratch.k = list();
    scratch.v = list();
    if (use_matrix(problem, kernels)) {
        const int64_t dim = max_of(problem.d.dim_qk, problem.d.dim_v);
        scratch.matrix.converted = arena.allocate<uint16_t>(kDecodeChunkKeys * dim);
        scratch.matrix.zeros = arena.allocate<uint16_t>(dim);
        scratch.matrix.products = floats(kDecodeProducts);
        scratch.matrix.p = arena.allocate<uint16_t>(2 * kDecodeChunkKeys * kDecodeRows);
        scratch.matrix.pairs = arena.allocate<uint16_t>(4 * kTileValues);
        scratch.limbs = arena.allocate<char>(panel * limb_bytes(problem));
        scratch.has_limbs = arena.allocate<bool>(panel);
        if (memory) memset(scratch.matrix.zeros, 0, size_t(dim) * 2);
    }
    *bytes = arena.used;
    return scratch;
}

DecodeScratch lay_out_scratch(const Call& call, const Scratch& scratch) {
    int64_t bytes;
    return lay_out_scratch(*call.p, *call.k, call.decode.rows, call.decode.panel, scratch.decode_memory, &bytes);
}

// Vector pairs (kv_source.h) back to a row.
void from_vec_pairs(const Kernels& kernels, bool deinterleaved, const float* from, int64_t dim, float* to) {
    const int64_t lanes = kernels.lanes, pair = 2 * lanes;
    for (int64_t first = 0; first < dim; first += pair)
        for (int64_t x = first; x < min_of(first + pair, dim); x++)
            to[x] = from[deinterleaved ? first + (x - first) / 2 + (x & 1) * lanes : x];
}

// A sequence's own rows decide, not those of longer ones in the call.
const DecodeMatrixKernels* matrix_kernels(const Call& call, const QueryTile& tile) {
    return tile.method->matrix ? matrix_kernels(*call.p, *call.k, tile.rows) : nullptr;
}

void pack_matrix_q(const Call& call, const QueryTile& tile, int panel_index, const DecodeMatrixKernels& decode,
                   const DecodeScratch& scratch, Scratch& w) {
    const Problem& p = *call.p;
    const char* rows[kDecodeRows];
    q_pointers(call, tile, rows);
    if (tile.method->rounds_q) round_q_to_bf16(call, tile, rows, scratch.matrix.converted, w);
    const uint16_t* const* const values = reinterpret_cast<const uint16_t* const*>(rows);
    scratch.has_limbs[panel_index] = use_int8_limbs(p, decode, tile.rows) &&
                                     decode.pack_limbs(values, tile.rows, int(p.d.dim_qk), scratch.limbs + panel_index * limb_bytes(p));
    if (!scratch.has_limbs[panel_index])
        decode.pack_q(values, tile.rows, p.d.k_dtype, int(p.d.dim_qk), reinterpret_cast<uint16_t*>(tile.q));
    for (int r = 0; r < tile.rows; r++)
        scratch.factor[panel_index * kDecodeRows + r] = q_factor(call, tile, tile.position(r, p.group), tile.head(r, p.group));
}

void pack_decode_q(const Call& call, QueryTile& tile, int panel_index, Scratch& w) {
    const Problem& p = *call.p;
    const int64_t stride = padded(*call.k, p.d.dim_qk);
    const DecodeScratch scratch = lay_out_scratch(call, w);
    tile.q = scratch.q + panel_index * q_floats(p, *call.k, call.decode.rows);
    tile.width = tile.rows;
    if (const DecodeMatrixKernels* const decode = matrix_kernels(call, tile))
        return pack_matrix_q(call, tile, panel_index, *decode, scratch, w);
    for (int first = 0, block; first < tile.rows; first += block) {
        block = decode_block_rows(tile.rows - first, call.k->lanes);
        for (int r = 0; r < block; r++) {
            const float factor = load_q(call, tile, tile.position(first + r, p.group), tile.head(first + r, p.group), w.line);
            for (int64_t x = 0; x < p.d.dim_qk; x++) w.line[x] *= factor;
            to_vec_pairs(*call.k, decode_kernels(*call.k, p.d.k_dtype).deinterleaved, w.line, p.d.dim_qk,
                         tile.q + first * stride + r * 2 * call.k->lanes, block * 2 * call.k->lanes);
        }
    }
}

void scale_columns(float* s, int rows, int keys, const float* factors) {
    for (int r = 0; r < rows; r++, s += kTileKeys)
        for (int j = 0; j < keys; j++) s[j] *= factors[j];
}

// Masks what each row does not see, and what lies outside the block's keys. `common`: keys that all rows see.
void mask_keys(const Call& call, const QueryTile& tile, const KeyBand& common, int64_t key, int to, float* s) {
    if (common.begin <= key && key + kTileKeys <= common.end) return;
    for (int r = 0; r < tile.rows; r++, s += kTileKeys) {
        const KeyBand band = key_band(tile.rule, tile.position(r, call.p->group), tile.seq.k_len);
        const int64_t end = max_of(min_of(band.end - key, to), 0), begin = min_of(max_of(band.begin - key, 0), end);
        for (int64_t j = 0; j < begin; j++) s[j] = kNegInf;
        for (int64_t j = end; j < kTileKeys; j++) s[j] = kNegInf;
    }
}

// Turns scores of the block at `key`, once multiplied by `factor`, into P. kept: the keys of each row, where masks are data; else NULL.
void softmax_block(const Call& call, const QueryTile& tile, const KeyBand& common, int64_t key, int to, const uint64_t* kept, float factor,
                   PartialState& state, float* s, float* rescale, const DecodeScratch& scratch) {
    if (factor != 1.f) call.k->scale_scores(s, factor, tile.rows * kTileKeys);
    if (call.factor.product != 1.f) call.k->scale_scores(s, call.factor.product, tile.rows * kTileKeys);
    const bool addend = call.p->has(FA_OPERAND_BIAS | FA_OPERAND_ALIBI);
    if (addend && kept) gather_kept_addend(call, tile, key, kept, scratch.addend);
    else if (addend) build_addend(call, tile, key, to, 1, kTileKeys, scratch.addend);
    if (call.has_score_mod) call.k->score_mod(s, addend ? scratch.addend : nullptr, call.p->d.softcap, tile.rows * kTileKeys);
    if (!kept) mask_keys(call, tile, common, key, to, s);
    for (int r = 0; kept && r < tile.rows; r++)
        if (kept[r] != ~uint64_t(0)) call.k->mask_word(s + r * kTileKeys, kept[r]);
    call.k->decode_online_softmax(s, tile.rows, state.m, state.l, rescale);
    if (call.has_dropout) apply_dropout(call, tile, key, to, 1, kTileKeys, s);
}

// A block of keys that some row sees.
struct VisitedBlock {
    int64_t key;
    uint64_t read;             // the keys whose rows are read: those alone are in the lists of addresses, one behind the other
    int first;                 // where they begin there
    uint64_t kept[kMaxPanel];  // keys that some row of the tile sees, where masks are data
};
constexpr int kKnownBlocks = 8;  // at least those of a list of addresses, the one behind it and the one before
static_assert(kKnownBlocks >= kLookupKeys / kTileKeys + 2, "v follows k a block behind");

// The state of a panel of tiles during its mainloop over the keys of a split. Blocks of keys are visited in order, and numbered so.
struct DecodePanel {
    const Call* c;
    const QueryTile* tiles;
    int count;
    PartialState* states;
    KvSource k, v;
    KeyBand visible[kMaxPanel], common[kMaxPanel];  // keys that any row sees, and that all rows do
    int chunk_keys;
    int far_chunks, far_tiles;  // chunks of keys, and tiles, to what is prefetched for the second-level cache
    int64_t begin, next, end;   // of the split; where blocks are still to be looked for; of the keys that rows see
    bool masked;                // rows have keys of their own, by masks that are data
    bool shared_masks;          // the same in all tiles
    bool single_keys;           // of a chunk, keys that no row sees are left out
    int64_t found;              // blocks, so far
    VisitedBlock blocks[kKnownBlocks];
    uint64_t kept[kKnownBlocks][kDecodeRows];  // keys of each row, where these are alike
    DecodeScratch scratch;
    const DecodeMatrixKernels* matrix;  // NULL: vectors
    mutable bool limbs;                 // tile registers are configured for products of integers
    int rows;                           // there is room for in a tile
    const VisitedBlock& block(int64_t n) const { return blocks[uint64_t(n) % kKnownBlocks]; }
    int from(int i, const VisitedBlock& block) const { return int(max_of(visible[i].begin - block.key, 0)); }
    int to(int i, const VisitedBlock& block) const { return int(min_of(visible[i].end - block.key, kTileKeys)); }
    bool sees(int i, const VisitedBlock& block) const { return masked ? block.kept[i] != 0 : from(i, block) < to(i, block); }
    // S and P of one block lie beside those of the next (two stages).
    float* s(int i, int64_t n) const { return scratch.s + buffer_index(i, n) * kTileKeys; }
    float* rescale(int i, int64_t n) const { return scratch.rescale + buffer_index(i, n); }
    int64_t buffer_index(int i, int64_t n) const { return ((n & 1 ? c->decode.panel : 0) + i) * rows; }
    float*& o(int i) const { return scratch.o[i]; }
    float*& spare() const { return scratch.o[count]; }
};

bool has_gaps(uint64_t read) { return (read & (read + 1)) != 0; }
// The baseline of x86-64 counts bits by a call, which each chunk of a plain cache would feel: few words have gaps.
int count_bits(uint64_t read) {
    if (has_gaps(read)) return __builtin_popcountll(read);
    return read == ~uint64_t(0) ? 64 : __builtin_ctzll(read + 1);
}

// Which keys of the block at `key` rows see, and which are read; false: none.
bool find_kept_keys(DecodePanel& panel, int64_t key) {
    VisitedBlock& b = panel.blocks[panel.found % kKnownBlocks];
    uint64_t any = 0, words[kDecodeRows], *const shared = panel.kept[panel.found % kKnownBlocks];
    const uint64_t within = low_bits(int(min_of(kTileKeys, panel.end - key)));
    for (int i = 0; i < panel.count; i++) {
        if (i > 0 && panel.shared_masks) b.kept[i] = b.kept[0];
        else b.kept[i] = kept_words(*panel.c, panel.tiles[i], key, within, panel.shared_masks ? shared : words);
        any |= b.kept[i];
    }
    b.read = any;
    if (panel.single_keys || any == 0) return any != 0;
    // Whole chunks, the first of them always: some kernels round what they rescale and what they add together, so that a row's bits would
    // depend on which chunk did both.
    b.read = 0;
    for (int first = 0; first < kTileKeys; first += panel.chunk_keys) {
        const uint64_t chunk = low_bits(panel.chunk_keys) << first;
        if (first == 0 || (any & chunk) != 0) b.read |= chunk & within;
    }
    return true;
}

// Looks for blocks until so many are known.
void find_blocks(DecodePanel& panel, int64_t enough) {
    while (panel.found < enough && panel.next < panel.end) {
        const int64_t key =
            has_gaps(*panel.c) ? next_visible_block(*panel.c, panel.tiles, panel.count, panel.begin, panel.next) : panel.next;
        panel.next = min_of(key, panel.end) + kTileKeys;
        if (key >= panel.end || (panel.masked && !find_kept_keys(panel, key))) continue;
        VisitedBlock& b = panel.blocks[panel.found++ % kKnownBlocks];
        b.key = key;
        if (!panel.masked) b.read = ~uint64_t(0);
    }
}

// Addresses for the keys of a list's blocks from number n on, and of the block behind them; then the last one stands for more.
void look_up_blocks(DecodePanel& panel, int64_t n, const KvSource& source) {
    int at = 0;
    for (int i = 0; i <= kLookupKeys / kTileKeys && n + i < panel.found; i++) {
        VisitedBlock& b = panel.blocks[(n + i) % kKnownBlocks];
        if (i < kLookupKeys / kTileKeys) b.first = at;
        at += look_up_rows(*panel.c, panel.tiles[0], b.key, panel.end, b.read, source, at);
    }
    for (int j = at; j < min_of(at + kTileKeys + kMaxChunkKeys, kLookupKeys + kTileKeys); j++) source.rows[j] = source.rows[at - 1];
}

// The keys of a chunk that are read, counted from its first; all where only bands mask.
uint64_t read_keys(const DecodePanel& panel, const VisitedBlock& block, int first) {
    return block.read >> first & low_bits(panel.chunk_keys);
}

// From the columns of P or of scores that are read, one behind the other, to those of a chunk's keys, and back.
void spread_keys(float* s, int rows, uint64_t read) {
    for (int r = 0; r < rows; r++, s += kTileKeys) {
        int from = count_bits(read);
        for (uint64_t rest = read; rest;) {
            const int to = 63 - __builtin_clzll(rest);
            s[to] = s[--from];
            rest &= ~(uint64_t(1) << to);
        }
    }
}
void gather_keys(float* p, int rows, uint64_t read) {
    for (int r = 0; r < rows; r++, p += kTileKeys) {
        int to = 0;
        for (uint64_t rest = read; rest; rest &= rest - 1) p[to++] = p[__builtin_ctzll(rest)];
    }
}

// A tile's rows of a chunk's keys from `skip` on, and those to prefetch: the next tile's, or the first one's next chunk.
KvRows kv_rows(const DecodePanel& panel, const KvSource& source, int i, const VisitedBlock& block, int first, int skip) {
    const char* const* const rows = source.rows + block.first + count_bits(block.read & low_bits(first)) + skip;
    const bool last = i + 1 == panel.count;
    int far = i + panel.far_tiles, chunks = panel.far_chunks;
    if (far >= panel.count) far -= panel.count, chunks++;
    return {.row = rows,
            .offset = source.head[i].offset,
            .next_row = last ? rows + count_bits(read_keys(panel, block, first)) : rows,
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

// Scores of a tile and chunk [first, first + panel.chunk_keys) of block n: all of it, softmax_block() masks what lies outside the band.
void qk_tile_chunk(const DecodePanel& panel, int i, int64_t n, const VisitedBlock& block, int first, Scratch& scratch) {
    const Call& c = *panel.c;
    const QueryTile& t = panel.tiles[i];
    if (!panel.sees(i, block)) return;
    const uint64_t read = read_keys(panel, block, first);
    const int keys = panel.masked ? count_bits(read) : int(min_of(panel.to(i, block) - first, panel.chunk_keys));
    if (keys <= 0 || (!panel.masked && panel.from(i, block) >= first + panel.chunk_keys)) return;
    const KvRows rows = kv_rows(panel, panel.k, i, block, first, 0);
    float* s = panel.s(i, n) + first;
    if (panel.matrix) return qk_chunk_matrix(panel, i, {c.p->d.k_dtype, panel.scratch.has_limbs[i], rows, keys}, s);
    if (panel.k.head[i].in_place) {
        panel.k.kernels->qk(t.q, t.rows, rows, keys, panel.k.dim, s);
        if (panel.masked && has_gaps(read)) spread_keys(s, t.rows, read);
        return;
    }
    ChunkOperands chunk;
    locate_chunk(c, t, panel.k, panel.k.head[i], rows, block.key + first, keys, panel.scratch.widened, chunk, scratch);
    chunk.kernels->qk(t.q, t.rows, chunk.rows, keys, chunk.dim, s);
    if (chunk.scaled) scale_columns(s, t.rows, keys, chunk.factors);
}

// A tile's softmax follows its last scores at once: the softmax of all tiles together would keep memory idle for too long.
void qk_chunk(const DecodePanel& panel, int64_t n, int first, Scratch& scratch) {
    const VisitedBlock& b = panel.block(n);
    for (int i = 0; i < panel.count; i++) {
        qk_tile_chunk(panel, i, n, b, first, scratch);
        if (first + panel.chunk_keys < kTileKeys || !panel.sees(i, b)) continue;
        const int64_t key = b.key;
        uint64_t words[kDecodeRows];
        const uint64_t* kept = !panel.masked ? nullptr : panel.shared_masks ? panel.kept[n % kKnownBlocks] : words;
        if (kept == words) kept_words(*panel.c, panel.tiles[i], key, low_bits(int(min_of(kTileKeys, panel.end - key))), words);
        softmax_block(*panel.c, panel.tiles[i], panel.common[i], key, panel.to(i, b), kept, panel.matrix ? 1.f : panel.k.head[i].factor,
                      panel.states[i], panel.s(i, n), panel.rescale(i, n), panel.scratch);
    }
}

void pv_chunk(const DecodePanel& panel, int64_t n, int first, Scratch& scratch) {
    const VisitedBlock& b = panel.block(n);
    const Call& c = *panel.c;
    static const float ones[kDecodeRows] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint64_t read = read_keys(panel, b, first);
    for (int i = 0; i < panel.count; i++) {
        const QueryTile& t = panel.tiles[i];
        if (!panel.sees(i, b)) continue;
        const int from = panel.masked ? first : int(max_of(panel.from(i, b), first));
        const int keys = panel.masked ? count_bits(read) : int(min_of(panel.to(i, b), first + panel.chunk_keys)) - from;
        // Of a block that masks leave, the first chunk rescales what there is, even where it adds nothing.
        const bool already_rescaled = first > 0 && (panel.masked || panel.from(i, b) < first);
        if (keys <= 0 && (!panel.masked || already_rescaled)) continue;
        const KvRows rows = kv_rows(panel, panel.v, i, b, first, from - first);
        float *const p = panel.s(i, n) + from, *const o = panel.o(i);
        const float* const rescale = already_rescaled ? ones : panel.rescale(i, n);
        if (panel.matrix) {
            const DecodeChunk chunk{c.p->d.k_dtype, false, rows, keys};
            panel.o(i) = panel.matrix->pv(p, t.rows, chunk, panel.v.dim, already_rescaled ? nullptr : rescale, panel.scratch.matrix, o,
                                          panel.spare());
            if (panel.o(i) != o) panel.spare() = o;
            continue;
        }
        if (panel.v.head[i].in_place) {
            if (panel.masked && has_gaps(read)) gather_keys(p, t.rows, read);
            panel.v.kernels->pv(p, t.rows, rows, keys, panel.v.dim, rescale, o);
            continue;
        }
        ChunkOperands chunk;
        locate_chunk(c, t, panel.v, panel.v.head[i], rows, b.key + from, keys, panel.scratch.widened, chunk, scratch);
        if (chunk.scaled) scale_columns(p, t.rows, keys, chunk.factors);
        chunk.kernels->pv(p, t.rows, chunk.rows, keys, chunk.dim, rescale, o);
    }
}

// Of a block that masks leave few keys, rows lie too far apart for hardware prefetchers, and are too few to wait for one chunk at a time.
void prefetch_block(const DecodePanel& panel, const KvSource& source, int64_t n, int64_t bytes) {
    if (!panel.single_keys || n + 1 >= panel.found || panel.block(n + 1).read == ~uint64_t(0)) return;
    const VisitedBlock& b = panel.block(n);
    const char* const* const rows = source.rows + b.first + count_bits(b.read);
    const int keys = count_bits(panel.block(n + 1).read);
    for (int i = 0; i < panel.count; i++)
        for (int j = 0; j < keys; j++) prefetch_bytes(rows[j] + source.head[i].offset, bytes);
}

// Software pipeline of two blocks: scores of block n, each chunk before P V of the same chunk of the block before it, so that k and v
// are read at one steady pace.
void process_block(const DecodePanel& panel, int64_t n, Scratch& scratch) {
    const Problem& p = *panel.c->p;
    if (panel.masked && n < panel.found) prefetch_block(panel, panel.k, n, row_bytes(p.d.k_dtype, p.k_dims()));
    if (panel.masked && n > 0) prefetch_block(panel, panel.v, n - 1, row_bytes(p.d.v_dtype, p.v_dims()));
    for (int first = 0; first < kTileKeys; first += panel.chunk_keys) {
        if (n < panel.found) qk_chunk(panel, n, first, scratch);
        if (n > 0) pv_chunk(panel, n - 1, first, scratch);
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

// Have all tiles the same masks, for rows in the same order?
bool share_masks(const Call& call, const QueryTile* tiles, int count) {
    for (int i = 1; i < count; i++)
        if (tiles[i].batch != tiles[0].batch || tiles[i].first != tiles[0].first || tiles[i].rows != tiles[0].rows) return false;
    return heads_share_masks(call);
}
// Can the kernels of vectors read single keys of all heads?
bool reads_in_place(const KvSource& source, int count) {
    for (int i = 0; i < count; i++)
        if (!source.head[i].in_place) return false;
    return true;
}

void decode_mainloop(const Call& call, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState* states,
                     Scratch& scratch) {
    const Problem& p = *call.p;
    DecodePanel panel{};
    panel.c = &call;
    panel.tiles = tiles;
    panel.count = count;
    panel.states = states;
    panel.matrix = matrix_kernels(call, tiles[0]);
    panel.scratch = lay_out_scratch(call, scratch);
    panel.limbs = panel.matrix && panel.scratch.has_limbs[0];
    const int64_t bytes = row_bytes(p.d.k_dtype, p.k_dims());
    panel.chunk_keys = panel.matrix ? max_of(panel.matrix->min_chunk_keys(tiles[0].rows), chunk_keys(bytes)) : chunk_keys(bytes);
    const int64_t far_bytes = panel.matrix ? panel.matrix->far_bytes : kFarBytes;
    const int64_t far = min_of(far_bytes / (panel.chunk_keys * bytes) + 1, kTileKeys / panel.chunk_keys * count);
    panel.far_chunks = int(far / count);
    panel.far_tiles = int(far % count);
    panel.rows = call.decode.rows;
    const KeyBand range = visible_range(call, tiles, count, begin, end, panel.visible);
    if (range.begin >= range.end) return;
    panel.k = make_source(call, KvOperand::k, tiles, count, range.begin, panel.matrix != nullptr, panel.scratch.k);
    panel.v = make_source(call, KvOperand::v, tiles, count, range.begin, panel.matrix != nullptr, panel.scratch.v);
    const int64_t stride = padded(*call.k, p.d.dim_v);
    for (int i = 0; i < count; i++) {
        panel.common[i] = common_keys(call, tiles[i], begin, end);
        memset(panel.o(i), 0, size_t(tiles[i].rows * stride) * sizeof(float));
    }
    // Blocks start at fixed distances from the split's begin, whatever the band: a row's bits then do not depend on its neighbours.
    panel.begin = begin;
    panel.next = begin + (range.begin - begin) / kTileKeys * kTileKeys;
    panel.end = range.end;
    panel.masked = has_gaps(call) || p.has(FA_OPERAND_MASK | FA_OPERAND_BIAS);
    panel.shared_masks = panel.masked && share_masks(call, tiles, count);
    panel.single_keys = !panel.matrix && reads_in_place(panel.k, count) && reads_in_place(panel.v, count);
    CallersTiles callers;
    if (panel.matrix && panel.matrix->acquire) panel.matrix->acquire(&callers);
    if (panel.matrix) configure(*panel.matrix, tiles[0].rows, panel.limbs);
    constexpr int64_t kLookup = kLookupKeys / kTileKeys;
    for (int64_t n = 0; n == 0 || n <= panel.found; n++) {
        if (n % kLookup == 0) find_blocks(panel, n + kLookup + 1);
        if (n % kLookup == 0 && n < panel.found) look_up_blocks(panel, n, panel.k);
        if (n % kLookup == 1) look_up_blocks(panel, n - 1, panel.v);
        process_block(panel, n, scratch);
    }
    if (panel.matrix && panel.matrix->release) panel.matrix->release(callers);
    for (int i = 0; i < count; i++) write_acc(panel, i, states[i]);
}

}  // namespace

bool decode_method(const Problem& problem, const Kernels& kernels, Method* method) {
    if (!problem.within(kDecode)) return false;
    const int64_t rows = min_of(max_of(rows_together(problem), 1), kDecodeRows);
    const bool neighbours = problem.d.k_stride[2] < problem.d.k_stride[1] && problem.d.v_stride[2] < problem.d.v_stride[1];
    const int64_t fit =
        kPanelBytes / (kTileKeys * (row_bytes(problem.d.k_dtype, problem.k_dims()) + row_bytes(problem.d.v_dtype, problem.v_dims())));
    // A sequence among longer ones has its rows in the tiles of their method, which may be smaller: several tiles, but of one head.
    const int64_t panel = panel_of_slots(problem, true, neighbours ? min_of(max_of(min_of(fit, problem.kv_heads), 2), kMaxPanelHeads) : 2);
    int64_t scratch;
    lay_out_scratch(problem, kernels, int(rows), int(panel), nullptr, &scratch);
    const DecodeMatrixKernels* const matrix = matrix_kernels(problem, kernels, rows);
    *method = {.name = "decode",
               .rows = int(rows),
               .panel = int(panel),
               .panel_of_heads = true,
               .method_bytes = scratch,
               .o_row_major = true,
               .pack_q = pack_decode_q,
               .mainloop = decode_mainloop,
               .matrix = matrix != nullptr,
               .rounds_q = matrix && rounds_q_to_bf16(problem.d),
               .rounds_to_8_bits = matrix && matrix->rounds_to_8_bits};
    return true;
}

}  // namespace cpu
}  // namespace fa
