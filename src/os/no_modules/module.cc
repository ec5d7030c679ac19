// Of systems for which there are no modules: what nobody has built, nobody can judge.
#include "os/module.h"

namespace fa {
namespace os {

void folder_beside_library(char* folder, size_t) { folder[0] = 0; }

fa_status_t open_module(const char* name, const char* const*, int, Module*, Message* m) {
    return fail(m, FA_BACKEND_MISSING, "%s is not loaded: on this system the library takes no modules, and has the CPU backend alone",
                name);
}

}  // namespace os
}  // namespace fa
