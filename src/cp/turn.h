// The all-to-all that turns each rank's rows of all heads into all rows of the rank's heads, and back.
#pragma once
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {

// A tensor on its two sides. LSE and its gradient are tensors of one float a head.
struct Turned {
    View local;  // this rank's rows of all heads
    View full;   // all rows of this rank's heads: [sequence][row][heads][dim], or packed
    bool of_keys;
};

// Tensors that travel together.
struct Turning {
    Turned tensor[7];
    int count;
    void add(const Turned& turned) { tensor[count++] = turned; }
};

// A rank's share of a tensor's heads with its place in `shares`. LSE is [head][row] on both sides.
Turned turned(const Job& job, const View& local, bool of_keys, Shares* shares);
Turned turned(const Job& job, const LseView& local, Shares* shares);
LseView full_lse(const Turned& lse);
void clear_full(const Job& job, const Turned& turned, Moves* moves);

enum class Towards { heads, rows };

// Bytes of all messages that this rank sends, and gets.
int64_t sent_bytes(const Job& job, const Turning& turning, Towards side);
int64_t received_bytes(const Job& job, const Turning& turning, Towards side);

// what: of the sentence, "o by rows". Gradients are added to rows where the call accumulates. Uses kSend and kReceive.
fa_status_t turn(Job* job, const Turning& turning, Towards side, const char* what);

}  // namespace cp
}  // namespace fa
