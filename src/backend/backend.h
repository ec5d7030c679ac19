// The seam between core and the backends: a table of functions each way, and nothing else.
//
// A backend is a `const Backend`. The CPU's is linked in; a GPU's lives in a module, whose one exported symbol `flashattn_backend_v1`
// (a BackendEntry) returns it. Core hands its own services in (Host), so that a module has no undefined symbol of ours.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include "move.h"
#include "problem.h"

namespace fa {

constexpr uint32_t kBackendAbi = 8;  // raised whenever this file, problem.h or the public structs change their layout

// The sentence behind a failure. Empty means none.
struct Message {
    char text[512];
};

// Writes the sentence and returns the status, so that a check reads `return fail(…)`.
__attribute__((format(printf, 3, 4))) static inline fa_status_t fail(Message* message, fa_status_t status, const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(message->text, sizeof message->text, format, list);
    va_end(list);
    return status;
}

// What core offers to a backend.
struct Host {
    uint32_t abi;
    bool forces_ptx;                                        // the environment has NVIDIA's driver ignore machine code
    void* (*allocate)(uint64_t bytes, uint64_t alignment);  // NULL when out of memory
    void (*release)(void*);
    void (*log)(void* log_context, int32_t level, const char* message);
    void* log_context;
    uint64_t openmp_stack_bytes;  // of an OpenMP thread, as the environment asks for it; 0: the system's default
    uint64_t max_shared_bytes;    // of shared memory, that a block on a GPU may have, as the environment says; 0: all that the device has
};

// What a backend decides from a descriptor, once: kernels, launch shapes or schedule, the map of the workspace. It follows from
// the descriptor, the device and the handle's parameters alone. What depends on the args' addresses is in it as each of the
// choices. A call takes it as it is, and fa_supports, fa_explain and fa_workspace_size ask the same object: query and execution
// cannot disagree.
//
// A backend derives its own from it: plain data, at most Backend.plan_bytes, without pointers into itself. Core keeps it with the
// handle and forgets it when a parameter is set.
struct Plan {
    Problem problem;     // both by core
    int32_t op;          // FA_OP_…
    uint64_t workspace;  // bytes
};
constexpr uint64_t kPlanAlignment = 128, kMaxExplanation = 1792;

struct Context;  // a backend's own part of a handle

struct Backend {
    uint32_t abi;
    int32_t id;        // FA_BACKEND_…
    const char* name;  // "cpu", "cuda", "hip"

    // Without a handle. usable: FA_OK, or why not (no driver, no device, an unknown instruction set asked for, …).
    fa_status_t (*usable)(Message*);
    fa_status_t (*device_count)(int32_t* count, Message*);
    fa_status_t (*device_info)(int32_t device, fa_device_info_t* info, Message*);

    fa_status_t (*create)(const Host*, const fa_create_info_t*, Context**, Message*);
    void (*destroy)(Context*, bool forked);  // forked: in a child process, free host memory only

    fa_status_t (*set)(Context*, int32_t key, int64_t value, Message*);  // keys of this backend; bounds already checked
    fa_status_t (*get)(Context*, int32_t key, int64_t* value, Message*);

    uint64_t plan_bytes;  // of the largest
    // Fills the rest in from problem and op. FA_OK, or FA_UNSUPPORTED with the reason.
    fa_status_t (*plan)(const Context*, Plan*, Message*);
    // Kernel, tiles, splits of a call now, and why not others, in at most n bytes, kMaxExplanation or fewer.
    void (*explain)(const Context*, const Plan*, char* text, uint64_t n);
    // Loads the kernels that the planned call will launch with such args, a struct of the plan's operation, and launches none. Pointers in
    // there stand for nothing, aligned as most calls' are. What fails here fails in the call likewise. NULL: nothing is loaded that late.
    fa_status_t (*prepare)(Context*, const Plan*, const void* args, Message*);

    // The plan is of the operation. Args are checked and complete: default strides filled in, host metadata verified when it can be
    // read. workspace is NULL or at least the planned size.
    fa_status_t (*forward)(Context*, const Plan*, const fa_forward_args_t*, Message*);
    // forward points to the forward's args, checked as well.
    fa_status_t (*backward)(Context*, const Plan*, const fa_backward_args_t*, Message*);  // NULL where plan always refuses it
    fa_status_t (*merge)(Context*, const Plan*, const fa_merge_args_t*, Message*);
    fa_status_t (*append_kv)(Context*, const Plan*, const fa_append_kv_args_t*, Message*);
    fa_status_t (*rotary)(Context*, const Plan*, const fa_rotary_args_t*, Message*);

    fa_status_t (*allocate)(Context*, uint64_t bytes, void** pointer, Message*);
    fa_status_t (*release)(Context*, void* pointer, Message*);
    fa_status_t (*copy)(Context*, void* to, const void* from, uint64_t bytes, Message*);
    // flags, stream: as in an args struct. FA_INVALID_STATE while that stream is being captured, which goes on.
    fa_status_t (*synchronize)(Context*, uint32_t flags, void* stream, Message*);
    // Of memory that the device reads, in the order of the stream. NULL: there is no stream, and core copies and moves by itself.
    fa_status_t (*copy_async)(Context*, void* to, const void* from, uint64_t bytes, uint32_t flags, void* stream, Message*);
    fa_status_t (*convert)(Context*, const fa_conversion_t* list, int64_t count, uint32_t flags, void* stream, Message*);
};

// Who meets this raises kBackendAbi, then writes the new sizes. Args structs grow at their ends alone: a module reads what it knows.
static_assert(sizeof(Problem) == 920 && sizeof(Host) == 56 && sizeof(Backend) == 192, "kBackendAbi is of another layout");

// Returns NULL, with the message, when the module cannot serve this host.
using BackendEntry = const Backend* (*)(uint32_t host_abi, Message*);
constexpr char kBackendEntry[] = "flashattn_backend_v1";

}  // namespace fa
