// What a module's file says of itself to whoever looks at it before its code runs, in the section kModuleNote. Its last build step writes
// the seal.
#pragma once
#include <stdint.h>

namespace fa {

constexpr char kModuleNote[] = ".note.flashattn";

struct ModuleNote {
    uint32_t name_bytes, bytes, type;  // as ELF has them
    char name[12];
    uint32_t interface;  // kBackendAbi
    uint32_t unused;
    uint32_t seal[2];  // the low and the high half of seal_of, os/linux/module_seal.h; 0: none
};

}  // namespace fa
