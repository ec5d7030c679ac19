// The environment, read once for the whole process: later changes of a variable do not act.
#pragma once
#include "backend/backend.h"

namespace fa {

struct Environment {
    const char* backend_dir;      // FLASHATTN_BACKEND_DIR; NULL when unset or empty
    int32_t log_level;            // FLASHATTN_LOG; FA_LOG_NONE when unset, or when it is no level
    const char* wrong_log;        // what FLASHATTN_LOG says in that case; else NULL
    const char* log_file;         // FLASHATTN_LOG_FILE; NULL when unset or empty
    int32_t max_isa;              // FLASHATTN_MAX_ISA; 0 when unset
    uint64_t max_shared_bytes;    // FLASHATTN_MAX_SHARED, which is in KB; 0 when unset
    bool forces_ptx;              // CUDA_FORCE_PTX_JIT, a switch of NVIDIA's driver
    uint64_t openmp_stack_bytes;  // OMP_STACKSIZE or its like, the largest; 0 when unset
};

// Fails on an unknown FLASHATTN_MAX_ISA, and on a FLASHATTN_MAX_SHARED that is no number: they say which code runs, so that a misspelt one
// must not pass for the default.
fa_status_t environment(Environment* out, Message* message);

}  // namespace fa
