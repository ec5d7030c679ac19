// Any forward call that has a meaning, from one number.
#pragma once
#include "support/case.h"

namespace test {

// Small on purpose: about a millisecond of work, so that many can be tried.
Case random_case(uint64_t seed);

// Strides for a tensor of count[0 … axes) elements: axes nested in a random order with random padding. innermost: elements that
// the innermost nesting must leave room for (a row of a head).
void random_strides(Rng& rng, int axes, const int64_t* count, int64_t innermost, int64_t* stride);

}  // namespace test
