// Random changes to the public structs.
#pragma once
#include <flashattn.h>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
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
inline int64_t nasty(Random& random) {
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
    return random.one_in(20) ? int64_t(random.word()) : random.pick(values);
}

inline float nasty_float(Random& random) {
    static const std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 0.999f, 1e-45f, 3e38f, NAN, INFINITY, -INFINITY};
    return random.pick(values);
}

// "expected 0 to 0" and "expected 0 to -1" are no ranges: such a sentence should have named the field that leaves no choice.
inline bool tells_an_empty_range(const char* sentence) {
    for (const char* at = sentence; (at = strstr(at, "expected ")) != nullptr; at++) {
        long long low, high;
        if (sscanf(at, "expected %lld to %lld", &low, &high) == 2 && low >= high) return true;
    }
    return false;
}

// A conversion that is right for sizes that `value` gives, or nearly so. Addresses are the caller's.
template <class Value>
fa_conversion_t any_conversion(Random& random, const Value& value) {
    static const std::vector<int32_t> types = {FA_F32, FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_I8, FA_U4, FA_Q4_0, FA_Q8_0, FA_BIT};
    fa_conversion_t c{};
    c.out_dtype = random.pick(types);
    c.x_dtype = c.out_dtype <= FA_BF16 && random.one_in(2) ? random.pick(std::vector<int32_t>{FA_F32, FA_F16, FA_BF16}) : c.out_dtype;
    if (random.one_in(4)) c.flags = FA_CONVERT_ACCUMULATE;
    int64_t elements = 1;
    fa_dtype_unit(c.out_dtype, &elements, nullptr);
    for (int64_t& size : c.size) size = value(random);
    c.size[3] = c.size[3] / elements * elements;
    for (int64_t* stride : {c.x_stride, c.out_stride}) {
        uint64_t dense = uint64_t(c.size[3] / elements);
        for (int i = 2; i >= 0; i--) {
            stride[i] = random.one_in(3) ? value(random) : int64_t(dense);
            dense *= uint64_t(c.size[i]);
        }
        stride[3] = random.one_in(9) ? value(random) : 1;
    }
    return c;
}

// Changes one field of a descriptor: fields up to `scale` are flags and numbers of 32 bits, then four floats' worth, then int64.
template <class Value>
void spoil_field(Random& random, fa_attention_desc_t* desc, const Value& value) {
    const int64_t words = offsetof(fa_attention_desc_t, batch) / 4 - 1, longs = (sizeof *desc - offsetof(fa_attention_desc_t, batch)) / 8;
    const int64_t field = random.below(words + longs);
    if (field >= words) {
        (&desc->batch)[field - words] = value(random);
        return;
    }
    uint32_t* const word = &desc->flags + field;
    const bool bits = word <= &desc->strided,
               real = word >= reinterpret_cast<uint32_t*>(&desc->scale) && word <= reinterpret_cast<uint32_t*>(&desc->dropout_p);
    if (bits) {
        *word ^= 1u << random.below(random.one_in(20) ? 32 : 19);
    } else if (real) {
        const float f = nasty_float(random);
        memcpy(word, &f, sizeof f);
    } else {
        *word = uint32_t(value(random));
    }
}
