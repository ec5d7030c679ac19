// Words that stand for values. The CPU's instruction sets by name, as messages and FLASHATTN_MAX_ISA spell them.
#pragma once
#include <flashattn.h>

namespace fa {

struct Word {
    const char* text;
    int32_t value;
};
constexpr Word kIsaWords[] = {{"generic", FA_ISA_GENERIC},         {"avx2", FA_ISA_AVX2}, {"avx512", FA_ISA_AVX512},
                              {"avx512_bf16", FA_ISA_AVX512_BF16}, {"amx", FA_ISA_AMX},   {"amx_fp16", FA_ISA_AMX_FP16},
                              {"neon", FA_ISA_NEON},               {"sve", FA_ISA_SVE}};

}  // namespace fa
