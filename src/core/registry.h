// Which backends there are, in AUTO's order, and how one is reached.
#pragma once
#include "backend/backend.h"

namespace fa {

extern const Backend kCpuBackend;

struct Registered {
    int32_t id;  // FA_BACKEND_…
    const char* name;
    BackendEntry builtin;  // NULL: lives in a module
    const char* module;    // its file name
};

constexpr int kBackends = 3;
extern const Registered kRegistry[kBackends];

// NULL for anything that names no backend, FA_BACKEND_AUTO included.
const Registered* registered(int32_t id);

// FA_OK and the backend when it is usable here, else its status and the reason. directory: fa_create_info_t.backend_dir or NULL.
// Nothing is remembered between calls: the dynamic linker gives the same module for the same file, and a module that was installed
// or a device that came up since the last call is found.
fa_status_t find_backend(const Registered& entry, const char* directory, const Backend** backend, Message* message);

}  // namespace fa
