// What the calls of a GPU handle have in common: the handle's state (Context), its stream, device and scratch memory, checks of
// pointers, and the parameters that forward and backward launches share. For the *_call.h files, each of which has the calls of one
// kind; the including file has defined the names of rt_cuda.h, rt_hip.h or rt_emu.h.
#pragma once
#include "gpu/host/arch.h"
#include "gpu/host/check_arrays.h"
#include "gpu/host/family.h"
#include "gpu/common/instance.h"
#include "gpu/common/key_lists.h"
#include "gpu/common/simt_params.h"

namespace fa {

// What a GPU handle owns. Scratch memory is kept between calls and grows; a call on another stream than the last waits for that
// one's.
struct Context {
    Host host;
    int device;
    bool host_memory;
    rt::Stream stream;
    rt::StreamOwner owner;
    rt::Device properties;
    void* scratch;
    uint64_t scratch_bytes;
    rt::Stream scratch_stream;
    rt::Event scratch_used;
    gpu::ZeroedMemory zeroed;
    // Where kernels were found able to read, by some bits of the address: the query costs 0.2 us each time.
    mutable const void* readable[64];
    bool prepares;  // launches only load their kernels
};

namespace gpu {
namespace {

// What a plan counts on: the device without the multiprocessors that the call leaves free. Two remain, which a cluster needs.
rt::Device unreserved(const rt::Device& device, const fa_attention_desc_t& desc) {
    rt::Device rest = device;
    rest.multiprocessors = max_of(device.multiprocessors - desc.reserve_units, min_of(device.multiprocessors, 2));
    return rest;
}

// ---- what calls have in common

// Makes the handle's device current, and the caller's again at the end.
struct OnDevice {
    int before;
    rt::Caller outer;  // a log's callback may call us in turn
    explicit OnDevice(const Context& context) : OnDevice(context.device, context.host, context.prepares) {}
    OnDevice(int device, const Host& host, bool prepares = false) : before(-1), outer(rt::enter({device, &host, prepares})) {
        if (rt::current_device(&before) == rt::kSuccess && before == device) before = -1;
        else rt::set_device(device);
    }
    ~OnDevice() {
        if (before >= 0) rt::set_device(before);
        rt::enter(outer);
    }
};

// The stream that a call names, or the handle's. The device is current.
fa_status_t stream_of(Context* context, uint32_t flags, void* named, rt::Stream* stream, Message* message) {
    *stream = flags & FA_ARGS_STREAM ? static_cast<rt::Stream>(named) : context->stream;
    if (rt::owns(&context->owner, context->device, *stream)) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "stream is %p, of another device: expected one of device %d, the handle's", *stream,
                context->device);
}

// The caller's workspace, or the handle's own memory grown to `bytes`. A graph gets none of that: it would read it long after a
// larger call has taken its place.
fa_status_t workspace(Context* context, rt::Stream stream, void* given, uint64_t bytes, char** memory, Message* message) {
    *memory = static_cast<char*>(given);
    if (given || bytes == 0) return FA_OK;
    if (rt::capturing(stream))
        return fail(message, FA_WORKSPACE_TOO_SMALL, "workspace is NULL: expected %llu bytes or more while the stream is captured",
                    (unsigned long long)bytes);
    rt::Status s = rt::kSuccess;
    if (context->scratch_bytes < bytes) {
        rt::finish(&context->scratch_used);
        rt::release(context->scratch);
        context->scratch_bytes = 0;
        context->scratch = nullptr;
        s = rt::allocate(&context->scratch, bytes);
        if (s != rt::kSuccess) return device_failed(message, s, "allocating scratch memory");
        context->scratch_bytes = bytes;
    } else if (stream != context->scratch_stream) {
        s = rt::follow(stream, context->scratch_used);
    }
    context->scratch_stream = stream;
    *memory = static_cast<char*>(context->scratch);
    return s == rt::kSuccess ? FA_OK : device_failed(message, s, "waiting for the stream that last used the scratch memory");
}

// The end of a call that has had memory of workspace(), whatever became of it.
fa_status_t mark_workspace(Context* context, rt::Stream stream, const void* memory, const void* given, fa_status_t status,
                           Message* message) {
    if (!memory || given) return status;
    const rt::Status s = rt::record(&context->scratch_used, stream);
    return status != FA_OK || s == rt::kSuccess ? status : device_failed(message, s, "marking the use of scratch memory");
}

// Can kernels read there? Memory that was given back since it was last seen is the caller's to keep away.
fa_status_t check_pointer(const Context& context, const void* p, const char* name, Message* message) {
    const void*& known = context.readable[reinterpret_cast<uintptr_t>(p) / 256 % (sizeof context.readable / sizeof *context.readable)];
    if (!p || p == known || context.prepares) return FA_OK;
    bool readable = true;
    const rt::Status s = rt::accessible(p, context.device, &readable);
    if (s != rt::kSuccess) return device_failed(message, s, name);
    if (readable) return known = p, FA_OK;
    return fail(message, FA_INVALID_ARGUMENT,
                "%s is %p: device %d cannot read that address; give memory of that device, or make the handle with FA_MEMORY_HOST", name, p,
                context.device);
}

// A tensor without elements may lie anywhere.
fa_status_t check_tensors(const Context& context, const Problem& problem, const fa_forward_args_t& args, Message* message) {
    const int64_t queries = problem.packed_q() ? problem.d.total_q : problem.d.seqlen_q;
    const int64_t keys = problem.packed_k() ? problem.d.total_k : problem.paged() ? problem.d.num_pages : problem.d.seqlen_k;
    const struct {
        const void* pointer;
        const char* name;
        int64_t rows;
    } tensors[] = {{args.q, "q", queries}, {args.k, "k", keys}, {args.v, "v", keys}, {args.o, "o", queries}};
    for (const auto& t : tensors) {
        const fa_status_t status = t.rows > 0 ? check_pointer(context, t.pointer, t.name, message) : FA_OK;
        if (status != FA_OK) return status;
    }
    return FA_OK;
}

constexpr char kCompiledAtFirst[] = ", compiled from PTX when first called";  // what fa_explain says where there is no machine code

constexpr int64_t kMaxBlocks = int64_t(1) << 31;  // of one launch, and one more

// Bytes of a workspace for the bits of a call's lists; refused where a launch cannot hold a block for each.
bool plan_lists(const Problem& problem, uint64_t* bytes, Refusal* refusal) {
    *bytes = uint64_t(round_up(key_list_bytes(problem), 256));
    return key_lists(problem, nullptr).count < kMaxBlocks ||
           refuse(refusal, "list_rows is %lld: a launch holds fewer than 2^31 lists of keys", (long long)problem.d.list_rows);
}
// Says in *device_status what is wrong with a call's arrays, if the caller has asked.
template <class Args>
fa_status_t launch_checks(Context* context, const Problem& problem, const Args& args, uint32_t flags, void* given_stream,
                          Message* message) {
    if (!problem.has(FA_OPERAND_DEVICE_STATUS) || problem.d.batch == 0) return FA_OK;
    rt::Stream stream;
    const fa_status_t status = stream_of(context, flags, given_stream, &stream, message);
    if (status != FA_OK) return status;
    return launched(message, rt::launch(check_arrays, problem.d.batch, kCheckThreads, 0, stream, array_checks(problem, args)),
                    "check_arrays");
}

fa_status_t launch_lists(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, rt::Stream stream,
                         Message* message) {
    if (lists.count == 0) return FA_OK;
    return launched(message, rt::launch(expand_lists, lists.count, kListThreads, 0, stream, ListParams{list_table(problem, args), lists}),
                    "expand_lists");
}

// What follows from the problem alone, and, by the functions of tensors, what the args add.
void set_score_mods(const Problem& problem, ScoreModParams* params) {
    const fa_attention_desc_t& d = problem.d;
    for (int i = 0; i < 4; i++) {
        params->bias_stride[i] = d.bias_stride[i];
        params->mask_stride[i] = d.mask_stride[i];
    }
    params->alibi_batch_stride = d.alibi_batch_stride;
    params->bias_dtype = d.bias_dtype;
    params->softcap = d.softcap;
}
void set_score_mod_tensors(const Problem& problem, const fa_forward_args_t& args, ScoreModParams* params) {
    params->bias = operand(problem, FA_OPERAND_BIAS, args.bias);
    params->mask = operand(problem, FA_OPERAND_MASK, args.mask);
    params->alibi_slopes = operand(problem, FA_OPERAND_ALIBI, args.alibi_slopes);
}

void set_dropout(const Problem& problem, DropoutParams* params) {
    params->dropout_p = problem.d.dropout_p;
    params->dropout_scale = float(1.0 / (1.0 - double(problem.d.dropout_p)));
}
void set_dropout_state(const Problem& problem, const fa_forward_args_t& args, DropoutParams* params) {
    params->rng_state = operand(problem, FA_OPERAND_RNG_STATE, args.rng_state);
    params->dropout_seed = args.dropout_seed;
    params->dropout_offset = args.dropout_offset;
    const DropoutPlace place = dropout_place(problem, args);
    params->dropout_row = uint32_t(place.row);
    params->dropout_key = uint32_t(place.key);
    params->dropout_head = place.head;
    params->dropout_heads = place.heads;
}

// Must scores leave the product in natural units?
bool needs_score_mod(const Problem& problem) { return problem.has_score_mod() || !(problem.d.scale > 0 && plain_scale(problem.d.scale)); }

void set_factor(const fa_attention_desc_t& desc, bool score_mod, SimtProductParams* params) {
    params->score_mod = score_mod;
    params->factor = score_factor(score_mod ? desc.scale : desc.scale * kLog2e);
}
void set_product(const Problem& problem, SimtProductParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_score_mods(problem, params);
    for (int i = 0; i < 2; i++) {
        params->bias_period[i] = d.bias_period[i];
        params->mask_period[i] = d.mask_period[i];
    }
    params->mask_keys = d.mask_keys;
    params->mask_bits = d.mask_dtype == FA_BIT;
    params->rule = mask_rule(problem);
    params->dim_qk = d.dim_qk;
    params->q_strides = row_strides(d.q_stride, problem.packed_q());
    params->k_strides = row_strides(d.k_stride, problem.packed_k());
    params->q_dtype = d.q_dtype;
    params->k_dtype = d.k_dtype;
    set_factor(d, needs_score_mod(problem), params);
}
// lists: written before, see launch_lists.
void set_product_tensors(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, SimtProductParams* params) {
    set_score_mod_tensors(problem, args, params);
    params->bias_scale = operand(problem, FA_OPERAND_BIAS_SCALE, args.bias_scale);
    params->sets = {key_ranges(problem, args), lists};
    params->q = args.q;
    params->k = args.k;
}

template <class Base>
void set_mma_call(const Problem& problem, MmaCallParams<Base>* params) {
    set_score_mods(problem, params);
    set_dropout(problem, params);
    params->rule = mask_rule(problem);
    params->dim_qk = problem.d.dim_qk;
    params->scale = problem.d.scale;
    params->uniform_lengths = has_uniform_lengths(problem);
    if (!params->uniform_lengths) return;
    params->uniform_seq = sequence_of(sequence_table(problem, fa_forward_args_t{}), 0);
    params->rule = mask_rule(params->rule, params->uniform_seq);
}
template <class Base>
void set_mma_call_tensors(const Problem& problem, const fa_forward_args_t& args, MmaCallParams<Base>* params) {
    set_score_mod_tensors(problem, args, params);
    set_dropout_state(problem, args, params);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
