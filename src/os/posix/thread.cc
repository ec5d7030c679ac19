#include "os/thread.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include "os/posix/thread_name.h"

namespace fa {
namespace os {
namespace {

pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

// A chain of threads that all live at once: each starts the next, and waits for its end.
struct Chain {
    const pthread_attr_t* attr;
    int64_t wanted, started;
    int64_t newest;
};

void* start_next(void* arg) {
    Chain& chain = *static_cast<Chain*>(arg);
    if (chain.started > 0) chain.newest = this_thread();
    pthread_t next;
    if (chain.started == chain.wanted) return nullptr;
    chain.started++;
    if (pthread_create(&next, chain.attr, start_next, arg) != 0) {
        chain.started--;
        return nullptr;
    }
    pthread_join(next, nullptr);
    // Joined is not gone: the system still counts the thread for a moment.
    const int64_t ended = chain.newest;
    for (int i = 0; i < 10000 && alive(ended); i++) sched_yield();
    chain.newest = this_thread();
    return nullptr;
}

}  // namespace

bool start_thread(void* (*body)(void*), void* arg, uint64_t stack_bytes) {
    sigset_t signals, before;
    sigfillset(&signals);
    constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (const int fault : kFaults) sigdelset(&signals, fault);
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return false;
    size_t usual;
    pthread_attr_getstacksize(&attr, &usual);
    pthread_attr_setstacksize(&attr, size_t(stack_bytes));
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    pthread_t thread;
    int error = pthread_create(&thread, &attr, body, arg);
    if (error == EINVAL) {  // thread-local variables fill all of that
        pthread_attr_setstacksize(&attr, usual);
        error = pthread_create(&thread, &attr, body, arg);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attr);
    if (error == 0) name_thread(thread);  // it never ends
    return error == 0;
}

int64_t granted_threads(int64_t threads, uint64_t stack_bytes) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return 0;
    if (stack_bytes > 0) pthread_attr_setstacksize(&attr, stack_bytes);
    Chain chain{&attr, threads, 0, 0};
    start_next(&chain);
    pthread_attr_destroy(&attr);
    return chain.started;
}

OneAtATime::OneAtATime() {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable);  // to wait for a thread is a point of cancellation
    pthread_mutex_lock(&one_at_a_time);
}

OneAtATime::~OneAtATime() {
    pthread_mutex_unlock(&one_at_a_time);
    pthread_setcancelstate(cancellable, nullptr);
}

}  // namespace os
}  // namespace fa
