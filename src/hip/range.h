// Calls as ranges in the time line of AMD's profilers, whose library of markers (roctx) is used where the program, or a profiler that was
// loaded with it, has it already, and is not looked for elsewhere.
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

namespace fa {
namespace rt {

struct Markers {
    int (*push)(const char*);
    int (*pop)();
};
static Markers markers;  // both or none

static inline void find_markers() {
    void *push = dlsym(RTLD_DEFAULT, "roctxRangePushA"), *pop = dlsym(RTLD_DEFAULT, "roctxRangePop");
    for (const char* name : {"librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4"}) {
        if (push && pop) break;
        void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (!library) continue;
        push = dlsym(library, "roctxRangePushA");
        pop = dlsym(library, "roctxRangePop");
    }
    if (!push || !pop) return;
    memcpy(&markers.push, &push, sizeof push);
    memcpy(&markers.pop, &pop, sizeof pop);
}

class Range {
  public:
    explicit Range(const char* name) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, find_markers);
        if (markers.push) (void)markers.push(name);
    }
    Range(const Range&) = delete;
    ~Range() {
        if (markers.push) (void)markers.pop();
    }
};

}  // namespace rt
}  // namespace fa
