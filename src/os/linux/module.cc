// Modules are code: whoever can choose the file runs with the program's rights. So the places are few, fixed and absolute, nothing
// is scanned, and a file counts only if nobody but root or the effective user could have put it there (module_file.cc).
#include "os/module.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include "os/linux/module_file.h"

namespace fa {
namespace os {
namespace {

fa_status_t load(Module* module, Message* message) {
    // Never closed: a GPU runtime inside cannot be unloaded while its threads live.
    void* const library = dlopen(module->file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        const char* reason = dlerror();
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s cannot be loaded: %s", module->file,
                    reason == nullptr ? "no reason given" : reason);
    }
    module->entry = reinterpret_cast<BackendEntry>(dlsym(library, kBackendEntry));
    if (module->entry != nullptr) return FA_OK;
    return fail(message, FA_BACKEND_INCOMPATIBLE, "%s has no function %s: it is no module of this library", module->file, kBackendEntry);
}

// FA_BACKEND_MISSING: there is no such file here, look further.
fa_status_t try_folder(const char* name, const char* folder, Module* module, Message* message) {
    char path[kMaxPath];
    struct stat s;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= int(sizeof path))
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s cannot be examined: %s", folder, strerror(ENAMETOOLONG));
    if (stat(path, &s) != 0 && (errno == ENOENT || errno == ENOTDIR)) return FA_BACKEND_MISSING;
    const fa_status_t status = examine_module(path, module->file, message);
    return status != FA_OK ? status : load(module, message);
}

}  // namespace

void folder_beside_library(char* folder, size_t size) {
    Dl_info us, program;
    folder[0] = 0;
    const auto headers = reinterpret_cast<void*>(getauxval(AT_PHDR));  // of the program itself
    if (dladdr(reinterpret_cast<void*>(&folder_beside_library), &us) == 0 || us.dli_fname == nullptr || us.dli_fname[0] != '/') return;
    if (dladdr(headers, &program) != 0 && program.dli_fbase == us.dli_fbase) return;
    const int length = int(strrchr(us.dli_fname, '/') - us.dli_fname);
    if (snprintf(folder, size, "%.*s/flashattn", length, us.dli_fname) >= int(size)) folder[0] = 0;
}

fa_status_t open_module(const char* name, const char* const* folders, int count, Module* module, Message* message) {
    char searched[sizeof message->text] = "";
    for (int i = 0; i < count; i++) {
        const char* const folder = folders[i];
        if (folder == nullptr || folder[0] == 0) continue;
        if (!is_absolute(folder))
            return fail(message, FA_BACKEND_INCOMPATIBLE, "FLASHATTN_BACKEND_DIR is \"%s\": expected an absolute path", folder);
        const fa_status_t status = try_folder(name, folder, module, message);
        if (status != FA_BACKEND_MISSING) return status;
        const size_t used = strlen(searched);
        snprintf(searched + used, sizeof searched - used, "%s%s", used == 0 ? "" : ", ", folder);
    }
    return fail(message, FA_BACKEND_MISSING, "%s is not installed; searched: %s", name, searched);
}

}  // namespace os
}  // namespace fa
