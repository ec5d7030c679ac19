// A backward's own args: what is asked for, and where it lies on this rank.
#include <stddef.h>
#include "cp/job.h"

namespace fa {
namespace cp {
namespace {

// `like` at another place, in units of another size, and where they are given with strides of its own.
View lay_like(const View& like, const void* data, int64_t unit, const int64_t stride[4]) {
    View v = like;
    v.data = static_cast<char*>(const_cast<void*>(data));
    v.unit = unit;
    v.batch = like.batch / like.unit * unit;
    v.row = like.row / like.unit * unit;
    v.head = like.head / like.unit * unit;
    v.head_bytes = like.head_bytes / like.unit * unit;
    if (stride[0] == 0 && stride[1] == 0 && stride[2] == 0 && stride[3] == 0) return v;
    v.batch = stride[0] * unit;
    v.row = stride[1] * unit;
    v.head = stride[2] * unit;
    return v;
}

// The core's checks of strides and of how tensors share memory, on this rank's rows and keys.
fa_status_t check_layouts(const Job& job, Message* message) {
    fa_attention_desc_t local = job.d;
    if (job.packed_q) local.total_q = job.local_rows;
    else local.seqlen_q = job.local_rows;
    if (job.packed_k) local.total_k = job.local_keys;
    else local.seqlen_k = job.local_keys;
    constexpr size_t kFields[] = {offsetof(fa_backward_args_t, dout), offsetof(fa_backward_args_t, dlse), offsetof(fa_backward_args_t, dq),
                                  offsetof(fa_backward_args_t, dk), offsetof(fa_backward_args_t, dv)};
    const void* const given[] = {job.g.dout, job.g.dlse, job.g.dq, job.g.dk, job.g.dv};
    for (size_t i = 0; i < sizeof kFields / sizeof kFields[0]; i++) {
        uint64_t bytes;
        const fa_status_t status = given[i] ? fa_extent(&local, FA_OP_BACKWARD, &job.g, uint32_t(kFields[i]), &bytes) : FA_OK;
        if (status != FA_OK) return fail(message, status, "%s", fa_last_error(nullptr));
    }
    return FA_OK;
}

}  // namespace

fa_status_t read_backward_args(const fa_backward_args_t* user, Job* job, Message* message) {
    FA_TRY(import_struct(&job->g, user, message));
    FA_TRY(known_bits(message, "flags", job->g.flags, FA_ARGS_STREAM | FA_BACKWARD_ACCUMULATE));
    if (!job->g.forward) return fail(message, FA_INVALID_ARGUMENT, "forward is NULL: expected the fa_forward_args_t of the forward");
    FA_TRY(import_struct(&job->a, job->g.forward, message));
    job->a.flags = job->g.flags & FA_ARGS_STREAM;
    job->a.stream = job->g.stream;
    job->a.workspace = job->g.workspace;
    job->a.workspace_size = job->g.workspace_size;
    job->a.scores = nullptr;
    return FA_OK;
}

fa_status_t read_gradients(Job* job, Message* message) {
    const fa_backward_args_t& g = job->g;
    if (job->ranks > 1 && g.dbias)
        return fail(message, FA_UNSUPPORTED, "dbias is %p: expected NULL on %d ranks", static_cast<void*>(g.dbias), job->ranks);
    if (g.dsinks && !job->has(FA_OPERAND_SINKS))
        return fail(message, FA_INVALID_ARGUMENT, "dsinks is %p: expected NULL without FA_OPERAND_SINKS", static_cast<void*>(g.dsinks));
    if (!g.dout && job->d.batch > 0 && job->local_rows > 0)
        return fail(message, FA_INVALID_ARGUMENT, "dout is NULL: expected a pointer to this rank's rows");
    FA_TRY(check_layouts(*job, message));
    const int64_t wide = sizeof(float), own = job->q.unit, unit = job->accumulates() ? wide : own;
    job->dout = lay_like(job->o, g.dout, own, g.dout_stride);
    job->dq = lay_like(job->q, g.dq, unit, g.dq_stride);
    job->dk = lay_like(job->k, g.dk, unit, g.dk_stride);
    job->dv = lay_like(job->v, g.dv, unit, g.dv_stride);
    job->dlse = job->lse;
    job->dlse.data = const_cast<float*>(g.dlse);
    if (g.dlse_stride[0] != 0 || g.dlse_stride[1] != 0 || g.dlse_stride[2] != 0)
        job->dlse = {job->dlse.data, g.dlse_stride[0], g.dlse_stride[1], g.dlse_stride[2]};
    return FA_OK;
}

uint64_t gradients_asked(const Job& job) {
    const fa_backward_args_t& g = job.g;
    const bool given[] = {g.dq != nullptr, g.dk != nullptr, g.dv != nullptr, g.dsinks != nullptr, g.dlse != nullptr, job.accumulates()};
    uint64_t bits = 0;
    for (const bool one : given) bits = bits << 1 | uint64_t(one);
    return bits;
}

}  // namespace cp
}  // namespace fa
