// For calls whose oracle is a list of writes: every one of them happened, and nothing else did.
#pragma once
#include <cstring>
#include <map>
#include "support/case.h"

namespace test {

class Watched {
  public:
    // A snapshot is taken here: call after the buffers have been filled, before the call.
    Watched& watch(const Buffer& buffer) {
        const unsigned char* begin = buffer.as<unsigned char>();
        if (buffer.bytes() > 0) before_[&buffer].assign(begin, begin + buffer.bytes());
        return *this;
    }

    std::string check(const std::vector<oracle::Write>& writes) {
        const std::string fault = oracle::compare(writes).fault;
        if (!fault.empty()) return fault;
        for (const oracle::Write& w : writes) {
            const int64_t size = oracle::size_of(w.dtype);
            for (auto& [buffer, bytes] : before_)
                if (buffer->as() == w.base)
                    memcpy(bytes.data() + oracle::byte_at(w.index, w.dtype), static_cast<char*>(w.base) + oracle::byte_at(w.index, w.dtype),
                           size_t(size));
        }
        for (auto& [buffer, bytes] : before_) {
            const unsigned char* now = buffer->as<unsigned char>();
            for (size_t n = 0; n < bytes.size(); n++)
                if (now[n] != bytes[n])
                    return "byte " + std::to_string(n) + " of " + std::to_string(bytes.size()) + " was written, and belongs to no row";
            if (!buffer->intact()) return "bytes beside a buffer were written";
        }
        return "";
    }

  private:
    std::map<const Buffer*, std::vector<unsigned char>> before_;
};

inline Buffer::Guard random_side(Rng& rng) { return rng.chance(0.5) ? Buffer::Guard::after : Buffer::Guard::before; }

inline Buffer ints(Rng& rng, const std::vector<int32_t>& values) {
    Buffer buffer(int64_t(values.size() * 4), random_side(rng));
    if (!values.empty()) memcpy(buffer.as(), values.data(), values.size() * 4);
    return buffer;
}

// Rotation tables cos[position][pair] and sin of the usual angles.
struct Angles {
    Buffer cos, sin;
    Angles(Rng& rng, int64_t positions, int64_t rotary_dim)
        : cos(positions * rotary_dim / 2 * 4, random_side(rng)), sin(positions * rotary_dim / 2 * 4, random_side(rng)) {
        for (int64_t p = 0; p < positions; p++)
            for (int64_t t = 0; t < rotary_dim / 2; t++) {
                const double angle = double(p) * std::pow(10000.0, -2.0 * double(t) / double(rotary_dim));
                cos.as<float>()[p * rotary_dim / 2 + t] = float(std::cos(angle));
                sin.as<float>()[p * rotary_dim / 2 + t] = float(std::sin(angle));
            }
    }
};

}  // namespace test
