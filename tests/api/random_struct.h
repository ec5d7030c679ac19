// Random changes to the public structs.
#pragma once
#include <flashattn.h>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

class Random {
  public:
    explicit Random(uint64_t seed) : bits_(seed) {}
    uint64_t word() { return bits_(); }
    int64_t below(int64_t n) { return int64_t(bits_() % uint64_t(n)); }
    bool one_in(int64_t n) { return below(n) == 0; }
    template <class T>
    const T& pick(const std::vector<T>& from) {
        return from[size_t(below(int64_t(from.size())))];
    }

  private:
    std::mt19937_64 bits_;
};

// Any value that code might stumble over.
inline int64_t nasty(Random& r) {
    static const std::vector<int64_t> values = {0,
                                                0,
                                                1,
                                                1,
                                                2,
                                                3,
                                                4,
                                                5,
                                                6,
                                                7,
                                                8,
                                                16,
                                                31,
                                                32,
                                                48,
                                                60,
                                                64,
                                                96,
                                                120,
                                                240,
                                                FA_Q4_0,
                                                FA_Q8_0,
                                                1023,
                                                1024,
                                                1025,
                                                65535,
                                                65536,
                                                65537,
                                                -1,
                                                -2,
                                                -64,
                                                INT32_MAX,
                                                INT32_MAX - 1,
                                                int64_t(1) << 31,
                                                int64_t(1) << 32,
                                                int64_t(1) << 40,
                                                int64_t(1) << 56,
                                                int64_t(1) << 61,
                                                int64_t(1) << 62,
                                                INT64_MAX,
                                                INT64_MAX - 1,
                                                INT64_MAX / 2,
                                                INT64_MAX / 3,
                                                INT64_MIN,
                                                INT64_MIN + 1,
                                                INT32_MIN};
    return r.one_in(20) ? int64_t(r.word()) : r.pick(values);
}

inline float nasty_float(Random& r) {
    static const std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 0.999f, 1e-45f, 3e38f, NAN, INFINITY, -INFINITY};
    return r.pick(values);
}

// Changes one field of a descriptor: fields up to `scale` are flags and numbers of 32 bits, then four floats' worth, then int64.
template <class Value>
void spoil_field(Random& r, fa_attention_desc_t* d, const Value& value) {
    const int64_t words = offsetof(fa_attention_desc_t, batch) / 4 - 1,
                  longs = (sizeof *d - offsetof(fa_attention_desc_t, batch)) / 8;
    const int64_t field = r.below(words + longs);
    if (field >= words) {
        (&d->batch)[field - words] = value(r);
        return;
    }
    uint32_t* const word = &d->flags + field;
    const bool bits = word <= &d->strided,
               real = word >= reinterpret_cast<uint32_t*>(&d->scale) && word <= reinterpret_cast<uint32_t*>(&d->dropout_p);
    if (bits) {
        *word ^= 1u << r.below(r.one_in(20) ? 32 : 19);
    } else if (real) {
        const float f = nasty_float(r);
        memcpy(word, &f, sizeof f);
    } else {
        *word = uint32_t(value(r));
    }
}
