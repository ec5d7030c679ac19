// What the system's loader takes on trust in a module's file, and ends the process for: tables that lead out of the image, or to nothing.
#pragma once
#include <stdint.h>
#include <string.h>

namespace fa {
namespace os {

// A shared library's file, in memory that may be read as a whole.
struct Image {
    const char* bytes;
    uint64_t size;
};

// What lies outside of the file reads as zeros.
template <class T>
T read(const Image& image, uint64_t offset) {
    T value;
    memset(&value, 0, sizeof value);
    if (sizeof value <= image.size && offset <= image.size - sizeof value) memcpy(&value, image.bytes + offset, sizeof value);
    return value;
}

// An ELF file of this machine's class and byte order: of any other, dlopen says so itself.
bool is_elf(const Image& image);

// How long the file must be for what its headers name.
uint64_t bytes_named(const Image& image);

// The part that is not as a linker writes it; NULL: there is none. An ELF file says most things twice, once in the sections of the linker
// and once in what the loader reads: segments, the dynamic section and its tables. Each is held against the other. Code and data
// are left to the seal.
const char* damaged_part(const Image& image);

}  // namespace os
}  // namespace fa
