// The environment, read once for the whole process: later changes of a variable do not act.
#pragma once
#include "backend/backend.h"

namespace fa {

struct Environment {
    const char* backend_dir;  // FLASHATTN_BACKEND_DIR; NULL when unset or empty
    int32_t log_level;        // FLASHATTN_LOG; FA_LOG_NONE when unset
    int32_t max_isa;          // FLASHATTN_MAX_ISA; 0 when unset
};

// Fails on a word that no variable knows: a misspelt setting must not pass for the default.
fa_status_t environment(Environment* out, Message* message);

}  // namespace fa
