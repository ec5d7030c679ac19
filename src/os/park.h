// Threads that sleep until a word changes.
#pragma once
#include <stdint.h>
#include <atomic>

namespace fa {
namespace os {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && ATOMIC_INT_LOCK_FREE == 2, "the system reads the value itself");

// Sleeps as long as the word has that value. To wake up without a cause is not excluded.
void park(std::atomic<uint32_t>& word, uint32_t value);
// Wakes one thread that sleeps on the word.
void unpark(std::atomic<uint32_t>& word);

}  // namespace os
}  // namespace fa
