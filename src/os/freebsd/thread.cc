#include "os/thread.h"
#include <pthread_np.h>
#include <sys/thr.h>
#include <unistd.h>
#include "os/posix/thread_name.h"

namespace fa {
namespace os {

int64_t this_thread() { return pthread_getthreadid_np(); }
bool alive(int64_t thread) { return thr_kill2(getpid(), long(thread), 0) == 0; }

void name_thread(pthread_t thread) { pthread_set_name_np(thread, "flashattn"); }

}  // namespace os
}  // namespace fa
