// The operations that treat each row by itself: fa_merge (of partial states), fa_append_kv, fa_rotary. No scratch memory beyond the
// stack.
#pragma once
#include "backend/backend.h"
#include "cpu/kernels/kernel_table.h"
#include "cpu/driver/parallel.h"

namespace fa {
namespace cpu {

fa_status_t run_merge(const Problem& problem, const fa_merge_args_t& args, const Kernels& kernels, const Threads& threads,
                      Message* message);
fa_status_t run_append_kv(const Problem& problem, const fa_append_kv_args_t& args, const Kernels& kernels, const Threads& threads,
                          Message* message);
fa_status_t run_rotary(const Problem& problem, const fa_rotary_args_t& args, const Kernels& kernels, const Threads& threads,
                       Message* message);

constexpr int64_t kMaxDim = 1024;

// Runs row(context, i) for i < count, in chunks, on as many workers as `bytes` of traffic deserve.
fa_status_t for_rows(const Threads& threads, int64_t count, double bytes, void (*row)(const void* context, int64_t i), const void* context,
                     Message* message);

}  // namespace cpu
}  // namespace fa
