// f32 tiles, the method that supports everything.
#pragma once
#include "cpu/driver/call.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/score_mod.h"

namespace fa {
namespace cpu {

Method tile_method(const Problem& problem, const Kernels& kernels);
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
bool prepare_score_mod(const Call& call, const QueryTile& tile, int64_t key, int keys, Scratch& scratch, TileScoreMod* task);
void apply_score_mod(const Call& call, const QueryTile& tile, int64_t key, int keys, const TileScoreMod& task, Scratch& scratch,
                     float* slope);
// Scores in log2 units, masked, of the tile's rows against keys [key, key + keys) of the block into scratch.s; false when none of them is
// kept. `slope`, unless NULL, gets the softcap's derivative.
bool score_tile(const Call& call, const QueryTile& tile, KeyBlock& block, int64_t key, int keys, Scratch& scratch, float* slope = nullptr);
// bias − slope · |i + off − j|, or −inf where the boolean mask or the band removes the key, for every row and key of the tile, so
// many elements apart.
void build_addend(const Call& call, const QueryTile& tile, int64_t key, int keys, int64_t key_step, int64_t row_step, float* addend);
// Zeroes the elements of P that dropout removes, so many elements apart; [key][width].
void apply_dropout(const Call& call, const QueryTile& tile, int64_t key, int keys, int64_t key_step, int64_t row_step, float* p);
void apply_dropout_tile(const Call& call, const QueryTile& tile, int64_t key, int keys, float* p);
// Writes the scores output for the tile's rows; m and l in `state` are final.
void write_scores(const Call& call, const QueryTile& tile, const PartialState& state, Scratch& scratch);

}  // namespace cpu
}  // namespace fa
