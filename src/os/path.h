// Paths of files.
#pragma once

namespace fa {
namespace os {

constexpr int kMaxPath = 4096;  // with the zero at its end

// Whether the path leads to the same place from every working directory.
bool is_absolute(const char* path);

}  // namespace os
}  // namespace fa
