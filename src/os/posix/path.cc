#include "os/path.h"
#include <limits.h>

namespace fa {
namespace os {

static_assert(PATH_MAX <= kMaxPath, "every path fits");

bool is_absolute(const char* path) { return path[0] == '/'; }

}  // namespace os
}  // namespace fa
