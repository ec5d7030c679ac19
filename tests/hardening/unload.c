/* OpenMP's threads outlive the call that made them: a program may unload us while they sit in code that we brought along, and load
 * us again. Usage: unload PLUGIN, which computes by its attend(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    for (int round = 0; round < 3; round++) {
        int (*attend)(void**);
        void* code = NULL;
        Dl_info where;
        void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
        *(void**)&attend = dlsym(plugin, "attend");
        const int failed = attend == NULL ? -1 : attend(&code);
        if (failed != 0) return fprintf(stderr, "round %d fails in step %d\n", round, failed), 1;
        if (dlclose(plugin) != 0) return fprintf(stderr, "%s\n", dlerror()), 1;
        usleep(50000); /* time for the threads to fall over what is missing */
        if (dladdr(code, &where) == 0) return fprintf(stderr, "the library has gone while its threads live\n"), 1;
    }
    return 0;
}
