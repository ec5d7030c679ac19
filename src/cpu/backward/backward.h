// The backward pass: how a call is partitioned into work items (BackwardSchedule), how much memory they need, and running them.
#pragma once
#include "backend/backend.h"
#include "cpu/kernels/kernel_table.h"
#include "cpu/driver/parallel.h"

namespace fa {
namespace cpu {

// How a call is partitioned. It follows from the problem and the kernel table, never from the number of threads: bits depend on it.
struct BackwardSchedule {
    int64_t heads;        // sequences times kv heads
    int64_t rows, tiles;  // rows of each, group-major, and query tiles, for the longest sequence
    bool matrix;          // products by matrix instructions
    int block_keys;       // whose dk and dv a worker holds at once
    int64_t chunks;       // parts of the keys with accumulators of dq of their own; 1: none
    int64_t chunk_keys;
    double flops;
    int64_t worker_bytes;
    int64_t list_bytes;          // of shared_bytes, at their end: bits of lists of keys
    int64_t shared_bytes;        // beyond the workers' shares: the chunks' accumulators, and
    int64_t initialized_offset;  // offset of the flags which of them are initialised,
    int64_t deltas_offset;       // and of the deltas, computed once for all chunks
    int64_t items() const { return heads * chunks; }
};

BackwardSchedule make_backward_schedule(const Problem& problem, const Kernels& kernels);
fa_status_t run_backward(const Problem& problem, const fa_backward_args_t& args, const Kernels& kernels, const BackwardSchedule& schedule,
                         const Threads& threads, int64_t workers, char* memory, Message* message);

}  // namespace cpu
}  // namespace fa
