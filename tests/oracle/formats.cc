#include "oracle/formats.h"
#include <cmath>
#include <cstring>
#include <vector>

namespace oracle {
namespace {

// A float format of at most 16 bits, all of whose non-negative values are listed in ascending order: code n is the n-th.
struct Format {
    int exponent_bits, mantissa_bits;
    bool infinity;  // the top exponent is reserved for infinity and NaN; else only the very last code is NaN
    bool saturates;
    std::vector<double> values;  // finite ones
    double beyond;               // what would follow the largest

    Format(int exponent_bits, int mantissa_bits, bool infinity, bool saturates)
        : exponent_bits(exponent_bits), mantissa_bits(mantissa_bits), infinity(infinity), saturates(saturates) {
        const int bias = (1 << (exponent_bits - 1)) - 1, mantissas = 1 << mantissa_bits;
        const int finite = infinity ? ((1 << exponent_bits) - 1) * mantissas : (1 << exponent_bits) * mantissas - 1;
        for (int code = 0; code <= finite; code++) {
            const int e = code / mantissas, m = code % mantissas;
            const double value = e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits) : std::ldexp(mantissas + m, e - bias - mantissa_bits);
            if (code < finite) values.push_back(value);
            beyond = value;
        }
    }
    int bits() const { return 1 + exponent_bits + mantissa_bits; }

    double decode(uint32_t code) const {
        const uint32_t sign = 1u << (bits() - 1), magnitude = code & (sign - 1);
        double value = NAN;
        if (magnitude < values.size()) value = values[magnitude];
        else if (infinity && magnitude == values.size()) value = INFINITY;
        return code & sign ? -value : value;
    }

    // The last value that is not above a. Those from one power of two to the next are equally far apart.
    uint32_t below(double a) const {
        if (a >= values.back()) return uint32_t(values.size()) - 1;
        const int power = std::ilogb(a) + (1 << (exponent_bits - 1)) - 1;  // of a: its exponent in the code
        const uint32_t first = a > 0 && power > 0 ? uint32_t(power) << mantissa_bits : 0;
        return first + uint32_t((a - values[first]) / (values[first + 1] - values[first]));
    }

    uint32_t encode(double value) const {
        const uint32_t sign = std::signbit(value) ? 1u << (bits() - 1) : 0u;
        const double a = std::fabs(value);
        if (a != a) return sign | ((1u << (bits() - 1)) - 1);
        const uint32_t low = below(a), high = low + 1;  // past the last, high stands for infinity
        const double above = high < values.size() ? values[high] : beyond;
        const double down = a - values[low], up = above - a;
        const uint32_t nearest = down < up ? low : up < down ? high : low % 2 == 0 ? low : high;
        if (nearest < values.size()) return sign | nearest;
        return sign | (saturates ? uint32_t(values.size()) - 1 : nearest);
    }
};

const Format& format(int32_t dtype) {
    static const Format f16(5, 10, true, false), bf16(8, 7, true, false), e4m3(4, 3, false, true), e5m2(5, 2, true, true);
    return dtype == FA_F16 ? f16 : dtype == FA_BF16 ? bf16 : dtype == FA_E4M3 ? e4m3 : e5m2;
}

// Types of 4 bits: the value of each code.
const std::vector<double>& nibble_values(int32_t dtype) {
    static const std::vector<double> e2m1 = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
    static const std::vector<double> i4 = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    static const std::vector<double> u4 = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return dtype == FA_E2M1 ? e2m1 : dtype == FA_I4 ? i4 : u4;
}

// The nearest, and of two the one whose code is even; i4's −8 is never written.
unsigned nibble_code(double value, int32_t dtype) {
    const std::vector<double>& values = nibble_values(dtype);
    if (std::isnan(value)) return 0;
    if (dtype == FA_E2M1 && std::signbit(value)) return nibble_code(-value, dtype) | 8;
    const double bounded = std::fmin(std::fmax(value, dtype == FA_I4 ? -7 : 0), largest(dtype));
    unsigned best = 0;
    for (unsigned code = 1; code < 16; code++) {
        if (dtype == FA_E2M1 && code > 7) break;
        const double gap = std::fabs(values[code] - bounded), least = std::fabs(values[best] - bounded);
        if (gap < least || (gap == least && code % 2 == 0)) best = code;
    }
    return best;
}

}  // namespace

