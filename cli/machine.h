// What the machine has left, and what is made of its times.
#pragma once
#include <cstdint>
#include <vector>

namespace tool {

// Bytes that calls on a backend's first device may take: on the CPU what this process may still have, on a GPU all of its memory.
double memory_of(int32_t backend);

double median(std::vector<double> values);

}  // namespace tool
