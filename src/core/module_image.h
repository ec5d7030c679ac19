// What the system's loader takes on trust in a module's file, and ends the process for: tables that lead out of the image, or to nothing.
#pragma once
#include <stdint.h>

namespace fa {

// A shared library's file, in memory that may be read as a whole.
struct Image {
    const char* bytes;
    uint64_t size;
};

// An ELF file of this machine's class and byte order: of any other, dlopen says so itself.
bool is_elf(const Image& image);

// How long the file must be for what its headers name.
uint64_t bytes_named(const Image& image);

// The part that is not as a linker writes it; NULL: there is none. An ELF file says most things twice, once in the sections of the linker
// and once in what the loader reads: segments, the dynamic section and its tables. Each is held against the other. Not looked at are code
// and data, and where within them a symbol or a relocation leads.
const char* damaged_part(const Image& image);

}  // namespace fa
