// What decode_kernels.h knows of a storage type: how a pair of vectors of it is read. An isa/*/formats.h derives F32, F16, Bf16,
// E4m3, E5m2 and I8 from StorageFormat and adds
//     read(at)          the VecPair at `at`
//     read(at, count)   where kMaskedReads is true: `count` elements of it and zeros behind, without touching a byte more
#pragma once
#include FA_ISA_VECTORS

namespace fa {
namespace cpu {
namespace {

// Two vectors: the values of 2 · kLanes neighbouring elements of a row.
struct VecPair {
    V a, b;
};

// Of a vector of 16 floats those whose numbers are the low 4 bits of integers, where one instruction picks them: pick(table, x).
template <int Lanes>
struct FloatTable {
    static constexpr bool kExists = false;
};

template <int Bytes, bool Deinterleaved = false, int Descale = 1, bool NoNan = false>
struct StorageFormat {
    static constexpr int kBytes = Bytes;  // of an element
    // What is read at once: a VecPair of single elements, or a block of kParts VecPairs, each read by read_part(unit, part).
    static constexpr bool kBlock = false, kScaledDots = false;
    static constexpr int kUnitBytes = 2 * kLanes * Bytes, kParts = 1;
    static constexpr bool kDeinterleaved =
        Deinterleaved;                          // a has the even elements, b the odd ones: that is cheaper; otherwise a has the first half
    static constexpr float kDescale = Descale;  // read() gives 1 / kDescale of the value: a power of two
    static constexpr bool kNoNan = NoNan;       // read() does not convert the type's NaN
};

}  // namespace
}  // namespace cpu
}  // namespace fa
