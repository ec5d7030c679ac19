// What attention over several ranks costs, in closed form: each method of libflashattn-cp, causal, zigzag, 16-bit types.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tool {

struct Sharing {
    int64_t batch, heads_q, heads_kv, n, dim;  // n rows and n keys of all ranks together
    int64_t ranks;
};

struct Link {
    std::string name;
    double rate, latency;  // bytes a second that a rank sends while it receives as many; seconds of a message
};
extern const std::vector<Link> kLinks;

enum class Method { ulysses, all_gather, ring };
extern const std::vector<Method> kMethods;
const char* name_of(Method method);

// Of one rank, the one that does most.
struct Pass {
    double flops, bytes, messages;
};
struct Sharded {
    bool possible;  // Ulysses: ranks divide the key heads
    Pass forward, backward;
};
Sharded cost_of(Method method, const Sharing& s);

// Seconds of a forward and a backward, messages hidden behind work where the method allows it. speed: FLOP/s of a rank.
double seconds_of(Method method, const Sharing& s, const Link& link, double speed);

}  // namespace tool
