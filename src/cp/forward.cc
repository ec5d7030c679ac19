// The collective calls: read, agree, work, agree.
#include <stdio.h>
#include "cp/methods.h"

namespace fa {
namespace cp {

const Method* find_method(const Job& job, Message* m, fa_status_t* status) {
    static const Method* const methods[] = {&kUlysses, &kAllGather, &kRingAttention, &kMergeMethod};
    const bool rows = job.spread.shard == FA_CP_SHARD_ROWS;
    for (const Method* method : methods) {
        if (job.spread.method != FA_CP_METHOD_AUTO && job.spread.method != method->id) continue;
        if (rows == (method == &kMergeMethod)) continue;
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
static fa_status_t forward_alone(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* user,
                                 const fa_forward_args_t* args) {
    fa_cp_desc_t spread;
    FA_TRY(read_spread(user, &spread, &cp->message));
    const fa_status_t status = fa_forward_ex(cp->handle, desc, args);
    return status == FA_OK ? FA_OK : fail(&cp->message, status, "%s", fa_last_error(cp->handle));
}

static fa_status_t forward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_forward_args_t* args) {
    FA_TRY(usable(cp));
    cp->bytes_sent = cp->messages_sent = 0;
    if (cp->transport.ranks == 1) return forward_alone(cp, desc, spread, args);
    Job job;
    Fingerprint fingerprint{};
    const Method* method = nullptr;
    fa_status_t status = read_job(cp, desc, spread, args, &job, &fingerprint);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (method) status = method->prepare(&job);
    FA_TRY(agree(cp, status, fingerprint));
    FA_TRY(method->run(&job));
    return agree(cp, job.computed, fingerprint);
}

static fa_status_t explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_forward_args_t* args,
                           char* text, uint64_t n) {
    Job job;
    Fingerprint fingerprint{};
    char words[sizeof(Message)];
    const Method* method = nullptr;
    fa_status_t status = read_job(cp, desc, spread, args, &job, &fingerprint);
    if (status == FA_OK) method = find_method(job, &cp->message, &status);
    if (!method) {
        snprintf(words, sizeof words, "%s", cp->message.text);
    } else if (job.ranks == 1) {
        snprintf(words, sizeof words, "one rank: fa_forward_ex");
    } else {
        const long long bytes = method->bytes(job), minimum = method->minimum(job);
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
    return fa::cp::within(cp, [&] { return fa::cp::forward(cp, desc, spread, args); });
}

fa_status_t fa_cp_explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, const fa_forward_args_t* args,
                          char* text, uint64_t n) {
    return fa::cp::within(cp, [&] { return fa::cp::explain(cp, desc, spread, args, text, n); });
}
