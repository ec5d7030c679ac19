// The name that system monitors show of a thread of ours, which each POSIX system gives in its own way.
#pragma once
#include <pthread.h>

namespace fa {
namespace os {

void name_thread(pthread_t thread);

}  // namespace os
}  // namespace fa
