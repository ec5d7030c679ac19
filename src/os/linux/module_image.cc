#include "os/linux/module_image.h"
#include <elf.h>
#include <string.h>

#ifndef SHT_RELR
#define SHT_RELR 19
#define DT_RELRSZ 35
#define DT_RELR 36
#define DT_RELRENT 37
#endif

namespace fa {
namespace os {
namespace {

constexpr uint64_t kPage = 4096;

// What a module's relocations may be. Of machines that no GPU backend was ever built for, anything.
#if defined(__x86_64__)
constexpr uint32_t kMachine = EM_X86_64, kRelative = R_X86_64_RELATIVE;
constexpr uint32_t kOfSymbols[] = {R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
constexpr uint32_t kOfThreads[] = {R_X86_64_DTPMOD64, R_X86_64_DTPOFF64, R_X86_64_TPOFF64, R_X86_64_TLSDESC};
#elif defined(__aarch64__)
constexpr uint32_t kMachine = EM_AARCH64, kRelative = R_AARCH64_RELATIVE;
constexpr uint32_t kOfSymbols[] = {R_AARCH64_ABS64, R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT};
constexpr uint32_t kOfThreads[] = {R_AARCH64_TLS_DTPMOD, R_AARCH64_TLS_DTPREL, R_AARCH64_TLS_TPREL, R_AARCH64_TLSDESC};
#else
#define FA_UNKNOWN_MACHINE
#endif

// [from, from + bytes) within [outer, outer + outer_bytes)
bool within(uint64_t from, uint64_t bytes, uint64_t outer, uint64_t outer_bytes) {
    return from >= outer && from - outer <= outer_bytes && bytes <= outer_bytes - (from - outer);
}

class ImageReader {
  public:
    explicit ImageReader(const Image& file) : f(file), h(read<Elf64_Ehdr>(file, 0)) {}

    const char* damaged_part() {
        if (!header()) return "header";
        if (!segments()) return "table of segments";
        if (!sections()) return "table of sections";
        if (!dynamic_section()) return "dynamic section";
        if (!symbols()) return "table of symbols";
        if (!hashes()) return "table of hashes";
        if (!versions()) return "table of versions";
        return relocations() && packed_relocations() && initialised() ? nullptr : "table of relocations";
    }

  private:
    Elf64_Phdr segment(uint64_t i) const { return read<Elf64_Phdr>(f, h.e_phoff + i * sizeof(Elf64_Phdr)); }
    Elf64_Shdr section(uint64_t i) const { return read<Elf64_Shdr>(f, h.e_shoff + i * sizeof(Elf64_Shdr)); }
    uint64_t word(const Elf64_Shdr& section, uint64_t index) const {
        return read<uint32_t>(f, section.sh_offset + index * sizeof(uint32_t));
    }

    // The only section of a type that is loaded; none, or one of several: its type is SHT_NULL.
    Elf64_Shdr only(uint32_t type) const {
        Elf64_Shdr found = {};
        for (uint64_t i = 0, seen = 0; i < h.e_shnum; i++) {
            const Elf64_Shdr s = section(i);
            if (s.sh_type == type && (s.sh_flags & SHF_ALLOC) != 0) found = seen++ == 0 ? s : Elf64_Shdr{};
        }
        return found;
    }

    // As the loader has it: the last entry of a tag counts.
    bool find(int64_t tag, uint64_t* value = nullptr) const {
        bool found = false;
        for (uint64_t at = 0; at < dynamic.sh_size; at += sizeof(Elf64_Dyn)) {
            const auto entry = read<Elf64_Dyn>(f, dynamic.sh_offset + at);
            if (entry.d_tag == DT_NULL) break;
            if (entry.d_tag != tag) continue;
            found = true;
            if (value != nullptr) *value = entry.d_un.d_val;
        }
        return found;
    }
    bool is(int64_t tag, uint64_t wanted) const {
        uint64_t value = 0;
        return find(tag, &value) && value == wanted;
    }

    bool header() const {
#ifndef FA_UNKNOWN_MACHINE
        if (h.e_machine != kMachine) return false;
#endif
        return h.e_type == ET_DYN && h.e_version == EV_CURRENT && h.e_phentsize == sizeof(Elf64_Phdr) &&
               h.e_shentsize == sizeof(Elf64_Shdr) && h.e_phnum != 0 && h.e_shnum != 0;
    }

    // The loaded segment around an address range of the image.
    bool loaded(uint64_t address, uint64_t bytes, Elf64_Phdr* around) const {
        for (uint64_t i = 0; i < h.e_phnum; i++) {
            *around = segment(i);
            if (around->p_type == PT_LOAD && within(address, bytes, around->p_vaddr, around->p_memsz)) return true;
        }
        return false;
    }

    bool segments() const {
        uint64_t end = 0;
        for (uint64_t i = 0; i < h.e_phnum; i++) {
            const Elf64_Phdr p = segment(i);
            switch (p.p_type) {
                case PT_LOAD:
                    if (p.p_vaddr < end || p.p_memsz > INT64_MAX - p.p_vaddr || p.p_filesz > p.p_memsz) return false;
                    if ((p.p_flags & PF_R) == 0 || ((p.p_flags & PF_W) != 0 && (p.p_flags & PF_X) != 0)) return false;
                    end = p.p_vaddr + p.p_memsz;
                    break;
                case PT_GNU_STACK:
                    if ((p.p_flags & PF_X) != 0) return false;
                    break;
                case PT_DYNAMIC:
                case PT_NOTE:
                case PT_PHDR:
                case PT_TLS:
                case PT_GNU_RELRO:
                case PT_GNU_EH_FRAME:
                case PT_GNU_PROPERTY:
                    if (!part_of_a_segment(p)) return false;
                    break;
                default: break;
            }
        }
        return true;
    }

    // What the loader finds in a loaded segment by another one.
    bool part_of_a_segment(const Elf64_Phdr& header) const {
        if (header.p_type == PT_TLS &&
            (header.p_filesz > header.p_memsz || header.p_align > kPage || (header.p_align & (header.p_align - 1)) != 0))
            return false;
        if (header.p_filesz == 0) return true;
        Elf64_Phdr around;
        if (!loaded(header.p_vaddr, header.p_filesz, &around) || header.p_offset - header.p_vaddr != around.p_offset - around.p_vaddr)
            return false;
        if (header.p_filesz > around.p_filesz - (header.p_vaddr - around.p_vaddr) || (header.p_flags & ~around.p_flags) != 0) return false;
        // Up to the end of a page it is made read-only.
        const uint64_t rounded = (around.p_memsz + kPage - 1) & -kPage;
        if (header.p_type == PT_GNU_RELRO)
            return within(header.p_vaddr, header.p_memsz, around.p_vaddr, rounded) && (around.p_flags & PF_W) != 0;
        return header.p_type != PT_NOTE || notes(header);
    }

    bool notes(const Elf64_Phdr& header) const {
        const uint64_t align = header.p_align == 8 ? 8 : 4;
        for (uint64_t at = 0; at < header.p_filesz;) {
            const auto note = read<Elf64_Nhdr>(f, header.p_offset + at);
            const uint64_t name = (sizeof note + uint64_t(note.n_namesz) + align - 1) & -align;
            const uint64_t bytes = (name + note.n_descsz + align - 1) & -align;
            if (bytes > header.p_filesz - at) return false;
            at += bytes;
        }
        return true;
    }

    bool sections() {
        uint64_t threads_from = UINT64_MAX, threads_to = 0;
        for (uint64_t i = 0; i < h.e_shnum; i++) {
            const Elf64_Shdr s = section(i);
            if ((s.sh_flags & SHF_ALLOC) == 0 || s.sh_size == 0) continue;
            if ((s.sh_flags & SHF_TLS) != 0) {
                if (s.sh_addr < threads_from) threads_from = s.sh_addr;
                if (s.sh_addr + s.sh_size > threads_to) threads_to = s.sh_addr + s.sh_size;
                if (s.sh_type == SHT_NOBITS) continue;  // it takes no room in the image
            }
            Elf64_Phdr p;
            if (!loaded(s.sh_addr, s.sh_size, &p)) return false;
            if (((s.sh_flags & SHF_WRITE) != 0 && (p.p_flags & PF_W) == 0) ||
                ((s.sh_flags & SHF_EXECINSTR) != 0 && (p.p_flags & PF_X) == 0))
                return false;
            if (s.sh_type != SHT_NOBITS &&
                (s.sh_offset - s.sh_addr != p.p_offset - p.p_vaddr || !within(s.sh_addr, s.sh_size, p.p_vaddr, p.p_filesz)))
                return false;
        }
        dynamic = only(SHT_DYNAMIC);
        bool dynamic_found = false, threads_found = threads_to == 0;
        for (uint64_t i = 0; i < h.e_phnum; i++) {
            const Elf64_Phdr p = segment(i);
            if (p.p_type == PT_DYNAMIC)
                dynamic_found = p.p_vaddr == dynamic.sh_addr && p.p_memsz == dynamic.sh_size && p.p_filesz == p.p_memsz;
            if (p.p_type == PT_TLS) {
                has_threads = true;
                threads_found = p.p_vaddr == threads_from && p.p_vaddr + p.p_memsz == threads_to;
            }
        }
        return dynamic_found && threads_found;
    }

    // A table's address, and its size or its number of entries, are those of its section; both or neither are there.
    bool table(uint32_t type, int64_t address_tag, int64_t size_tag = 0, bool counted = false) const {
        const Elf64_Shdr s = only(type);
        if (s.sh_type == SHT_NULL) return !find(address_tag);
        return is(address_tag, s.sh_addr) && (size_tag == 0 || is(size_tag, counted ? s.sh_info : s.sh_size));
    }

    bool runs_code(uint64_t address) const {
        for (uint64_t i = 0; i < h.e_shnum; i++) {
            const Elf64_Shdr s = section(i);
            if ((s.sh_flags & SHF_ALLOC) != 0 && (s.sh_flags & SHF_EXECINSTR) != 0 && within(address, 1, s.sh_addr, s.sh_size)) return true;
        }
        return false;
    }

    bool dynamic_section() {
        const uint64_t entries = dynamic.sh_size / sizeof(Elf64_Dyn);
        if (entries == 0 || read<Elf64_Dyn>(f, dynamic.sh_offset + (entries - 1) * sizeof(Elf64_Dyn)).d_tag != DT_NULL) return false;
        symbol_table = only(SHT_DYNSYM);
        if (symbol_table.sh_type == SHT_NULL || symbol_table.sh_link >= h.e_shnum || !table(SHT_DYNSYM, DT_SYMTAB) ||
            !is(DT_SYMENT, sizeof(Elf64_Sym)))
            return false;
        strings = section(symbol_table.sh_link);
        if (strings.sh_type != SHT_STRTAB || (strings.sh_flags & SHF_ALLOC) == 0 || !is(DT_STRTAB, strings.sh_addr) ||
            !is(DT_STRSZ, strings.sh_size))
            return false;
        if (strings.sh_size == 0 || read<char>(f, strings.sh_offset + strings.sh_size - 1) != 0) return false;
        initialisers[0] = only(SHT_INIT_ARRAY), initialisers[1] = only(SHT_FINI_ARRAY);
        uint64_t flags = 0;
        find(DT_FLAGS, &flags);
        if ((flags & DF_TEXTREL) != 0 || find(DT_TEXTREL)) return false;
        for (uint64_t i = 0; i < entries; i++) {
            const auto entry = read<Elf64_Dyn>(f, dynamic.sh_offset + i * sizeof(Elf64_Dyn));
            switch (entry.d_tag) {
                case DT_NEEDED:
                case DT_SONAME:
                case DT_RPATH:
                case DT_RUNPATH:
                case DT_AUXILIARY:
                case DT_FILTER:
                    if (entry.d_un.d_val >= strings.sh_size) return false;
                    break;
                case DT_INIT:
                case DT_FINI:
                    if (!runs_code(entry.d_un.d_val)) return false;
                    break;
                default: break;
            }
        }
        return table(SHT_HASH, DT_HASH) && table(SHT_GNU_HASH, DT_GNU_HASH) && (find(DT_HASH) || find(DT_GNU_HASH)) &&
               table(SHT_GNU_versym, DT_VERSYM) && table(SHT_GNU_verneed, DT_VERNEED, DT_VERNEEDNUM, true) &&
               table(SHT_GNU_verdef, DT_VERDEF, DT_VERDEFNUM, true) && table(SHT_INIT_ARRAY, DT_INIT_ARRAY, DT_INIT_ARRAYSZ) &&
               table(SHT_FINI_ARRAY, DT_FINI_ARRAY, DT_FINI_ARRAYSZ) && table(SHT_RELR, DT_RELR, DT_RELRSZ);
    }

    Elf64_Sym symbol(uint64_t i) const { return read<Elf64_Sym>(f, symbol_table.sh_offset + i * sizeof(Elf64_Sym)); }
    const char* name(uint64_t offset) const { return f.bytes + strings.sh_offset + offset; }

    bool symbols() {
        symbol_count = symbol_table.sh_size / sizeof(Elf64_Sym);
        for (uint64_t i = 0; i < symbol_count; i++) {
            const Elf64_Sym s = symbol(i);
            const uint32_t type = ELF64_ST_TYPE(s.st_info);
            if (s.st_name >= strings.sh_size || type == STT_GNU_IFUNC) return false;
            if ((ELF64_ST_BIND(s.st_info) == STB_LOCAL) != (i < symbol_table.sh_info)) return false;
            if (s.st_shndx == SHN_UNDEF || s.st_shndx >= SHN_LORESERVE) continue;
            Elf64_Phdr p;
            if (type == STT_NOTYPE && s.st_size == 0 && loaded(s.st_value, 0, &p)) continue;  // a mark of the linker's, as _end
            const Elf64_Shdr of = section(s.st_shndx);
            if (s.st_shndx >= h.e_shnum || (of.sh_flags & SHF_ALLOC) == 0) return false;
            if (((of.sh_flags & SHF_TLS) != 0) != (type == STT_TLS) || (type == STT_FUNC && (of.sh_flags & SHF_EXECINSTR) == 0))
                return false;
            if (type != STT_TLS && !within(s.st_value, s.st_size, of.sh_addr, of.sh_size)) return false;
        }
        return symbol_count != 0;
    }

    bool hashes() const {
        const Elf64_Shdr old = only(SHT_HASH), gnu = only(SHT_GNU_HASH);
        // Some machines, as s390x, have words of 8 bytes in the old table, and the other one beside it.
        return (old.sh_entsize != sizeof(uint32_t) || old_hashes(old)) && (gnu.sh_type == SHT_NULL || gnu_hashes(gnu));
    }

    bool old_hashes(const Elf64_Shdr& section) const {
        const uint64_t buckets = word(section, 0), chain = 2 + buckets;
        if (buckets == 0 || word(section, 1) != symbol_count || section.sh_size != (chain + symbol_count) * sizeof(uint32_t)) return false;
        uint64_t visited = 0;  // each symbol is in one chain, which ends
        for (uint64_t b = 0; b < buckets; b++)
            for (uint64_t i = word(section, 2 + b); i != 0; i = word(section, chain + i))
                if (i >= symbol_count || ++visited >= symbol_count) return false;
        return true;
    }

    // Buckets lead to the first of a run of symbols, which ends with the low bit of a hash; what is hashed are names.
    bool gnu_hashes(const Elf64_Shdr& section) const {
        const uint64_t buckets = word(section, 0), first = word(section, 1), masks = word(section, 2), chain = 4 + 2 * masks + buckets;
        if (buckets == 0 || masks == 0 || (masks & (masks - 1)) != 0 || word(section, 3) >= 32 || first > symbol_count) return false;
        const bool full = section.sh_size == (chain + symbol_count - first) * sizeof(uint32_t);
        if (!full && section.sh_size != chain * sizeof(uint32_t)) return false;  // nothing is hashed
        for (uint64_t b = 0; b < buckets; b++) {
            const uint64_t i = word(section, chain - buckets + b);
            if (i != 0 && (!full || i < first || i >= symbol_count)) return false;
        }
        if (!full) return true;
        for (uint64_t i = first; i < symbol_count; i++) {
            uint32_t hash = 5381;
            for (const char* c = name(symbol(i).st_name); *c != 0; c++) hash = hash * 33 + static_cast<unsigned char>(*c);
            const uint64_t found = word(section, chain + i - first);
            if ((found | 1) != (hash | 1) || (i + 1 == symbol_count && (found & 1) == 0)) return false;
        }
        return true;
    }

    bool needed(uint64_t file) const {
        for (uint64_t at = 0; at < dynamic.sh_size; at += sizeof(Elf64_Dyn)) {
            const auto entry = read<Elf64_Dyn>(f, dynamic.sh_offset + at);
            if (entry.d_tag == DT_NULL) return false;
            if (entry.d_tag == DT_NEEDED && strcmp(name(entry.d_un.d_val), name(file)) == 0) return true;
        }
        return false;
    }

    bool versions() const {
        const Elf64_Shdr of_symbols = only(SHT_GNU_versym), wanted = only(SHT_GNU_verneed), defined = only(SHT_GNU_verdef);
        uint64_t highest = VER_NDX_GLOBAL;
        for (uint64_t i = 0, at = 0; i < wanted.sh_info; i++) {
            const auto need = read<Elf64_Verneed>(f, wanted.sh_offset + at);
            if (!within(at, sizeof need, 0, wanted.sh_size) || need.vn_version != 1 || need.vn_file >= strings.sh_size ||
                !needed(need.vn_file))
                return false;
            uint64_t of = at + need.vn_aux;
            for (uint64_t k = 0; k < need.vn_cnt; k++) {
                const auto version = read<Elf64_Vernaux>(f, wanted.sh_offset + of);
                if (!within(of, sizeof version, 0, wanted.sh_size) || version.vna_name >= strings.sh_size) return false;
                if ((version.vna_next == 0) != (k + 1 == need.vn_cnt)) return false;
                if ((version.vna_other & 0x7fffu) > highest) highest = version.vna_other & 0x7fffu;
                of += version.vna_next;
            }
            if (need.vn_cnt == 0 || (need.vn_next == 0) != (i + 1 == wanted.sh_info)) return false;
            at += need.vn_next;
        }
        for (uint64_t i = 0, at = 0; i < defined.sh_info; i++) {
            const auto version = read<Elf64_Verdef>(f, defined.sh_offset + at);
            const auto named = read<Elf64_Verdaux>(f, defined.sh_offset + at + version.vd_aux);
            if (!within(at, sizeof version, 0, defined.sh_size) || version.vd_version != 1 ||
                !within(at + version.vd_aux, sizeof named, 0, defined.sh_size))
                return false;
            if (named.vda_name >= strings.sh_size || (version.vd_next == 0) != (i + 1 == defined.sh_info)) return false;
            if ((version.vd_ndx & 0x7fffu) > highest) highest = version.vd_ndx & 0x7fffu;
            at += version.vd_next;
        }
        if (of_symbols.sh_type == SHT_NULL) return wanted.sh_info == 0 && defined.sh_info == 0;
        if (of_symbols.sh_size != symbol_count * sizeof(uint16_t)) return false;
        for (uint64_t i = 0; i < symbol_count; i++)
            if ((read<uint16_t>(f, of_symbols.sh_offset + i * sizeof(uint16_t)) & 0x7fffu) > highest) return false;
        return true;
    }

    // A word of the image that relocation makes the address `target` of the image.
    bool relocated(uint64_t address, uint64_t target) {
        Elf64_Phdr p;
        if (!loaded(address, sizeof(uint64_t), &p) || (p.p_flags & PF_W) == 0) return false;
        if (within(address, 1, dynamic.sh_addr, dynamic.sh_size)) return false;
        for (const Elf64_Shdr& s : initialisers) {
            if (!within(address, 1, s.sh_addr, s.sh_size)) continue;
            if (!runs_code(target)) return false;
            initialiser_count++;
            initialiser_sum += address;
        }
        return true;
    }

    // What the file has for a word of the image.
    uint64_t held(uint64_t address) const {
        Elf64_Phdr p;
        return loaded(address, sizeof(uint64_t), &p) ? read<uint64_t>(f, p.p_offset + (address - p.p_vaddr)) : 0;
    }

    static bool is_relative(const Elf64_Rela& relocation) {
#ifndef FA_UNKNOWN_MACHINE
        return ELF64_R_TYPE(relocation.r_info) == kRelative && ELF64_R_SYM(relocation.r_info) == 0;
#else
        return ELF64_R_SYM(relocation.r_info) == 0;
#endif
    }

    bool relocation(const Elf64_Rela& relocation) {
        const uint64_t index = ELF64_R_SYM(relocation.r_info);
        if (index >= symbol_count || !relocated(relocation.r_offset, symbol(index).st_value + uint64_t(relocation.r_addend))) return false;
#ifndef FA_UNKNOWN_MACHINE
        const uint32_t type = ELF64_R_TYPE(relocation.r_info);
        const bool of_thread = ELF64_ST_TYPE(symbol(index).st_info) == STT_TLS;
        Elf64_Phdr around;
        if (type == kRelative) return loaded(uint64_t(relocation.r_addend), 0, &around);
        for (const uint32_t known : kOfSymbols)
            if (type == known) return index != 0 && !of_thread;
        for (const uint32_t known : kOfThreads)
            if (type == known) return index == 0 ? has_threads : of_thread;
        return false;
#else
        return true;
#endif
    }

    bool relocations() {
        uint64_t plain = 0, plain_bytes = 0, calls = 0, calls_bytes = 0, first = 0;
        if (find(DT_RELA, &plain) && !is(DT_RELAENT, sizeof(Elf64_Rela))) return false;
        if (find(DT_JMPREL, &calls) && !is(DT_PLTREL, DT_RELA)) return false;
        if (find(DT_RELR) && !is(DT_RELRENT, sizeof(uint64_t))) return false;
        find(DT_RELASZ, &plain_bytes), find(DT_PLTRELSZ, &calls_bytes);
        find(DT_RELACOUNT, &first);
        uint64_t covered = 0;
        for (uint64_t i = 0; i < h.e_shnum; i++) {
            const Elf64_Shdr s = section(i);
            if (s.sh_type != SHT_RELA || (s.sh_flags & SHF_ALLOC) == 0) continue;
            const bool is_plain = within(s.sh_addr, s.sh_size, plain, plain_bytes);
            if (s.sh_size % sizeof(Elf64_Rela) != 0 || (!is_plain && !within(s.sh_addr, s.sh_size, calls, calls_bytes))) return false;
            covered += s.sh_size;
            for (uint64_t at = 0; at < s.sh_size; at += sizeof(Elf64_Rela)) {
                const auto r = read<Elf64_Rela>(f, s.sh_offset + at);
                if (!relocation(r)) return false;
                // The first so many are taken for relative ones without a look at them.
                if (is_plain && s.sh_addr + at - plain < first * sizeof r && !is_relative(r)) return false;
            }
        }
        const bool joined = within(calls, calls_bytes, plain, plain_bytes);  // some linkers count calls among the others
        return first <= plain_bytes / sizeof(Elf64_Rela) && covered == plain_bytes + (joined ? 0 : calls_bytes);
    }

    // An address, then words whose bits, but the lowest, say which of the next 63 words are relocated, too.
    bool packed_relocations() {
        const Elf64_Shdr s = only(SHT_RELR);
        uint64_t next = 0;
        for (uint64_t at = 0; at < s.sh_size; at += sizeof(uint64_t)) {
            const auto entry = read<uint64_t>(f, s.sh_offset + at);
            if ((entry & 1) == 0) {
                if (!relocated(entry, held(entry))) return false;
                next = entry + sizeof entry;
                continue;
            }
            for (uint64_t bit = 1; bit < 64; bit++) {
                const uint64_t address = next + (bit - 1) * sizeof entry;
                if ((entry >> bit & 1) != 0 && !relocated(address, held(address))) return false;
            }
            next += 63 * sizeof entry;
        }
        return true;
    }

    // Each function of the lists that are called before and after all others has been relocated, once.
    bool initialised() const {
        uint64_t count = 0, sum = 0;
        for (const Elf64_Shdr& s : initialisers)
            for (uint64_t at = 0; at < s.sh_size; at += sizeof(uint64_t), count++) sum += s.sh_addr + at;
        return count == initialiser_count && sum == initialiser_sum;
    }

    const Image& f;
    const Elf64_Ehdr h;
    Elf64_Shdr dynamic = {}, symbol_table = {}, strings = {}, initialisers[2] = {};
    uint64_t symbol_count = 0, initialiser_count = 0, initialiser_sum = 0;  // the sum of addresses tells one from another
    bool has_threads = false;
};

}  // namespace

bool is_elf(const Image& image) {
    constexpr unsigned char kHostOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    const auto h = read<Elf64_Ehdr>(image, 0);
    return memcmp(h.e_ident, ELFMAG, SELFMAG) == 0 && h.e_ident[EI_CLASS] == ELFCLASS64 && h.e_ident[EI_DATA] == kHostOrder;
}

// The table of sections is not needed to load it, but it is the end of the file as a linker writes it: a copy that reserves the space first
// leaves it empty when it is cut off.
uint64_t bytes_named(const Image& image) {
    const auto h = read<Elf64_Ehdr>(image, 0);
    uint64_t end = 0;
    const auto add = [&end](uint64_t offset, uint64_t bytes) {
        uint64_t e;
        if (__builtin_add_overflow(offset, bytes, &e)) e = UINT64_MAX;
        if (e > end) end = e;
    };
    add(h.e_phoff, uint64_t(h.e_phnum) * sizeof(Elf64_Phdr));
    add(h.e_shoff, uint64_t(h.e_shnum) * sizeof(Elf64_Shdr));
    for (uint64_t i = 0; i < h.e_phnum; i++) {
        const auto p = read<Elf64_Phdr>(image, h.e_phoff + i * sizeof(Elf64_Phdr));
        add(p.p_offset, p.p_filesz);
    }
    const auto names = read<Elf64_Shdr>(image, h.e_shoff + h.e_shstrndx * sizeof(Elf64_Shdr));
    return h.e_shstrndx < h.e_shnum && h.e_shstrndx != SHN_UNDEF && names.sh_type != SHT_STRTAB ? UINT64_MAX : end;
}

const char* damaged_part(const Image& image) { return ImageReader(image).damaged_part(); }

}  // namespace os
}  // namespace fa
