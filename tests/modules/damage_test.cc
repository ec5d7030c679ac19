// A module's file that was damaged where it lies: it is looked through before any of it is mapped, and ends no process.
#include <elf.h>
#include <stddef.h>
#include <string.h>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>
#include "backend/module_note.h"
#include "folder.h"

namespace {

class Damaged : public ::testing::Test {
  protected:
    void SetUp() override {
        std::ifstream in(built("good"), std::ios::binary);
        whole.assign(std::istreambuf_iterator<char>(in), {});
        ASSERT_GT(whole.size(), sizeof(Elf64_Ehdr));
        header = read<Elf64_Ehdr>(0);
        for (int i = 0; i < header.e_shnum; i++) sections.push_back(read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    }
    template <class T>
    T read(uint64_t offset) const {
        T value;
        memcpy(&value, whole.data() + offset, sizeof value);
        return value;
    }
    // The module with these bytes from `offset` on.
    template <class T>
    std::string with(uint64_t offset, T value) const {
        std::string file = whole;
        memcpy(&file[offset], &value, sizeof value);
        return file;
    }
    const Elf64_Shdr& section(uint32_t type) const {
        for (const Elf64_Shdr& s : sections)
            if (s.sh_type == type && (s.sh_flags & SHF_ALLOC) != 0) return s;
        ADD_FAILURE() << "the module has no section of type " << type;
        return sections[0];
    }
    uint64_t segment(uint32_t type, uint32_t flags = 0) const {
        for (int i = 0; i < header.e_phnum; i++) {
            const uint64_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
            if (read<Elf64_Phdr>(at).p_type == type && (read<Elf64_Phdr>(at).p_flags & flags) == flags) return at;
        }
        ADD_FAILURE() << "the module has no segment of type " << type;
        return header.e_phoff;
    }
    uint64_t noted() const {
        const Elf64_Shdr& names = sections[header.e_shstrndx];
        for (const Elf64_Shdr& s : sections)
            if (strcmp(&whole[names.sh_offset + s.sh_name], fa::kModuleNote) == 0) return s.sh_offset;
        ADD_FAILURE() << "the module has no note";
        return 0;
    }
    uint64_t entry(int64_t tag) const {
        const Elf64_Shdr& s = section(SHT_DYNAMIC);
        for (uint64_t at = 0; at < s.sh_size; at += sizeof(Elf64_Dyn))
            if (read<Elf64_Dyn>(s.sh_offset + at).d_tag == tag) return s.sh_offset + at;
        ADD_FAILURE() << "the module has no entry " << tag;
        return s.sh_offset;
    }

    // One bit, one byte, eight, or a run: of anything, of zeros, or from elsewhere in the file.
    std::string damage(std::mt19937& random) const {
        const auto below = [&random](size_t n) { return size_t(random() % n); };
        std::string file = whole;
        const size_t kind = below(6), length = kind < 2 ? 1 : kind == 2 ? 8 : 16 + below(500);
        const size_t at = below(file.size() - length), from = below(file.size() - length);
        for (size_t i = 0; i < length; i++) {
            if (kind == 0) file[at + i] ^= char(1 << below(8));
            else file[at + i] = kind <= 3 ? char(below(256)) : kind == 4 ? '\0' : whole[from + i];
        }
        return file;
    }

    // What a program gets that asks for this module; a signal is negative.
    int outcome(const std::string& file, std::string* sentence = nullptr) const {
        std::ofstream(folder.path(kCuda), std::ios::binary) << file;
        EXPECT_EQ(chmod(folder.path(kCuda).c_str(), 0755), 0);
        if (sentence != nullptr) return create(folder.path(), FA_BACKEND_CUDA, sentence);
        return in_child([&] {
            alarm(20);
            return create(folder.path());
        });
    }

    Folder folder;
    std::string whole;
    Elf64_Ehdr header;
    std::vector<Elf64_Shdr> sections;
};

TEST_F(Damaged, ModuleEndsNoProcess) {
    std::mt19937 random(46);
    int refused = 0;
    for (int tried = 0; tried < 400;) {
        const std::string file = damage(random);
        if (file == whole) continue;
        const int status = outcome(file);
        EXPECT_TRUE(status == FA_OK || status == FA_BACKEND_INCOMPATIBLE) << "try " << tried << ": " << status;
        refused += status == FA_BACKEND_INCOMPATIBLE;
        tried++;
    }
    EXPECT_GT(refused, 130) << "nothing that matters was damaged";
}

// Each of these ended the process by a signal, or by an assertion in the loader; each part is named.
TEST_F(Damaged, ModuleIsToldByItsPart) {
    const Elf64_Shdr &symbols = section(SHT_DYNSYM), &hashes = section(SHT_GNU_HASH), &relocations = section(SHT_RELA),
                     &needs = section(SHT_GNU_verneed);
    const uint64_t last_symbol = symbols.sh_offset + symbols.sh_size - sizeof(Elf64_Sym),
                   first_symbol = symbols.sh_offset + sizeof(Elf64_Sym);
    const uint64_t value = offsetof(Elf64_Dyn, d_un);
    const struct {
        const char* part;
        std::string file;
    } cases[] = {
        {"header", with<Elf64_Half>(offsetof(Elf64_Ehdr, e_machine), EM_ARM)},
        {"header", with<Elf64_Half>(offsetof(Elf64_Ehdr, e_phentsize), 32)},
        {"header", with<Elf64_Half>(offsetof(Elf64_Ehdr, e_type), ET_EXEC)},
        {"table of segments", with<Elf64_Word>(segment(PT_LOAD, PF_X) + offsetof(Elf64_Phdr, p_flags), PF_R | PF_W | PF_X)},
        {"table of segments", with<Elf64_Word>(segment(PT_GNU_STACK) + offsetof(Elf64_Phdr, p_flags), PF_R | PF_W | PF_X)},
        {"table of segments", with<Elf64_Addr>(segment(PT_DYNAMIC) + offsetof(Elf64_Phdr, p_vaddr), 1 << 30)},
        {"table of segments", with<Elf64_Xword>(segment(PT_GNU_RELRO) + offsetof(Elf64_Phdr, p_memsz), 1 << 20)},
        {"table of segments", with<Elf64_Word>(segment(PT_LOAD, PF_W) + offsetof(Elf64_Phdr, p_flags), PF_R)},
        {"table of sections", with<Elf64_Word>(segment(PT_LOAD, PF_X) + offsetof(Elf64_Phdr, p_type), PT_NULL)},
        {"table of sections", with<Elf64_Xword>(segment(PT_DYNAMIC) + offsetof(Elf64_Phdr, p_memsz), 64)},
        {"dynamic section", with<Elf64_Addr>(entry(DT_STRTAB) + value, symbols.sh_addr)},
        {"dynamic section", with<Elf64_Sxword>(entry(DT_SYMTAB), DT_NULL)},
        {"dynamic section", with<Elf64_Xword>(entry(DT_NEEDED) + value, 1 << 20)},
        {"dynamic section", with<Elf64_Addr>(entry(DT_INIT_ARRAY) + value, symbols.sh_addr)},
        {"dynamic section", with<Elf64_Sxword>(entry(DT_GNU_HASH), DT_TEXTREL)},
        {"table of symbols", with<Elf64_Word>(last_symbol + offsetof(Elf64_Sym, st_name), 1 << 24)},
        {"table of symbols", with<unsigned char>(last_symbol + offsetof(Elf64_Sym, st_info), ELF64_ST_INFO(STB_GLOBAL, STT_GNU_IFUNC))},
        {"table of symbols", with<unsigned char>(first_symbol + offsetof(Elf64_Sym, st_info), ELF64_ST_INFO(STB_LOCAL, STT_FUNC))},
        {"table of hashes", with<Elf64_Word>(hashes.sh_offset, 0)},
        {"table of hashes", with<Elf64_Word>(hashes.sh_offset + 8, 3)},
        {"table of hashes", with<Elf64_Word>(hashes.sh_offset + hashes.sh_size - 4, 0)},
        {"table of versions", with<Elf64_Word>(needs.sh_offset + offsetof(Elf64_Verneed, vn_file), 1)},
        {"table of versions", with<Elf64_Word>(needs.sh_offset + offsetof(Elf64_Verneed, vn_aux), 1 << 20)},
        {"table of versions", with<Elf64_Half>(section(SHT_GNU_versym).sh_offset + 2, 0x7ffe)},
        {"table of relocations", with<Elf64_Addr>(relocations.sh_offset + offsetof(Elf64_Rela, r_offset), 1 << 30)},
        {"table of relocations", with<Elf64_Addr>(relocations.sh_offset + offsetof(Elf64_Rela, r_offset), section(SHT_DYNAMIC).sh_addr)},
        {"table of relocations", with<Elf64_Xword>(relocations.sh_offset + offsetof(Elf64_Rela, r_info), ELF64_R_INFO(1 << 20, 1))},
        {"table of relocations", with<Elf64_Xword>(entry(DT_RELAENT) + value, 16)},
        {"table of relocations", with<Elf64_Xword>(entry(DT_RELASZ) + value, 1 << 20)},
    };
    for (const auto& c : cases) {
        std::string sentence;
        EXPECT_EQ(outcome(c.file, &sentence), FA_BACKEND_INCOMPATIBLE) << c.part;
        EXPECT_EQ(sentence, folder.path(kCuda) + " is damaged: its " + c.part + " is not as a linker writes it");
    }
}

// What runs is held against a checksum that the build has left, if it has.
TEST_F(Damaged, CodeAndDataAreTold) {
    const uint64_t note = noted(), seal = note + offsetof(fa::ModuleNote, seal);
    ASSERT_NE(read<uint64_t>(seal), 0u) << "the build has not sealed it";
    std::string sentence;
    const std::string other = "is of another version: it has interface 5, this library";
    EXPECT_EQ(outcome(with<uint32_t>(note + offsetof(fa::ModuleNote, interface), 5), &sentence), FA_BACKEND_INCOMPATIBLE);
    EXPECT_NE(sentence.find(other), std::string::npos) << sentence;
    const std::string damaged = folder.path(kCuda) + " is damaged: the checksum of its code or data does not match";
    for (const uint64_t at : {section(SHT_PROGBITS).sh_offset, section(SHT_INIT_ARRAY).sh_offset,
                              section(SHT_RELA).sh_offset + offsetof(Elf64_Rela, r_addend), seal}) {
        EXPECT_EQ(outcome(with<char>(at, char(whole[at] ^ 1)), &sentence), FA_BACKEND_INCOMPATIBLE);
        EXPECT_EQ(sentence, damaged);
    }
    EXPECT_EQ(outcome(with<uint64_t>(seal, 0)), FA_OK);
}

// As distributions do after the build.
TEST_F(Damaged, NotByBeingStripped) {
    const std::string command =
        "cd " + folder.path() + " && " FA_STRIP " --strip-unneeded --remove-section=.comment -o stripped " + built("good");
    ASSERT_EQ(system(command.c_str()), 0);
    std::ifstream in(folder.path("stripped"), std::ios::binary);
    const std::string stripped{std::istreambuf_iterator<char>(in), {}};
    EXPECT_LT(stripped.size(), whole.size());
    EXPECT_EQ(outcome(stripped), FA_OK);
}

}  // namespace
