// Do tensors share memory? Only a proof counts: interleaved slices of one buffer are apart although their byte ranges meet.
#pragma once
#include "core/tensor.h"

namespace fa {

// Have two elements of the tensor the same address?
bool overlaps_itself(const Tensor&);
// Elements that a stride of 0 lets share memory on purpose, as sums, once each.
Tensor of_sums(Tensor);
// The rule for outputs.
fa_status_t check_distinct(const Tensor&, Message*);

// Have two elements, one of each, a byte in common? Both must lie within the address space (see Call).
bool overlap(const Tensor&, const Tensor&);

}  // namespace fa
