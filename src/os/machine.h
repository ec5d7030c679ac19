// The machine: its CPUs, on which of them threads run, and its memory.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace fa {
namespace os {

constexpr int kMaxCpus = 1024;

struct CpuSet {  // a bit for each CPU
    uint64_t words[kMaxCpus / 64];
    bool operator!=(const CpuSet& other) const { return memcmp(words, other.words, sizeof words) != 0; }
};

// Those that the calling thread may run on. False, and none, where the system does not tell.
bool cpus_of_thread(CpuSet* cpus);
// Without effect where the system has no such thing.
void run_thread_on(const CpuSet& cpus);

// How many hardware threads the calling thread may run on; at least 1.
int64_t available_cpus();

uint64_t memory_bytes();  // of the machine; 0 where the system does not tell
// The processor's model, or CPU where the system does not tell.
void processor_name(char* name, size_t size);

}  // namespace os
}  // namespace fa
