// What this CPU can do at most, to hold calls against: arithmetic from registers alone, and reading the bytes that a call reads.
// Other work and clocks move these as they move the calls, so they are measured by turns with them, on as many threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tool {

// A way to multiply and add, with f32 sums, kept busy in registers.
struct Unit {
    const char* name;
    double flops;   // of one run
    void (*run)();  // takes some microseconds
};

// The fastest unit that this CPU has for products of `dtype`, within an FA_ISA_ cap (0: none); NULL where none is written.
const Unit* unit_for(int32_t dtype, int64_t max_isa);

// Threads that a call uses which is given FA_PARAM_THREADS = wanted.
int threads_of(int64_t wanted);

// FLOP/s of all threads together, over about so many seconds, and at least one run of each.
double arithmetic_rate(const Unit& unit, int threads, double seconds);

struct Stretch {
    const std::byte* begin;
    uint64_t bytes;
};

using ReadFunction = void (*)(const std::byte* begin, const std::byte* end);
ReadFunction reader_for(int64_t max_isa);

// B/s of all threads together, each of which reads its share of every set's stretches. The sets take turns, from `turn` on, which is
// moved on: so that whoever comes next begins with the set that was read longest ago.
double read_rate(ReadFunction read, const std::vector<std::vector<Stretch>>& sets, size_t& turn, int threads, double seconds);

}  // namespace tool
