// This process, and its children.
#pragma once

namespace fa {
namespace os {

int process_id();

// From now on a child of fork() runs the function before anything else. False: the system refuses. Nothing happens where there is no
// fork().
bool in_forked_children(void (*function)());

}  // namespace os
}  // namespace fa
