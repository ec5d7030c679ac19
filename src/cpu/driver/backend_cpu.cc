// The CPU backend: the handle's Context, its parameters, and the table of functions that the core calls (backend/backend.h).
// A plan holds the kernel table and the schedule that forward/ and backward/ make; a call runs it on the workspace and the workers
// chosen here.
#include <stdlib.h>
#include "backend/isa.h"
#include "cpu/backward/backward.h"
#include "cpu/forward/forward.h"
#include "cpu/driver/openmp.h"
#include "cpu/rowwise/rowwise.h"
#include "os/machine.h"

namespace fa {

// What a CPU handle owns. Scratch memory is kept between calls and grows.
struct Context {
    Host host;
    const cpu::Kernels* kernels;
    int64_t max_isa;
    cpu::Threads threads;
    bool count;
    cpu::Counters counters;
    int64_t extra_bytes;
    char* scratch;
    uint64_t scratch_bytes;
};

namespace cpu {
namespace {

constexpr uint64_t kAlignment = 256;

struct ForwardPlan : Plan {
    Schedule schedule;
    Call call;  // but for what args add
};
struct BackwardPlan : Plan {
    const Kernels* kernels;
    BackwardSchedule schedule;
};
struct RowsPlan : Plan {  // merge, append_kv, rotary
    const Kernels* kernels;
};
constexpr uint64_t kPlanBytes = sizeof(ForwardPlan);
static_assert(kPlanBytes >= sizeof(BackwardPlan) && kPlanBytes >= sizeof(RowsPlan), "a forward's is the largest");

fa_status_t no_such_isa(int64_t isa, Message* message) {
    char wanted[24], offered[64] = "";
    snprintf(wanted, sizeof wanted, "%lld", (long long)isa);
    for (const Word& word : kIsaWords) {
        if (word.value == isa) snprintf(wanted, sizeof wanted, "%s", word.text);
        if (!select_kernels(word.value)) continue;
        const size_t used = strlen(offered);
        snprintf(offered + used, sizeof offered - used, "%s%s", used ? ", " : "", word.text);
    }
    return fail(message, FA_UNSUPPORTED, "max_isa is %s: this CPU or build offers %s", wanted, offered);
}

fa_status_t no_streams(const void* stream, Message* message) {
    return fail(message, FA_INVALID_ARGUMENT, "stream is %p: expected NULL, since the CPU backend has no streams", stream);
}

fa_status_t usable(Message*) { return FA_OK; }

fa_status_t device_count(int32_t* count, Message*) {
    *count = 1;
    return FA_OK;
}

fa_status_t device_info(int32_t device, fa_device_info_t* info, Message* message) {
    if (device != 0) return fail(message, FA_NO_DEVICE, "device is %d: the CPU backend has one device, 0", device);
    info->compute_units = int32_t(os::available_cpus());
    info->memory_bytes = os::memory_bytes();
    os::processor_name(info->name, sizeof info->name);
    snprintf(info->arch, sizeof info->arch, "%s", select_kernels(0)->name);
    return FA_OK;
}

fa_status_t create(const Host* host, const fa_create_info_t* info, Context** context, Message* message) {
    if (info->device != 0) return fail(message, FA_NO_DEVICE, "device is %d: the CPU backend has one device, 0", info->device);
    if (info->stream) return no_streams(info->stream, message);
    Context* c = static_cast<Context*>(host->allocate(sizeof(Context), kAlignment));
    if (!c) return fail(message, FA_OUT_OF_MEMORY, "no memory for a CPU handle");
    *c = Context{};
    c->host = *host;
    c->threads = {info->parallel_for, info->parallel_user, 0, FA_POOL_AUTO, host->openmp_stack_bytes};
    c->kernels = select_kernels(0);
    *context = c;
    return FA_OK;
}

void destroy(Context* context, bool) {
    const Host host = context->host;
    host.release(context->scratch);
    host.release(context);
}

fa_status_t set_pool(Context* context, int64_t pool, Message* message) {
    if (pool == FA_POOL_OPENMP && !built_with_openmp())
        return fail(message, FA_UNSUPPORTED, "thread_pool is %lld, OpenMP: this library was built without it", (long long)pool);
    if (pool == FA_POOL_CALLER && !context->threads.parallel_for)
        return fail(message, FA_INVALID_ARGUMENT, "thread_pool is %lld, the caller's: expected a parallel_for, given to fa_create",
                    (long long)pool);
    context->threads.pool = pool;
    return FA_OK;
}

fa_status_t set(Context* context, int32_t key, int64_t value, Message* message) {
    switch (key) {
        case FA_PARAM_THREADS: context->threads.wanted = value; return FA_OK;
        case FA_PARAM_COUNT_WORK: context->count = value != 0; return FA_OK;
        case FA_PARAM_THREAD_POOL: return set_pool(context, value, message);
        case FA_PARAM_MAX_ISA: {
            const Kernels* k = select_kernels(value);
            if (!k) return no_such_isa(value, message);
            context->kernels = k;
            context->max_isa = value;
            return FA_OK;
        }
        default: return fail(message, FA_INTERNAL, "the CPU backend has no parameter %d", key);
    }
}

fa_status_t get(Context* context, int32_t key, int64_t* value, Message* message) {
    switch (key) {
        case FA_PARAM_THREADS: *value = context->threads.wanted; return FA_OK;
        case FA_PARAM_THREAD_POOL: *value = context->threads.pool; return FA_OK;
        case FA_PARAM_MAX_ISA: *value = context->max_isa; return FA_OK;
        case FA_INFO_ISA: *value = context->kernels->isa; return FA_OK;
        case FA_PARAM_COUNT_WORK: *value = context->count; return FA_OK;
        case FA_STAT_TILE_ROWS: *value = context->kernels->rows; return FA_OK;
        case FA_STAT_TILE_KEYS: *value = kTileKeys; return FA_OK;
        case FA_STAT_FLOPS: *value = context->counters.flops; return FA_OK;
        case FA_STAT_BYTES_READ: *value = context->counters.read; return FA_OK;
        case FA_STAT_BYTES_WRITTEN: *value = context->counters.written; return FA_OK;
        case FA_STAT_EXTRA_BYTES: *value = context->extra_bytes; return FA_OK;
        default: return fail(message, FA_INTERNAL, "the CPU backend has no parameter %d", key);
    }
}

struct ThreadsText {
    char text[64];
};
ThreadsText threads_text(const Threads& threads, int64_t workers) {
    ThreadsText t{"1 thread"};
    if (workers > 1) snprintf(t.text, sizeof t.text, "%lld threads of %s", (long long)workers, pool_name(pool_of(threads)));
    return t;
}

// A workspace is planned for as many workers as the process may have. How many a call has depends on the thread that makes it, too.
using CountWorkers = int64_t(const Threads&, int64_t items, double flops);
int64_t forward_workers(const Context& context, const Schedule& schedule, CountWorkers* count) {
    return count(context.threads, schedule.items * (schedule.parallel_splits ? schedule.max_splits : 1), schedule.flops);
}
int64_t backward_workers(const Context& context, const BackwardSchedule& schedule, CountWorkers* count) {
    return count(context.threads, max_of(schedule.items(), schedule.tiles), schedule.flops);
}
template <class AnySchedule>
uint64_t workspace_bytes(const AnySchedule& s, int64_t workers) {
    return uint64_t(s.shared_bytes) + uint64_t(workers) * uint64_t(s.worker_bytes);
}

fa_status_t plan_forward(const Context& context, ForwardPlan* plan, Message* message) {
    const Problem& p = plan->problem;
    const fa_attention_desc_t& d = p.d;
    const bool study = d.algorithm != FA_ALGORITHM_FLASH;
    if (study && (d.num_splits > 1 || d.split_size > 0))
        return fail(message, FA_UNSUPPORTED, "num_splits is %d and split_size %lld: the study baselines do not split keys", d.num_splits,
                    (long long)d.split_size);
    // The matrix of a head is the only memory that can outgrow the machine's address space.
    int64_t elements;
    if (d.algorithm == FA_ALGORITHM_STANDARD &&
        (__builtin_mul_overflow(round_up(d.seqlen_q * p.group, context.kernels->rows), d.seqlen_k * 4, &elements) ||
         elements > INT64_MAX / 65536))
        return fail(message, FA_UNSUPPORTED, "seqlen_q %lld times seqlen_k %lld: too many scores for the standard algorithm to store",
                    (long long)d.seqlen_q, (long long)d.seqlen_k);
    plan->schedule = make_schedule(p, *context.kernels, context.count);
    plan->call = plan_call(p, *context.kernels, plan->schedule.method, plan->schedule.decode, context.count);
    plan->workspace = workspace_bytes(plan->schedule, forward_workers(context, plan->schedule, worker_limit));
    return FA_OK;
}

void explain_forward(const Context& context, const ForwardPlan& plan, char* text, uint64_t n) {
    const char* const names[] = {"flash", "standard", "flash1"};
    const Schedule& s = plan.schedule;
    const Problem& p = plan.problem;
    // Sequences of few rows among longer ones.
    const bool some_decode = s.decode.matrix && s.decode.pack_q != s.method.pack_q && (p.packed_q() || p.has(FA_OPERAND_SEQUSED_Q));
    const bool rounds_q = s.method.rounds_q || (some_decode && s.decode.rounds_q);
    const bool to_8_bits = s.method.rounds_to_8_bits || (some_decode && s.decode.rounds_to_8_bits);
    const char* const products = to_8_bits ? ", products of 8 bits" : rounds_q ? ", products of bf16" : "";
    snprintf(text, n, "kernel cpu_%s_%s_%s, tiles of %d rows x %d keys%s%s, up to %lld split%s%s, %s", names[plan.problem.d.algorithm],
             s.method.matrix ? "decode_matrix" : s.method.name, plan.call.k->name, s.method.rows, kTileKeys,
             some_decode ? ", few rows by decode_matrix" : "", products, (long long)s.max_splits, s.max_splits == 1 ? "" : "s",
             s.parallel_splits ? " side by side" : "", threads_text(context.threads, forward_workers(context, s, worker_count)).text);
}

fa_status_t plan_backward(const Context& context, BackwardPlan* plan, Message* message) {
    const Problem& p = plan->problem;
    // Accumulators of dq for all rows of a head are the only memory that can outgrow the machine's address space.
    constexpr double kMaxDqBytes = double(int64_t(1) << 48);
    if (double(p.d.seqlen_q) * double(p.group) * double(p.d.dim_qk) * sizeof(float) > kMaxDqBytes)
        return fail(message, FA_UNSUPPORTED,
                    "seqlen_q is %lld, with %lld query heads to a kv head: too many rows for the backward's dq accumulator",
                    (long long)p.d.seqlen_q, (long long)p.group);
    plan->kernels = context.kernels;
    plan->schedule = make_backward_schedule(p, *context.kernels);
    plan->workspace = workspace_bytes(plan->schedule, backward_workers(context, plan->schedule, worker_limit));
    return FA_OK;
}

void explain_backward(const Context& context, const BackwardPlan& plan, char* text, uint64_t n) {
    const BackwardSchedule& s = plan.schedule;
    snprintf(text, n, "kernel cpu_backward_%s, tiles of %d rows x %d keys, blocks of %d keys, %lld part%s of dq, %s", plan.kernels->name,
             plan.kernels->rows, kTileKeys, s.block_keys, (long long)s.chunks, s.chunks == 1 ? "" : "s",
             threads_text(context.threads, backward_workers(context, s, worker_count)).text);
}

fa_status_t plan(const Context* context, Plan* plan, Message* message) {
    if (plan->op == FA_OP_FORWARD) return plan_forward(*context, static_cast<ForwardPlan*>(plan), message);
    if (plan->op == FA_OP_BACKWARD) return plan_backward(*context, static_cast<BackwardPlan*>(plan), message);
    static_cast<RowsPlan*>(plan)->kernels = context->kernels;
    plan->workspace = 0;
    return FA_OK;
}

void explain(const Context* context, const Plan* plan, char* text, uint64_t n) {
    if (plan->op == FA_OP_FORWARD) return explain_forward(*context, *static_cast<const ForwardPlan*>(plan), text, n);
    if (plan->op == FA_OP_BACKWARD) return explain_backward(*context, *static_cast<const BackwardPlan*>(plan), text, n);
    const char* const name = plan->op == FA_OP_MERGE ? "merge" : plan->op == FA_OP_APPEND_KV ? "append_kv" : "rotary";
    snprintf(text, n, "kernel cpu_%s_%s, row by row", name, static_cast<const RowsPlan*>(plan)->kernels->name);
}

// The caller's workspace, or the handle's own memory grown to `bytes`.
char* workspace(Context* context, void* given, uint64_t bytes) {
    if (given) return static_cast<char*>(given);
    if (context->scratch_bytes < bytes) {
        context->host.release(context->scratch);
        context->scratch = static_cast<char*>(context->host.allocate(bytes, kAlignment));
        context->scratch_bytes = context->scratch ? bytes : 0;
    }
    return context->scratch;
}

// The memory of `workers` workers, or of as many as fit the caller's workspace: more threads may be allowed now than when it was
// sized.
template <class AnySchedule>
fa_status_t take_workspace(Context* context, const AnySchedule& s, void* given, uint64_t size, int64_t* workers, char** memory,
                           Message* message) {
    const uint64_t bytes = workspace_bytes(s, *workers);
    if (given && bytes > size) *workers = (int64_t(size) - s.shared_bytes) / s.worker_bytes;
    *memory = workspace(context, given, bytes);
    return *memory ? FA_OK : fail(message, FA_OUT_OF_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)bytes);
}

fa_status_t forward(Context* context, const Plan* planned, const fa_forward_args_t* args, Message* message) {
    if (args->stream) return no_streams(args->stream, message);
    const ForwardPlan& plan = *static_cast<const ForwardPlan*>(planned);
    const Schedule& s = plan.schedule;
    int64_t workers = forward_workers(*context, s, worker_count);
    char* memory;
    const fa_status_t status = take_workspace(context, s, args->workspace, args->workspace_size, &workers, &memory, message);
    if (status != FA_OK) return status;
    Counters counters{};
    const fa_status_t ran =
        run_forward(make_call(plan.call, plan.problem, *args), s, context->threads, workers, memory, &counters, message);
    if (ran == FA_OK && plan.call.count) {
        context->counters = counters;
        context->extra_bytes = s.extra_bytes;
    }
    return ran;
}

fa_status_t backward(Context* context, const Plan* planned, const fa_backward_args_t* args, Message* message) {
    if (args->stream) return no_streams(args->stream, message);
    const BackwardPlan& plan = *static_cast<const BackwardPlan*>(planned);
    int64_t workers = backward_workers(*context, plan.schedule, worker_count);
    char* memory;
    const fa_status_t status = take_workspace(context, plan.schedule, args->workspace, args->workspace_size, &workers, &memory, message);
    return status != FA_OK ? status
                           : run_backward(plan.problem, *args, *plan.kernels, plan.schedule, context->threads, workers, memory, message);
}

// Each row by itself.
template <class Args>
fa_status_t rows(Context* context, const Plan* plan, const Args& a,
                 fa_status_t (*run)(const Problem&, const Args&, const Kernels&, const Threads&, Message*), Message* message) {
    if (a.stream) return no_streams(a.stream, message);
    return run(plan->problem, a, *static_cast<const RowsPlan*>(plan)->kernels, context->threads, message);
}
fa_status_t merge(Context* context, const Plan* plan, const fa_merge_args_t* args, Message* message) {
    return rows(context, plan, *args, run_merge, message);
}
fa_status_t append_kv(Context* context, const Plan* plan, const fa_append_kv_args_t* args, Message* message) {
    return rows(context, plan, *args, run_append_kv, message);
}
fa_status_t rotary(Context* context, const Plan* plan, const fa_rotary_args_t* args, Message* message) {
    return rows(context, plan, *args, run_rotary, message);
}

fa_status_t allocate(Context* context, uint64_t bytes, void** pointer, Message* message) {
    *pointer = bytes ? context->host.allocate(bytes, kAlignment) : nullptr;
    return *pointer || !bytes ? FA_OK : fail(message, FA_OUT_OF_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
}

fa_status_t release(Context* context, void* pointer, Message*) {
    context->host.release(pointer);
    return FA_OK;
}

fa_status_t copy(Context*, void* to, const void* from, uint64_t bytes, Message*) {
    if (bytes) memmove(to, from, bytes);
    return FA_OK;
}

fa_status_t synchronize(Context*, uint32_t, void*, Message*) { return FA_OK; }

}  // namespace
}  // namespace cpu

extern const Backend kCpuBackend;
const Backend kCpuBackend = {.abi = kBackendAbi,
                             .id = FA_BACKEND_CPU,
                             .name = "cpu",
                             .usable = cpu::usable,
                             .device_count = cpu::device_count,
                             .device_info = cpu::device_info,
                             .create = cpu::create,
                             .destroy = cpu::destroy,
                             .set = cpu::set,
                             .get = cpu::get,
                             .plan_bytes = cpu::kPlanBytes,
                             .plan = cpu::plan,
                             .explain = cpu::explain,
                             .prepare = nullptr,
                             .forward = cpu::forward,
                             .backward = cpu::backward,
                             .merge = cpu::merge,
                             .append_kv = cpu::append_kv,
                             .rotary = cpu::rotary,
                             .allocate = cpu::allocate,
                             .release = cpu::release,
                             .copy = cpu::copy,
                             .synchronize = cpu::synchronize,
                             .copy_async = nullptr,
                             .convert = nullptr};

}  // namespace fa