bool is_block(int32_t dtype) { return dtype >= FA_Q4_0; }
bool is_nibble(int32_t dtype) { return dtype == FA_E2M1 || dtype == FA_I4 || dtype == FA_U4; }
int64_t byte_at(int64_t index, int32_t dtype) { return is_nibble(dtype) ? index / 2 : index * size_of(dtype); }

int64_t size_of(int32_t dtype) {
    switch (dtype) {
        case FA_F32: return 4;
        case FA_F16:
        case FA_BF16: return 2;
        case FA_Q4_0: return 18;
        case FA_Q4_1: return 20;
        case FA_Q5_0: return 22;
        case FA_Q5_1: return 24;
        case FA_Q8_0: return 34;
        default: return 1;
    }
}

int64_t elements_of(int32_t dtype) { return is_block(dtype) ? 32 : is_nibble(dtype) ? 2 : 1; }

double largest(int32_t dtype) {
    if (dtype == FA_F32) return 0x1.fffffep+127;
    if (dtype == FA_I8) return 127;
    if (is_nibble(dtype)) return dtype == FA_E2M1 ? 6 : dtype == FA_I4 ? 7 : 15;
    if (dtype == FA_E8M0) return 0x1p127;
    return format(dtype).values.back();
}

double load(const void* base, int64_t index, int32_t dtype) {
    const char* at = static_cast<const char*>(base) + byte_at(index, dtype);
    if (is_nibble(dtype)) return nibble_values(dtype)[size_t(index % 2 == 0 ? *at & 15 : *at >> 4 & 15)];
    if (dtype == FA_E8M0) return *at == char(-1) ? NAN : std::ldexp(1, static_cast<unsigned char>(*at) - 127);
    if (dtype == FA_F32) {
        float f;
        std::memcpy(&f, at, 4);
        return f;
    }
    if (dtype == FA_I8) return static_cast<signed char>(*at);
    if (dtype == FA_BIT) return static_cast<unsigned char>(*at);
    if (size_of(dtype) == 1) return format(dtype).decode(static_cast<unsigned char>(*at));
    uint16_t code;
    std::memcpy(&code, at, 2);
    return format(dtype).decode(code);
}

void store(void* base, int64_t index, int32_t dtype, double value) {
    char* at = static_cast<char*>(base) + byte_at(index, dtype);
    if (is_nibble(dtype)) {
        const unsigned code = nibble_code(value, dtype), shift = index % 2 == 0 ? 0 : 4;
        *at = static_cast<char>((static_cast<unsigned char>(*at) & (15u << (4 - shift))) | code << shift);
    } else if (dtype == FA_E8M0) {
        const int power = std::isnan(value) ? 128 : int(std::fmin(std::fmax(std::nearbyint(std::log2(value)), -127), 127));
        *at = static_cast<char>(power + 127);
    } else if (dtype == FA_F32) {
        const float f = static_cast<float>(value);
        std::memcpy(at, &f, 4);
    } else if (dtype == FA_I8) {
        const double whole = std::nearbyint(value);
        *at = static_cast<char>(whole != whole ? 0 : whole > 127 ? 127 : whole < -127 ? -127 : int(whole));
    } else if (size_of(dtype) == 1) {
        *at = static_cast<char>(format(dtype).encode(value));
    } else {
        const uint16_t code = uint16_t(format(dtype).encode(value));
        std::memcpy(at, &code, 2);
    }
}

double rounded(double value, int32_t dtype) {
    char element[4] = {};
    store(element, 0, dtype, value);
    return load(element, 0, dtype);
}

const char* name_of(int32_t dtype) {
    switch (dtype) {
        case 0: return "default";
        case FA_F32: return "f32";
        case FA_F16: return "f16";
        case FA_BF16: return "bf16";
        case FA_E4M3: return "e4m3";
        case FA_E5M2: return "e5m2";
        case FA_I8: return "i8";
        case FA_E2M1: return "e2m1";
        case FA_E8M0: return "e8m0";
        case FA_I4: return "i4";
        case FA_U4: return "u4";
        case FA_BIT: return "byte";
        case FA_Q4_0: return "q4_0";
        case FA_Q4_1: return "q4_1";
        case FA_Q5_0: return "q5_0";
        case FA_Q5_1: return "q5_1";
        case FA_Q8_0: return "q8_0";
        default: return "unknown";
    }
}

}  // namespace oracle
