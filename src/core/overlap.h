// Do tensors share memory? Only a proof counts: interleaved slices of one buffer are apart although their byte ranges meet.
#pragma once
#include "core/tensor.h"

namespace fa {

// Have two elements of the tensor the same address?
bool overlaps_itself(const Tensor&);
// The tensor with each element once that strides of 0 repeat, as those of dbias do on purpose.
Tensor without_repeats(Tensor);
// The rule for outputs.
fa_status_t check_distinct(const Tensor&, Message*);

// Have two elements, one of each, a byte in common? Both must lie within the address space (see Call).
bool overlap(const Tensor&, const Tensor&);

}  // namespace fa
