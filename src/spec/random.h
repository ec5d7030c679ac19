// The dropout mask: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as a pure function of
// (seed, offset, batch · heads + head, row, key), so that any backend, tile or pass draws the same bits.
#pragma once
#include "numerics.h"

namespace fa {

struct Philox4 {
    uint32_t word[4];
};

FA_FN Philox4 philox(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = uint64_t(0xd2511f53u) * c0, p1 = uint64_t(0xcd9e8d57u) * c2;
        const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ key0, n2 = uint32_t(p0 >> 32) ^ c3 ^ key1;
        c1 = uint32_t(p1);
        c3 = uint32_t(p0);
        c0 = n0;
        c2 = n2;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

struct Dropout {
    uint32_t key0, key1;
    uint32_t threshold;  // kept when the word is at least this: floor(p · 2^32)
    float rescale;       // 1 / (1 − p)
};

FA_FN Dropout make_dropout(float p, uint64_t seed, uint64_t offset) {
    const Philox4 k = philox(uint32_t(seed), uint32_t(seed >> 32), uint32_t(offset), uint32_t(offset >> 32), 0, 0);
    return {k.word[0], k.word[1], uint32_t(double(p) * 4294967296.0), float(1.0 / (1.0 - double(p)))};
}

// Words for keys [4 · quad, 4 · quad + 4) of a row.
FA_FN Philox4 dropout_words(const Dropout& dropout, int64_t batch_head, int64_t row, int64_t quad) {
    return philox(dropout.key0, dropout.key1, uint32_t(quad), uint32_t(row), uint32_t(uint64_t(batch_head)),
                  uint32_t(uint64_t(batch_head) >> 32));
}

FA_FN bool dropout_keeps(const Dropout& dropout, int64_t batch_head, int64_t row, int64_t key) {
    const Philox4 words = dropout_words(dropout, batch_head, row, key >> 2);
    // Chosen, not indexed: on a GPU, an array with a computed index lies in memory.
    const uint32_t low = key & 1 ? words.word[1] : words.word[0], high = key & 1 ? words.word[3] : words.word[2];
    return (key & 2 ? high : low) >= dropout.threshold;
}

}  // namespace fa
