// A handle, and what it means to be inside a call on it.
#pragma once
#include <atomic>
#include "backend/thread_state.h"
#include "core/log.h"
#include "core/plans.h"
#include "core/registry.h"

struct fa_handle_s {
    const fa::Backend* backend;
    fa::Context* context;
    fa::Host host;
    fa::Log log;
    int owner;               // a forked child has another: threads and devices did not come along
    std::atomic<int> busy;   // a call is inside
    fa::ThreadState caller;  // of the thread that made it; callbacks run in it
    fa_parallel_for_fn parallel_for;
    void* parallel_user;
    fa_log_fn log_function;
    void* log_user;
    int32_t device;
    void* stream;        // native
    int32_t memory;      // FA_MEMORY_HOST or _DEVICE
    bool host_metadata;  // int32 arrays of the args can be read here
    bool staged;         // pointers are to host memory, which the backend cannot read
    void* staging;       // device memory for them, kept between calls
    uint64_t staging_bytes;
    fa::Plans plans;
    fa::Message message;
    fa::Message passed_over[fa::kBackends];  // by registry row: why AUTO did not take that backend
};

namespace fa {

// The calling thread's message, emptied: for functions that have no handle, or may not touch the one they got.
Message* thread_message();

// FA_OK: this thread owns the handle until leave(), and the message is empty. Else the sentence is the thread's.
fa_status_t enter(fa_handle_t handle);
// A status other than FA_OK is logged at `level`, its sentence after the call's name.
fa_status_t leave(fa_handle_t handle, const char* name, int32_t level, fa_status_t status);

// One call on a handle. `body` gets the handle and returns the status, its sentence in handle.message. A question that is answered
// with a refusal is no error: its level is FA_LOG_DEBUG.
template <class Body>
fa_status_t within(fa_handle_t handle, const char* name, int32_t level, const Body& body) {
    const fa_status_t refused = enter(handle);
    return refused != FA_OK ? refused : leave(handle, name, level, body(*handle));
}
template <class Body>
fa_status_t within(fa_handle_t handle, const char* name, const Body& body) {
    return within(handle, name, FA_LOG_ERROR, body);
}

// Backend, device, memory, and why AUTO passed over others.
void describe(const fa_handle_s& handle, char* text, uint64_t n);

}  // namespace fa
