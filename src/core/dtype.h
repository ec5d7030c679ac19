// The element types: names, units, and which tensors may have them.
#pragma once
#include "core/rules.h"

namespace fa {

// Tensors by what they hold; a set of them is what a type is good for.
enum Holds : uint32_t { kQuery = 1, kKeys = 2, kOutput = 4, kTail = 8, kFactor = 16, kBias = 32, kMaskBits = 64 };

struct Dtype {
    int32_t value;  // FA_F32 …
    const char* name;
    int32_t elements, bytes;  // of a unit
    uint32_t holds;           // Holds
};

const Dtype* find_dtype(int32_t value);  // NULL: no such type

int32_t element_size(int32_t dtype);   // bytes of a unit
int32_t unit_elements(int32_t dtype);  // dims of one

// A field of a descriptor that says the type of what `holds` names; 0 passes. Unknown values are an unsupported field, types that cannot be
// there are invalid.
fa_status_t check_dtype(const char* field, int32_t value, Holds holds, Message*);

}  // namespace fa
