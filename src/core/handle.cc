#include "core/handle.h"
#include <string.h>
#include <new>
#include "core/check.h"
#include "core/env.h"
#include "core/staging.h"
#include "os/memory.h"
#include "os/path.h"
#include "os/process.h"

namespace fa {
namespace {

thread_local Message own_message;

// os::process_id() without its system call, which would be a fifth of the smallest call's time; 0 before the first handle.
std::atomic<int> this_process{0};

int current_process() { return this_process.load(std::memory_order_relaxed); }

bool watch_forks() {
    if (current_process() != 0) return true;
    const auto note = [] { this_process.store(os::process_id(), std::memory_order_relaxed); };
    if (!os::in_forked_children(note)) return false;
    note();
    return true;
}

fa_status_t check_info(const fa_create_info_t& info, Message* message) {
    if (info.flags != 0) return fail(message, FA_UNSUPPORTED_FIELD, "info.flags is 0x%x: expected 0", info.flags);
    if (info.backend != FA_BACKEND_AUTO && registered(info.backend) == nullptr)
        return fail(message, FA_UNSUPPORTED_FIELD, "info.backend is %d: expected an FA_BACKEND_ value", info.backend);
    if (info.memory < FA_MEMORY_DEFAULT || info.memory > FA_MEMORY_DEVICE)
        return fail(message, FA_UNSUPPORTED_FIELD, "info.memory is %d: expected an FA_MEMORY_ value", info.memory);
    if (info.log_level < FA_LOG_NONE || info.log_level > FA_LOG_DEBUG)
        return fail(message, FA_UNSUPPORTED_FIELD, "info.log_level is %d: expected an FA_LOG_ value", info.log_level);
    if (info.device < 0) return fail(message, FA_INVALID_ARGUMENT, "info.device is %d: expected 0 or more", info.device);
    if (info.stream != nullptr && info.backend == FA_BACKEND_AUTO)
        return fail(message, FA_INVALID_ARGUMENT,
                    "info.stream is %p: expected NULL with FA_BACKEND_AUTO, since a stream belongs to one backend", info.stream);
    if (info.backend_dir != nullptr && !os::is_absolute(info.backend_dir))
        return fail(message, FA_INVALID_ARGUMENT, "info.backend_dir is \"%s\": expected an absolute path", info.backend_dir);
    return FA_OK;
}

fa_status_t read_info(const fa_create_info_t* user, fa_create_info_t* info, Message* message) {
    *info = FA_CREATE_INFO_INIT;
    if (user == nullptr) return FA_OK;
    const fa_status_t status = import_struct(info, user, message);
    return status != FA_OK ? status : check_info(*info, message);
}

fa_status_t open_backend(fa_handle_s& handle, const Registered& entry, fa_create_info_t info, const Environment& env, Message* message) {
    fa_status_t status = find_backend(entry, info.backend_dir, &handle.backend, message);
    if (status != FA_OK) return status;
    info.backend = entry.id;
    status = handle.backend->create(&handle.host, &info, &handle.context, message);
    if (status != FA_OK || entry.id != FA_BACKEND_CPU || env.max_isa == 0) return status;
    status = handle.backend->set(handle.context, FA_PARAM_MAX_ISA, env.max_isa, message);
    if (status != FA_OK) handle.backend->destroy(handle.context, false);
    return status;
}

// AUTO: any failure is a reason to go on; the last one, the CPU's, is the caller's.
fa_status_t choose_backend(fa_handle_s& handle, const fa_create_info_t& info, const Environment& env, Message* message) {
    if (info.backend != FA_BACKEND_AUTO) return open_backend(handle, *registered(info.backend), info, env, message);
    fa_status_t status = FA_OK;
    for (int i = 0; i < kBackends; i++) {
        status = open_backend(handle, kRegistry[i], info, env, message);
        if (status == FA_OK) break;
        handle.passed_over[i] = *message;
    }
    return status;
}

// Callbacks run as the caller's thread came: so they find it, and whatever catches what they throw.
fa_status_t call_parallel_for(void* user, int64_t n, void (*body)(void*, int64_t), void* arg) {
    fa_handle_s& h = *static_cast<fa_handle_s*>(user);
    h.caller.leave();
    const fa_status_t status = h.parallel_for(h.parallel_user, n, body, arg);
    h.caller.enter();
    return status;
}
void call_log(void* user, int32_t level, const char* line) {
    fa_handle_s& h = *static_cast<fa_handle_s*>(user);
    h.caller.leave();
    h.log_function(h.log_user, level, line);
    h.caller.enter();
}
void wrap_callbacks(fa_handle_s& handle, fa_create_info_t* info) {
    handle.parallel_for = info->parallel_for;
    handle.parallel_user = info->parallel_user;
    handle.log_function = info->log;
    handle.log_user = info->log_user;
    if (info->parallel_for != nullptr) info->parallel_for = call_parallel_for, info->parallel_user = &handle;
    if (info->log != nullptr) info->log = call_log, info->log_user = &handle;
}

// Of a handle that is inside a call, fa_create.
fa_status_t furnish(fa_handle_s& handle, fa_create_info_t info, const Environment& env, bool logged, Message* message) {
    wrap_callbacks(handle, &info);
    if (logged) handle.log = log_of(info, env);
    handle.host = {.abi = kBackendAbi,
                   .forces_ptx = env.forces_ptx,
                   .allocate = os::allocate,
                   .release = os::release,
                   .log = log_from_backend,
                   .log_context = &handle.log,
                   .openmp_stack_bytes = env.openmp_stack_bytes,
                   .max_shared_bytes = env.max_shared_bytes};
    handle.device = info.device;
    handle.memory = info.memory;
    handle.stream = info.stream;
    fa_status_t status = choose_backend(handle, info, env, message);
    if (status == FA_OK) {
        status = make_plans(handle, message);
        if (status != FA_OK) handle.backend->destroy(handle.context, false);
    }
    if (status != FA_OK) {
        log_line(handle.log, FA_LOG_ERROR, "fa_create: %s: %s", fa_status_name(status), message->text);
        return status;
    }
    handle.host_metadata = handle.memory == FA_MEMORY_HOST || handle.backend->id == FA_BACKEND_CPU;
    handle.staged = handle.memory == FA_MEMORY_HOST && handle.backend->id != FA_BACKEND_CPU;
    if (logs(handle.log, FA_LOG_INFO)) {
        char text[FA_TEXT_MAX];
        describe(handle, text, sizeof text);
        log_line(handle.log, FA_LOG_INFO, "%s", text);
    }
    return FA_OK;
}

// logged: false for a handle that only answers whether one can be made.
fa_status_t make_handle(const fa_create_info_t* user, bool logged, fa_handle_t* handle, Message* message) {
    fa_create_info_t info;
    Environment env;
    fa_status_t status = read_info(user, &info, message);
    if (status == FA_OK) status = environment(&env, message);
    if (status != FA_OK) return status;
    if (info.memory == FA_MEMORY_DEFAULT) info.memory = info.backend == FA_BACKEND_AUTO ? FA_MEMORY_HOST : FA_MEMORY_DEVICE;

    void* memory = watch_forks() ? os::allocate(sizeof(fa_handle_s), alignof(fa_handle_s)) : nullptr;
    if (memory == nullptr) return fail(message, FA_OUT_OF_MEMORY, "no memory for a handle of %d bytes", int(sizeof(fa_handle_s)));
    fa_handle_s& h = *new (memory) fa_handle_s{};
    h.owner = current_process();
    h.busy.store(true, std::memory_order_relaxed);
    h.caller.enter();
    status = furnish(h, info, env, logged, message);
    h.caller.leave();
    h.busy.store(false, std::memory_order_relaxed);
    if (status != FA_OK) {
        os::release(memory);
        return status;
    }
    *handle = &h;
    message->text[0] = 0;
    return FA_OK;
}

// What fa_create would give for a backend. A CPU handle is cheap to try, and settles FLASHATTN_MAX_ISA too; a handle of a GPU
// would start a context on the device.
fa_status_t probe(int32_t id, const Backend** backend, Message* message) {
    const Registered* entry = registered(id);
    if (entry == nullptr)
        return fail(message, FA_INVALID_ARGUMENT, "backend is %d: expected FA_BACKEND_CPU, FA_BACKEND_CUDA or FA_BACKEND_HIP", id);
    Environment env;
    fa_status_t status = environment(&env, message);
    if (status == FA_OK) status = find_backend(*entry, nullptr, backend, message);
    if (status != FA_OK || id != FA_BACKEND_CPU) return status;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = id;
    fa_handle_t trial;
    status = make_handle(&info, false, &trial, message);
    return status != FA_OK ? status : fa_destroy(trial);
}

}  // namespace

Message* thread_message() {
    own_message.text[0] = 0;
    return &own_message;
}

fa_status_t enter(fa_handle_t h) {
    if (h == nullptr) return fail(thread_message(), FA_INVALID_ARGUMENT, "handle is NULL: expected one from fa_create");
    if (h->owner != current_process())
        return fail(thread_message(), FA_INVALID_STATE,
                    "the handle belongs to process %d, this is its forked child %d: make a new handle here; only fa_destroy is allowed",
                    h->owner, current_process());
    if (h->busy.exchange(true, std::memory_order_acquire))
        return fail(thread_message(), FA_INVALID_STATE,
                    "another call on this handle has not returned: a handle serves one thread at a time, and no log or "
                    "parallel_for callback may call back into it");
    h->caller.enter();
    h->message.text[0] = 0;
    return FA_OK;
}

fa_status_t leave(fa_handle_t h, const char* name, int32_t level, fa_status_t status) {
    if (status == FA_OK) h->message.text[0] = 0;
    else log_line(h->log, level, "%s: %s: %s", name, fa_status_name(status), h->message.text);
    h->caller.leave();
    h->busy.store(false, std::memory_order_release);
    return status;
}

void describe(const fa_handle_s& handle, char* text, uint64_t n) {
    fa_device_info_t device{};
    Message ignored;
    const bool known = handle.backend->device_info(handle.device, &device, &ignored) == FA_OK;
    uint64_t at = 0;
    const auto rest = [&](int written) { at = at + uint64_t(written) < n ? at + uint64_t(written) : n; };
    rest(snprintf(text, n, "backend %s, device %d%s%s%s%s, %s memory", handle.backend->name, handle.device, known ? " " : "",
                  known ? device.name : "", known ? ", " : "", known ? device.arch : "",
                  handle.memory == FA_MEMORY_HOST ? "host" : "device"));
    for (int i = 0; i < kBackends && at < n; i++)
        if (handle.passed_over[i].text[0] != 0)
            rest(snprintf(text + at, n - at, "; passed over %s: %s", kRegistry[i].name, handle.passed_over[i].text));
}

}  // namespace fa

