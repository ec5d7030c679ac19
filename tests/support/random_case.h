// Any call that has a meaning, from one number.
#pragma once
#include "support/backward_case.h"

namespace test {

// Small on purpose: about a millisecond of work, so that many can be tried.
Case random_case(uint64_t seed);
// One that has gradients: f32, f16 and bf16 without factors, no cache, an LSE, no scores, the flash algorithm.
Case random_differentiable_case(uint64_t seed);
// The same in f32 alone, and tiny: every single element can be moved to see what it does.
Case random_tiny_case(uint64_t seed);

// Which gradients, where they lie, and whether they are added to what is there. Before the backward is bound.
void choose_gradients(Rng& rng, BackwardCase& backward);

// Strides for a tensor of count[0 … axes) elements: axes nested in a random order with random padding. innermost: elements that
// the innermost nesting must leave room for (a row of a head). A dimension that nobody steps along may have any stride, however large.
void random_strides(Rng& rng, int axes, const int64_t* count, int64_t innermost, int64_t* stride);

}  // namespace test
