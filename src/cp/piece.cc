// The calls of the core.
#include "cp/job.h"

namespace fa {
namespace cp {

constexpr uint64_t kOfPieces =
    FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS | FA_OPERAND_O_SCALE | FA_OPERAND_RNG_STATE;
constexpr uint32_t kAllStrided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;

static void put(int64_t stride[4], const View& view) {
    stride[0] = view.batch / view.unit;
    stride[1] = view.row / view.unit;
    stride[2] = view.head / view.unit;
    stride[3] = 1;
}
static void put(int64_t stride[3], const LseView& view) {
    stride[0] = view.batch;
    stride[1] = view.head;
    stride[2] = view.row;
}

fa_status_t checked(Job* job, fa_status_t status) {
    if (status == FA_OK) return FA_OK;
    job->computed = status;
    return fail(&job->cp->message, status, "rank %d: %s", job->rank, fa_last_error(job->cp->handle));
}

fa_status_t give_offsets(Job* job, int64_t count, const int32_t** given) {
    const Slab* const slab = job->cp->slab;
    *given = reinterpret_cast<const int32_t*>(slab[kOffsets].data);
    if (!job->cp->device) return FA_OK;
    *given = reinterpret_cast<const int32_t*>(slab[kDeviceOffsets].data);
    return checked(job, fa_copy_async(job->cp->handle, slab[kDeviceOffsets].data, slab[kOffsets].data, uint64_t(count) * sizeof(int32_t),
                                      job->a.flags & FA_ARGS_STREAM, job->a.stream));
}

// Row i of the piece stands on key i + off of the piece. Where a named alignment says the same for all sequences, no array of offsets does,
// and a causal mask that hides no key is left out: kernels are faster without, on GPUs above all.
static fa_status_t place(Job* job, const Piece& piece, fa_attention_desc_t* desc, fa_forward_args_t* args) {
    const auto offset_of = [&](int64_t b) {
        return job->diagonal(*piece.segment, piece.segment->first + b) + piece.rows.begin - piece.keys.begin;
    };
    int64_t least = offset_of(0), most = least;
    for (int64_t b = 0; b < piece.segment->count; b++) {
        const int64_t off = offset_of(b);
        if (off < INT32_MIN || off > INT32_MAX) {
            job->computed =
                fail(&job->cp->message, FA_UNSUPPORTED, "causal_offset[%lld] puts a row %lld keys from its part: expected fewer than 2^31",
                     ll(piece.segment->first + b), ll(off));
            return job->computed;
        }
        least = off < least ? off : least;
        most = off > most ? off : most;
    }
    if (least >= piece.keys.rows - 1) desc->flags &= ~uint32_t(FA_CAUSAL);
    const bool nothing = (desc->flags & (FA_CAUSAL | FA_WINDOW)) == 0 && desc->chunk == 0 && !(desc->operands & FA_OPERAND_ALIBI),
               one = least == most;
    desc->alignment = nothing                                            ? FA_ALIGN_UNSET
                      : one && most == 0                                 ? FA_ALIGN_TOP_LEFT
                      : one && most == piece.keys.rows - piece.rows.rows ? FA_ALIGN_BOTTOM_RIGHT
                                                                         : FA_ALIGN_EXPLICIT;
    if (desc->alignment != FA_ALIGN_EXPLICIT) return FA_OK;
    int32_t* const offset = reinterpret_cast<int32_t*>(job->cp->slab[kOffsets].data);
    for (int64_t b = 0; b < piece.segment->count; b++) offset[b] = int32_t(offset_of(b));
    desc->operands |= FA_OPERAND_CAUSAL_OFFSET;
    return give_offsets(job, piece.segment->count, &args->causal_offset);
}

// Where an operand has the piece's first sequence, head, row and key.
template <class T>
static const T* moved(const T* base, int64_t elements, int64_t bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) + elements * bytes);
}
static int64_t pair_index(const int64_t stride[4], const Piece& piece) {
    return piece.segment->first * stride[0] + piece.head * stride[1] + piece.local_row * stride[2] + piece.keys.begin * stride[3];
}

