#include "core/log.h"
#include <atomic>
#include "os/file.h"
#include "os/process.h"

namespace fa {
namespace {

constexpr int kLine = 2048;

// The callback of a handle that was given none; `user` is the path.
void append_to_file(void* user, int32_t level, const char* message) {
    char line[kLine + 64];
    int length = snprintf(line, sizeof line - 1, "flashattn %d %s: %s", os::process_id(), kLogWords[level].text, message);
    if (length > int(sizeof line) - 2) length = int(sizeof line) - 2;
    for (int i = 0; i < length; i++)
        if (static_cast<unsigned char>(line[i]) < ' ') line[i] = ' ';  // a path in it may hold anything, but it is one line
    line[length] = '\n';
    os::append(static_cast<const char*>(user), line, size_t(length) + 1);
}

}  // namespace

Log log_of(const fa_create_info_t& info, const Environment& env) {
    Log log = {info.log, info.log_user, info.log_level != FA_LOG_NONE ? info.log_level : env.log_level};
    if (log.function == nullptr && env.log_file != nullptr) log = {append_to_file, const_cast<char*>(env.log_file), log.level};
    static std::atomic<int> warned{false};
    if (env.wrong_log != nullptr && log.function != nullptr && !warned.exchange(true, std::memory_order_relaxed))
        log_line({log.function, log.user, FA_LOG_ERROR}, FA_LOG_ERROR,
                 "FLASHATTN_LOG is \"%s\" and counts as unset: expected none, error, info or debug", env.wrong_log);
    return log;
}

void log_line(const Log& log, int32_t level, const char* format, ...) {
    if (!logs(log, level)) return;
    char line[kLine];
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
