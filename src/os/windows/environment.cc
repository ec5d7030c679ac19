#include "os/environment.h"
#include <stdlib.h>
#include <windows.h>

namespace fa {
namespace os {

// A process cannot have more rights than whoever starts it gives away knowingly.
const char* variable(const char* name) { return getenv(name); }

void once(void (*function)()) {
    static INIT_ONCE done = INIT_ONCE_STATIC_INIT;
    BOOL pending = FALSE;
    if (!InitOnceBeginInitialize(&done, 0, &pending, nullptr) || !pending) return;
    function();
    InitOnceComplete(&done, 0, nullptr);
}

}  // namespace os
}  // namespace fa
