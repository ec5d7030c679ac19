// The file that a log goes to.
#pragma once
#include <stddef.h>

namespace fa {
namespace os {

// Appends the text in one write, which keeps lines of several processes apart. The file is made for our user alone, if there is none. It
// is neither a link, which somebody else may have put there, nor a pipe, which may block or end the process. Nothing happens where that
// fails. The file is open meanwhile only: a program that closes what it does not know, as daemons do, must not find our lines in a file of
// its own.
void append(const char* path, const char* text, size_t bytes);

}  // namespace os
}  // namespace fa
