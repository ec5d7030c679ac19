// Decoding by AVX-512 that AMX's tables have, too: such CPUs have its instructions. Compiled once, in kernels.cc.
#pragma once
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {

// One row leaves tiles almost empty. Dots of bytes, widened once in registers, then take 0.8 of their time from memory (Emerald Rapids,
// e4m3, heads of 128). bf16 and int8 are left to vectors and amx/decode_one_row.h.
extern const DecodeMatrixKernels kDecodeDotsOfBytes;
extern const DecodeMatrixKernels kDecodeIntegers;

}  // namespace cpu
}  // namespace fa
