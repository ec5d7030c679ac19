#include "os/process.h"
#include <pthread.h>
#include <unistd.h>

namespace fa {
namespace os {

int process_id() { return int(getpid()); }

bool in_forked_children(void (*function)()) { return pthread_atfork(nullptr, nullptr, function) == 0; }

}  // namespace os
}  // namespace fa
