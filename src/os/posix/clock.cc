#include "os/clock.h"
#include <time.h>

namespace fa {
namespace os {

int64_t monotonic_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace os
}  // namespace fa
