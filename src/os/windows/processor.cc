#include "os/processor.h"
#include <windows.h>

namespace fa {
namespace os {

// Since Windows 11, whose kernel32 has the function.
bool permit_tiles() {
    constexpr DWORD64 kTileData = DWORD64(1) << 18;  // XSTATE_MASK_AMX_TILE_DATA
    using Enable = BOOL(WINAPI*)(DWORD64);
    const HMODULE kernel = GetModuleHandleA("kernel32.dll");
    const FARPROC found = kernel == nullptr ? nullptr : GetProcAddress(kernel, "EnableProcessOptionalXStateFeatures");
    return found != nullptr && reinterpret_cast<Enable>(reinterpret_cast<void*>(found))(kTileData);
}

ArmFeatures arm_features() {
    constexpr DWORD kI8mm = 66, kBf16 = 68;  // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE, PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE
    return {IsProcessorFeaturePresent(kI8mm) && IsProcessorFeaturePresent(kBf16), 0};
}

int riscv_vector_bytes() { return 0; }

}  // namespace os
}  // namespace fa