// Dropout: the piece's part of the whole's mask.
static void draw_part(const Job& job, const Piece& piece, fa_forward_args_t* args) {
    args->rng_state = job.a.rng_state;
    args->dropout_seed = job.a.dropout_seed;
    args->dropout_offset = job.a.dropout_offset;
    args->dropout_row = job.a.dropout_row + piece.rows.begin;
    args->dropout_key = job.a.dropout_key + piece.keys.begin;
    args->dropout_heads = job.dropout_heads();
    args->dropout_head = job.a.dropout_head + piece.segment->first * args->dropout_heads + piece.head;
}

// A piece, as the core takes it.
struct CoreCall {
    fa_attention_desc_t d;
    fa_forward_args_t a;
};
static fa_status_t describe(Job* job, const Piece& piece, CoreCall* call) {
    *call = {job->d, FA_FORWARD_ARGS_INIT};
    fa_attention_desc_t& d = call->d;
    fa_forward_args_t& a = call->a;
    d.operands &= kOfPieces;
    d.strided = kAllStrided;
    d.batch = piece.segment->count;
    d.heads_q = piece.heads;
    d.heads_k = piece.k.heads;
    d.heads_v = piece.v.heads;
    d.seqlen_q = piece.rows.rows;
    d.seqlen_k = piece.keys.rows;
    d.total_q = d.total_k = 0;
    put(d.q_stride, piece.q);
    put(d.k_stride, piece.k);
    put(d.v_stride, piece.v);
    put(d.o_stride, piece.o);
    put(d.lse_stride, piece.lse);
    if (piece.partial) {
        d.o_dtype = FA_F32;
        d.operands = (d.operands | FA_OPERAND_LSE) & ~(FA_OPERAND_SINKS | FA_OPERAND_O_SCALE);
    }
    if (!(d.operands & FA_OPERAND_LSE)) {
        d.strided &= ~uint32_t(FA_STRIDED_LSE);
        for (int64_t& stride : d.lse_stride) stride = 0;
    }
    if (job->positions) FA_TRY(place(job, piece, &d, &a));
    a.flags = job->a.flags;
    a.stream = job->a.stream;
    a.q = piece.q.data;
    a.k = piece.k.data;
    a.v = piece.v.data;
    a.o = piece.o.data;
    if (d.operands & FA_OPERAND_LSE) a.lse = piece.lse.data;
    if (d.operands & FA_OPERAND_BIAS)
        a.bias = moved(job->a.bias, pair_index(d.bias_stride, piece), d.bias_dtype == 0 || d.bias_dtype == FA_F32 ? 4 : 2);
    if (d.operands & FA_OPERAND_MASK) a.mask = moved(job->a.mask, pair_index(d.mask_stride, piece), 1);
    if (d.operands & FA_OPERAND_ALIBI) a.alibi_slopes = job->a.alibi_slopes + piece.segment->first * d.alibi_batch_stride + piece.head;
    if (d.operands & FA_OPERAND_SINKS) a.sinks = job->a.sinks + piece.head;
    if (d.operands & FA_OPERAND_O_SCALE) a.o_scale = job->a.o_scale;
    if (d.dropout_p > 0) draw_part(*job, piece, &a);
    return FA_OK;
}

fa_status_t attend(Job* job, const Piece& piece) {
    if (job->computed != FA_OK) return job->computed;
    CoreCall call;
    FA_TRY(describe(job, piece, &call));
    return checked(job, fa_forward_ex(job->cp->handle, &call.d, &call.a));
}

