// What attention over several ranks costs, in closed form and for each method: of FA_CP_METHOD_AUTO, which takes the one that should be
// done first, and of `flashattn study --ranks`.
#pragma once
#include <stdint.h>

namespace fa {
namespace cp {

// A problem over ranks, zigzag.
struct Sharing {
    double batch;
    int64_t heads_q, heads_kv;
    double n, dim;  // n rows and n keys of all ranks together
    int64_t ranks;
    double element = 2;  // bytes of q, k, v, o and, where they are not sums, their gradients
    double pairs = .5;   // of all pairs of a row and a key, the share that the mask leaves
    double seen = 1;     // of the others' keys, the share that a rank's rows see
    int64_t chunks = 0;  // of heads, in all-gather; 0: as libflashattn-cp chooses
};

struct Machine {
    double speed;          // FLOP/s of a rank
    double rate, latency;  // of a link: bytes a second that a rank sends while it receives as many, and seconds of a message
    double memory = 0;     // bytes a second that a rank reads or writes beside its attention, to pack and to add; 0: they cost nothing
    double call = 0;       // seconds that each call of the core loses
    double pieces = 1;     // of its speed, what a rank keeps where rows and keys are cut into pieces
};

enum class Way { ulysses, all_gather, ring };
constexpr Way kWays[] = {Way::ulysses, Way::all_gather, Way::ring};

// Of one rank, the one that does most.
struct Pass {
    double flops, bytes, messages;
};
struct Sharded {
    bool possible;  // Ulysses: ranks divide the heads of k and v
    Pass forward, backward;
};
Sharded cost_of(Way way, const Sharing& sharing);

// Messages are hidden behind work where the method allows it.
struct Seconds {
    double forward, backward;
};
Seconds seconds_of(Way way, const Sharing& sharing, const Machine& machine);

}  // namespace cp
}  // namespace fa
