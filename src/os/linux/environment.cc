#include "os/environment.h"
#include <stdlib.h>

namespace fa {
namespace os {

const char* variable(const char* name) { return secure_getenv(name); }

}  // namespace os
}  // namespace fa
