// What has to be known of a module's file before dlopen runs its code.
#pragma once
#include "backend/backend.h"

namespace fa {
namespace os {

// Judges the file that `path`, which is absolute, leads to. FA_OK: nobody but root and the effective user can have a hand in it, or in
// where the path leads, no part of it is missing, and the system's loader can read it; `real`, of kMaxPath bytes, is its name without
// links. Else FA_BACKEND_INCOMPATIBLE and the sentence. What is no ELF file of this machine is left to dlopen, which says so itself.
fa_status_t examine_module(const char* path, char* real, Message* message);

}  // namespace os
}  // namespace fa
