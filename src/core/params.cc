#include "core/params.h"
#include "core/handle.h"

namespace fa {
namespace {

constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kAnyFigure = INT64_MAX;
constexpr int64_t kHighestIsa = 255;

// clang-format off: one or two lines a parameter
constexpr Parameter kParameters[] = {
    {.key = FA_PARAM_THREADS, .owner = Owner::backend, .name = "threads", .max = kMaxThreads,
     .doc = "CPU threads, the caller's included; 0: as many as the process may use, within OpenMP's maximum"},
    {.key = FA_PARAM_MAX_ISA, .owner = Owner::backend, .name = "max_isa", .max = kHighestIsa,
     .doc = "highest CPU instruction set to use, an FA_ISA_ value (see fa_isa_name); 0: the best one"},
    {.key = FA_PARAM_LOG_LEVEL, .owner = Owner::core, .name = "log_level", .min = FA_LOG_NONE, .max = FA_LOG_DEBUG, .initial = FA_LOG_NONE,
     .doc = "lines for the log callback: 0 none, 1 error, 2 info, 3 debug"},
    {.key = FA_PARAM_COUNT_WORK, .owner = Owner::backend, .name = "count_work", .max = 1,
     .doc = "1: forward calls count work and memory traffic"},
    {.key = FA_PARAM_THREAD_POOL, .owner = Owner::backend, .name = "thread_pool", .min = FA_POOL_AUTO, .max = FA_POOL_CALLER,
     .initial = FA_POOL_AUTO,
     .doc = "pool of CPU threads: 1 OpenMP's, 2 the library's own, 3 the caller's parallel_for; 0: the caller's if given, "
            "else the library's own"},
    {.key = FA_INFO_BACKEND, .owner = Owner::core, .read_only = true, .name = "backend", .max = FA_BACKEND_HIP,
     .doc = "backend that the handle resolved to: 1 CPU, 2 CUDA, 3 HIP"},
    {.key = FA_INFO_DEVICE, .owner = Owner::core, .read_only = true, .name = "device", .max = INT32_MAX,
     .doc = "index of its device"},
    {.key = FA_INFO_MEMORY, .owner = Owner::core, .read_only = true, .name = "memory", .max = FA_MEMORY_DEVICE,
     .doc = "memory of the pointers that it takes: 1 host, 2 device"},
    {.key = FA_INFO_ISA, .owner = Owner::backend, .read_only = true, .name = "isa", .max = kHighestIsa,
     .doc = "CPU instruction set in use, an FA_ISA_ value; 0 on a GPU"},
    {.key = FA_INFO_STREAM, .owner = Owner::core, .read_only = true, .name = "stream", .min = INT64_MIN, .max = kAnyFigure,
     .doc = "native stream of its calls, as an integer; 0 on the CPU"},
    {.key = FA_STAT_TILE_ROWS, .owner = Owner::backend, .read_only = true, .name = "tile_rows", .max = kAnyFigure,
     .doc = "query rows of a tile"},
    {.key = FA_STAT_TILE_KEYS, .owner = Owner::backend, .read_only = true, .name = "tile_keys", .max = kAnyFigure,
     .doc = "keys of a tile"},
    {.key = FA_STAT_FLOPS, .owner = Owner::backend, .read_only = true, .name = "flops", .max = kAnyFigure,
     .doc = "floating-point operations of the last counted forward"},
    {.key = FA_STAT_BYTES_READ, .owner = Owner::backend, .read_only = true, .name = "bytes_read", .max = kAnyFigure,
     .doc = "bytes that it moved from memory into tiles"},
    {.key = FA_STAT_BYTES_WRITTEN, .owner = Owner::backend, .read_only = true, .name = "bytes_written", .max = kAnyFigure,
     .doc = "bytes that it moved from tiles to memory"},
    {.key = FA_STAT_EXTRA_BYTES, .owner = Owner::backend, .read_only = true, .name = "extra_bytes", .max = kAnyFigure,
     .doc = "memory that it used in addition to inputs, outputs and one thread's tiles"},
};
// clang-format on

fa_status_t unknown(int32_t key, Message* message) {
    return fail(message, FA_INVALID_ARGUMENT, "key is %d: expected an FA_PARAM_, FA_INFO_ or FA_STAT_ key", key);
}

}  // namespace

const Parameter* parameter(int32_t key) {
    for (const Parameter& p : kParameters)
        if (p.key == key) return &p;
    return nullptr;
}

}  // namespace fa

using fa::Owner;
using fa::Parameter;

fa_status_t fa_param_set(fa_handle_t handle, int32_t key, int64_t value) {
    return fa::within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        const Parameter* p = fa::parameter(key);
        if (p == nullptr) return fa::unknown(key, &handle.message);
        if (p->read_only) return fail(&handle.message, FA_INVALID_ARGUMENT, "%s is read-only", p->name);
        if (value < p->min || value > p->max)
            return fail(&handle.message, FA_INVALID_ARGUMENT, "%s is %lld: expected %lld to %lld", p->name, (long long)value,
                        (long long)p->min, (long long)p->max);
        if (p->owner == Owner::backend) {
            fa::forget_plans(handle);
            return handle.backend->set(handle.context, key, value, &handle.message);
        }
        handle.log.level = int32_t(value);
        return FA_OK;
    });
}

fa_status_t fa_param_get(fa_handle_t handle, int32_t key, int64_t* value) {
    return fa::within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        const Parameter* p = fa::parameter(key);
        if (p == nullptr) return fa::unknown(key, &handle.message);
        if (value == nullptr) return fail(&handle.message, FA_INVALID_ARGUMENT, "value is NULL: expected where to write %s", p->name);
        if (p->owner == Owner::backend) return handle.backend->get(handle.context, key, value, &handle.message);
        switch (key) {
            case FA_INFO_BACKEND: *value = handle.backend->id; break;
            case FA_INFO_DEVICE: *value = handle.device; break;
            case FA_INFO_MEMORY: *value = handle.memory; break;
            case FA_INFO_STREAM: *value = int64_t(reinterpret_cast<intptr_t>(handle.stream)); break;
            default: *value = handle.log.level;
        }
        return FA_OK;
    });
}

fa_status_t fa_param_bounds(int32_t key, int64_t* min, int64_t* max, int64_t* initial) {
    fa::Message* m = fa::thread_message();
    const Parameter* p = fa::parameter(key);
    if (p == nullptr) return fa::unknown(key, m);
    if (min != nullptr) *min = p->min;
    if (max != nullptr) *max = p->max;
    if (initial != nullptr) *initial = p->initial;
    return FA_OK;
}

const char* fa_param_name(int32_t key) {
    const Parameter* p = fa::parameter(key);
    return p == nullptr ? nullptr : p->name;
}

const char* fa_param_doc(int32_t key) {
    const Parameter* p = fa::parameter(key);
    return p == nullptr ? nullptr : p->doc;
}
