// Words that stand for values. The CPU's instruction sets by name, as messages and FLASHATTN_MAX_ISA spell them; a word that serves several
// tables comes more than once.
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

// Whether an earlier table has the same word.
static inline bool comes_again(const Word& word) {
    for (const Word* w = kIsaWords; w != &word; w++)
        if (w->value == word.value) return true;
    return false;
}

}  // namespace fa
