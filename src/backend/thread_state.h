// What a thread brings into the library and has back behind it: its floating-point environment, exception flags included, and errno.
#pragma once
#include <errno.h>
#include <fenv.h>
#include <stdint.h>

namespace fa {

// In between, arithmetic rounds to nearest, keeps subnormal numbers and raises nothing, whatever the thread has set: a result's bits follow
// from descriptor and instruction set, a plan outlives the call that made it, and several threads share the work. Registers are
// written only where they differ: fegetenv() and fesetenv() take longer than the checks of a small call.
class ThreadState {
  public:
    void enter();
    void leave() const;

  private:
    int error;
#if defined(__x86_64__)
    static constexpr uint32_t kDefault = 0x1f80, kFlags = 0x3f;
    uint32_t control;  // MXCSR; the x87 unit's, which nothing here uses, stays as it is
    static uint32_t read() {
        uint32_t value;
        __asm__ volatile("stmxcsr %0" : "=m"(value)::"memory");
        return value;
    }
    static void write(uint32_t value) { __asm__ volatile("ldmxcsr %0" ::"m"(value) : "memory"); }
#elif defined(__aarch64__)
    uint64_t control, flags;  // FPCR and FPSR; fesetenv() leaves FPCR's bits for f16 and for NaNs alone
#else
    fenv_t environment;
#endif
};

// A scope of the library's own on a thread of somebody else's.
class InLibrary {
  public:
    InLibrary() { callers.enter(); }
    ~InLibrary() { callers.leave(); }
    InLibrary(const InLibrary&) = delete;

  private:
    ThreadState callers;
};

#if defined(__x86_64__)
inline void ThreadState::enter() {
    error = errno;
    control = read();
    if ((control & ~kFlags) != kDefault) write(kDefault);
}
inline void ThreadState::leave() const {
    if (read() != control) write(control);
    errno = error;
}
#elif defined(__aarch64__)
inline void ThreadState::enter() {
    error = errno;
    __asm__ volatile("mrs %0, fpcr\n mrs %1, fpsr" : "=r"(control), "=r"(flags)::"memory");
    if (control != 0) __asm__ volatile("msr fpcr, xzr" ::: "memory");
}
inline void ThreadState::leave() const {
    uint64_t now;
    if (control != 0) __asm__ volatile("msr fpcr, %0" ::"r"(control) : "memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(now)::"memory");
    if (now != flags) __asm__ volatile("msr fpsr, %0" ::"r"(flags) : "memory");
    errno = error;
}
#else
inline void ThreadState::enter() {
    error = errno;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
}
inline void ThreadState::leave() const {
    fesetenv(&environment);
    errno = error;
}
#endif

}  // namespace fa
