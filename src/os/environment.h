// Environment variables.
#pragma once

namespace fa {
namespace os {

// NULL when it is unset, or when this process has rights that whoever started it has not: a set-user-id program must not take folders
// of code, or files to write to, from there.
const char* variable(const char* name);

// The first call of the process runs the function; others wait until it has returned. There is one such function.
void once(void (*function)());

}  // namespace os
}  // namespace fa
