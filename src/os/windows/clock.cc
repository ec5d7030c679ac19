#include "os/clock.h"
#include <windows.h>

namespace fa {
namespace os {

int64_t monotonic_ns() {
    constexpr int64_t kSecond = 1000 * 1000 * 1000;
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    const int64_t whole = ticks.QuadPart / frequency.QuadPart, rest = ticks.QuadPart % frequency.QuadPart;
    return whole * kSecond + rest * kSecond / frequency.QuadPart;
}

}  // namespace os
}  // namespace fa
