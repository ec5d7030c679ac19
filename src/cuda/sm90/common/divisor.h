// Division by a number that the host knows, of numbers below 2^31.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

struct Divisor {
    uint32_t by, factor, shift;
};
static inline Divisor divisor(int64_t by) {
    uint32_t shift = 0;
    while ((int64_t(1) << shift) < by) shift++;
    return {uint32_t(by), uint32_t((((uint64_t(1) << shift) - uint64_t(by)) << 32) / uint64_t(by) + 1), shift};
}
struct Quotient {
    int number, rest;
};
FA_DEVICE Quotient divide(int n, const Divisor& divisor) {
    const uint32_t number = (__umulhi(uint32_t(n), divisor.factor) + uint32_t(n)) >> divisor.shift;
    return {int(number), n - int(number * divisor.by)};
}

}  // namespace gpu
}  // namespace fa
