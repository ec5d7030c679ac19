// Finds and opens the module of a backend.
#pragma once
#include "core/registry.h"

namespace fa {

// FA_BACKEND_MISSING when no place has the file. The first place that has it decides: a module that is broken, of another version
// or not trusted is FA_BACKEND_INCOMPATIBLE, never quietly replaced by the next one. directory: searched first; NULL: none.
fa_status_t load_module(const Registered& entry, const char* directory, const Backend** backend, Message* message);

}  // namespace fa
