// Parameters and figures of a handle: one table says all about them.
#pragma once
#include "backend/backend.h"

namespace fa {

enum class Owner { core, backend };

struct Parameter {
    int32_t key;
    Owner owner;
    bool read_only = false;
    const char* name;
    int64_t min = 0, max, initial = 0;
    const char* doc;
};

const Parameter* parameter(int32_t key);  // NULL: no such key

}  // namespace fa
