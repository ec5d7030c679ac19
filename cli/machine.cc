#include "machine.h"
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <string>
#include "library.h"

namespace tool {
namespace {

// The machine's, or its control group's if that is less.
double available_memory() {
    double available = double(sysconf(_SC_AVPHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE));
    std::ifstream meminfo("/proc/meminfo");
    for (std::string name, rest; meminfo >> name && std::getline(meminfo, rest);)
        if (name == "MemAvailable:") available = 1024 * std::stod(rest);
    double limit = 0, used = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
        available = std::min(available, limit - used);
    return available;
}

}  // namespace

double memory_of(int32_t backend) {
    if (backend == FA_BACKEND_CPU) return available_memory();
    fa_device_info_t info{};
    info.struct_size = sizeof info;
    if (fa_device_info(backend, 0, &info) != FA_OK) fail(fa_last_error(nullptr));
    return double(info.memory_bytes);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace tool
