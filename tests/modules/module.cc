// A backend that computes nothing but answers recognisably. Each build breaks one thing by a FAKE_ definition.
#include <string.h>
#include "backend/backend.h"

#ifndef FAKE_ABI
#define FAKE_ABI kBackendAbi
#endif
#ifndef FAKE_ID
#define FAKE_ID FA_BACKEND_CUDA
#endif
#ifndef FAKE_ENTRY
#define FAKE_ENTRY flashattn_backend_v1
#endif
#ifndef FAKE_USABLE
#define FAKE_USABLE FA_OK
#endif
#ifndef FAKE_CREATE
#define FAKE_CREATE FA_OK
#endif

namespace fa {

struct Context {
    Host host;
    int32_t memory;
    int64_t threads;
};

namespace {

constexpr uint64_t kWorkspace = 1000;
constexpr float kAnswer = 42.f;

fa_status_t answer(fa_status_t status, const char* what, Message* message) {
    return status == FA_OK ? FA_OK : fail(message, status, "the fake backend says no to %s", what);
}

fa_status_t usable(Message* message) { return answer(FAKE_USABLE, "usable", message); }

fa_status_t device_count(int32_t* count, Message*) {
    *count = 3;
    return FA_OK;
}

fa_status_t device_info(int32_t device, fa_device_info_t* info, Message* message) {
    if (device > 2) return fail(message, FA_NO_DEVICE, "device is %d: the fake backend has 3", device);
    info->device = device;
    snprintf(info->name, sizeof info->name, "Fake %d", device);
    snprintf(info->arch, sizeof info->arch, "paper");
    return FA_OK;
}

fa_status_t create(const Host* host, const fa_create_info_t* info, Context** context, Message* message) {
    if (FAKE_CREATE != FA_OK) return answer(FAKE_CREATE, "create", message);
    if (info->backend != FAKE_ID) return fail(message, FA_INTERNAL, "info.backend is %d", info->backend);
    if (info->device > 2) return fail(message, FA_NO_DEVICE, "device is %d: the fake backend has 3", info->device);
    *context = static_cast<Context*>(host->allocate(sizeof(Context), alignof(Context)));
    if (*context == nullptr) return fail(message, FA_OUT_OF_MEMORY, "no memory for a fake handle");
    **context = {*host, info->memory, 0};
    host->log(host->log_context, FA_LOG_INFO, "fake handle made");
    return FA_OK;
}

void destroy(Context* context, bool) { context->host.release(context); }

fa_status_t set(Context* context, int32_t key, int64_t value, Message* message) {
    if (key == FA_PARAM_COUNT_WORK) return FA_DEVICE_ERROR;  // and not a word
    if (key != FA_PARAM_THREADS) return fail(message, FA_UNSUPPORTED, "the fake backend has no parameter %d", key);
    context->threads = value;
    return FA_OK;
}

fa_status_t get(Context* context, int32_t key, int64_t* value, Message* message) {
    if (key != FA_PARAM_THREADS) return fail(message, FA_UNSUPPORTED, "the fake backend has no parameter %d", key);
    *value = context->threads;
    return FA_OK;
}

fa_status_t plan(const Context*, Plan* plan, Message* message) {
    if (plan->op != FA_OP_FORWARD && plan->op != FA_OP_BACKWARD)
        return fail(message, FA_UNSUPPORTED, "the fake backend only pretends to go forward and backward, not op %d", plan->op);
    plan->workspace = kWorkspace;
    return FA_OK;
}

void explain(const Context* context, const Plan*, char* text, uint64_t n) {
    snprintf(text, n, "fake kernel on %s memory", context->memory == FA_MEMORY_HOST ? "host" : "device");
}

// Of a handle with so many threads, none succeeds.
constexpr int64_t kUnpreparedThreads = 13;
fa_status_t prepare(Context* context, const Plan* plan, const void* args, Message* message) {
    const auto* const backward = static_cast<const fa_backward_args_t*>(args);
    const auto* const a = plan->op == FA_OP_BACKWARD ? backward->forward : static_cast<const fa_forward_args_t*>(args);
    const bool complete = plan->op == FA_OP_BACKWARD ? backward->dq && backward->dk && backward->dv && backward->dout && a->lse
                                                     : a->q && a->k && a->v && a->o && a->workspace && a->workspace_size == plan->workspace;
    context->host.log(context->host.log_context, FA_LOG_INFO, complete ? "fake kernel prepared" : "an operand is missing");
    return answer(context->threads == kUnpreparedThreads ? FA_OUT_OF_MEMORY : FA_OK, "prepare", message);
}

fa_status_t forward(Context*, const Plan* plan, const fa_forward_args_t* args, Message*) {
    const fa_attention_desc_t& d = plan->problem.d;
    const int64_t n = d.batch * d.seqlen_q * d.heads_q * d.dim_v;
    for (int64_t i = 0; i < n; i++) static_cast<float*>(args->o)[i] = kAnswer;
    return FA_OK;
}

template <class Args>
fa_status_t never(Context*, const Plan*, const Args*, Message* message) {
    return fail(message, FA_INTERNAL, "a call was made that plan() had refused");
}

fa_status_t allocate(Context* context, uint64_t bytes, void** pointer, Message* message) {
    *pointer = context->host.allocate(bytes, 256);
    return *pointer != nullptr ? FA_OK : fail(message, FA_OUT_OF_MEMORY, "the fake backend has no %llu bytes", (unsigned long long)bytes);
}

fa_status_t release(Context* context, void* pointer, Message*) {
    context->host.release(pointer);
    return FA_OK;
}

fa_status_t copy(Context*, void* to, const void* from, uint64_t bytes, Message*) {
    memcpy(to, from, bytes);
    return FA_OK;
}

fa_status_t synchronize(Context*, uint32_t, void*, Message* message) {
    return fail(message, FA_DEVICE_ERROR, "the fake device is always broken");
}

[[maybe_unused]] constexpr Backend kFake = {FAKE_ABI, FAKE_ID,      "fake",  usable,  device_count, device_info, create,  destroy, set,
                                            get,      sizeof(Plan), plan,    explain, prepare,      forward,     nullptr, never,   never,
                                            never,    allocate,     release, copy,    synchronize,  nullptr,     nullptr};

}  // namespace
}  // namespace fa

extern "C" __attribute__((visibility("default"))) const fa::Backend* FAKE_ENTRY(uint32_t host_abi, fa::Message* message) {
#ifdef FAKE_REFUSES
    fail(message, FA_BACKEND_INCOMPATIBLE, "this module wants a host younger than %u", host_abi);
    return nullptr;
#else
    if (host_abi == fa::kBackendAbi) return &fa::kFake;
    fail(message, FA_BACKEND_INCOMPATIBLE, "host interface %u", host_abi);
    return nullptr;
#endif
}
