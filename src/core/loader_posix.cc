// Modules are code: whoever can choose the file runs with the program's rights. So the places are few, fixed and absolute, nothing
// is scanned, and a file counts only if nobody but root or the effective user could have put it there (module_file_posix.cc).
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include "core/env.h"
#include "core/loader.h"
#include "core/module_file.h"

namespace fa {
namespace {

// Our own library's folder with "/flashattn" added. Empty in a program that links us statically (the executable's folder is no place
// for modules) and when the library was loaded by a relative path (the current folder may have changed).
void folder_beside_us(char* folder, size_t size) {
    Dl_info us, program;
    folder[0] = 0;
    const auto headers = reinterpret_cast<void*>(getauxval(AT_PHDR));  // of the program itself
    if (dladdr(reinterpret_cast<void*>(&folder_beside_us), &us) == 0 || us.dli_fname == nullptr || us.dli_fname[0] != '/') return;
    if (dladdr(headers, &program) != 0 && program.dli_fbase == us.dli_fbase) return;
    const int length = int(strrchr(us.dli_fname, '/') - us.dli_fname);
    if (snprintf(folder, size, "%.*s/flashattn", length, us.dli_fname) >= int(size)) folder[0] = 0;
}

fa_status_t open_module(const Registered& entry, const char* file, const Backend** backend, Message* m) {
    // Never closed: a GPU runtime inside cannot be unloaded while its threads live.
    void* module = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module == nullptr) {
        const char* reason = dlerror();
        return fail(m, FA_BACKEND_INCOMPATIBLE, "%s cannot be loaded: %s", file, reason == nullptr ? "no reason given" : reason);
    }
    const auto start = reinterpret_cast<BackendEntry>(dlsym(module, kBackendEntry));
    if (start == nullptr)
        return fail(m, FA_BACKEND_INCOMPATIBLE, "%s has no function %s: it is no module of this library", file, kBackendEntry);
    Message reason{};
    const Backend* found = start(kBackendAbi, &reason);
    if (found == nullptr) return fail(m, FA_BACKEND_INCOMPATIBLE, "%s refuses to serve: %s", file, reason.text);
    if (found->abi != kBackendAbi)
        return fail(m, FA_BACKEND_INCOMPATIBLE, "%s is of another version: it has interface %u, this library %u", file, found->abi,
                    kBackendAbi);
    if (found->id != entry.id)
        return fail(m, FA_BACKEND_INCOMPATIBLE, "%s holds backend %d instead of %d, %s", file, found->id, entry.id, entry.name);
    *backend = found;
    return FA_OK;
}

// FA_BACKEND_MISSING: there is no such file here, look further.
fa_status_t try_folder(const Registered& entry, const char* folder, const Backend** backend, Message* m) {
    char path[PATH_MAX], file[PATH_MAX];
    struct stat s;
    if (snprintf(path, sizeof path, "%s/%s", folder, entry.module) >= int(sizeof path))
        return fail(m, FA_BACKEND_INCOMPATIBLE, "%s cannot be examined: %s", folder, strerror(ENAMETOOLONG));
    if (stat(path, &s) != 0 && (errno == ENOENT || errno == ENOTDIR)) return FA_BACKEND_MISSING;
    const fa_status_t status = examine_module(path, file, m);
    return status != FA_OK ? status : open_module(entry, file, backend, m);
}

}  // namespace

fa_status_t load_module(const Registered& entry, const char* directory, const Backend** backend, Message* m) {
    Environment env;
    const fa_status_t readable = environment(&env, m);
    if (readable != FA_OK) return readable;
    char beside[PATH_MAX];
    folder_beside_us(beside, sizeof beside);
    const char* const folders[] = {directory, env.backend_dir, beside, FA_BACKEND_DIR};

    char searched[sizeof m->text] = "";
    for (const char* folder : folders) {
        if (folder == nullptr || folder[0] == 0) continue;
        if (folder[0] != '/') return fail(m, FA_BACKEND_INCOMPATIBLE, "FLASHATTN_BACKEND_DIR is \"%s\": expected an absolute path", folder);
        const fa_status_t status = try_folder(entry, folder, backend, m);
        if (status != FA_BACKEND_MISSING) return status;
        const size_t used = strlen(searched);
        snprintf(searched + used, sizeof searched - used, "%s%s", used == 0 ? "" : ", ", folder);
    }
    return fail(m, FA_BACKEND_MISSING, "%s is not installed; searched: %s", entry.module, searched);
}

}  // namespace fa
