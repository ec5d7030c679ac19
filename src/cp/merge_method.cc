// Decoding from a cache that is spread: each rank computes all rows with its own keys, and everybody merges everybody's o and LSE.
#include <string.h>
#include "cp/copy.h"
#include "cp/methods.h"

namespace fa {
namespace cp {
namespace {

struct Buffers {
    char* own;  // o, then LSE: f32
    char* parts;
    int64_t o_floats, lse_floats;
    int64_t bytes() const { return (o_floats + lse_floats) * int64_t(sizeof(float)); }
};

Buffers lay_out(const Job& job, Shares* own, Shares* parts) {
    Buffers b{};
    const int64_t sequences = job.packed_q ? 1 : job.d.batch;
    b.lse_floats = sequences * job.d.heads_q * job.local_rows;
    b.o_floats = b.lse_floats * job.d.dim_v;
    b.own = own->take(b.bytes());
    b.parts = parts->take(b.bytes() * job.ranks);
    return b;
}

fa_status_t check(const Job& job, Message* message) {
    if (job.d.chunk == 0) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "chunk is %lld: expected 0 for FA_CP_METHOD_MERGE", ll(job.d.chunk));
}

fa_status_t prepare(Job* job) {
    Shares own(nullptr), parts(nullptr);
    lay_out(*job, &own, &parts);
    FA_TRY(grow(job->cp, kLocal, uint64_t(own.used())));
    FA_TRY(grow(job->cp, kPartial, uint64_t(parts.used())));
    if (!job->positions) return FA_OK;
    return grow(job->cp, kCounts, uint64_t(job->d.batch) * (uint64_t(job->ranks) + 1) * sizeof(int32_t));
}

int64_t valid_keys(const Job& job, int64_t b) {
    int64_t keys = job.packed_k ? job.cu_seqlens_k[b + 1] - job.cu_seqlens_k[b] : job.d.seqlen_k;
    if (job.has(FA_OPERAND_SEQUSED_K)) keys = job.seqused_k[b];
    return job.has(FA_OPERAND_LEFTPAD_K) ? keys - job.leftpad_k[b] : keys;
}

int64_t valid_rows(const Job& job, int64_t b) {
    if (job.has(FA_OPERAND_SEQUSED_Q)) return job.seqused_q[b];
    return job.packed_q ? job.cu_seqlens_q[b + 1] - job.cu_seqlens_q[b] : job.d.seqlen_q;
}

// Where the diagonal lies among this rank's keys, which follow those of the ranks before. all_keys: [ranks][batch].
void place(Job* job, const int32_t* all_keys) {
    int32_t* const offset = reinterpret_cast<int32_t*>(job->cp->slab[kOffsets].data);
    for (int64_t b = 0; b < job->d.batch; b++) {
        int64_t before = 0, all = 0;
        for (int32_t r = 0; r < job->ranks; r++) {
            const int64_t keys = all_keys[r * job->d.batch + b];
            if (r < job->rank) before += keys;
            all += keys;
        }
        int64_t off = job->d.alignment == FA_ALIGN_BOTTOM_RIGHT ? all - valid_rows(*job, b) : 0;
        if (job->d.alignment == FA_ALIGN_EXPLICIT) off = job->causal_offset[b];
        off -= before;
        if (off < INT32_MIN || off > INT32_MAX)
            job->computed = fail(&job->cp->message, FA_UNSUPPORTED, "sequence %lld has %lld keys on all ranks: expected fewer than 2^31",
                                 ll(b), ll(all));
        offset[b] = int32_t(off);
    }
}

void compute(Job* job, const Buffers& buffers) {
    if (job->computed != FA_OK) return;
    fa_attention_desc_t d = job->d;
    fa_forward_args_t a = job->a;
    float* o = reinterpret_cast<float*>(buffers.own);
    if (job->packed_q) {  // the core leaves gaps between rows alone
        Moves moves(job);
        moves.clear_bytes(buffers.own, buffers.bytes());
        moves.flush();
    }
    d.o_dtype = FA_F32;
    d.operands = (d.operands | FA_OPERAND_LSE) & ~(FA_OPERAND_SINKS | FA_OPERAND_O_SCALE);
    d.strided &= ~uint32_t(FA_STRIDED_O | FA_STRIDED_LSE);
    memset(d.o_stride, 0, sizeof d.o_stride);
    memset(d.lse_stride, 0, sizeof d.lse_stride);
    if (job->positions) {
        d.alignment = FA_ALIGN_EXPLICIT;
        d.operands |= FA_OPERAND_CAUSAL_OFFSET;
        if (give_offsets(job, d.batch, &a.causal_offset) != FA_OK) return;
    }
    a.sinks = nullptr;
    a.o_scale = nullptr;
    a.o = o;
    a.lse = o + buffers.o_floats;
    checked(job, fa_forward_ex(job->cp->handle, &d, &a));
}

void merge_parts(Job* job, const Buffers& buffers) {
    if (job->computed != FA_OK) return;
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    const int64_t part = buffers.o_floats + buffers.lse_floats, rows = job->local_rows, heads = job->d.heads_q, dim = job->d.dim_v;
    const bool packed = job->packed_q;
    a.flags = job->a.flags;
    a.stream = job->a.stream;
    a.parts = job->ranks;
    a.o_parts = reinterpret_cast<const float*>(buffers.parts);
    a.lse_parts = a.o_parts + buffers.o_floats;
    const int64_t o_stride[5] = {part, packed ? 0 : rows * heads * dim, heads * dim, dim, 1};
    const int64_t lse_stride[4] = {part, packed ? 0 : heads * rows, rows, 1};
    memcpy(a.o_parts_stride, o_stride, sizeof o_stride);
    memcpy(a.lse_parts_stride, lse_stride, sizeof lse_stride);
    a.o = job->a.o;
    a.lse = job->a.lse;
    a.sinks = job->a.sinks;
    a.o_scale = job->a.o_scale;
    a.cu_seqlens_q = job->a.cu_seqlens_q;
    a.seqused_q = job->a.seqused_q;
    checked(job, fa_merge(job->cp->handle, &job->d, &a));
}

fa_status_t run(Job* job) {
    Slab* slab = job->cp->slab;
    Shares own(slab[kLocal].data), parts(slab[kPartial].data);
    const Buffers b = lay_out(*job, &own, &parts);
    if (job->positions && job->d.batch > 0) {
        int32_t *const own_keys = reinterpret_cast<int32_t*>(slab[kCounts].data), *const all_keys = own_keys + job->d.batch;
        for (int64_t i = 0; i < job->d.batch; i++) own_keys[i] = int32_t(valid_keys(*job, i));
        FA_TRY(gather_host(job->cp, own_keys, all_keys, uint64_t(job->d.batch) * sizeof(int32_t), "the numbers of keys"));
        place(job, all_keys);
    }
    compute(job, b);
    FA_TRY(all_gather(job, b.own, b.parts, b.bytes(), "o and LSE"));
    merge_parts(job, b);
    return FA_OK;
}

int64_t bytes(const Job& job) {
    Shares own(nullptr), parts(nullptr);
    return lay_out(job, &own, &parts).bytes() * (job.ranks - 1);
}

}  // namespace

extern const Method kMergeMethod{FA_CP_METHOD_MERGE, "merge", check, {prepare, run, bytes, bytes}, nullptr};

}  // namespace cp
}  // namespace fa
