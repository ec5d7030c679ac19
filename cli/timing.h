// What `bench` times: calls of one forward, with tensors on the handle's own device.
#pragma once
#include <optional>
#include <string>
#include "library.h"

namespace tool {

struct Load {
    std::string suite, shape, series;  // as tables and plots call it
    fa_attention_desc_t desc;          // operands: none but what tensors_of can make (page table, ALiBi, de-scale factors)
    bool cold;                         // k and v come from memory, not from a cache: sets of them take turns
};

struct Rounds {
    int64_t count;
    double seconds;  // that the calls of one take together
};

struct Speed {
    double median = 0, best = 0, worst = 0;  // seconds of one call
    double enqueue = 0;                      // of them until the call returns; on a GPU the rest goes on behind it
    int64_t calls = 0;                       // of a round
};

// What a call has to do, whatever it does.
double flops_of(const fa_attention_desc_t& desc);        // 2 for each product and sum, over the pairs that the masks leave
double cache_bytes_of(const fa_attention_desc_t& desc);  // of k and v, once

// Why the call cannot be made here; "" when it can.
std::string obstacle(Handle& handle, const Load& load);
Speed measure(Handle& handle, const Load& load, const Rounds& rounds);

}  // namespace tool
