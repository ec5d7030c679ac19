// Applies the dropout mask to a tile of P: Philox random numbers for a vector of rows at once, by the specification's counters.
#pragma once
#include "cpu/kernels/layout.h"

namespace fa {
namespace cpu {
namespace {

typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Wide __attribute__((vector_size(4 * kLanes)));

static inline void multiply(Words x, uint32_t by, Words& high, Words& low) {
    const Wide lower = 0xffffffffu - Wide{};
    const Wide even = ((Wide)x & lower) * by, odd = ((Wide)x >> 32) * by;
    high = (Words)((even >> 32) | (odd & ~lower));
    low = (Words)((even & lower) | (odd << 32));
}

// philox() of the specification, with a counter for each lane; the random words replace the counters.
static inline void philox_lanes(uint32_t key0, uint32_t key1, Words c[4]) {
    for (int round = 0; round < 10; round++) {
        Words high0, low0, high1, low1;
        multiply(c[0], 0xd2511f53u, high0, low0);
        multiply(c[2], 0xcd9e8d57u, high1, low1);
        c[0] = high1 ^ c[1] ^ key0;
        c[2] = high0 ^ c[3] ^ key1;
        c[1] = low1;
        c[3] = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

static void apply_dropout(float* p, int vectors, int keys, int64_t key, const Dropout& dropout, const DropoutRows& rows) {
    const int width = vectors * kLanes;
    for (int n = 0; n < width; n += kLanes)
        for (int64_t quad = key >> 2; quad << 2 < key + keys; quad++) {
            Words c[4];
            c[0] = uint32_t(quad) - Words{};
            memcpy(&c[1], rows.position + n, sizeof c[1]);
            memcpy(&c[2], rows.low + n, sizeof c[2]);
            memcpy(&c[3], rows.high + n, sizeof c[3]);
            philox_lanes(dropout.key0, dropout.key1, c);
            for (int i = 0; i < 4; i++) {
                const int64_t j = (quad << 2) + i - key;
                if (j < 0 || j >= keys) continue;
                float* const at = p + j * width + n;
                Floats w;
                memcpy(&w, at, sizeof w);
                w = c[i] < dropout.threshold ? Floats{} : w;
                memcpy(at, &w, sizeof w);
            }
        }
}

}  // namespace
}  // namespace cpu
}  // namespace fa
