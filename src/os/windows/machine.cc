#include "os/machine.h"
#include <stdio.h>
#include <windows.h>

namespace fa {
namespace os {

// In a machine of more than 64 CPUs threads may run on several groups of them, of which a mask names one: there the system places them.
bool cpus_of_thread(CpuSet* cpus) {
    memset(cpus, 0, sizeof *cpus);
    GROUP_AFFINITY mine;
    if (GetActiveProcessorGroupCount() != 1 || !GetThreadGroupAffinity(GetCurrentThread(), &mine)) return false;
    cpus->words[0] = mine.Mask;
    return true;
}

void run_thread_on(const CpuSet& cpus) { SetThreadAffinityMask(GetCurrentThread(), cpus.words[0]); }

int64_t available_cpus() {
    CpuSet set;
    const int64_t n = cpus_of_thread(&set) ? __builtin_popcountll(set.words[0]) : GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return n > 0 ? n : 1;
}

uint64_t memory_bytes() {
    MEMORYSTATUSEX memory;
    memory.dwLength = sizeof memory;
    return GlobalMemoryStatusEx(&memory) ? memory.ullTotalPhys : 0;
}

void processor_name(char* name, size_t size) {
    DWORD bytes = DWORD(size);
    if (RegGetValueA(HKEY_LOCAL_MACHINE, "HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0", "ProcessorNameString", RRF_RT_REG_SZ,
                     nullptr, name, &bytes) != ERROR_SUCCESS)
        snprintf(name, size, "CPU");
}

}  // namespace os
}  // namespace fa
