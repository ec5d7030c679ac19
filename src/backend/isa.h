// Words that stand for values. The CPU's instruction sets by name, as messages and FLASHATTN_MAX_ISA spell them.
#pragma once
#include <flashattn.h>

namespace fa {

struct Word {
    const char* text;
    int32_t value;
};
constexpr Word kIsaWords[] = {
#define FA_CPU_ISA(architecture, table, word, value) {#word, value},
#include "backend/isa.def"
};

}  // namespace fa
