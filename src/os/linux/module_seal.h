// A checksum of a module's code and data, which the build writes into its note, so that damage is found before the code runs.
#pragma once
#include "os/linux/module_image.h"

namespace fa {
namespace os {

// Over what packaging leaves as it is: sections of code, data and relocations, and values of symbols; neither names, which other search
// paths move, nor what is stripped. Nor code of GPUs, which their drivers look at, and which may be a hundred times the rest. Never 0.
uint64_t seal_of(const Image& image);

// Where in the file its note is; 0: it has none.
uint64_t note_of(const Image& image);

}  // namespace os
}  // namespace fa
