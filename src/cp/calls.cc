// The collective calls: read, agree, work, agree.
#include <stdio.h>
#include <string.h>
#include "cp/methods.h"

namespace fa {
namespace cp {

const Method* find_method(const Job& job, Message* m, fa_status_t* status) {
    static const Method* const methods[] = {&kUlysses, &kAllGather, &kRingAttention, &kMergeMethod};
    const bool rows = job.spread.shard == FA_CP_SHARD_ROWS;
    for (const Method* method : methods) {
        if (job.spread.method != FA_CP_METHOD_AUTO && job.spread.method != method->id) continue;
        if (rows == (method == &kMergeMethod)) continue;  // which alone has keys' shards
        *status = method->check(job, m);
        if (*status == FA_OK || job.spread.method != FA_CP_METHOD_AUTO) return *status == FA_OK ? method : nullptr;
    }
    if (job.spread.method != FA_CP_METHOD_AUTO)
        *status = fail(m, FA_INVALID_ARGUMENT, "spread.method is %d: expected %s", job.spread.method,
                       rows ? "another than FA_CP_METHOD_MERGE with FA_CP_SHARD_ROWS" : "FA_CP_METHOD_MERGE with FA_CP_SHARD_KEYS");
    return nullptr;
}

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
    return fail(&cp->message, FA_INVALID_STATE,
                "the transport failed in an earlier call: expected a new object over a new transport");
}

// One rank needs no message and no piece.
static fa_status_t alone(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* user, int32_t op, const void* args) {
    fa_cp_desc_t spread;
    FA_TRY(read_spread(user, &spread, &cp->message));
    const fa_status_t status = op == FA_OP_BACKWARD ? fa_backward(cp->handle, desc, static_cast<const fa_backward_args_t*>(args))
                                                    : fa_forward_ex(cp->handle, desc, static_cast<const fa_forward_args_t*>(args));
    return status == FA_OK ? FA_OK : fail(&cp->message, status, "%s", fa_last_error(cp->handle));
}

static fa_status_t prepare_sinks(Job* job) {
    if (!job->g.dsinks) return FA_OK;
    const uint64_t heads = uint64_t(job->d.heads_q);
    job->dsinks = static_cast<float*>(grow(job->cp, kSinks, (uint64_t(job->ranks) + 1) * heads * sizeof(float)));
    if (!job->dsinks) return FA_OUT_OF_MEMORY;
    memset(job->dsinks, 0, heads * sizeof(float));
    return FA_OK;
}

// dsinks over all ranks, the same on each: shares are added in order of rank.
static fa_status_t add_sinks(Job* job) {
    if (!job->dsinks) return FA_OK;
    const int64_t heads = job->d.heads_q;
    float* const all = job->dsinks + heads;
    FA_TRY(all_gather(job->cp, job->dsinks, all, uint64_t(heads) * sizeof(float), "gradients of sinks"));
    for (int64_t h = 0; h < heads; h++) {
        float sum = 0;
        for (int32_t r = 0; r < job->ranks; r++) sum += all[r * heads + h];
        job->g.dsinks[h] = job->accumulates() ? job->g.dsinks[h] + sum : sum;
    }
    return FA_OK;
}

static fa_status_t collective(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op,
                              const void* args) {
    FA_TRY(usable(cp));
    cp->bytes_sent = cp->messages_sent = 0;
    if (cp->transport.ranks == 1) return alone(cp, desc, spread, op, args);
    Job job;
    Fingerprint fingerprint{};
    const Method* method = nullptr;
    fa_status_t status = read_job(cp, desc, spread, op, args, &job, &fingerprint);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (method) status = method->of(op).prepare(&job);
    if (status == FA_OK) status = prepare_sinks(&job);
    FA_TRY(agree(cp, status, fingerprint));
    FA_TRY(method->of(op).run(&job));
    FA_TRY(add_sinks(&job));
    return agree(cp, job.computed, fingerprint);
}

static fa_status_t explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args,
                           char* text, uint64_t n) {
    Job job;
    Fingerprint fingerprint{};
    char words[sizeof(Message)];
    const Method* method = nullptr;
    if (op != FA_OP_FORWARD && op != FA_OP_BACKWARD)
        return fail(&cp->message, FA_INVALID_ARGUMENT, "op is %d: expected FA_OP_FORWARD or FA_OP_BACKWARD", op);
    fa_status_t status = read_job(cp, desc, spread, op, args, &job, &fingerprint);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (!method) {
        snprintf(words, sizeof words, "%s", cp->message.text);
    } else if (job.ranks == 1) {
        snprintf(words, sizeof words, "one rank: %s", op == FA_OP_BACKWARD ? "fa_backward" : "fa_forward_ex");
    } else {
        const long long bytes = method->of(op).bytes(job), minimum = method->of(op).minimum(job);
        snprintf(words, sizeof words, "%s; rank %d of %d has %lld rows and %lld keys%s; it sends %lld bytes, the least is %lld",
                 method->name, job.rank, job.ranks, ll(job.local_rows), ll(job.local_keys), job.packed_q ? "" : " of each sequence",
                 bytes, minimum);
    }
    if (text && n > 0) snprintf(text, size_t(n), "%s", words);
    return status;
}

}  // namespace cp
}  // namespace fa

fa_status_t fa_cp_forward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_forward_args_t* args) {
    return fa::cp::within(cp, [&] { return fa::cp::collective(cp, desc, spread, FA_OP_FORWARD, args); });
}

fa_status_t fa_cp_backward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread,
                           const fa_backward_args_t* args) {
    return fa::cp::within(cp, [&] { return fa::cp::collective(cp, desc, spread, FA_OP_BACKWARD, args); });
}

fa_status_t fa_cp_explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args,
                          char* text, uint64_t n) {
    return fa::cp::within(cp, [&] { return fa::cp::explain(cp, desc, spread, op, args, text, n); });
}
