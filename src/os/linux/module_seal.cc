#include "os/linux/module_seal.h"
#include <elf.h>
#include <string.h>
#include "backend/module_note.h"

namespace fa {
namespace os {
namespace {

// For each h another value of w gives another result, and for each w another h: no change of one word is lost.
uint64_t mix(uint64_t h, uint64_t w) {
    h = (h ^ w) * 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

struct Name {
    char text[32];
};

template <class Body>
void for_each_section(const Image& image, Body body) {
    const auto h = read<Elf64_Ehdr>(image, 0);
    const auto names = read<Elf64_Shdr>(image, h.e_shoff + h.e_shstrndx * sizeof(Elf64_Shdr));
    for (uint64_t i = 0; i < h.e_shnum; i++) {
        const auto s = read<Elf64_Shdr>(image, h.e_shoff + i * sizeof(Elf64_Shdr));
        auto name = read<Name>(image, names.sh_offset + s.sh_name);
        name.text[sizeof name - 1] = 0;
        if ((s.sh_flags & SHF_ALLOC) != 0) body(s, name.text);
    }
}

}  // namespace

uint64_t seal_of(const Image& image) {
    uint64_t seal = 0;  // in any order of the sections, which new search paths may change
    for_each_section(image, [&](const Elf64_Shdr& section, const char* name) {
        if (section.sh_size > image.size) return;
        uint64_t h = 0;
        switch (section.sh_type) {
            case SHT_PROGBITS:
            case SHT_INIT_ARRAY:
            case SHT_FINI_ARRAY:
            case SHT_RELA:
            case SHT_RELR:
                if (strstr(name, "fatbin") != nullptr) break;
                h = mix(mix(0, section.sh_addr), section.sh_size);
                for (uint64_t at = 0; at < section.sh_size;) {
                    const bool whole = section.sh_size - at >= sizeof h;
                    h = mix(h, whole ? read<uint64_t>(image, section.sh_offset + at) : read<unsigned char>(image, section.sh_offset + at));
                    at += whole ? sizeof h : 1;
                }
                break;
            case SHT_DYNSYM:
                for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym))
                    h = mix(h, read<Elf64_Sym>(image, section.sh_offset + at).st_value);
                break;
            default: break;
        }
        seal += h;
    });
    return seal == 0 ? 1 : seal;
}

uint64_t note_of(const Image& image) {
    uint64_t found = 0;
    for_each_section(image, [&](const Elf64_Shdr& section, const char* name) {
        if (strcmp(name, kModuleNote) == 0 && section.sh_size == sizeof(ModuleNote)) found = section.sh_offset;
    });
    return found;
}

}  // namespace os
}  // namespace fa
