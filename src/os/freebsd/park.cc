#include "os/park.h"
#include <sys/types.h>
#include <sys/umtx.h>

namespace fa {
namespace os {

// Private: of this process alone.
void park(std::atomic<uint32_t>& word, uint32_t value) { _umtx_op(&word, UMTX_OP_WAIT_UINT_PRIVATE, value, nullptr, nullptr); }
void unpark(std::atomic<uint32_t>& word) { _umtx_op(&word, UMTX_OP_WAKE_PRIVATE, 1, nullptr, nullptr); }

}  // namespace os
}  // namespace fa