fa_status_t differentiate(Job* job, const Piece& piece, const PieceGradients& gradients) {
    if (job->computed != FA_OK) return job->computed;
    CoreCall call;
    FA_TRY(describe(job, piece, &call));
    if (!gradients.dsinks) {
        call.d.operands &= ~uint64_t(FA_OPERAND_SINKS);
        call.a.sinks = nullptr;
    }
    call.a.flags = 0;
    call.a.stream = nullptr;
    fa_backward_args_t a = FA_BACKWARD_ARGS_INIT;
    a.flags = (job->g.flags & FA_ARGS_STREAM) | uint32_t(FA_BACKWARD_ACCUMULATE);
    a.stream = job->g.stream;
    a.forward = &call.a;
    const View dout = job->rows_of(job->dout, *piece.segment).at(0, piece.local_row, piece.head);
    a.dout = dout.data;
    put(a.dout_stride, dout);
    if (job->dlse.data) {
        const LseView dlse = job->lse_of(job->dlse, *piece.segment).at(0, piece.head, piece.local_row);
        a.dlse = dlse.data;
        put(a.dlse_stride, dlse);
    }
    a.dq = gradients.dq.data;
    a.dk = gradients.dk.data;
    a.dv = gradients.dv.data;
    a.dsinks = gradients.dsinks;
    if (a.dq) put(a.dq_stride, gradients.dq);
    if (a.dk) put(a.dk_stride, gradients.dk);
    if (a.dv) put(a.dv_stride, gradients.dv);
    return checked(job, fa_backward(job->cp->handle, &call.d, &a));
}

void differentiate_sinks(Job* job) {
    if (!job->dsinks) return;
    for (Segments s(*job); s.next();) {
        int64_t local = 0;
        for (int32_t i = 0; i < s->own_rows.count; local += s->own_rows.at[i++].rows) {
            Piece p{};
            p.segment = &*s;
            p.rows = s->own_rows.at[i];
            p.local_row = local;
            p.heads = job->d.heads_q;
            p.q = job->rows_of(job->q, *s).at(0, local, 0);
            p.o = job->rows_of(job->o, *s).at(0, local, 0);
            p.lse = job->lse_of(job->lse, *s).at(0, 0, local);
            p.k = dense(job->k, nullptr, 0);
            p.v = dense(job->v, nullptr, 0);
            differentiate(job, p, {{}, {}, {}, job->dsinks});
        }
    }
}

fa_status_t merge(Job* job, const Merging& merging) {
    if (job->computed != FA_OK) return job->computed;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    d.q_dtype = d.o_dtype = merging.accumulate ? int32_t(FA_F32) : job->d.o_dtype;
    d.batch = merging.sequences;
    d.heads_q = job->d.heads_q;
    d.seqlen_q = merging.rows;
    d.dim_v = job->d.dim_v;
    d.strided = FA_STRIDED_O;
    put(d.o_stride, merging.into);
    if (merging.into_lse.data) {
        d.operands |= FA_OPERAND_LSE;
        d.strided |= FA_STRIDED_LSE;
        put(d.lse_stride, merging.into_lse);
        a.lse = merging.into_lse.data;
    }
    if (!merging.accumulate && job->has(FA_OPERAND_SINKS)) {
        d.operands |= FA_OPERAND_SINKS;
        a.sinks = job->a.sinks;
    }
    if (!merging.accumulate && job->has(FA_OPERAND_O_SCALE)) {
        d.operands |= FA_OPERAND_O_SCALE;
        a.o_scale = job->a.o_scale;
    }
    a.flags = (job->a.flags & FA_ARGS_STREAM) | (merging.accumulate ? uint32_t(FA_MERGE_ACCUMULATE) : 0u);
    a.stream = job->a.stream;
    a.parts = merging.parts;
    a.o_parts = reinterpret_cast<const float*>(merging.part.data);
    a.lse_parts = merging.part_lse.data;
    put(a.o_parts_stride + 1, merging.part);
    a.o_parts_stride[0] = 0;
    put(a.lse_parts_stride + 1, merging.part_lse);
    a.o = merging.into.data;
    return checked(job, fa_merge(job->cp->handle, &d, &a));
}

}  // namespace cp
}  // namespace fa
