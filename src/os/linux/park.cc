#include "os/park.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fa {
namespace os {

// Private: of this process alone.
void park(std::atomic<uint32_t>& word, uint32_t value) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void unpark(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace os
}  // namespace fa
