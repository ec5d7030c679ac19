// Ulysses: an all-to-all turns each rank's rows of all heads into all rows of its heads, and another turns o and LSE back.
#include <string.h>
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {
namespace {

struct Ulysses {
    int64_t q_heads, k_heads, v_heads;  // of one rank
    int64_t rows, keys;                 // of the full tensors: of a sequence, or of all where packed
    View q, k, v, o;                    // full tensors of this rank's heads
    LseView lse;
    char *send, *receive;
};

View full(const View& like, int64_t heads, int64_t rows, Shares* shares, int64_t sequences) {
    View v = like;
    v.heads = heads;
    v = dense(v, nullptr, rows);
    v.data = shares->take(bytes_of(v, sequences, rows));
    return v;
}

// Rows that a rank has, of all sequences.
int64_t all_rows(const Job& job, int32_t rank, bool of_keys) {
    int64_t n = 0;
    for (Segments s(job); s.next();) n += s->count * ranges_of(job.partition, of_keys ? s->keys : s->rows, rank).rows();
    return n;
}

Ulysses lay_out(const Job& job, void* tensors, void* send, void* receive, int64_t* bytes) {
    const fa_attention_desc_t& d = job.d;
    Ulysses u{};
    u.q_heads = d.heads_q / job.ranks;
    u.k_heads = d.heads_k / job.ranks;
    u.v_heads = d.heads_v / job.ranks;
    u.rows = job.packed_q ? d.total_q : d.seqlen_q;
    u.keys = job.packed_k ? d.total_k : d.seqlen_k;
    const int64_t q_batch = job.packed_q ? 1 : d.batch, k_batch = job.packed_k ? 1 : d.batch;
    Shares shares(tensors);
    u.q = full(job.q, u.q_heads, u.rows, &shares, q_batch);
    u.k = full(job.k, u.k_heads, u.keys, &shares, k_batch);
    u.v = full(job.v, u.v_heads, u.keys, &shares, k_batch);
    u.o = full(job.o, u.q_heads, u.rows, &shares, q_batch);
    u.lse = {reinterpret_cast<float*>(shares.take(q_batch * u.q_heads * u.rows * int64_t(sizeof(float)))), u.q_heads * u.rows,
             u.rows, 1};
    if (bytes) *bytes = shares.used();
    u.send = static_cast<char*>(send);
    u.receive = static_cast<char*>(receive);
    return u;
}

int64_t lse_bytes(const Job& job) { return job.has(FA_OPERAND_LSE) ? int64_t(sizeof(float)) : 0; }
// Of the first exchange for a rank's rows of one rank's heads, and of the second.
int64_t inputs_bytes(const Job& job, const Ulysses& u, int32_t rank) {
    return all_rows(job, rank, false) * u.q.row_bytes() + all_rows(job, rank, true) * (u.k.row_bytes() + u.v.row_bytes());
}
int64_t outputs_bytes(const Job& job, const Ulysses& u, int32_t rank) {
    return all_rows(job, rank, false) * (u.o.row_bytes() + u.q_heads * lse_bytes(job));
}

View full_rows(const Job& job, const View& v, const Segment& s) {
    return v.at(job.packed_q ? 0 : s.first, job.packed_q ? job.a.cu_seqlens_q[s.first] : 0, 0);
}
View full_keys(const Job& job, const View& v, const Segment& s) {
    return v.at(job.packed_k ? 0 : s.first, job.packed_k ? job.a.cu_seqlens_k[s.first] : 0, 0);
}
LseView full_lse(const Job& job, const LseView& v, const Segment& s) {
    return v.at(job.packed_q ? 0 : s.first, 0, job.packed_q ? job.a.cu_seqlens_q[s.first] : 0);
}

// This rank's rows of the peer's heads.
char* pack_inputs(const Job& job, const Ulysses& u, int32_t peer, char* to) {
    for (Segments s(job); s.next();) {
        int64_t at = 0;
        for (int32_t i = 0; i < s->own_rows.count; at += s->own_rows.at[i++].rows)
            to = pack(job.rows_of(job.q, *s).of_heads(peer * u.q_heads, u.q_heads), s->count, at, s->own_rows.at[i].rows, to);
        at = 0;
        for (int32_t i = 0; i < s->own_keys.count; at += s->own_keys.at[i++].rows) {
            to = pack(job.keys_of(job.k, *s).of_heads(peer * u.k_heads, u.k_heads), s->count, at, s->own_keys.at[i].rows, to);
            to = pack(job.keys_of(job.v, *s).of_heads(peer * u.v_heads, u.v_heads), s->count, at, s->own_keys.at[i].rows, to);
        }
    }
    return to;
}

// The peer's rows of this rank's heads.
const char* unpack_inputs(const Job& job, const Ulysses& u, int32_t peer, const char* from) {
    for (Segments s(job); s.next();) {
        const Ranges rows = ranges_of(job.partition, s->rows, peer), keys = ranges_of(job.partition, s->keys, peer);
        for (int32_t i = 0; i < rows.count; i++)
            from = unpack(full_rows(job, u.q, *s), s->count, rows.at[i].begin, rows.at[i].rows, from);
        for (int32_t i = 0; i < keys.count; i++) {
            from = unpack(full_keys(job, u.k, *s), s->count, keys.at[i].begin, keys.at[i].rows, from);
            from = unpack(full_keys(job, u.v, *s), s->count, keys.at[i].begin, keys.at[i].rows, from);
        }
    }
    return from;
}

char* pack_outputs(const Job& job, const Ulysses& u, int32_t peer, char* to) {
    for (Segments s(job); s.next();) {
        const Ranges rows = ranges_of(job.partition, s->rows, peer);
        for (int32_t i = 0; i < rows.count; i++) {
            to = pack(full_rows(job, u.o, *s), s->count, rows.at[i].begin, rows.at[i].rows, to);
            if (job.has(FA_OPERAND_LSE))
                to = pack(full_lse(job, u.lse, *s), s->count, u.q_heads, rows.at[i].begin, rows.at[i].rows, to);
        }
    }
    return to;
}

const char* unpack_outputs(const Job& job, const Ulysses& u, int32_t peer, const char* from) {
    for (Segments s(job); s.next();) {
        int64_t at = 0;
        for (int32_t i = 0; i < s->own_rows.count; at += s->own_rows.at[i++].rows) {
            const int64_t rows = s->own_rows.at[i].rows;
            from = unpack(job.rows_of(job.o, *s).of_heads(peer * u.q_heads, u.q_heads), s->count, at, rows, from);
            if (job.has(FA_OPERAND_LSE))
                from = unpack(job.lse_of(job.lse, *s).at(0, peer * u.q_heads, 0), s->count, u.q_heads, at, rows, from);
        }
    }
    return from;
}

// Messages of one exchange: out to each peer, in from it; this rank's own part goes through the same buffer.
using Pack = char* (*)(const Job&, const Ulysses&, int32_t, char*);
using Unpack = const char* (*)(const Job&, const Ulysses&, int32_t, const char*);
fa_status_t exchange(Job* job, const Ulysses& u, Pack pack_for, Unpack unpack_from,
                     int64_t (*in_bytes)(const Job&, const Ulysses&, int32_t), const char* what) {
    Group group(job->cp);
    char *out = u.send, *in = u.receive;
    for (int32_t peer = 0; peer < job->ranks; peer++) {
        char* const end = pack_for(*job, u, peer, out);
        const int64_t bytes = in_bytes(*job, u, peer);
        if (peer != job->rank) {
            group.send(peer, out, uint64_t(end - out));
            group.receive(peer, in, uint64_t(bytes));
        } else {
            memcpy(in, out, size_t(end - out));
        }
        out = end;
        in += bytes;
    }
    FA_TRY(group.start());
    FA_TRY(group.wait(what));
    const char* from = u.receive;
    for (int32_t peer = 0; peer < job->ranks; peer++) from = unpack_from(*job, u, peer, from);
    return FA_OK;
}

void compute(Job* job, const Ulysses& u) {
    fa_attention_desc_t d = job->d;
    fa_forward_args_t a = job->a;
    d.heads_q = u.q_heads;
    d.heads_k = u.k_heads;
    d.heads_v = u.v_heads;
    d.strided = 0;
    for (int i = 0; i < 4; i++) d.q_stride[i] = d.k_stride[i] = d.v_stride[i] = d.o_stride[i] = 0;
    memset(d.lse_stride, 0, sizeof d.lse_stride);
    a.q = u.q.data;
    a.k = u.k.data;
    a.v = u.v.data;
    a.o = u.o.data;
    if (job->has(FA_OPERAND_LSE)) a.lse = u.lse.data;
    if (a.alibi_slopes) a.alibi_slopes += job->rank * u.q_heads;
    if (a.sinks) a.sinks += job->rank * u.q_heads;
    job->computed = fa_forward_ex(job->cp->handle, &d, &a);
    if (job->computed != FA_OK) fail(&job->cp->message, job->computed, "rank %d: %s", job->rank, fa_last_error(job->cp->handle));
}

fa_status_t check(const Job& job, Message* m) {
    const fa_attention_desc_t& d = job.d;
    if (d.heads_k % job.ranks != 0)
        return fail(m, FA_UNSUPPORTED, "heads_k is %lld: expected a multiple of the %d ranks for FA_CP_METHOD_ULYSSES",
                    ll(d.heads_k), job.ranks);
    if (d.heads_v % job.ranks != 0)
        return fail(m, FA_UNSUPPORTED, "heads_v is %lld: expected a multiple of the %d ranks for FA_CP_METHOD_ULYSSES",
                    ll(d.heads_v), job.ranks);
    if (d.operands & (FA_OPERAND_BIAS | FA_OPERAND_MASK))
        return fail(m, FA_UNSUPPORTED,
                    "operands is 0x%llx: expected neither FA_OPERAND_BIAS nor _MASK, of which a rank has its rows alone, for "
                    "FA_CP_METHOD_ULYSSES",
                    llu(d.operands));
    return FA_OK;
}

int64_t received_bytes(const Job& job, const Ulysses& u, int64_t (*bytes)(const Job&, const Ulysses&, int32_t)) {
    int64_t sum = 0;
    for (int32_t r = 0; r < job.ranks; r++) sum += bytes(job, u, r);
    return sum;
}

fa_status_t prepare(Job* job) {
    int64_t tensors = 0;
    const Ulysses u = lay_out(*job, nullptr, nullptr, nullptr, &tensors);
    const int64_t in = received_bytes(*job, u, inputs_bytes), out = received_bytes(*job, u, outputs_bytes);
    const int64_t own_in = inputs_bytes(*job, u, job->rank) * job->ranks, own_out = outputs_bytes(*job, u, job->rank) * job->ranks;
    if (!grow(job->cp, kKeys, uint64_t(tensors)) || !grow(job->cp, kSend, uint64_t(own_in > out ? own_in : out)) ||
        !grow(job->cp, kReceive, uint64_t(in > own_out ? in : own_out)))
        return FA_OUT_OF_MEMORY;
    return FA_OK;
}

int64_t own_outputs(const Job& job, const Ulysses& u, int32_t) { return outputs_bytes(job, u, job.rank); }

fa_status_t run(Job* job) {
    Slab* slab = job->cp->slab;
    const Ulysses u = lay_out(*job, slab[kKeys].data, slab[kSend].data, slab[kReceive].data, nullptr);
    FA_TRY(exchange(job, u, pack_inputs, unpack_inputs, inputs_bytes, "q, k and v by heads"));
    compute(job, u);
    return exchange(job, u, pack_outputs, unpack_outputs, own_outputs, "o by rows");
}

int64_t bytes(const Job& job) {
    const Ulysses u = lay_out(job, nullptr, nullptr, nullptr, nullptr);
    const int64_t out = received_bytes(job, u, outputs_bytes) - outputs_bytes(job, u, job.rank);
    return inputs_bytes(job, u, job.rank) * (job.ranks - 1) + out;
}

}  // namespace

extern const Method kUlysses{FA_CP_METHOD_ULYSSES, "Ulysses", check, prepare, run, bytes, bytes};

}  // namespace cp
}  // namespace fa
