// What the system says of itself by name.
#pragma once
#include <sys/types.h>
#include <sys/sysctl.h>

namespace fa {
namespace os {

template <class T>
T sysctl_value(const char* name) {
    T value = {};
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && size == sizeof value ? value : T{};
}

}  // namespace os
}  // namespace fa
