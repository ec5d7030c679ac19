// Shared libraries that are loaded at run time.
#pragma once
#include <stddef.h>
#include "backend/backend.h"
#include "os/path.h"

namespace fa {
namespace os {

struct Module {
    char file[kMaxPath];  // its name without links
    BackendEntry entry;
};

// The folder "flashattn" beside our own library's file. Empty in a program that links us statically (the executable's folder is no place
// for modules), and when the library was loaded by a relative path (the current folder may have changed).
void folder_beside_library(char* folder, size_t size);

// Opens the file of that name in the first of the folders that has it; those that are NULL or empty are left out. FA_BACKEND_MISSING: none
// has it, or the library takes no modules on this system. FA_BACKEND_INCOMPATIBLE: a folder is no absolute path, or the file is broken, no
// module, or not trusted. It is never closed.
fa_status_t open_module(const char* name, const char* const* folders, int count, Module* module, Message* message);

}  // namespace os
}  // namespace fa
