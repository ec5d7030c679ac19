// The library's own thread pool: one for the whole process, which every handle shares. Idle threads spin for some microseconds,
// then sleep.
#pragma once
#include <stdint.h>

namespace fa {
namespace cpu {

// Runs body(arg, 0) on the calling thread and, beside it, body(arg, 1) … body(arg, n − 1) on idle threads of the pool, which is
// made to grow where it has too few. A body that no thread has begun when body 0 returns does not run at all: so each must take
// work for as long as there is some.
void run_pool(int64_t n, void (*body)(void* arg, int64_t i), void* arg);

}  // namespace cpu
}  // namespace fa
