// The collective calls: read, agree, work, agree.
#include <stdio.h>
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {

// A call on the object, whose message is empty until something fails.
template <class Body>
static fa_status_t within(fa_cp_t cp, const Body& body) {
    if (!cp) return fail(thread_message(), FA_INVALID_ARGUMENT, "cp is NULL: expected an object");
    if (cp->busy.exchange(true))
        return fail(thread_message(), FA_INVALID_STATE, "the object is in use by another thread: expected one call at a time");
    cp->message.text[0] = 0;
    const fa_status_t status = body();
    if (status == FA_OK) cp->message.text[0] = 0;  // AUTO may have asked a method that refused
    cp->busy.store(false);
    return status;
}

static fa_status_t usable(fa_cp_t cp) {
    if (!cp->failed) return FA_OK;
    return fail(&cp->message, FA_INVALID_STATE, "the transport failed in an earlier call: expected a new object over a new transport");
}

// One rank needs no message and no piece.
static fa_status_t alone(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* user, int32_t op, const void* args) {
    fa_cp_desc_t spread;
    FA_TRY(read_spread(user, &spread, &cp->message));
    const fa_status_t status = op == FA_OP_BACKWARD ? fa_backward(cp->handle, desc, static_cast<const fa_backward_args_t*>(args))
                                                    : fa_forward_ex(cp->handle, desc, static_cast<const fa_forward_args_t*>(args));
    return status == FA_OK ? FA_OK : fail(&cp->message, status, "%s", fa_last_error(cp->handle));
}

// A row of a float for each query head.
static View head_row(const Job& job, float* data) {
    const int64_t unit = sizeof(float);
    return {reinterpret_cast<char*>(data), unit, 0, 0, unit, job.d.heads_q, unit};
}

static fa_status_t prepare_sinks(Job* job) {
    if (!job->g.dsinks) return FA_OK;
    FA_TRY(grow(job->cp, kSinks, (uint64_t(job->ranks) + 1) * uint64_t(job->d.heads_q) * sizeof(float)));
    job->dsinks = reinterpret_cast<float*>(job->cp->slab[kSinks].data);
    return FA_OK;
}

static void clear_sinks(Job* job) {
    if (!job->dsinks) return;
    Moves moves(job);
    moves.clear(head_row(*job, job->dsinks), 1, 1);
    moves.flush();
}

// dsinks over all ranks, the same on each: shares are added in order of rank.
static fa_status_t add_sinks(Job* job) {
    if (!job->dsinks) return FA_OK;
    const int64_t heads = job->d.heads_q;
    float* const all = job->dsinks + heads;
    FA_TRY(all_gather(job, job->dsinks, all, heads * int64_t(sizeof(float)), "gradients of sinks"));
    const View sum = head_row(*job, job->dsinks), out = head_row(*job, job->g.dsinks);
    Moves moves(job);
    moves.clear(sum, 1, 1);
    for (int32_t r = 0; r < job->ranks; r++) {
        moves.flush();
        moves.copy(head_row(*job, all + r * heads), 0, sum, 0, 1, 1, true);
    }
    moves.flush();
    moves.put(sum, out, FA_F32, job->accumulates(), 1, 1);
    moves.flush();
    return FA_OK;
}

// The stream of a call: the one that its args name, or the handle's. Args that are refused later name none. Ordinary memory has none.
static fa_status_t stream_of(fa_cp_t cp, int32_t op, const void* args, void** stream) {
    uint32_t flags = 0;
    *stream = nullptr;
    if (!cp->device) return FA_OK;
    Message ignored;
    fa_forward_args_t forward;
    fa_backward_args_t backward;
    if (op == FA_OP_FORWARD && import_struct(&forward, static_cast<const fa_forward_args_t*>(args), &ignored) == FA_OK) {
        flags = forward.flags;
        *stream = forward.stream;
    } else if (op == FA_OP_BACKWARD && import_struct(&backward, static_cast<const fa_backward_args_t*>(args), &ignored) == FA_OK) {
        flags = backward.flags;
        *stream = backward.stream;
    }
    if (flags & FA_ARGS_STREAM) return FA_OK;
    int64_t own;
    const fa_status_t status = fa_param_get(cp->handle, FA_INFO_STREAM, &own);
    if (status != FA_OK) return fail(&cp->message, status, "%s", fa_last_error(cp->handle));
    *stream = reinterpret_cast<void*>(intptr_t(own));
    return FA_OK;
}

static fa_status_t work(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args) {
    Job job;
    Fingerprint fingerprint{};
    const Method* method = nullptr;
    fa_status_t status = read_job(cp, desc, spread, op, args, &job, &fingerprint);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (method) {
        fingerprint.spread = hash_bytes(fingerprint.spread, &method->id, sizeof method->id);  // whose choice may be the machine's
        status = method->of(op).prepare(&job);
    }
    if (status == FA_OK) status = prepare_sinks(&job);
    FA_TRY(cp->failed ? status : agree(cp, status, fingerprint));  // failed: reading waited for a device in vain
    clear_sinks(&job);
    FA_TRY(method->of(op).run(&job));
    FA_TRY(add_sinks(&job));
    return agree(cp, job.computed, fingerprint);
}

static fa_status_t collective(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args) {
    FA_TRY(usable(cp));
    cp->bytes_sent = cp->messages_sent = 0;
    if (cp->transport.ranks == 1) return alone(cp, desc, spread, op, args);
    void* stream;
    FA_TRY(stream_of(cp, op, args, &stream));
    FA_TRY(enter(cp, stream));
    const fa_status_t status = work(cp, desc, spread, op, args);
    const fa_status_t left = leave(cp);
    return status != FA_OK ? status : left;
}

static fa_status_t synchronize_calls(fa_cp_t cp) {
    FA_TRY(usable(cp));
    if (!cp->device || cp->transport.ranks > 1) return synchronize(cp);
    const fa_status_t status = fa_synchronize(cp->handle);
    return status == FA_OK ? FA_OK : fail(&cp->message, status, "%s", fa_last_error(cp->handle));
}

static fa_status_t explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args,
                           char* text, uint64_t n) {
    Job job;
    Fingerprint fingerprint{};
    char words[sizeof(Message)];
    const Method* method = nullptr;
    const bool known = op == FA_OP_FORWARD || op == FA_OP_BACKWARD;
    fa_status_t status = known ? read_job(cp, desc, spread, op, args, &job, &fingerprint)
                               : fail(&cp->message, FA_INVALID_ARGUMENT, "op is %d: expected FA_OP_FORWARD or FA_OP_BACKWARD", op);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (!method) {
        snprintf(words, sizeof words, "%s", cp->message.text);
    } else if (job.ranks == 1) {
        snprintf(words, sizeof words, "one rank: %s", op == FA_OP_BACKWARD ? "fa_backward" : "fa_forward_ex");
    } else {
        const long long bytes = method->of(op).bytes(job), minimum = method->of(op).minimum(job);
        int n = snprintf(words, sizeof words, "%s; rank %d of %d has %lld rows and %lld keys%s; it sends %lld bytes, the least is %lld",
                         method->name, job.rank, job.ranks, ll(job.local_rows), ll(job.local_keys), job.packed_q ? "" : " of each sequence",
                         bytes, minimum);
        const double seconds = predicted_seconds(job, *method);
        if (seconds > 0) snprintf(words + n, sizeof words - size_t(n), "; predicted: %.3g ms", 1e3 * seconds);
    }
    snprintf(text, size_t(n), "%s", words);
    return status;
}

}  // namespace cp
}  // namespace fa

fa_status_t fa_cp_forward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_forward_args_t* args) {
    return fa::cp::within(cp, [&] { return fa::cp::collective(cp, desc, spread, FA_OP_FORWARD, args); });
}

fa_status_t fa_cp_backward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_backward_args_t* args) {
    return fa::cp::within(cp, [&] { return fa::cp::collective(cp, desc, spread, FA_OP_BACKWARD, args); });
}

fa_status_t fa_cp_explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args, char* text,
                          uint64_t n) {
    if (!text) n = 0;
    bool entered = false;
    const fa_status_t status = fa::cp::within(cp, [&] {
        entered = true;
        return fa::cp::explain(cp, desc, spread, op, args, text, n);
    });
    if (!entered) snprintf(text, size_t(n), "%s", fa_cp_last_error(nullptr));
    return status;
}

fa_status_t fa_cp_synchronize(fa_cp_t cp) {
    return fa::cp::within(cp, [&] { return fa::cp::synchronize_calls(cp); });
}
