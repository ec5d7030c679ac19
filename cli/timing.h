// How long calls take, beside what the machine could do in the same minute.
#pragma once
#include <optional>
#include <string>
#include <vector>
#include "load.h"

namespace tool {

struct Rounds {
    int64_t count;
    double seconds;  // that the calls of one take together
};

// A ceiling as it was found by turns with the calls.
struct Ceiling {
    std::string name;
    const char* unit;
    double rate;       // median
    double share;      // of it that the calls reach: median of the rounds
    double low, high;  // of the rounds' shares
};

struct Speed {
    double median = 0, best = 0, worst = 0;  // seconds of one call
    double enqueue = 0;                      // of them until the call returns; on a GPU the rest goes on behind it
    int64_t calls = 0;                       // of a round
    std::vector<Ceiling> ceilings;           // on the CPU; first the one that the call is nearest to
    std::optional<double> cost;              // a variant's: its time ÷ that of its group's first, for equal work; median of the rounds
};

// Why the call cannot be made here; "" when it can.
std::string obstacle(Handle& handle, const Load& load);

// The loads take turns, each with its ceilings. Empty if interrupted() before the last round's end.
std::vector<Speed> measure(Handle& handle, const Group& group, const Rounds& rounds);

}  // namespace tool
