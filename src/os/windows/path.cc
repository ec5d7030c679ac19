#include "os/path.h"
#include <ctype.h>

namespace fa {
namespace os {
namespace {

bool separates(char c) { return c == '\\' || c == '/'; }

}  // namespace

// C:\… or \\server\…: without a drive a path depends on the current one.
bool is_absolute(const char* path) {
    return separates(path[0]) ? separates(path[1]) : isalpha(static_cast<unsigned char>(path[0])) && path[1] == ':' && separates(path[2]);
}

}  // namespace os
}  // namespace fa
