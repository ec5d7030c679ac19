// One forward call on the CPU: what stays fixed during it (Call), the tile of query rows that a worker holds (QueryTile), its online
// softmax state (PartialState), and the worker's scratch memory.
#pragma once
#include "backend/backend.h"
#include "backend/factors.h"
#include "backend/row_keys.h"
#include "cpu/kernels/kernel_table.h"
#include "spec/random.h"
#include "spec/shape.h"

namespace fa {
namespace cpu {

constexpr int kMaxPanel = 32;

struct Call;
struct QueryTile;
struct PartialState;
struct Scratch;

// How query rows are run against keys: the shape of a query tile and its mainloop over the keys. Chosen from the problem and the
// kernel table alone, since bits depend on it; the rest of this backend does not affect bits.
struct Method {
    const char* name = nullptr;
    int rows = 0;                 // of a full tile, at most kMaxRows
    int panel = 0;                // query tiles that a worker takes at once, to load each block of k and v once for all of them: no bits
    bool panel_of_heads = false;  // a panel is of neighbouring kv heads, whose tiles hold all their rows; else of one head's tiles
    int64_t method_bytes = 0;     // scratch of the method, for each worker
    bool o_row_major = false;     // PartialState.acc is [row][dim_v], not [dim_v][width]
    // Work done once for all query tiles, before them, in so many independent items; its results are in Call.shared.
    int64_t shared_bytes = 0, prepare_count = 0;
    void (*prepare)(const Call&, int64_t index, Scratch&) = nullptr;
    // Initialises a worker's scratch of the method; NULL where nothing needs to be.
    void (*init_scratch)(const Problem&, const Kernels&, char* memory) = nullptr;
    // Gathers the tile's rows of q, scaled, into the panel's buffer `panel_index`.
    void (*pack_q)(const Call&, QueryTile&, int panel_index, Scratch&) = nullptr;
    // Runs keys [begin, end) into the initialised states of neighbouring query tiles.
    void (*mainloop)(const Call&, const QueryTile* tiles, int count, int64_t begin, int64_t end, PartialState*, Scratch&) = nullptr;
    // Where the accumulators may stay with the method: mainloop() leaves them there for a PartialState whose acc is NULL, and this
    // writes the tile's rows of o, `factor` and `scale` being those of Kernels.finish_o_row(). NULL where they may not.
    void (*write_o)(const Call&, const QueryTile&, const float* factor, float scale, char* const* to, Scratch&) = nullptr;
    double speed = 1;               // a multiple of the f32 tiles' flops by the second: about, to tell whether a call is worth a team
    bool matrix = false;            // of `decode`: by matrix instructions
    bool rounds_q = false;          // q of a finer type is rounded to bf16, as are values of block types
    bool rounds_to_8_bits = false;  // of `decode`: blocks of q and of P
};

// Work and traffic of a counted call, in units of one worker.
struct Counters {
    int64_t flops, read, written;
};

struct Call {
    const Problem* p;
    const fa_forward_args_t* a;
    SequenceTable sequences;
    MaskRule rule;  // but for the diagonal
    RowSets sets;   // ranges and lists of keys
    SlotLists slots;
    const Kernels* k;
    Method method, decode;  // `decode` for sequences with so few rows for a kv head that it streams keys; without rows: for none
    char* shared;           // what Method.prepare() left; NULL without one
    int64_t first_head;     // batch · kv_heads + kv head of what lies first there
    ScoreFactor factor;     // the scale, times log2 e without a score mod
    bool has_score_mod;     // softcap, bias, mask, ALiBi or the scores output: the product leaves scores in natural units
    bool has_addend;        // bias, mask or ALiBi
    bool has_dropout;
    Dropout dropout;
    DropoutPlace dropout_at;
    float dropout_rescale;  // 1 / (1 − p), or 1
    float o_scale;
    RowTiles tiles;
    int64_t blocks;  // of these for each batch and kv head, for the longest sequence
    bool count;
};

// Online softmax state of one query tile over some keys: l and acc are measured from m, in the units of kHeadroomUnit. States of
// different keys are merged.
struct PartialState {
    float* acc;  // [dim_v][width], or [row][dim_v]: as Method.o_row_major says; NULL: Method.write_o() has it
    float* m;    // [width]
    float* l;
};

// Query rows of one sequence and kv head, packed by GQA group: row r, group-major, is head r % group at position r / group, so that
// all query heads that share a kv head share its tiles.
struct QueryTile {
    Sequence seq;
    MaskRule rule;
    const Method* method;  // of the call, chosen by the sequence's length alone
    int64_t batch, kv_head;
    int64_t first;  // group-major index of lane 0
    int rows, vectors, width;
    int panel_index;                 // which tile of the panel
    float* q;                        // packed as the method wants it; by pack_q(): [dim_qk][width]
    const int32_t* slots = nullptr;  // of the cache, of each key; NULL: keys have positions
    int64_t position(int lane, int64_t group) const { return (first + lane) / group; }
    int64_t head(int lane, int64_t group) const { return kv_head * group + (first + lane) % group; }
};

// Iterates over the position and the head of the tile's lanes, without a division for each.
struct RowCursor {
    int64_t position, group_head, group;
    RowCursor(const QueryTile& t, int64_t group_) : position(t.first / group_), group_head(t.first % group_), group(group_) {}
    void next() {
        if (++group_head < group) return;
        group_head = 0;
        position++;
    }
};

static inline float bias_value(const Problem& p, const void* bias, int64_t index) {
    switch (p.d.bias_dtype) {
        case FA_F16: return f16_to_f32(static_cast<const uint16_t*>(bias)[index]);
        case FA_BF16: return bf16_to_f32(static_cast<const uint16_t*>(bias)[index]);
        default: return static_cast<const float*>(bias)[index];
    }
}

// Prefetches into the second-level cache, for rows so far apart that hardware prefetchers do not follow them.
static inline void prefetch_bytes(const void* from, int64_t bytes) {
    constexpr int64_t kCacheLine = 64;
    for (int64_t x = 0; x < bytes; x += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + x, 0, 2);
}

// Lays out 64-byte aligned buffers one after another; with a NULL base it only adds up their sizes.
struct Arena {
    char* base;
    int64_t used;
    template <class T>
    T* allocate(int64_t count) {
        char* p = base ? base + used : nullptr;
        used += round_up(count * int64_t(sizeof(T)), 64);
        return reinterpret_cast<T*>(p);
    }
};

// A worker's buffers in the workspace.
struct Scratch {
    float *q, *s, *addend, *k, *v, *line, *rescale;
    PartialState partial[kMaxPanel], total[kMaxPanel];  // of each tile: current split; all splits so far
    char *method_memory, *decode_memory;                // the method's, and that of decoding
    int32_t *band_begin, *band_end;
    int32_t* slots;  // of the tile that is being computed, or of a panel's, which then are the same
    Counters counters;
};

// Bytes of one Scratch, and of one stored PartialState.
int64_t scratch_bytes(const Problem& p, const Method& m, const Method& decode);
int64_t state_bytes(const Problem& p, const Method& m);
Scratch locate_scratch(const Problem& p, const Method& m, const Method& decode, char* memory);
PartialState locate_state(const Problem& p, const Method& m, char* memory);

// What a plan keeps of a Call, and that with the args.
Call plan_call(const Problem& p, const Kernels& k, const Method& m, const Method& decode, bool count);
Call make_call(const Call& planned, const Problem& p, const fa_forward_args_t& a);

// forward/q_rows.cc: the query side.
// Initialises the tile of rows [block · block_rows, …); false when the block holds no valid row.
bool init_tile(const Call& c, int64_t batch, int64_t kv_head, int64_t block, QueryTile* tile);
// Makes the slots that its list names the tile's keys, but for entries of −1. of: a tile that has the same list; NULL: it is not known yet.
void list_slots(const Call& c, QueryTile& t, const QueryTile* of, Scratch& w);
// A row's values by their factors and shifts, of which `index` is the first.
void apply_factors(const Factors& f, int64_t index, int64_t dims, float* line);
// What a row of a plain q (Problem) is to be multiplied by.
float q_factor(const Call& c, const QueryTile& t, int64_t position, int64_t head);
// Converts a row to f32 in `line`, and returns what it is to be multiplied by still.
float load_q(const Call& c, const QueryTile& t, int64_t position, int64_t head, float* line);
// Transposes the tile's rows of q, scaled, into buffer `panel_index` of w.q.
void pack_q(const Call& c, QueryTile& t, int panel_index, Scratch& w);
void init_state(const QueryTile& t, int64_t dim_v, PartialState& state);
// Merges `part` into `into`, as the specification merges states, for every row of the tile.
void merge_states(const Call& c, const QueryTile& t, const PartialState& part, PartialState& into);
// Adds the sink, writes o and LSE, and leaves each row's final state in state.m and state.l (true units).
void write_rows(const Call& c, const QueryTile& t, PartialState& state, Scratch& w);
// o = 0, LSE = −inf for the rows of a padded q that lie beyond the sequence's length in this block.
void write_padding(const Call& c, int64_t batch, int64_t kv_head, int64_t block, Scratch& w);

// Addresses of the tile's rows of q and of o in memory.
void q_pointers(const Call& c, const QueryTile& t, const char** rows);
// Does the call permit products of bf16 in place of those of a finer q?
bool rounds_q_to_bf16(const fa_attention_desc_t& d);
// Rows of a finer q to [row][dim_qk] of bf16, to which the pointers lead then. What is finite stays so.
void round_q_to_bf16(const Call& c, const QueryTile& t, const char** rows, uint16_t* to, Scratch& w);
void o_pointers(const Call& c, const QueryTile& t, char** rows);

// forward/kv_rows.cc: the key side.
enum class KvOperand { k, v };
struct KvRowsF32 {
    const float* data;  // NULL: not loaded yet
    int64_t stride;
};
// f32 rows of keys [key, key + keys): in place where memory already holds them so, else converted into `buffer`.
KvRowsF32 load_k(const Call& c, const QueryTile& t, int64_t key, int keys, float* buffer, Scratch& w);
KvRowsF32 load_v(const Call& c, const QueryTile& t, int64_t key, int keys, float* buffer, Scratch& w);

// Addresses of rows of keys [key, key + keys) as they are stored, of one of the operand's own heads; the de-scale factors of the tile's,
// where rows are plain.
void locate_kv_rows(const Call& c, const QueryTile& t, KvOperand operand, int64_t head, int64_t key, int keys, const char** rows);
void load_descales(const Call& c, const QueryTile& t, KvOperand operand, int64_t key, int keys, float* factors);

// A factor of products that is beyond f32 becomes NaN: as −∞ they would be removed keys.
static inline float finite_or_nan(float factor) { return fabsf(factor) <= kMaxBaseE ? factor : __builtin_nanf(""); }

// How many tiles may be run together because they have the same keys, of `most`.
static inline int64_t panel_of_slots(const Problem& p, bool of_heads, int64_t most) {
    return p.slots() && !(of_heads && p.d.list_heads == 1) ? 1 : most;
}

// decode/decode.cc: few query rows for a kv head; false where the call does not suit.
bool decode_method(const Problem& p, const Kernels& k, Method* m);

// matrix/forward_matrix.cc: products of tiles of 16-bit values; false where the CPU or the call does not suit.
bool matrix_method(const Problem& p, const Kernels& k, Method* m);

// forward/score_mod.cc: what is added to scores.
// Whether ALiBi needs no addend: where it can be added right behind the product.
bool alibi_by_lanes(const Problem& p);
void add_alibi(const Call& c, const QueryTile& t, int64_t key, int keys, float* s);
// Gathers w.addend, before the scores: w.s is its buffer meanwhile.
enum class AddendKind { none, some, nothing_kept };
AddendKind gather_addend(const Call& c, const QueryTile& t, TileClass kind, int64_t key, int keys, Scratch& w);

// forward/visible_keys.cc: which keys a tile of rows visits, and whether it must edit their scores, by the masks that are bands or ranges:
// what FlexAttention calls full and partial blocks.
// Keys that any row of the tile may see, within [begin, end).
KeyBand visible_keys(const Call& c, const QueryTile& t, int64_t begin, int64_t end);
// The same of each of `count` tiles, and the range that holds all of these; empty: begin >= end.
KeyBand visible_range(const Call& c, const QueryTile* tiles, int count, int64_t begin, int64_t end, KeyBand* visible);
// May a range of visible keys have gaps, in which rows see none?
static inline bool has_gaps(const Call& c) { return c.sets.any(); }
// The rows' keys [key, key + keys), kTileKeys at most.
TileClass classify(const Call& c, const QueryTile& t, int64_t key, int keys);
// Keys [key, key + kTileKeys) of one row, before boolean masks.
RowKeys visible_bits(const Call& c, const QueryTile& t, int64_t position, int64_t head, int64_t key);
// Those among `within` of all lanes, of which those without a row see no key; the tile's class.
TileClass visible_words(const Call& c, const QueryTile& t, int64_t key, uint64_t within, int lanes, uint64_t* words);
// Keys that all rows of the tile see, within [begin, end), where that can be told from the whole: none where rows have several ranges.
KeyBand common_keys(const Call& c, const QueryTile& t, int64_t begin, int64_t end);
// Where the first block of keys behind `key` lies that a row of these tiles may see: blocks are kTileKeys long and begin at `start`.
int64_t next_visible_block(const Call& c, const QueryTile* tiles, int count, int64_t start, int64_t key);
// −inf in w.s, [key][width], where a row does not see the key.
void mask_tile(const Call& c, const QueryTile& t, int64_t key, int keys, Scratch& w);

// forward/kept_keys.cc: what boolean masks and biases of −inf leave of those.
// The keys among `within` of [key, key + kTileKeys) that each row sees, and those that some row does.
uint64_t kept_words(const Call& c, const QueryTile& t, int64_t key, uint64_t within, uint64_t* words);
// Does some row see some?
bool keeps_keys(const Call& c, const QueryTile& t, int64_t key, uint64_t within);
// Do all heads of a sequence see the same keys?
bool heads_share_masks(const Call& c);
// bias − slope · |i + off − j| of the keys that each row sees, [row][kTileKeys]; of others it is finite or whatever the bias has.
void gather_kept_addend(const Call& c, const QueryTile& t, int64_t key, const uint64_t* kept, float* addend);

// forward/sparse_rows.cc: of a tile of the f32 method, rows that decoding takes in its place.
bool streams_sparse_rows(const Call& c, const QueryTile& t);
// A bit for each row that masks leave at most half of its keys.
uint64_t find_sparse_rows(const Call& c, const QueryTile& t, int64_t begin, int64_t end);
// Writes their states.
void run_sparse_rows(const Call& c, const QueryTile& t, uint64_t sparse, int64_t begin, int64_t end, PartialState& state, Scratch& w);

// forward/key_lists.cc: writes the bits of list `index` of c.sets.lists.
void expand_list(const Call& c, int64_t index);

// forward/tile.cc: f32 tiles, the method that supports everything.
Method tile_method(const Problem& p, const Kernels& k);
// A block of keys that neighbouring query tiles share; k and v are loaded when they are first needed.
struct KeyBlock {
    int64_t key;
    int keys;
    KvRowsF32 k, v;
};
// score_tile() without its product: what comes before it (false when no key is kept), and after it, from what the product, times
// c.factor, left in w.s.
struct TileScoreMod {
    TileClass kind;
    AddendKind addend;
};
bool prepare_score_mod(const Call& c, const QueryTile& t, int64_t key, int keys, Scratch& w, TileScoreMod* task);
void apply_score_mod(const Call& c, const QueryTile& t, int64_t key, int keys, const TileScoreMod& task, Scratch& w, float* slope);
// Scores in log2 units, masked, of the tile's rows against keys [key, key + keys) of the block into w.s; false when none of them is
// kept. `slope`, unless NULL, gets the softcap's derivative.
bool score_tile(const Call& c, const QueryTile& t, KeyBlock& block, int64_t key, int keys, Scratch& w, float* slope = nullptr);
// bias − slope · |i + off − j|, or −inf where the boolean mask or the band removes the key, for every row and key of the tile, so
// many elements apart.
void build_addend(const Call& c, const QueryTile& t, int64_t key, int keys, int64_t key_step, int64_t row_step, float* addend);
// Zeroes the elements of P that dropout removes, so many elements apart; [key][width].
void apply_dropout(const Call& c, const QueryTile& t, int64_t key, int keys, int64_t key_step, int64_t row_step, float* p);
void apply_dropout_tile(const Call& c, const QueryTile& t, int64_t key, int keys, float* p);
// Writes the scores output for the tile's rows; m and l in `state` are final.
void write_scores(const Call& c, const QueryTile& t, const PartialState& state, Scratch& w);

}  // namespace cpu
}  // namespace fa
