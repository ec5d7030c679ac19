#include "os/file.h"
#include <windows.h>

namespace fa {
namespace os {

void append(const char* path, const char* text, size_t bytes) {
    const DWORD before = GetLastError();
    const HANDLE file = CreateFileA(path, FILE_APPEND_DATA, FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_ALWAYS,
                                    FILE_ATTRIBUTE_NORMAL | FILE_FLAG_OPEN_REPARSE_POINT, nullptr);
    if (file != INVALID_HANDLE_VALUE) {
        BY_HANDLE_FILE_INFORMATION found;
        DWORD written;
        constexpr DWORD kOther = FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE;
        if (GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &found) && (found.dwFileAttributes & kOther) == 0)
            WriteFile(file, text, DWORD(bytes), &written, nullptr);
        CloseHandle(file);
    }
    SetLastError(before);
}

}  // namespace os
}  // namespace fa
