#include "os/thread.h"
#include <sys/syscall.h>
#include <unistd.h>
#include "os/posix/thread_name.h"

namespace fa {
namespace os {

int64_t this_thread() { return syscall(SYS_gettid); }
bool alive(int64_t thread) { return syscall(SYS_tgkill, getpid(), pid_t(thread), 0) == 0; }

void name_thread(pthread_t thread) { pthread_setname_np(thread, "flashattn"); }

}  // namespace os
}  // namespace fa
