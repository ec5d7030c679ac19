// The query side of a tile: its rows of q, the states of its rows, and its rows of o and LSE.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// Initialises the tile of rows [block · block_rows, …); false when the block holds no valid row.
bool init_tile(const Call& call, int64_t batch, int64_t kv_head, int64_t block, QueryTile* tile);
// Makes the slots that its list names the tile's keys, but for entries of −1. of: a tile that has the same list; NULL: it is not known yet.
void list_slots(const Call& call, QueryTile& tile, const QueryTile* of, Scratch& scratch);
// A row's values by their factors and shifts, of which `index` is the first.
void apply_factors(const Factors& factors, int64_t index, int64_t dims, float* line);
// What a row of a plain q (Problem) is to be multiplied by.
float q_factor(const Call& call, const QueryTile& tile, int64_t position, int64_t head);
// Converts a row to f32 in `line`, and returns what it is to be multiplied by still.
float load_q(const Call& call, const QueryTile& tile, int64_t position, int64_t head, float* line);
// Transposes the tile's rows of q, scaled, into buffer `panel_index` of scratch.q.
void pack_q(const Call& call, QueryTile& tile, int panel_index, Scratch& scratch);
void init_state(const QueryTile& tile, int64_t dim_v, PartialState& state);
// Merges `part` into `into`, as the specification merges states, for every row of the tile.
void merge_states(const Call& call, const QueryTile& tile, const PartialState& part, PartialState& into);
// Adds the sink, writes o and LSE, and leaves each row's final state in state.m and state.l (true units).
void write_rows(const Call& call, const QueryTile& tile, PartialState& state, Scratch& scratch);
// o = 0, LSE = −inf for the rows of a padded q that lie beyond the sequence's length in this block.
void write_padding(const Call& call, int64_t batch, int64_t kv_head, int64_t block, Scratch& scratch);

// Addresses of the tile's rows of q and of o in memory.
void q_pointers(const Call& call, const QueryTile& tile, const char** rows);
// Does the call permit products of bf16 in place of those of a finer q?
bool rounds_q_to_bf16(const fa_attention_desc_t& desc);
// Rows of a finer q to [row][dim_qk] of bf16, to which the pointers lead then. What is finite stays so.
void round_q_to_bf16(const Call& call, const QueryTile& tile, const char** rows, uint16_t* to, Scratch& scratch);
void o_pointers(const Call& call, const QueryTile& tile, char** rows);

}  // namespace cpu
}  // namespace fa
