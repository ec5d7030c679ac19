// The two baselines, for all query tiles of one sequence and kv head.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

int64_t study_bytes(const Problem& problem, const Kernels& kernels);
void run_standard(const Call& call, int64_t batch, int64_t kv_head, char* memory, Scratch& scratch);
void run_flash1(const Call& call, int64_t batch, int64_t kv_head, char* memory, Scratch& scratch);

}  // namespace cpu
}  // namespace fa
