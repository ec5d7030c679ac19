#include "os/file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fa {
namespace os {

void append(const char* path, const char* text, size_t bytes) {
    const int before = errno;
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (file >= 0) {
        struct stat found;
        if (fstat(file, &found) == 0 && S_ISREG(found.st_mode)) {
            const ssize_t written = write(file, text, bytes);
            (void)written;  // a full disk is no error of the call that logs
        }
        close(file);
    }
    errno = before;
}

}  // namespace os
}  // namespace fa
