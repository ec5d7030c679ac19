#include "os/thread.h"
#include "os/posix/thread_name.h"

namespace fa {
namespace os {

int64_t this_thread() {
    uint64_t id = 0;
    pthread_threadid_np(nullptr, &id);
    return int64_t(id);
}
bool alive(int64_t) { return true; }

void name_thread(pthread_t) {}  // a thread can only name itself

}  // namespace os
}  // namespace fa
