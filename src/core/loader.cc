#include "core/loader.h"
#include "core/env.h"
#include "os/module.h"

namespace fa {

fa_status_t load_module(const Registered& entry, const char* directory, const Backend** backend, Message* message) {
    Environment env;
    const fa_status_t readable = environment(&env, message);
    if (readable != FA_OK) return readable;
    char beside[os::kMaxPath];
    os::folder_beside_library(beside, sizeof beside);
    const char* const folders[] = {directory, env.backend_dir, beside, FA_BACKEND_DIR};
    os::Module module;
    const fa_status_t status = os::open_module(entry.module, folders, int(sizeof folders / sizeof folders[0]), &module, message);
    if (status != FA_OK) return status;

    Message reason{};
    const Backend* found = module.entry(kBackendAbi, &reason);
    if (found == nullptr) return fail(message, FA_BACKEND_INCOMPATIBLE, "%s refuses to serve: %s", module.file, reason.text);
    if (found->abi != kBackendAbi)
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s is of another version: it has interface %u, this library %u", module.file,
                    found->abi, kBackendAbi);
    if (found->id != entry.id)
        return fail(message, FA_BACKEND_INCOMPATIBLE, "%s holds backend %d instead of %d, %s", module.file, found->id, entry.id,
                    entry.name);
    *backend = found;
    return FA_OK;
}

}  // namespace fa
