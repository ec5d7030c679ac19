// De-scale factors of q, k and v of 8 bits that change along rows or keys, as the forward reads them: a table, 16 keys at a time.
// prepare_factors.h makes it, score_mod.h reads it.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

struct BlockFactors {
    static constexpr int kKeys = 16;
    float2* kv;     // of k and of v: [sequences of k][heads of k][groups of 16 keys]
    float* v_unit;  // the largest of v's: [sequences of k][heads of k], 0 before. P times v's factor stays in P's range in units of it
    float* q;       // [sequences of q][heads of q][rows of q's tensor]
    int groups, rows, heads_k, heads_q;  // groups: of whole blocks of keys
};

}  // namespace gpu
}  // namespace fa
