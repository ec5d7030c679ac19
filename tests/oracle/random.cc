// Philox 4x32-10, from its description: four words are two products of 32 x 32 bits, crossed over and keyed, ten times.
#include "oracle/oracle.h"
#include <cmath>

namespace oracle {

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> x) {
    const uint64_t multiplier[2] = {3528531795u, 3449720151u};
    const uint32_t weyl[2] = {2654435769u, 3144134277u};  // golden ratio and sqrt(3) - 1, times 2^32
    std::array<uint32_t, 2> k = {uint32_t(key % (uint64_t(1) << 32)), uint32_t(key / (uint64_t(1) << 32))};
    for (int round = 0; round < 10; round++) {
        const uint64_t first = multiplier[0] * x[0], second = multiplier[1] * x[2];
        const uint32_t high1 = uint32_t(second / (uint64_t(1) << 32)), high0 = uint32_t(first / (uint64_t(1) << 32));
        x = {high1 ^ x[1] ^ k[0], uint32_t(second % (uint64_t(1) << 32)), high0 ^ x[3] ^ k[1], uint32_t(first % (uint64_t(1) << 32))};
        for (int w = 0; w < 2; w++) k[w] += weyl[w];
    }
    return x;
}

uint64_t dropout_key(uint64_t seed, uint64_t offset) {
    const auto words = philox(seed, {uint32_t(offset), uint32_t(offset >> 32), 0, 0});
    return words[0] | uint64_t(words[1]) << 32;
}

bool keeps(float p, uint64_t derived_key, int64_t batch_head, int64_t row, int64_t key) {
    const uint64_t bh = uint64_t(batch_head);
    const auto words = philox(derived_key, {uint32_t(key / 4), uint32_t(row), uint32_t(bh), uint32_t(bh >> 32)});
    return double(words[size_t(key % 4)]) >= std::floor(double(p) * 4294967296.0);
}

}  // namespace oracle
