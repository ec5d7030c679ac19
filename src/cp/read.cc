// From the caller's structs to a Job.
#include <stddef.h>
#include <string.h>
#include "cp/job.h"

namespace fa {
namespace cp {
namespace {

constexpr uint64_t kRowsOperands = FA_OPERAND_LSE | FA_OPERAND_O_SCALE | FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI |
                                   FA_OPERAND_SINKS | FA_OPERAND_CAUSAL_OFFSET | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K |
                                   FA_OPERAND_RNG_STATE;
constexpr uint64_t kCacheOperands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_K |
                                    FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE;
constexpr uint64_t kKeysOperands =
    (kRowsOperands & ~(FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_RNG_STATE)) | kCacheOperands | FA_OPERAND_Q_DESCALE | FA_OPERAND_SEQUSED_Q;

struct Operand {
    const char *bit, *field;
};
constexpr Operand kOperand[] = {
#define FA_OPERAND(name, field) {"FA_OPERAND_" #name, #field},
#include "backend/operands.def"
};
constexpr int kOperandCount = sizeof kOperand / sizeof kOperand[0];

// Of a type that the core is still to refuse: a byte.
int64_t unit_bytes(int32_t dtype, int64_t* elements) {
    int64_t bytes;
    if (fa_dtype_unit(dtype, elements, &bytes) == FA_OK) return bytes;
    *elements = 1;
    return 1;
}

fa_status_t core_says(fa_cp_s* cp, fa_status_t status) {
    return status == FA_OK ? FA_OK : fail(&cp->message, status, "%s", fa_last_error(cp->handle));
}

void fill_defaults(fa_attention_desc_t* desc) {
    int64_t elements;
    if (desc->k_dtype == 0) desc->k_dtype = desc->q_dtype;
    if (desc->v_dtype == 0) desc->v_dtype = desc->k_dtype;
    if (desc->o_dtype == 0) desc->o_dtype = unit_bytes(desc->q_dtype, &elements) == 1 ? int32_t(FA_BF16) : desc->q_dtype;
    if (desc->heads_k == 0) desc->heads_k = desc->heads_q;
    if (desc->heads_v == 0) desc->heads_v = desc->heads_k;
    if (desc->dim_v == 0) desc->dim_v = desc->dim_qk;
}

// What no method has yet, in the words of the field.
fa_status_t check_known_to_methods(const Job& job, Message* message) {
    const fa_attention_desc_t& d = job.d;
    const char* shard = job.spread.shard == FA_CP_SHARD_ROWS ? "FA_CP_SHARD_ROWS" : "FA_CP_SHARD_KEYS";
    const uint64_t refused = d.operands & ~(job.spread.shard == FA_CP_SHARD_ROWS ? kRowsOperands : kKeysOperands);
    if (refused != 0)
        return fail(message, FA_UNSUPPORTED, "operands is 0x%llx: expected no %s with %s on %d ranks", llu(d.operands),
                    kOperand[__builtin_ctzll(refused)].bit, shard, job.ranks);
    FA_TRY(check_known(d, job.ranks, message));
    if (d.dropout_p != 0 && job.spread.shard == FA_CP_SHARD_KEYS)
        return fail(message, FA_UNSUPPORTED, "dropout_p is %g: expected 0 with FA_CP_SHARD_KEYS", double(d.dropout_p));
    if (job.a.workspace)
        return fail(message, FA_UNSUPPORTED, "workspace is %p: expected NULL on %d ranks, where each call of the core needs another",
                    job.a.workspace, job.ranks);
    return FA_OK;
}

fa_status_t check_pointers(const Job& job, Message* message) {
    for (int i = 0; i < kOperandCount; i++) {
        const void* pointer;
        memcpy(&pointer, reinterpret_cast<const char*>(&job.a) + offsetof(fa_forward_args_t, lse) + size_t(i) * sizeof pointer,
               sizeof pointer);
        const bool set = (job.d.operands >> i & 1) != 0;
        if (!set && pointer)
            return fail(message, FA_INVALID_ARGUMENT, "%s is %p: expected NULL without %s", kOperand[i].field, pointer, kOperand[i].bit);
        if (set && !pointer && job.local_rows > 0)
            return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer with %s", kOperand[i].field, kOperand[i].bit);
    }
    return FA_OK;
}

fa_status_t check_cu_seqlens(const char* name, const int32_t* cu, int64_t batch, int64_t longest, const char* total_name, int64_t total,
                             Message* message) {
    if (!cu) return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer with its operand", name);
    for (int64_t b = 0; b <= batch; b++) {
        FA_TRY(entry_in_range(message, name, b, cu[b], {b > 0 ? cu[b - 1] : 0, total, total_name, total}));
        if (b > 0 && cu[b] - cu[b - 1] > longest)
            return fail(message, FA_INVALID_ARGUMENT, "%s[%lld] is %d after %d: expected at most %lld rows of a sequence", name, ll(b),
                        cu[b], cu[b - 1], ll(longest));
    }
    return FA_OK;
}

View view_of(const void* data, int32_t dtype, bool strided, const int64_t stride[4], int64_t rows, int64_t heads, int64_t dim) {
    View v{};
    int64_t elements;
    v.unit = unit_bytes(dtype, &elements);
    v.heads = heads;
    v.head_bytes = dim / elements * v.unit;
    v = dense(v, const_cast<void*>(data), rows);
    if (!strided) return v;
    v.batch = stride[0] * v.unit;
    v.row = stride[1] * v.unit;
    v.head = stride[2] * v.unit;
    return v;
}

fa_status_t check_data(const char* name, const View& view, int64_t batch, int64_t rows, Message* message) {
    if (view.data || batch == 0 || rows == 0) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "%s is NULL: expected a pointer to this rank's rows", name);
}

void lay_out(Job* job) {
    const fa_attention_desc_t& d = job->d;
    const int64_t rows = job->local_rows, keys = job->local_keys;
    job->q = view_of(job->a.q, d.q_dtype, d.strided & FA_STRIDED_Q, d.q_stride, rows, d.heads_q, d.dim_qk);
    job->k = view_of(job->a.k, d.k_dtype, d.strided & FA_STRIDED_K, d.k_stride, keys, d.heads_k, d.dim_qk);
    job->v = view_of(job->a.v, d.v_dtype, d.strided & FA_STRIDED_V, d.v_stride, keys, d.heads_v, d.dim_v);
    job->o = view_of(job->a.o, d.o_dtype, d.strided & FA_STRIDED_O, d.o_stride, rows, d.heads_q, d.dim_v);
    job->lse = {job->a.lse, d.heads_q * rows, rows, 1};
    if (d.strided & FA_STRIDED_LSE) job->lse = {job->a.lse, d.lse_stride[0], d.lse_stride[1], d.lse_stride[2]};
}

// The core's own checks: of the whole problem, and of this rank's tensors with their strides.
fa_status_t check_by_core(Job* job) {
    fa_handle_t handle = job->cp->handle;
    fa_attention_desc_t whole = job->d, local = job->d;
    whole.strided = 0;
    memset(whole.q_stride, 0, offsetof(fa_attention_desc_t, bias_stride) - offsetof(fa_attention_desc_t, q_stride));
    memset(whole.lse_stride, 0, sizeof whole.lse_stride);
    FA_TRY(core_says(job->cp, fa_supports(handle, &whole, job->op)));
    if (job->packed_q) local.total_q = job->local_rows;
    else local.seqlen_q = job->local_rows;
    if (job->packed_k) local.total_k = job->local_keys;
    else local.seqlen_k = job->local_keys;
    return core_says(job->cp, fa_supports(handle, &local, job->op));
}

// The arrays that a call reads on the host, and room for offsets. What lies in device memory is copied, when the stream has come by.
fa_status_t read_arrays(Job* job, Message* message) {
    fa_cp_s* const cp = job->cp;
    const int64_t batch = job->d.batch;
    FA_TRY(in_range(message, "batch", batch, 0, kMaxSize));
    const bool rows = job->spread.shard == FA_CP_SHARD_ROWS;
    const struct {
        const int32_t *given, **to;
        int64_t count;
        bool read;
    } arrays[] = {{job->a.cu_seqlens_q, &job->cu_seqlens_q, batch + 1, rows || job->positions},
                  {job->a.cu_seqlens_k, &job->cu_seqlens_k, batch + 1, rows || job->positions},
                  {job->a.causal_offset, &job->causal_offset, batch, job->positions},
                  {job->a.seqused_q, &job->seqused_q, batch, !rows && job->positions},
                  {job->a.seqused_k, &job->seqused_k, batch, !rows && job->positions},
                  {job->a.leftpad_k, &job->leftpad_k, batch, !rows && job->positions}};
    int64_t copied = 0;
    for (const auto& array : arrays) {
        *array.to = cp->device ? nullptr : array.given;
        if (cp->device && array.given && array.read) copied += array.count;
    }
    if (job->positions) {
        const uint64_t bytes = uint64_t(batch) * sizeof(int32_t);
        FA_TRY(grow(cp, kOffsets, bytes));
        if (cp->device) FA_TRY(grow(cp, kDeviceOffsets, bytes));
    }
    if (copied == 0) return FA_OK;
    FA_TRY(synchronize(cp));
    FA_TRY(grow(cp, kArrays, uint64_t(copied) * sizeof(int32_t)));
    int32_t* at = reinterpret_cast<int32_t*>(cp->slab[kArrays].data);
    for (const auto& array : arrays) {
        if (!array.given || !array.read) continue;
        FA_TRY(core_says(cp, fa_copy(cp->handle, at, array.given, uint64_t(array.count) * sizeof(int32_t))));
        *array.to = at;
        at += array.count;
    }
    return FA_OK;
}

fa_status_t read_rows(Job* job, Message* message) {
    const fa_attention_desc_t& d = job->d;
    job->packed_q = job->has(FA_OPERAND_CU_SEQLENS_Q);
    job->packed_k = job->has(FA_OPERAND_CU_SEQLENS_K);
    if (job->packed_q) FA_TRY(check_cu_seqlens("cu_seqlens_q", job->cu_seqlens_q, d.batch, d.seqlen_q, "total_q", d.total_q, message));
    if (job->packed_k) FA_TRY(check_cu_seqlens("cu_seqlens_k", job->cu_seqlens_k, d.batch, d.seqlen_k, "total_k", d.total_k, message));
    job->local_keys = job->keys_on(job->rank);
    job->local_rows = 0;
    if (!job->packed_q) job->local_rows = ranges_of(job->partition, d.seqlen_q, job->rank).rows();
    else
        for (Segments s(*job); s.next();) job->local_rows += s->own_rows.rows();
    FA_TRY(check_by_core(job));
    FA_TRY(check_pointers(*job, message));
    lay_out(job);
    FA_TRY(check_data("q", job->q, d.batch, job->local_rows, message));
    FA_TRY(check_data("k", job->k, d.batch, job->local_keys, message));
    FA_TRY(check_data("v", job->v, d.batch, job->local_keys, message));
    return check_data("o", job->o, d.batch, job->local_rows, message);
}

fa_status_t read_keys(Job* job, Message* message) {
    if (job->spread.layout != FA_CP_LAYOUT_CONTIGUOUS)
        return fail(message, FA_INVALID_ARGUMENT, "spread.layout is %d: expected 0 with FA_CP_SHARD_KEYS, where keys are in rank order",
                    job->spread.layout);
    fa_attention_desc_t partial = job->d;
    partial.o_dtype = FA_F32;
    partial.operands = (partial.operands | FA_OPERAND_LSE) & ~uint64_t(FA_OPERAND_O_SCALE);
    FA_TRY(core_says(job->cp, fa_supports(job->cp->handle, &job->d, FA_OP_FORWARD)));
    FA_TRY(core_says(job->cp, fa_supports(job->cp->handle, &partial, FA_OP_FORWARD)));
    job->packed_q = job->has(FA_OPERAND_CU_SEQLENS_Q);
    job->packed_k = job->has(FA_OPERAND_CU_SEQLENS_K);
    job->local_rows = job->packed_q ? job->d.total_q : job->d.seqlen_q;
    job->local_keys = job->packed_k ? job->d.total_k : job->d.seqlen_k;
    FA_TRY(check_pointers(*job, message));
    lay_out(job);
    FA_TRY(check_data("q", job->q, job->d.batch, job->local_rows, message));
    return check_data("o", job->o, job->d.batch, job->local_rows, message);
}

uint64_t hash_array(uint64_t hash, const int32_t* array, int64_t n) {
    return array ? hash_bytes(hash, array, uint64_t(n) * sizeof *array) : hash;
}

Fingerprint fingerprint_of(const Job& job) {
    fa_attention_desc_t d = job.d;
    d.strided = 0;
    d.reserve_units = 0;
    const size_t strides = offsetof(fa_attention_desc_t, q_stride);  // to the end, all of the local tensors
    memset(d.q_stride, 0, sizeof d - strides);
    Fingerprint f{uint64_t(job.op) | gradients_asked(job) << 8, 0, 0, kHashOfNothing};
    if (job.spread.shard == FA_CP_SHARD_KEYS) {
        d.k_dtype = d.v_dtype = d.k_descale_dtype = d.v_descale_dtype = 0;
        d.seqlen_k = d.total_k = d.kv_batch = d.page_size = d.num_pages = d.page_table_stride = 0;
        memset(d.k_descale_block, 0, sizeof d.k_descale_block);
        memset(d.v_descale_block, 0, sizeof d.v_descale_block);
        d.operands &= ~kCacheOperands;
        f.lengths = hash_array(f.lengths, job.seqused_q, d.batch);
    } else {
        f.lengths = hash_array(f.lengths, job.cu_seqlens_k, d.batch + 1);
    }
    f.lengths = hash_array(f.lengths, job.cu_seqlens_q, d.batch + 1);
    f.lengths = hash_array(f.lengths, job.causal_offset, d.batch);
    if (d.dropout_p > 0) {  // a state in device memory is nobody's to read
        const fa_forward_args_t& a = job.a;
        const uint64_t mask[] = {a.dropout_seed,          a.dropout_offset,         uint64_t(a.dropout_row),
                                 uint64_t(a.dropout_key), uint64_t(a.dropout_head), uint64_t(a.dropout_heads)};
        f.lengths = hash_bytes(f.lengths, mask, sizeof mask);
    }
    f.descriptor = hash_bytes(kHashOfNothing, &d, sizeof d);
    f.spread = hash_bytes(kHashOfNothing, &job.spread, sizeof job.spread);
    return f;
}

}  // namespace

fa_status_t read_job(fa_cp_s* cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op, const void* args, Job* job,
                     Fingerprint* fingerprint) {
    Message* m = &cp->message;
    memset(static_cast<void*>(job), 0, sizeof *job);
    job->cp = cp;
    job->rank = cp->transport.rank;
    job->ranks = cp->transport.ranks;
    FA_TRY(import_struct(&job->d, desc, m));
    job->op = op;
    const bool backward = op == FA_OP_BACKWARD;
    if (backward) FA_TRY(read_backward_args(static_cast<const fa_backward_args_t*>(args), job, m));
    else FA_TRY(import_struct(&job->a, static_cast<const fa_forward_args_t*>(args), m));
    FA_TRY(read_spread(spread, &job->spread, m));
    FA_TRY(known_bits(m, "flags", job->a.flags, FA_ARGS_STREAM));
    if (backward && job->spread.shard != FA_CP_SHARD_ROWS)
        return fail(m, FA_UNSUPPORTED, "spread.shard is FA_CP_SHARD_KEYS: expected FA_CP_SHARD_ROWS in a backward");
    job->partition = {job->spread.layout, job->ranks, job->spread.block};
    fill_defaults(&job->d);
    const fa_attention_desc_t& d = job->d;
    // Of sequences without a row nobody asks for positions, and there may be any number of them.
    job->positions = d.seqlen_q > 0 && ((d.flags & (FA_CAUSAL | FA_WINDOW)) != 0 || d.chunk != 0 || job->has(FA_OPERAND_ALIBI));
    FA_TRY(check_known_to_methods(*job, m));
    FA_TRY(read_arrays(job, m));
    FA_TRY(job->spread.shard == FA_CP_SHARD_ROWS ? read_rows(job, m) : read_keys(job, m));
    if (backward) FA_TRY(read_gradients(job, m));
    *fingerprint = fingerprint_of(*job);
    return FA_OK;
}

}  // namespace cp
}  // namespace fa
