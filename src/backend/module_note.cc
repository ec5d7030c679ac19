#include "backend/module_note.h"
#include "backend/backend.h"

namespace fa {

__attribute__((section(".note.flashattn"), aligned(4), used))
const ModuleNote module_note = {10, 16, 1, "flashattn", kBackendAbi, 0, {0, 0}};

}  // namespace fa
