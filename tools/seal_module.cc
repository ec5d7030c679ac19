// The last step of a module's build: writes its seal (src/os/linux/module_seal.h) into its note.
//   seal_module FILE
#include <stddef.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include "backend/module_note.h"
#include "os/linux/module_seal.h"

int main(int count, char** words) {
    const std::string path = count == 2 ? words[1] : "";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const fa::os::Image image = {bytes.data(), bytes.size()};
    const uint64_t note = fa::os::is_elf(image) ? fa::os::note_of(image) : 0;
    if (note == 0) return std::cerr << "seal_module: " << path << " has no section " << fa::kModuleNote << "\n", 1;
    const uint64_t seal = fa::os::seal_of(image);
    const uint32_t halves[2] = {uint32_t(seal), uint32_t(seal >> 32)};
    file.clear();
    file.seekp(std::streamoff(note + offsetof(fa::ModuleNote, seal)));
    file.write(reinterpret_cast<const char*>(halves), sizeof halves);
    if (!file.flush()) return std::cerr << "seal_module: " << path << " cannot be written\n", 1;
    return 0;
}
