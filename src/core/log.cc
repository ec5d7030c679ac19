#include "core/log.h"

namespace fa {

void log_line(const Log& log, int32_t level, const char* format, ...) {
    if (!logs(log, level)) return;
    char line[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    log.function(log.user, level, line);
}

void log_from_backend(void* log_context, int32_t level, const char* message) {
    log_line(*static_cast<const Log*>(log_context), level, "%s", message);
}

}  // namespace fa
