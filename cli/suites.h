// Shapes that are often asked for, by name.
#pragma once
#include <string>
#include <vector>
#include "experiment.h"
#include "load.h"

namespace tool {

extern const std::vector<std::string> kSuites;

fa_attention_desc_t describe(const std::string& dtype, const Shape& shape, int64_t keys);

// The backward of the load.
Load gradients(Load load);

// The groups of one suite; dtype: of q, and of k and v where the suite says nothing else. "": the suite's own types. A GPU gets more to
// do in a call.
std::vector<Group> groups_of(const std::string& suite, const std::string& dtype, bool gpu);

}  // namespace tool
