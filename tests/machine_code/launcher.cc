// Runs kernels in place of a GPU: hands what the pretended runtime is told to launch (tests/hip/fake_runtime.cc) to loader.py, in a Python
// that lives in this process, where the kernel's pointers are valid. Python is looked up by name: FLASHATTN_LIBPYTHON is its library.
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

std::mutex lock;
int (*run_simple_string)(const char*) = nullptr;
int (*ensure)() = nullptr;
void (*release)(int) = nullptr;

// From any thread. Not 0: it failed, and has said so.
int run(const char* text) {
    const int state = ensure();
    const int status = run_simple_string(text);
    release(state);
    return status;
}

template <class Function>
bool find(Function* to, void* library, const char* name) {
    *to = reinterpret_cast<Function>(dlsym(library, name));
    return *to != nullptr;
}

bool start() {
    static bool started = false;
    if (started) return true;
    const char* const name = getenv("FLASHATTN_LIBPYTHON");
    void* const python = name ? dlopen(name, RTLD_NOW | RTLD_GLOBAL) : nullptr;  // extension modules look in it for its functions
    if (!python) return fprintf(stderr, "FLASHATTN_LIBPYTHON: %s\n", name ? dlerror() : "is not set"), false;
    void (*initialize)(int);
    void* (*save_thread)();
    if (!find(&initialize, python, "Py_InitializeEx") || !find(&save_thread, python, "PyEval_SaveThread") ||
        !find(&run_simple_string, python, "PyRun_SimpleString") || !find(&ensure, python, "PyGILState_Ensure") ||
        !find(&release, python, "PyGILState_Release"))
        return fprintf(stderr, "%s is not Python's library\n", name), false;
    initialize(0);
    save_thread();
    if (run("import os, sys; sys.path.insert(0, os.environ['FLASHATTN_LOADER']); import loader") != 0) return false;
    return started = true;
}

}  // namespace

// 0, or 1 after a message on standard error. `arguments` points to the addresses of the kernel's arguments.
extern "C" int launch_kernel(const void* elf, const char* target, const char* kernel, unsigned gx, unsigned gy, unsigned threads,
                             unsigned shared, void** arguments) {
    const std::lock_guard<std::mutex> guard(lock);
    if (!start()) return 1;
    char call[1024];
    snprintf(call, sizeof call, "loader.launch(%llu, '%s', '%s', (%u, %u), %u, %u, %llu)",
             static_cast<unsigned long long>(reinterpret_cast<size_t>(elf)), target, kernel, gx, gy, threads, shared,
             static_cast<unsigned long long>(reinterpret_cast<size_t>(arguments)));
    return run(call) != 0;
}
