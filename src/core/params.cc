#include "core/params.h"
#include "core/handle.h"

namespace fa {
namespace {

constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kAnyFigure = INT64_MAX;
constexpr int64_t kHighestIsa = 255;

constexpr Parameter kParameters[] = {
    {FA_PARAM_THREADS, Owner::backend, false, "threads", 0, kMaxThreads, 0, "CPU threads, the caller's included; 0: as many as the process may use, within OpenMP's maximum"},
    {FA_PARAM_MAX_ISA, Owner::backend, false, "max_isa", 0, kHighestIsa, 0,
     "highest CPU instruction set to use, an FA_ISA_ value (see fa_isa_name); 0: the best there is"},
    {FA_PARAM_LOG_LEVEL, Owner::core, false, "log_level", FA_LOG_NONE, FA_LOG_DEBUG, FA_LOG_NONE,
     "lines for the log callback: 0 none, 1 error, 2 info, 3 debug"},
    {FA_PARAM_COUNT_WORK, Owner::backend, false, "count_work", 0, 1, 0, "1: forward calls count work and memory traffic"},
    {FA_PARAM_THREAD_POOL, Owner::backend, false, "thread_pool", FA_POOL_AUTO, FA_POOL_CALLER, FA_POOL_AUTO,
     "whose CPU threads: 1 OpenMP's, 2 the library's own, 3 the caller's parallel_for; 0: the caller's if given, else the library's own"},
    {FA_INFO_BACKEND, Owner::core, true, "backend", 0, FA_BACKEND_HIP, 0, "backend that the handle resolved to: 1 CPU, 2 CUDA, 3 HIP"},
    {FA_INFO_DEVICE, Owner::core, true, "device", 0, INT32_MAX, 0, "index of its device"},
    {FA_INFO_MEMORY, Owner::core, true, "memory", 0, FA_MEMORY_DEVICE, 0, "whose pointers it takes: 1 host, 2 device"},
    {FA_INFO_ISA, Owner::backend, true, "isa", 0, kHighestIsa, 0, "CPU instruction set that runs, an FA_ISA_ value; 0 on a GPU"},
    {FA_STAT_TILE_ROWS, Owner::backend, true, "tile_rows", 0, kAnyFigure, 0, "query rows of a tile"},
    {FA_STAT_TILE_KEYS, Owner::backend, true, "tile_keys", 0, kAnyFigure, 0, "keys of a tile"},
    {FA_STAT_FLOPS, Owner::backend, true, "flops", 0, kAnyFigure, 0, "floating-point operations of the last counted forward"},
    {FA_STAT_BYTES_READ, Owner::backend, true, "bytes_read", 0, kAnyFigure, 0, "bytes it moved from memory into tiles"},
    {FA_STAT_BYTES_WRITTEN, Owner::backend, true, "bytes_written", 0, kAnyFigure, 0, "bytes it moved from tiles to memory"},
    {FA_STAT_EXTRA_BYTES, Owner::backend, true, "extra_bytes", 0, kAnyFigure, 0,
     "memory it took besides inputs, outputs and one thread's tiles"},
};

fa_status_t unknown(int32_t key, Message* m) {
    return fail(m, FA_INVALID_ARGUMENT, "key is %d: expected an FA_PARAM_, FA_INFO_ or FA_STAT_ key", key);
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
    return fa::within(handle, __func__, [&](fa_handle_s& h) -> fa_status_t {
        const Parameter* p = fa::parameter(key);
        if (p == nullptr) return fa::unknown(key, &h.message);
        if (p->read_only) return fail(&h.message, FA_INVALID_ARGUMENT, "%s is read-only", p->name);
        if (value < p->min || value > p->max)
            return fail(&h.message, FA_INVALID_ARGUMENT, "%s is %lld: expected %lld to %lld", p->name, (long long)value,
                        (long long)p->min, (long long)p->max);
        if (p->owner == Owner::backend) {
            fa::forget_plans(h);
            return h.backend->set(h.context, key, value, &h.message);
        }
        h.log.level = int32_t(value);
        return FA_OK;
    });
}

fa_status_t fa_param_get(fa_handle_t handle, int32_t key, int64_t* value) {
    return fa::within(handle, __func__, [&](fa_handle_s& h) -> fa_status_t {
        const Parameter* p = fa::parameter(key);
        if (p == nullptr) return fa::unknown(key, &h.message);
        if (value == nullptr) return fail(&h.message, FA_INVALID_ARGUMENT, "value is NULL: expected where to write %s", p->name);
        if (p->owner == Owner::backend) return h.backend->get(h.context, key, value, &h.message);
        *value = key == FA_INFO_BACKEND ? h.backend->id : key == FA_INFO_DEVICE ? h.device : key == FA_INFO_MEMORY ? h.memory : h.log.level;
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
