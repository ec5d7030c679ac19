// One backward call on the CPU (BackwardCall), and the tile of query rows that a worker holds in it (BackwardScratch). Scores come
// from the forward's own tiles (driver/call.h).
//
// Products with rows of q and dout need these by columns, lanes being rows, as the forward does; those that sum over rows need them
// by rows, in panels of columns that fit the kernels' register blocks.
#pragma once
#include "cpu/driver/call.h"
#include "cpu/forward/tile.h"
#include "cpu/kernels/matrix_table.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {

struct BackwardCall {
    Call c;  // the forward's part, whose f32 tiles give the scores
    fa_forward_args_t inputs;
    const fa_backward_args_t* a;
    int block_keys;  // of the block whose dk and dv a worker holds
    bool matrix;     // products of bf16 tiles of P and dS; tiles then have all kMaxRows lanes
};

bool use_matrix_backward(const Problem& problem, const Kernels& kernels);
// The shape as which matrix_table.h packs rows of so many dims.
MatrixShape operand_shape(int64_t dim);

// Accumulators of dq of all query tiles, [tile][dim_qk][width]. A tile's are zeroed when they are first needed: in the cache, and
// not for tiles that see no key.
struct DqAcc {
    float* acc;
    bool* initialized;
    int64_t floats;  // of a tile
    float* tile(int64_t n) const {
        float* const to = acc + n * floats;
        if (!initialized[n]) memset(to, 0, size_t(floats) * sizeof(float));
        initialized[n] = true;
        return to;
    }
};

// Operands of the matrix products: of a block's keys, by steps of kKeyBlock; of a panel's rows, tile by tile; and of their P and
// dS, 64 × 64 tiles by [step][tile].
constexpr int kBackwardPanel = 4;
struct MatrixOperands {
    uint16_t *k, *v, *k_transposed;  // left operands of S and dP; of dq
    uint16_t *q, *dout;              // right operands of these
    uint16_t *q_rows, *dout_rows;    // right operands of dk and dv
    uint16_t *p, *ds, *ds_pairs;     // left operands of dv and dk, right operand of dq
    uint16_t* packed;                // k before it is transposed
};

// A matrix of `rows` rows in panels of so many columns, [panel][rows][width].
struct PanelLayout {
    int64_t columns, rows;
    int lanes, widest;  // floats of a vector and of a full panel
    int64_t width(int64_t column) const { return min_of(round_up(columns - column, lanes), widest); }
    int vectors(int64_t column) const { return int(width(column) / lanes); }
    int64_t size() const { return round_up(columns, lanes) * rows; }
    float* at(float* base, int64_t column, int64_t row) const { return base + column * rows + row * width(column); }
    void put_row(float* base, int64_t row, const float* line) const;
    void get_row(float* base, int64_t row, float* line) const;
};

// The tile's rows of q and dout, and buffers for its P and dS beside the forward's scratch.
struct BackwardScratch {
    Scratch w;
    float* lines;               // [kMaxRows][the larger dim]
    float* dout;                // [dim_v][width], as t.q is [dim_qk][width]
    float *q_rows, *dout_rows;  // panels
    float *dp, *slope;          // [kTileKeys][width]
    float *lse, *delta;         // [width], of a panel [tile][width]: LSE in log2 units, +inf in lanes without keys; Δ − dlse
    float *k, *v;               // the block's keys, where they are not read in place
    float *dk, *dv;             // the block's, in panels
    MatrixOperands matrix;
    float* dq;  // DqAcc, where an item has its own
    bool* initialized;
    float* row_delta;   // Δ − dlse of all rows of the sequence and kv head, group-major
    float* item_delta;  // a buffer for these, where they are not shared
};

PanelLayout query_panels(const BackwardCall& backward, int64_t columns);
PanelLayout key_panels(const BackwardCall& backward, int64_t columns);

// Floats of dq's accumulators of a query tile, [dim_qk][width].
int64_t dq_floats(const BackwardCall& backward);
// init_tile() of the forward, at the width that the products want.
bool init_rows(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t block, QueryTile* tile);

// backward/backward_matrix.cc: tiles by matrix instructions.
void lay_out_operands(const Problem& problem, int block_keys, MatrixOperands* operands, Arena& arena);
void pack_rows(const BackwardCall& backward, const QueryTile& tile, BackwardScratch& scratch);
// All query tiles against a block of keys: adds to dk and dv of the block and to dq of the tiles.
void backward_block_matrix(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t key, int keys, const DqAcc& dq,
                           BackwardScratch& scratch);

// backward/backward_rows.cc: rows in and out.
// Whether the row's gradients are 0: no key, or no row of the forward's.
static inline bool has_no_keys(float lse) { return from_lse(lse).l == 0.f; }
// Δ − dlse of one row; two lines of scratch.
float row_delta(const BackwardCall& backward, const Sequence& sequence, int64_t batch, int64_t position, int64_t head, float* lines);
// Of rows [begin, end) of a sequence and kv head, group-major.
void compute_deltas(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t begin, int64_t end, float* deltas,
                    BackwardScratch& scratch);
// Loads the tile's q, dout, lse and delta.
void load_rows(const BackwardCall& backward, QueryTile& tile, BackwardScratch& scratch);
// dq of the tile's rows from its accumulators; of those beyond the sequence's length in this block.
void write_dq(const BackwardCall& backward, const QueryTile& tile, float* acc, BackwardScratch& scratch);
void write_dq_padding(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t block, BackwardScratch& scratch);
// dk and dv of keys [key, key + keys) from the block's panels; of slots beyond the sequence's keys.
void write_dkv(const BackwardCall& backward, const QueryTile& tile, int64_t key, int keys, BackwardScratch& scratch);
void write_dkv_padding(const BackwardCall& backward, int64_t batch, int64_t kv_head, BackwardScratch& scratch);
// dsinks of one head, summed over all rows of all sequences.
void write_dsink(const BackwardCall& backward, int64_t head, BackwardScratch& scratch);

// backward/backward_tile.cc: one f32 tile of P and dS.
// P (dropout applied) into scratch.w.s and dS, times the softcap's slope if wanted, into scratch.dp; false when no key is kept.
bool softmax_backward_tile(const BackwardCall& backward, const QueryTile& tile, KeyBlock& block, int64_t key, int keys, bool through_cap,
                           BackwardScratch& scratch);
// Adds the tile's products to dk and dv of the block, and to dq.
void accumulate_dqkv(const BackwardCall& backward, const QueryTile& tile, const KeyBlock& block, int64_t key, int keys, float* dq,
                     BackwardScratch& scratch);

// backward/backward_dbias.cc: dbias, in blocks that share no element.
int64_t dbias_blocks(const BackwardCall& backward);
void write_dbias(const BackwardCall& backward, int64_t block, BackwardScratch& scratch);

}  // namespace cpu
}  // namespace fa
