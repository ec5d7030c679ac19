// Processes with a GPU each, forked before CUDA is touched: how they meet, agree on times, end together, and what the first has to say.
#pragma once
#include <nccl.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

constexpr int kMostRanks = 16;

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// What processes share. A rank that fails says so, and nobody waits any more.
struct Shared {
    std::atomic<int> id_ready, failed, here;
    std::atomic<int64_t> round;
    ncclUniqueId id;
    double value[kMostRanks];
    std::atomic<size_t> length;
    char text[1 << 20];  // what the first rank has measured
};
inline Shared* shared;
inline int own_rank, all_ranks;

[[noreturn]] inline void give_up(const char* what, const char* sentence) {
    fprintf(stderr, "rank %d: %s: %s\n", own_rank, what, sentence);
    shared->failed = 1;
    _exit(1);
}
inline void meet() {
    const int64_t round = shared->round;
    if (++shared->here == all_ranks) {
        shared->here = 0;
        shared->round++;
    }
    while (shared->round == round)
        if (shared->failed) _exit(1);
}
inline double slowest(double own) {
    shared->value[own_rank] = own;
    meet();
    const double most = *std::max_element(shared->value, shared->value + all_ranks);
    meet();
    return most;
}

__attribute__((format(printf, 1, 2))) inline void write_text(const char* format, ...) {
    if (own_rank != 0) return;
    va_list list;
    va_start(list, format);
    const size_t at = shared->length, room = sizeof shared->text - at;
    const int n = vsnprintf(shared->text + at, room, format, list);
    va_end(list);
    if (n >= 0 && size_t(n) < room) shared->length += size_t(n);
}
inline void begin_row() { write_text("%s\n  {", shared->length > 0 ? "," : ""); }
