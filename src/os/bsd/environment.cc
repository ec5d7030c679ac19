#include "os/environment.h"
#include <stdlib.h>
#include <unistd.h>

namespace fa {
namespace os {

const char* variable(const char* name) { return issetugid() ? nullptr : getenv(name); }

}  // namespace os
}  // namespace fa
