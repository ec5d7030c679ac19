#include "os/park.h"
#include <windows.h>

namespace fa {
namespace os {

void park(std::atomic<uint32_t>& word, uint32_t value) { WaitOnAddress(&word, &value, sizeof value, INFINITE); }
void unpark(std::atomic<uint32_t>& word) { WakeByAddressSingle(&word); }

}  // namespace os
}  // namespace fa
