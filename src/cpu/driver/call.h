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
    RowCursor(const QueryTile& tile, int64_t group_) : position(tile.first / group_), group_head(tile.first % group_), group(group_) {}
    void next() {
        if (++group_head < group) return;
        group_head = 0;
        position++;
    }
};

static inline float bias_value(const Problem& problem, const void* bias, int64_t index) {
    switch (problem.d.bias_dtype) {
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
int64_t scratch_bytes(const Problem& problem, const Method& method, const Method& decode);
int64_t state_bytes(const Problem& problem, const Method& method);
Scratch locate_scratch(const Problem& problem, const Method& method, const Method& decode, char* memory);
PartialState locate_state(const Problem& problem, const Method& method, char* memory);

// What a plan keeps of a Call, and that with the args.
Call plan_call(const Problem& problem, const Kernels& kernels, const Method& method, const Method& decode, bool count);
Call make_call(const Call& planned, const Problem& problem, const fa_forward_args_t& args);

// A factor of products that is beyond f32 becomes NaN: as −∞ they would be removed keys.
static inline float finite_or_nan(float factor) { return fabsf(factor) <= kMaxBaseE ? factor : __builtin_nanf(""); }

// How many tiles may be run together because they have the same keys, of `most`.
static inline int64_t panel_of_slots(const Problem& problem, bool of_heads, int64_t most) {
    return problem.slots() && !(of_heads && problem.d.list_heads == 1) ? 1 : most;
}

}  // namespace cpu
}  // namespace fa
