// The log of a handle: lines for the caller's callback or, where there is none, for the file that FLASHATTN_LOG_FILE names; never
// for stdout or stderr.
#pragma once
#include "backend/backend.h"
#include "backend/isa.h"
#include "core/env.h"

namespace fa {

constexpr Word kLogWords[] = {{"none", FA_LOG_NONE}, {"error", FA_LOG_ERROR}, {"info", FA_LOG_INFO}, {"debug", FA_LOG_DEBUG}};

struct Log {
    fa_log_fn function;  // NULL: nobody listens
    void* user;
    int32_t level;  // FA_LOG_…: lines above it are dropped
};

// Where a handle's lines go, and which. What is wrong with FLASHATTN_LOG is one line in a process, whatever the level.
Log log_of(const fa_create_info_t& info, const Environment& env);

static inline bool logs(const Log& log, int32_t level) { return log.function != nullptr && level <= log.level; }

__attribute__((format(printf, 3, 4))) void log_line(const Log& log, int32_t level, const char* format, ...);

// Host.log: `log_context` is a Log.
void log_from_backend(void* log_context, int32_t level, const char* message);

}  // namespace fa
