// Ulysses: an all-to-all turns each rank's rows of all heads into all rows of its heads, which it computes in one go; another turns
// the results back.
#include <string.h>
#include "cp/turn.h"

namespace fa {
namespace cp {
namespace {

fa_status_t check(const Job& job, Message* message) {
    const fa_attention_desc_t& d = job.d;
    if (d.heads_k % job.ranks != 0)
        return fail(message, FA_UNSUPPORTED, "heads_k is %lld: expected a multiple of the %d ranks for FA_CP_METHOD_ULYSSES", ll(d.heads_k),
                    job.ranks);
    if (d.heads_v % job.ranks != 0)
        return fail(message, FA_UNSUPPORTED, "heads_v is %lld: expected a multiple of the %d ranks for FA_CP_METHOD_ULYSSES", ll(d.heads_v),
                    job.ranks);
    if (d.operands & (FA_OPERAND_BIAS | FA_OPERAND_MASK))
        return fail(message, FA_UNSUPPORTED,
                    "operands is 0x%llx: expected neither FA_OPERAND_BIAS nor _MASK, since a rank has only its own rows of them, for "
                    "FA_CP_METHOD_ULYSSES",
                    llu(d.operands));
    return FA_OK;
}

// What a call takes, and what it gives.
struct Sides {
    Turning in, out;
};

Sides forward_sides(const Job& job, Shares* shares) {
    Sides s{};
    s.in.add(turned(job, job.q, false, shares));
    s.in.add(turned(job, job.k, true, shares));
    s.in.add(turned(job, job.v, true, shares));
    s.out.add(turned(job, job.o, false, shares));
    if (job.has(FA_OPERAND_LSE)) s.out.add(turned(job, job.lse, shares));
    return s;
}

Sides backward_sides(const Job& job, Shares* shares) {
    Sides s{};
    s.in.add(turned(job, job.q, false, shares));
    s.in.add(turned(job, job.k, true, shares));
    s.in.add(turned(job, job.v, true, shares));
    s.in.add(turned(job, job.o, false, shares));
    s.in.add(turned(job, job.lse, shares));
    s.in.add(turned(job, job.dout, false, shares));
    if (job.g.dlse) s.in.add(turned(job, job.dlse, shares));
    if (job.g.dq) s.out.add(turned(job, job.dq, false, shares));
    if (job.g.dk) s.out.add(turned(job, job.dk, true, shares));
    if (job.g.dv) s.out.add(turned(job, job.dv, true, shares));
    return s;
}

using GetSides = Sides (*)(const Job&, Shares*);

template <GetSides sides>
fa_status_t prepare(Job* job) {
    Shares tensors(nullptr);
    const Sides s = sides(*job, &tensors);
    const int64_t in[] = {sent_bytes(*job, s.in, Towards::heads), received_bytes(*job, s.in, Towards::heads)};
    const int64_t out[] = {sent_bytes(*job, s.out, Towards::rows), received_bytes(*job, s.out, Towards::rows)};
    FA_TRY(grow(job->cp, kKeys, uint64_t(tensors.used())));
    FA_TRY(grow(job->cp, kSend, uint64_t(in[0] > out[0] ? in[0] : out[0])));
    return grow(job->cp, kReceive, uint64_t(in[1] > out[1] ? in[1] : out[1]));
}

template <GetSides sides>
int64_t bytes(const Job& job) {
    Shares tensors(nullptr);
    const Sides s = sides(job, &tensors);
    return sent_bytes(job, s.in, Towards::heads) + sent_bytes(job, s.out, Towards::rows);
}

// The whole problem of this rank's heads, in dense tensors.
fa_attention_desc_t own_heads(const Job& job) {
    fa_attention_desc_t d = job.d;
    d.heads_q /= job.ranks;
    d.heads_k /= job.ranks;
    d.heads_v /= job.ranks;
    d.strided = 0;
    for (int i = 0; i < 4; i++) d.q_stride[i] = d.k_stride[i] = d.v_stride[i] = d.o_stride[i] = 0;
    memset(d.lse_stride, 0, sizeof d.lse_stride);
    return d;
}
fa_forward_args_t own_args(const Job& job, const fa_attention_desc_t& desc) {
    fa_forward_args_t a = job.a;
    if (a.alibi_slopes) a.alibi_slopes += job.rank * desc.heads_q;
    if (a.sinks) a.sinks += job.rank * desc.heads_q;
    a.dropout_heads = job.dropout_heads();
    a.dropout_head += job.rank * desc.heads_q;
    return a;
}

fa_status_t run(Job* job) {
    Shares tensors(job->cp->slab[kKeys].data);
    const Sides s = forward_sides(*job, &tensors);
    FA_TRY(turn(job, s.in, Towards::heads, "q, k and v by heads"));
    const fa_attention_desc_t d = own_heads(*job);
    fa_forward_args_t a = own_args(*job, d);
    a.q = s.in.tensor[0].full.data;
    a.k = s.in.tensor[1].full.data;
    a.v = s.in.tensor[2].full.data;
    a.o = s.out.tensor[0].full.data;
    if (job->has(FA_OPERAND_LSE)) a.lse = full_lse(s.out.tensor[1]).data;
    checked(job, fa_forward_ex(job->cp->handle, &d, &a));
    return turn(job, s.out, Towards::rows, "o by rows");
}

fa_status_t run_backward(Job* job) {
    Shares tensors(job->cp->slab[kKeys].data);
    const Sides s = backward_sides(*job, &tensors);
    FA_TRY(turn(job, s.in, Towards::heads, "q, k, v, o and dout by heads"));
    const fa_attention_desc_t d = own_heads(*job);
    fa_forward_args_t a = own_args(*job, d);
    a.flags = 0;
    a.stream = nullptr;
    a.q = s.in.tensor[0].full.data;
    a.k = s.in.tensor[1].full.data;
    a.v = s.in.tensor[2].full.data;
    a.o = s.in.tensor[3].full.data;
    a.lse = full_lse(s.in.tensor[4]).data;
    fa_backward_args_t g = FA_BACKWARD_ARGS_INIT;
    g.flags = job->g.flags;
    g.stream = job->g.stream;
    g.forward = &a;
    g.dout = s.in.tensor[5].full.data;
    if (job->g.dlse) g.dlse = full_lse(s.in.tensor[6]).data;
    int next = 0;
    if (job->g.dq) g.dq = s.out.tensor[next++].full.data;
    if (job->g.dk) g.dk = s.out.tensor[next++].full.data;
    if (job->g.dv) g.dv = s.out.tensor[next++].full.data;
    if (job->dsinks) g.dsinks = job->dsinks + job->rank * d.heads_q;
    if (job->accumulates()) {  // f32 sums from 0 on, which are then added to what rows hold
        Moves moves(job);
        for (int i = 0; i < s.out.count; i++) clear_full(*job, s.out.tensor[i], &moves);
        moves.flush();
    }
    checked(job, fa_backward(job->cp->handle, &d, &g));
    return turn(job, s.out, Towards::rows, "dq, dk and dv by rows");
}

}  // namespace

extern const Work kUlyssesBackward{prepare<backward_sides>, run_backward, bytes<backward_sides>, bytes<backward_sides>};
extern const Method kUlysses{
    FA_CP_METHOD_ULYSSES, "Ulysses", check, {prepare<forward_sides>, run, bytes<forward_sides>, bytes<forward_sides>}, &kUlyssesBackward};

}  // namespace cp
}  // namespace fa
