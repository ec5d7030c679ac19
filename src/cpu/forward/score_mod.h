// What is added to scores.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// Whether ALiBi needs no addend: where it can be added right behind the product.
bool alibi_by_lanes(const Problem& p);
void add_alibi(const Call& c, const QueryTile& t, int64_t key, int keys, float* s);
// Gathers w.addend, before the scores: w.s is its buffer meanwhile.
enum class AddendKind { none, some, nothing_kept };
AddendKind gather_addend(const Call& c, const QueryTile& t, TileClass kind, int64_t key, int keys, Scratch& w);

}  // namespace cpu
}  // namespace fa
