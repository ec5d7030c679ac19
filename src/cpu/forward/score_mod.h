// What is added to scores.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// The bias of `count` keys, from its element `first` on, times the head's factor. first: bias_row() and the key's stride.
void read_bias(const Call& call, int64_t head, int64_t first, int count, float* to);
// Whether ALiBi needs no addend: where it can be added right behind the product.
bool alibi_by_lanes(const Problem& problem);
void add_alibi(const Call& call, const QueryTile& tile, int64_t key, int keys, float* s);
// Gathers w.addend, before the scores: w.s is its buffer meanwhile.
enum class AddendKind { none, some, nothing_kept };
AddendKind gather_addend(const Call& call, const QueryTile& tile, TileClass kind, int64_t key, int keys, Scratch& scratch);

}  // namespace cpu
}  // namespace fa
