#include "os/thread.h"
#include <windows.h>

namespace fa {
namespace os {
namespace {

SRWLOCK one_at_a_time = SRWLOCK_INIT;

struct Start {
    void* (*body)(void*);
    void* arg;
};

DWORD WINAPI begin(void* start) {
    const Start it = *static_cast<Start*>(start);
    HeapFree(GetProcessHeap(), 0, start);
    it.body(it.arg);
    return 0;
}

}  // namespace

bool start_thread(void* (*body)(void*), void* arg, uint64_t stack_bytes) {
    HMODULE us;  // counted once more, and so not unloaded: threads never end
    if (!GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, reinterpret_cast<LPCSTR>(&begin), &us)) return false;
    const auto start = static_cast<Start*>(HeapAlloc(GetProcessHeap(), 0, sizeof(Start)));
    if (start == nullptr) return false;
    *start = {body, arg};
    const HANDLE thread = CreateThread(nullptr, stack_bytes, begin, start, STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
    if (thread == nullptr) HeapFree(GetProcessHeap(), 0, start);
    else CloseHandle(thread);
    return thread != nullptr;
}

int64_t granted_threads(int64_t threads, uint64_t) { return threads; }  // memory is the only limit

int64_t this_thread() { return GetCurrentThreadId(); }
bool alive(int64_t) { return true; }

OneAtATime::OneAtATime() { AcquireSRWLockExclusive(&one_at_a_time); }
OneAtATime::~OneAtATime() { ReleaseSRWLockExclusive(&one_at_a_time); }

}  // namespace os
}  // namespace fa
