#include "core/log.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>

namespace fa {
namespace {

constexpr int kLine = 2048;

// Made for our user alone, if there is none. Neither a link, which somebody else may have put there, nor a pipe, which may block or
// end the process.
int open_regular(const char* path) {
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    struct stat found;
    if (file < 0 || (fstat(file, &found) == 0 && S_ISREG(found.st_mode))) return file;
    close(file);
    return -1;
}

// The callback of a handle that was given none; `user` is the path. The file is open for one line only: a program that closes what
// it does not know, as daemons do, must not find our lines in a file of its own. One write keeps lines of several processes apart.
void append_to_file(void* user, int32_t level, const char* message) {
    const int before = errno;
    const int file = open_regular(static_cast<const char*>(user));
    if (file >= 0) {
        char line[kLine + 64];
        int length = snprintf(line, sizeof line - 1, "flashattn %d %s: %s", int(getpid()), kLogWords[level].text, message);
        if (length > int(sizeof line) - 2) length = int(sizeof line) - 2;
        for (int i = 0; i < length; i++)
            if (static_cast<unsigned char>(line[i]) < ' ') line[i] = ' ';  // a path in it may hold anything, but it is one line
        line[length] = '\n';
        const ssize_t written = write(file, line, size_t(length) + 1);
        (void)written;  // a full disk is no error of the call that logs
        close(file);
    }
    errno = before;
}

}  // namespace

Log log_of(const fa_create_info_t& info, const Environment& env) {
    Log log = {info.log, info.log_user, info.log_level != FA_LOG_NONE ? info.log_level : env.log_level};
    if (log.function == nullptr && env.log_file != nullptr) log = {append_to_file, const_cast<char*>(env.log_file), log.level};
    static std::atomic<bool> warned{false};
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
