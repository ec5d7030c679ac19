// The entry points that take a handle: enter, check, plan, run, leave.
#include "core/check.h"
#include "core/convert.h"
#include "core/handle.h"
#include "core/rules.h"
#include "core/staging.h"

namespace fa {
namespace {

// Args: what the caller gives. Checked: what becomes of it, the same but for a backward.
template <class Args, class Checked = Args>
struct Operation {
    int32_t op;
    const char* name;
    fa_status_t (*check)(const Problem&, Checked* args, bool host_metadata, Regions*, Message*);
    fa_status_t (*Backend::*run)(Context*, const Plan*, const Args*, Message*);
};

fa_status_t check_plain_forward(const Problem& problem, fa_forward_args_t* args, bool host_metadata, Regions* regions, Message* message) {
    if (problem.d.operands != 0)
        return fail(message, FA_INVALID_ARGUMENT,
                    "desc.operands is 0x%llx: expected 0, since fa_forward takes only q, k, v and o; use fa_forward_ex",
                    llu(problem.d.operands));
    return check_forward(problem, args, host_metadata, regions, message);
}

constexpr Operation<fa_forward_args_t> kPlainForward = {FA_OP_FORWARD, "fa_forward", check_plain_forward, &Backend::forward};
constexpr Operation<fa_forward_args_t> kForward = {FA_OP_FORWARD, "fa_forward_ex", check_forward, &Backend::forward};
constexpr Operation<fa_backward_args_t, CheckedBackward> kBackward = {FA_OP_BACKWARD, "fa_backward", check_backward, &Backend::backward};
constexpr Operation<fa_merge_args_t> kMerge = {FA_OP_MERGE, "fa_merge", check_merge, &Backend::merge};
constexpr Operation<fa_append_kv_args_t> kAppendKv = {FA_OP_APPEND_KV, "fa_append_kv", check_append_kv, &Backend::append_kv};
constexpr Operation<fa_rotary_args_t> kRotary = {FA_OP_ROTARY, "fa_rotary", check_rotary, &Backend::rotary};

void log_call(const fa_handle_s& handle, const char* name, const Plan& plan, fa_status_t status) {
    if (!logs(handle.log, FA_LOG_DEBUG)) return;
    const fa_attention_desc_t& d = plan.problem.d;
    char text[kMaxExplanation];
    handle.backend->explain(handle.context, &plan, text, sizeof text);
    log_line(handle.log, FA_LOG_DEBUG, "%s: batch %lld, heads %lld/%lld, seqlen %lld/%lld, dim %lld/%lld: %s: %s", name, (long long)d.batch,
             (long long)d.heads_q, (long long)d.heads_k, (long long)d.seqlen_q, (long long)d.seqlen_k, (long long)d.dim_qk,
             (long long)d.dim_v, text, fa_status_name(status));
}

// The call on copies in device memory. Copies have the handle's stream: work of another one is waited for. A workspace in host memory is
// of no use there.
template <class Args, class Run>
fa_status_t run_staged(fa_handle_s& handle, const Regions& regions, Args* args, const Run& run) {
    args->workspace = nullptr;
    args->workspace_size = 0;
    const auto wait = [&] {
        return args->flags & FA_ARGS_STREAM ? handle.backend->synchronize(handle.context, args->flags, args->stream, &handle.message)
                                            : FA_OK;
    };
    Staging staging(handle, regions);
    fa_status_t status = wait();
    if (status == FA_OK) status = staging.copy_in();
    if (status == FA_OK) {
        staging.redirect(args);
        status = run();
    }
    if (status == FA_OK) status = wait();
    return status == FA_OK ? staging.copy_out() : status;
}

template <class Args, class Checked>
fa_status_t execute(fa_handle_t handle, const fa_attention_desc_t* desc, const Args* user, const Operation<Args, Checked>& operation) {
    return within(handle, operation.name, [&](fa_handle_s& handle) -> fa_status_t {
        Message* m = &handle.message;
        const fa_attention_desc_t* given = desc;
        fa_attention_desc_t of_k;
        const Plan* plan;
        Checked args;
        Regions regions;
        FA_TRY(import_struct<Args>(&args, user, m));
        FA_TRY(choose_desc(args, &given, &of_k, m));
        FA_TRY(plan_of(handle, given, operation.op, Asker::call, &plan));
        FA_TRY(operation.check(plan->problem, &args, handle.host_metadata, &regions, m));
        if (args.workspace != nullptr && args.workspace_size < plan->workspace)
            return fail(m, FA_WORKSPACE_TOO_SMALL, "workspace_size is %llu: expected %llu or more", (unsigned long long)args.workspace_size,
                        (unsigned long long)plan->workspace);
        const auto run = [&] { return (handle.backend->*operation.run)(handle.context, plan, &args, m); };
        const fa_status_t status = handle.staged ? run_staged(handle, regions, &args, run) : run();
        log_call(handle, operation.name, *plan, status);
        return status;
    });
}

fa_status_t check_stream(uint32_t flags, const void* stream, Message* message) {
    FA_TRY(known_bits(message, "flags", flags, FA_ARGS_STREAM));
    if (!stream || flags & FA_ARGS_STREAM) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "stream is %p: expected NULL without FA_ARGS_STREAM", stream);
}

fa_status_t check_copy(const void* to, const void* from, uint64_t bytes, Message* message) {
    if (to != nullptr && from != nullptr) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected %llu bytes", to == nullptr ? "to" : "from", llu(bytes));
}

}  // namespace
}  // namespace fa

using fa::Asker;
using fa::fail;
using fa::Plan;
using fa::plan_of;
using fa::within;