using fa::Backend;
using fa::Message;

fa_status_t fa_create(fa_handle_t* handle, const fa_create_info_t* info) {
    Message* m = fa::thread_message();
    if (handle == nullptr) return fail(m, FA_INVALID_ARGUMENT, "handle is NULL: expected where to write the handle");
    *handle = nullptr;
    return fa::make_handle(info, true, handle, m);
}

fa_status_t fa_destroy(fa_handle_t handle) {
    if (handle == nullptr) return FA_OK;
    const fa::InLibrary here;
    const bool forked = handle->owner != fa::current_process();
    if (!forked) fa::release_staging(*handle);
    handle->backend->destroy(handle->context, forked);
    fa::release_plans(*handle);
    fa::os::release(handle);
    return FA_OK;
}

const char* fa_last_error(fa_handle_t handle) {
    // While a call is inside, its message is being written; whoever was turned away has the reason in the thread's own.
    const bool readable = handle != nullptr && handle->owner == fa::current_process() && !handle->busy.load(std::memory_order_acquire);
    return readable ? handle->message.text : fa::own_message.text;
}

fa_status_t fa_backend_status(int32_t backend, char* text, uint64_t n) {
    const fa::InLibrary here;
    Message* m = fa::thread_message();
    const Backend* found;
    const fa_status_t status = fa::probe(backend, &found, m);
    if (text != nullptr && n > 0) {
        const fa::Registered* entry = fa::registered(backend);
        snprintf(text, n, "%s%s", status == FA_OK ? "usable" : m->text, entry != nullptr && entry->builtin != nullptr ? " (built in)" : "");
    }
    return status;
}

