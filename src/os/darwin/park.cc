#include "os/park.h"

// The system's own libraries sleep by these, libc++ as well; os_sync_wait_on_address(), which has a header, is of macOS 14.4.
extern "C" int __ulock_wait(uint32_t operation, void* address, uint64_t value, uint32_t microseconds);
extern "C" int __ulock_wake(uint32_t operation, void* address, uint64_t value);

namespace fa {
namespace os {
namespace {

constexpr uint32_t kCompareAndWait = 1;

}  // namespace

void park(std::atomic<uint32_t>& word, uint32_t value) { __ulock_wait(kCompareAndWait, &word, value, 0); }
void unpark(std::atomic<uint32_t>& word) { __ulock_wake(kCompareAndWait, &word, 0); }

}  // namespace os
}  // namespace fa