fa_status_t fa_forward(fa_handle_t handle, const fa_attention_desc_t* desc, const void* q, const void* k, const void* v, void* o) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    return fa::execute(handle, desc, &args, fa::kPlainForward);
}

fa_status_t fa_forward_ex(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_forward_args_t* args) {
    return fa::execute(handle, desc, args, fa::kForward);
}

fa_status_t fa_backward(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_backward_args_t* args) {
    return fa::execute(handle, desc, args, fa::kBackward);
}

fa_status_t fa_merge(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_merge_args_t* args) {
    return fa::execute(handle, desc, args, fa::kMerge);
}

fa_status_t fa_append_kv(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_append_kv_args_t* args) {
    return fa::execute(handle, desc, args, fa::kAppendKv);
}

fa_status_t fa_rotary(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_rotary_args_t* args) {
    return fa::execute(handle, desc, args, fa::kRotary);
}

fa_status_t fa_supports(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op) {
    return within(handle, __func__, FA_LOG_DEBUG, [&](fa_handle_s& handle) -> fa_status_t {
        const Plan* plan;
        return plan_of(handle, desc, op, Asker::question, &plan);
    });
}

fa_status_t fa_explain(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, char* text, uint64_t n) {
    if (text == nullptr) n = 0;
    bool entered = false;
    const fa_status_t answer = within(handle, __func__, FA_LOG_DEBUG, [&](fa_handle_s& handle) -> fa_status_t {
        entered = true;
        if (desc == nullptr) {
            fa::describe(handle, text, n);
            return FA_OK;
        }
        const Plan* plan;
        const fa_status_t status = plan_of(handle, desc, op, Asker::question, &plan);
        if (status != FA_OK) {
            snprintf(text, n, "%s", handle.message.text);
            return status;
        }
        char how[fa::kMaxExplanation];
        static_assert(sizeof how + 128 <= FA_TEXT_MAX, "with what stands around it, an explanation would be cut off");
        handle.backend->explain(handle.context, plan, how, sizeof how);
        snprintf(text, n, "%s, device %d: %s; workspace of %llu bytes", handle.backend->name, handle.device, how,
                 (unsigned long long)plan->workspace);
        return FA_OK;
    });
    if (!entered) snprintf(text, n, "%s", fa_last_error(nullptr));
    return answer;
}

fa_status_t fa_backend_supports(int32_t backend, int32_t device, const fa_attention_desc_t* desc, int32_t op, char* text, uint64_t n) {
    fa::Message* m = fa::thread_message();
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = backend;
    info.device = device;
    fa_handle_t trial;
    fa_status_t status = fa_create(&trial, &info);
    if (status == FA_OK) {
        status = fa_explain(trial, desc, op, text, n);
        const fa::Message reason = trial->message;
        fa_destroy(trial);
        *m = reason;
    } else if (text != nullptr && n > 0) {
        snprintf(text, n, "%s", m->text);
    }
    return status;
}

fa_status_t fa_workspace_size(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, uint64_t* bytes) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        if (bytes == nullptr) return fail(&handle.message, FA_INVALID_ARGUMENT, "bytes is NULL: expected where to write the size");
        const Plan* plan;
        const fa_status_t status = plan_of(handle, desc, op, Asker::workspace, &plan);
        if (status == FA_OK) *bytes = plan->workspace;
        return status;
    });
}

fa_status_t fa_malloc(fa_handle_t handle, uint64_t bytes, void** pointer) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        if (pointer == nullptr) return fail(&handle.message, FA_INVALID_ARGUMENT, "pointer is NULL: expected where to write the address");
        *pointer = nullptr;
        return bytes == 0 ? FA_OK : handle.backend->allocate(handle.context, bytes, pointer, &handle.message);
    });
}

fa_status_t fa_free(fa_handle_t handle, void* pointer) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        return pointer == nullptr ? FA_OK : handle.backend->release(handle.context, pointer, &handle.message);
    });
}

fa_status_t fa_copy(fa_handle_t handle, void* to, const void* from, uint64_t bytes) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        if (bytes == 0) return FA_OK;
        FA_TRY(fa::check_copy(to, from, bytes, &handle.message));
        return handle.backend->copy(handle.context, to, from, bytes, &handle.message);
    });
}

fa_status_t fa_copy_async(fa_handle_t handle, void* to, const void* from, uint64_t bytes, uint32_t flags, void* stream) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        fa::Message* m = &handle.message;
        FA_TRY(fa::check_stream(flags, stream, m));
        if (bytes == 0) return FA_OK;
        FA_TRY(fa::check_copy(to, from, bytes, m));
        return handle.backend->copy_async ? handle.backend->copy_async(handle.context, to, from, bytes, flags, stream, m)
                                          : handle.backend->copy(handle.context, to, from, bytes, m);
    });
}

fa_status_t fa_convert(fa_handle_t handle, const fa_conversion_t* list, int64_t count, uint32_t flags, void* stream) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        FA_TRY(fa::check_stream(flags, stream, &handle.message));
        FA_TRY(fa::check_convert(list, count, &handle.message));
        if (handle.backend->convert && !handle.staged)
            return handle.backend->convert(handle.context, list, count, flags, stream, &handle.message);
        for (int64_t i = 0; i < count; i++) fa::move_in_host(fa::move_of(list[i]));
        return FA_OK;
    });
}

fa_status_t fa_synchronize(fa_handle_t handle) {
    return within(handle, __func__, [&](fa_handle_s& handle) -> fa_status_t {
        return handle.backend->synchronize(handle.context, 0, nullptr, &handle.message);
    });
}
