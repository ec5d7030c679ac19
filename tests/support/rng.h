// A small generator of our own: the same numbers on every platform, which <random>'s distributions don't promise.
#pragma once
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace test {

class Rng {
  public:
    explicit Rng(uint64_t seed) : state_(seed) {}

    uint64_t bits() {  // SplitMix64
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    // Whole number in [low, high].
    int64_t between(int64_t low, int64_t high) { return low + int64_t(bits() % uint64_t(high - low + 1)); }
    double uniform() { return double(bits() >> 11) * 0x1p-53; }
    double uniform(double low, double high) { return low + (high - low) * uniform(); }
    bool chance(double p) { return uniform() < p; }
    double normal() {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return radius * std::cos(6.283185307179586 * uniform());
    }
    template <typename T>
    T pick(std::initializer_list<T> choices) {
        return choices.begin()[between(0, int64_t(choices.size()) - 1)];
    }

  private:
    uint64_t state_;
};

// Seeds of a family: well mixed, so that neighbours have nothing in common.
inline uint64_t derive(uint64_t base, uint64_t a, uint64_t b = 0) {
    Rng rng(base ^ (a * 0x9e3779b97f4a7c15u) ^ (b * 0xc2b2ae3d27d4eb4fu));
    rng.bits();
    return rng.bits();
}

}  // namespace test
