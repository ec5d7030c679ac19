// A GPU backend as core sees it: its table of functions, with devices and handles, over the calls of the *_call.h files. The one
// translation unit of a module that includes this has brought in rt_cuda.h, rt_hip.h or rt_emu.h; the module's entry is defined
// here.
#pragma once
#include "gpu/host/backward_call.h"
#include "gpu/host/convert_call.h"
#include "gpu/host/forward_call.h"
#include "gpu/host/rows_call.h"
#include "gpu/host/study_call.h"

namespace fa {
namespace gpu {
namespace {

// ---- devices and handles

fa_status_t device_count(int32_t* count, Message* message) {
    int n = 0;
    const rt::Status s = rt::device_count(&n);
    *count = 0;
    if (s != rt::kSuccess) {
        rt::clear_error();
        return rt::no_device(s, message);
    }
    if (n == 0) return fail(message, FA_NO_DEVICE, "no %s device is present", rt::kVendor);
    *count = n;
    return FA_OK;
}

fa_status_t usable(Message* message) {
    int32_t n;
    return device_count(&n, message);
}

fa_status_t check_device(int32_t device, Message* message) {
    int32_t n;
    const fa_status_t status = device_count(&n, message);
    if (status != FA_OK) return status;
    if (device < 0 || device >= n) return fail(message, FA_NO_DEVICE, "device is %d: the %s backend has %d", device, rt::kName, n);
    return FA_OK;
}

fa_status_t device_info(int32_t device, fa_device_info_t* info, Message* message) {
    const fa_status_t status = check_device(device, message);
    if (status != FA_OK) return status;
    rt::Device properties;
    const rt::Status s = rt::describe(device, &properties);
    if (s != rt::kSuccess) return device_failed(message, s, "reading the device's properties");
    info->compute_units = properties.multiprocessors;
    info->memory_bytes = properties.memory;
    snprintf(info->name, sizeof info->name, "%s", properties.name);
    snprintf(info->arch, sizeof info->arch, "%s", properties.arch);
    return FA_OK;
}

fa_status_t create(const Host* host, const fa_create_info_t* info, Context** context, Message* message) {
    const fa_status_t status = check_device(info->device, message);
    if (status != FA_OK) return status;
    rt::Device properties;
    rt::Status s = rt::describe(info->device, &properties);
    if (s != rt::kSuccess) return device_failed(message, s, "reading the device's properties");
    if (host->max_shared_bytes > 0) properties.shared_per_block = min_of(properties.shared_per_block, host->max_shared_bytes);
    OnDevice on(info->device, *host);
    s = rt::find_code();
    if constexpr (rt::kArchKernels)
        if (s == rt::kSuccess) s = find_arch_driver(*host, &properties);
    if (rt::out_of_memory(s)) return device_failed(message, s, "loading the kernels");
    if (s != rt::kSuccess) {
        rt::clear_error();
        return fail(message, FA_BACKEND_INCOMPATIBLE, "this build of the %s backend has no code for %s (%s): %s", rt::kName,
                    properties.name, properties.arch, rt::text(s));
    }
    Context* made = static_cast<Context*>(host->allocate(sizeof(Context), 64));
    if (!made) return fail(message, FA_OUT_OF_MEMORY, "no memory for a %s handle", rt::kName);
    *made = Context{};
    made->host = *host;
    made->device = info->device;
    made->host_memory = info->memory == FA_MEMORY_HOST;
    made->stream = static_cast<rt::Stream>(info->stream);
    made->owner = rt::stream_owner();
    made->properties = properties;
    rt::Stream stream;
    const fa_status_t owned = stream_of(made, 0, nullptr, &stream, message);
    if (owned == FA_OK) *context = made;
    else host->release(made);
    return owned;
}

void destroy(Context* context, bool forked) {
    const Host host = context->host;
    if (!forked) {
        OnDevice on(*context);
        rt::finish(&context->scratch_used);
        rt::release(context->scratch);
        rt::release(context->zeroed.zeros);
    }
    host.release(context);
}

fa_status_t set(Context*, int32_t key, int64_t, Message* message) {
    return fail(message, FA_UNSUPPORTED, "parameter %d belongs to the CPU backend, this handle's is %s", key, rt::kName);
}
fa_status_t get(Context*, int32_t key, int64_t* value, Message* message) {
    if (key == FA_INFO_ISA) return *value = 0, FA_OK;
    return fail(message, FA_UNSUPPORTED, "parameter %d belongs to the CPU backend, this handle's is %s", key, rt::kName);
}

union AnyPlan {
    ForwardPlan forward;
    StudyPlan study;
    BackwardPlan backward;
    RowsPlan rows;
};

fa_status_t plan(const Context* context, Plan* plan, Message* message) {
    OnDevice on(*context);
    if (plan->op != FA_OP_BACKWARD && plan->op != FA_OP_FORWARD) return plan_rows(static_cast<RowsPlan*>(plan), message);
    const rt::Device device = unreserved(context->properties, plan->problem.d);
    if (plan->op == FA_OP_BACKWARD) return plan_backward(device, static_cast<BackwardPlan*>(plan), message);
    if (plan->problem.d.algorithm != FA_ALGORITHM_FLASH) return plan_study(device, static_cast<StudyPlan*>(plan), message);
    return plan_forward(device, static_cast<ForwardPlan*>(plan), message);
}

void explain(const Context* context, const Plan* plan, char* text, uint64_t n) {
    if (plan->op == FA_OP_BACKWARD) return explain_backward(*context, *static_cast<const BackwardPlan*>(plan), text, n);
    if (plan->op != FA_OP_FORWARD) return explain_rows(*context, *static_cast<const RowsPlan*>(plan), text, n);
    if (plan->problem.d.algorithm != FA_ALGORITHM_FLASH) return explain_study(*context, *static_cast<const StudyPlan*>(plan), text, n);
    return explain_forward(*context, *static_cast<const ForwardPlan*>(plan), text, n);
}

// The call itself, which decides what it launches, but for the launches.
fa_status_t prepare(Context* context, const Plan* plan, const void* args, Message* message) {
    context->prepares = true;
    fa_status_t status;
    switch (plan->op) {
        case FA_OP_FORWARD: status = forward(context, plan, static_cast<const fa_forward_args_t*>(args), message); break;
        case FA_OP_BACKWARD: status = backward(context, plan, static_cast<const fa_backward_args_t*>(args), message); break;
        case FA_OP_MERGE: status = merge(context, plan, static_cast<const fa_merge_args_t*>(args), message); break;
        case FA_OP_ROTARY: status = rotary(context, plan, static_cast<const fa_rotary_args_t*>(args), message); break;
        default: status = append_kv(context, plan, static_cast<const fa_append_kv_args_t*>(args), message); break;
    }
    context->prepares = false;
    return status;
}

// ---- memory

// What waits for a stream that is being captured, or allocates then, ends the capture.
fa_status_t not_captured(const Context& context, rt::Stream stream, Message* message) {
    if (!rt::capturing(stream)) return FA_OK;
    return fail(message, FA_INVALID_STATE, "the stream is being captured: expected calls that neither allocate, copy nor wait%s",
                context.host_memory ? "; with FA_MEMORY_HOST every call does, make the handle with FA_MEMORY_DEVICE" : "");
}

fa_status_t allocate(Context* context, uint64_t bytes, void** pointer, Message* message) {
    OnDevice on(*context);
    const fa_status_t status = not_captured(*context, context->stream, message);
    if (status != FA_OK) return status;
    const rt::Status s = rt::allocate(pointer, bytes);
    return s == rt::kSuccess ? FA_OK : device_failed(message, s, "allocating memory");
}

fa_status_t release(Context* context, void* pointer, Message* message) {
    OnDevice on(*context);
    const fa_status_t status = not_captured(*context, context->stream, message);
    memset(context->readable, 0, sizeof context->readable);
    return status == FA_OK ? launched(message, rt::release(pointer), "freeing memory") : status;
}

fa_status_t copy(Context* context, void* to, const void* from, uint64_t bytes, Message* message) {
    OnDevice on(*context);
    fa_status_t status = not_captured(*context, context->stream, message);
    if (status == FA_OK) status = launched(message, rt::copy(to, from, bytes, context->stream), "copying memory");
    return status == FA_OK ? launched(message, rt::synchronize(context->stream), "copying memory") : status;
}

fa_status_t synchronize(Context* context, uint32_t flags, void* stream, Message* message) {
    OnDevice on(*context);
    rt::Stream waited;
    fa_status_t status = stream_of(context, flags, stream, &waited, message);
    if (status == FA_OK) status = not_captured(*context, waited, message);
    return status == FA_OK ? launched(message, rt::synchronize(waited), "waiting for the stream") : status;
}

constexpr Backend backend_table() {
    Backend table{};
    table.abi = kBackendAbi;
    table.id = rt::kBackend;
    table.name = rt::kName;
    table.usable = usable;
    table.device_count = device_count;
    table.device_info = device_info;
    table.create = create;
    table.destroy = destroy;
    table.set = set;
    table.get = get;
    table.plan_bytes = sizeof(AnyPlan);
    table.plan = plan;
    table.explain = explain;
    table.prepare = rt::kLoadsWhenUsed ? prepare : nullptr;
    table.forward = forward;
    table.backward = backward;
    table.merge = merge;
    table.append_kv = append_kv;
    table.rotary = rotary;
    table.allocate = allocate;
    table.release = release;
    table.copy = copy;
    table.synchronize = synchronize;
    table.copy_async = copy_async;
    table.convert = convert;
    return table;
}
constexpr Backend kBackendTable = backend_table();

}  // namespace
}  // namespace gpu
}  // namespace fa

#ifndef FA_BACKEND_ENTRY  // linked into the library itself, a backend goes by a name of its own
#define FA_BACKEND_ENTRY flashattn_backend_v1
#endif
extern "C" __attribute__((visibility("default"))) const fa::Backend* FA_BACKEND_ENTRY(uint32_t host_abi, fa::Message* message) {
    if (host_abi == fa::kBackendAbi) return &fa::gpu::kBackendTable;
    fa::fail(message, FA_BACKEND_INCOMPATIBLE, "the %s module speaks version %u of the backend interface, the library version %u",
             fa::rt::kName, fa::kBackendAbi, host_abi);
    return nullptr;
}
