#include "os/machine.h"
#include <sched.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>

namespace fa {
namespace os {

static_assert(sizeof(CpuSet) == sizeof(cpu_set_t), "cpu_set_t has a bit for each CPU");

bool cpus_of_thread(CpuSet* cpus) {
    memset(cpus, 0, sizeof *cpus);
    return sched_getaffinity(0, sizeof *cpus, reinterpret_cast<cpu_set_t*>(cpus)) == 0;
}

void run_thread_on(const CpuSet& cpus) { sched_setaffinity(0, sizeof cpus, reinterpret_cast<const cpu_set_t*>(&cpus)); }

int64_t available_cpus() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

uint64_t memory_bytes() {
    struct sysinfo system;
    return sysinfo(&system) == 0 ? uint64_t(system.totalram) * system.mem_unit : 0;
}

void processor_name(char* name, size_t size) {
    snprintf(name, size, "CPU");
    FILE* file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char* colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        const char* value = colon + 1;
        while (*value == ' ') value++;
        snprintf(name, size, "%.*s", int(strcspn(value, "\n")), value);
        break;
    }
    fclose(file);
}

}  // namespace os
}  // namespace fa
