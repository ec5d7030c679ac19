// What fa_backward must have written, element by element, and how near.
#pragma once
#include "oracle/accuracy.h"
#include "oracle/backward.h"

namespace oracle {

// One element of a gradient in memory: all pairs that are summed into it.
struct Slot {
    Element where;
    int64_t index;
    double value, spread, heat, reach, drift;  // spread 0: exactly the value
    int64_t terms;                             // that are added to what the element held, each by itself
};

struct Target {
    const char* name;
    void* base;
    int32_t dtype;
    Tensor tensor;
    double factor;  // C of accuracy line 2
    bool uses_o;    // its error has a share of o's
    std::vector<Slot> slots;
};

// The gradients that the call asks for, with every element that it must write: zeros beyond the lengths of padded tensors, too.
std::vector<Target> targets(const BackwardReading& reading, const Gradients& want);

// What the arithmetic behind the gradients was.
struct Products {
    int32_t o_dtype;  // the coarsest type that the forward rounded o or P to
    int32_t p_dtype;  // of P and dS where they are multiplied
};

// before: what accumulating adds to, by target; else empty.
Verdict compare(const BackwardReading& reading, const std::vector<Target>& targets, const Products& products,
                const std::vector<std::vector<double>>& before = {});
Pairs pairs(const Target& target);

}  // namespace oracle
