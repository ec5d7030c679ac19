// The forward pass: how a call is partitioned into work items (Schedule), how much memory they need, and running them.
#pragma once
#include "cpu/driver/call.h"
#include "cpu/driver/parallel.h"

namespace fa {
namespace cpu {

// How a call is partitioned. It follows from the problem and the kernel table, never from the number of threads: bits depend on it.
struct Schedule {
    Method method, decode;  // as a Call has them
    int64_t items;          // query tiles of all sequences and kv heads
    int64_t num_splits;     // as the specification's split_keys takes them
    int64_t split_size;
    int64_t max_splits;    // upper bound for any sequence
    bool may_stream_rows;  // rows with few keys may be taken out of tiles
    bool parallel_splits;  // split-KV: splits are work items, their states kept in the workspace and then merged
    double flops;
    int64_t worker_bytes;  // one worker's share of the workspace
    int64_t shared_bytes;  // beyond the workers' shares
    int64_t list_bytes;    // of these, at their end: bits of lists of keys
    int64_t extra_bytes;   // extra memory of the algorithm, as FA_STAT_EXTRA_BYTES tells it
};

Schedule make_schedule(const Problem& problem, const Kernels& kernels, bool count);

// Runs the call on `workers` workers, each with its share of memory (shared part first).
fa_status_t run_forward(Call call, const Schedule& schedule, const Threads& threads, int64_t workers, char* memory, Counters* counters,
                        Message* message);

}  // namespace cpu
}  // namespace fa
