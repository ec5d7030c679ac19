#include "os/machine.h"
#include <stdio.h>
#include <unistd.h>
#include "os/bsd/sysctl.h"

namespace fa {
namespace os {

// The system places threads as it likes.
bool cpus_of_thread(CpuSet* cpus) {
    memset(cpus, 0, sizeof *cpus);
    return false;
}
void run_thread_on(const CpuSet&) {}

int64_t available_cpus() {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

uint64_t memory_bytes() { return sysctl_value<uint64_t>("hw.memsize"); }

void processor_name(char* name, size_t size) {
    size_t length = size;
    if (sysctlbyname("machdep.cpu.brand_string", name, &length, nullptr, 0) != 0) snprintf(name, size, "CPU");
}

}  // namespace os
}  // namespace fa