fa_status_t fa_device_count(int32_t backend, int32_t* count) {
    const fa::InLibrary here;
    Message* m = fa::thread_message();
    if (count == nullptr) return fail(m, FA_INVALID_ARGUMENT, "count is NULL: expected where to write the number of devices");
    *count = 0;
    const Backend* found;
    const fa_status_t status = fa::probe(backend, &found, m);
    return status != FA_OK ? status : found->device_count(count, m);
}

fa_status_t fa_device_info(int32_t backend, int32_t device, fa_device_info_t* info) {
    const fa::InLibrary here;
    Message* m = fa::thread_message();
    uint32_t size = 0;
    using Sized = fa::Sized<fa_device_info_t>;
    fa_status_t status = fa::read_struct_size(info, Sized::kFirst, Sized::kName, &size, m);
    if (status != FA_OK) return status;
    if (device < 0) return fail(m, FA_INVALID_ARGUMENT, "device is %d: expected 0 or more", device);
    const Backend* found;
    fa_device_info_t ours = {};
    status = fa::probe(backend, &found, m);
    if (status == FA_OK) status = found->device_info(device, &ours, m);
    if (status != FA_OK) return status;
    ours.struct_size = size;
    ours.backend = backend;
    ours.device = device;
    memset(info, 0, size);
    memcpy(info, &ours, size < sizeof ours ? size : sizeof ours);
    return FA_OK;
}
