// Parameters and figures of a handle: one table says all about them.
#pragma once
#include "backend/backend.h"

namespace fa {

enum class Owner { core, backend };

struct Parameter {
    int32_t key;
    Owner owner;
    bool read_only;
    const char* name;
    int64_t min, max, initial;
    const char* doc;
};

const Parameter* parameter(int32_t key);  // NULL: no such key

}  // namespace fa
