// Starting threads.
#pragma once
#include <stdint.h>

namespace fa {
namespace os {

// A thread that nobody waits for, with that much stack, or the usual if the program's thread-local variables do not fit. It takes no
// signals, which are the program's own business, save those that tell of a fault in the very thread.
bool start_thread(void* (*body)(void* arg), void* arg, uint64_t stack_bytes);

// How many of so many threads at a time the system grants. stack_bytes: of each; 0: the usual.
int64_t granted_threads(int64_t threads, uint64_t stack_bytes);

int64_t this_thread();
bool alive(int64_t thread);  // one of this process; true where the system does not tell

// A scope that one thread of the process is in at a time, and in which none is cancelled.
class OneAtATime {
  public:
    OneAtATime();
    ~OneAtATime();
    OneAtATime(const OneAtATime&) = delete;

  private:
    [[maybe_unused]] int cancellable;
};

}  // namespace os
}  // namespace fa
