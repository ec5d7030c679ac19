// The log of a handle: lines for the caller's callback, never for stdout or stderr.
#pragma once
#include "backend/backend.h"

namespace fa {

struct Log {
    fa_log_fn function;  // NULL: nobody listens
    void* user;
    int32_t level;  // FA_LOG_…: lines above it are dropped
};

static inline bool logs(const Log& log, int32_t level) { return log.function != nullptr && level <= log.level; }

__attribute__((format(printf, 3, 4))) void log_line(const Log& log, int32_t level, const char* format, ...);

// Host.log: `log_context` is a Log.
void log_from_backend(void* log_context, int32_t level, const char* message);

}  // namespace fa
