// Processes: a child to try things in, and how many threads the system says that there are.
#pragma once
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hardening {

// Threads with this name; NULL: all, of which some may just be ending.
inline int os_threads(const char* name = nullptr) {
    DIR* folder = opendir("/proc/self/task");
    int threads = 0;
    while (folder != nullptr) {
        const dirent* entry = readdir(folder);
        if (entry == nullptr) break;
        if (entry->d_name[0] == '.') continue;
        char path[300], text[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE* file = fopen(path, "r");
        if (file != nullptr) {
            if (fscanf(file, "%31s", text) != 1) text[0] = 0;
            fclose(file);
        }
        threads += name == nullptr || strcmp(text, name) == 0;
    }
    if (folder != nullptr) closedir(folder);
    return threads;
}
// Of the library's own pool.
inline int pool_threads() { return os_threads("flashattn"); }

// What the body returns, which runs in a child and so begins with one thread; -1 when it does not come to its end.
template <class Body>
int exit_of_child(const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(100);
        const int result = body();
        fflush(stdout);
        _exit(result);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace hardening
