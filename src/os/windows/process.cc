#include "os/process.h"
#include <windows.h>

namespace fa {
namespace os {

int process_id() { return int(GetCurrentProcessId()); }

bool in_forked_children(void (*)()) { return true; }

}  // namespace os
}  // namespace fa
