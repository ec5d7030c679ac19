#include "os/machine.h"
#include <stdio.h>
#include <sys/param.h>
#include <sys/cpuset.h>
#include <unistd.h>
#include "os/bsd/sysctl.h"

namespace fa {
namespace os {
namespace {

constexpr id_t kSelf = -1;

}  // namespace

static_assert(sizeof(CpuSet) >= sizeof(cpuset_t), "CpuSet has a bit for each CPU");

bool cpus_of_thread(CpuSet* cpus) {
    memset(cpus, 0, sizeof *cpus);
    return cpuset_getaffinity(CPU_LEVEL_WHICH, CPU_WHICH_TID, kSelf, sizeof(cpuset_t), reinterpret_cast<cpuset_t*>(cpus)) == 0;
}

void run_thread_on(const CpuSet& cpus) {
    cpuset_setaffinity(CPU_LEVEL_WHICH, CPU_WHICH_TID, kSelf, sizeof(cpuset_t), reinterpret_cast<const cpuset_t*>(&cpus));
}

int64_t available_cpus() {
    CpuSet set;
    int64_t n = 0;
    cpus_of_thread(&set);
    for (const uint64_t word : set.words) n += __builtin_popcountll(word);
    if (n == 0) n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

uint64_t memory_bytes() { return sysctl_value<unsigned long>("hw.physmem"); }

void processor_name(char* name, size_t size) {
    size_t length = size;
    if (sysctlbyname("hw.model", name, &length, nullptr, 0) != 0) snprintf(name, size, "CPU");
}

}  // namespace os
}  // namespace fa
