// Which calls compute on copies of q, k and v in bf16 (bf16_copies.h), the call as it is then, and the launch that makes them.
#pragma once
#include "gpu/rows/bf16_copies.h"
#include "gpu/host/choose.h"
#include "gpu/host/context.h"
#include "gpu/host/extents.h"

namespace fa {
namespace gpu {
namespace {

// Fewer rows of a kv head take less time than the copies do.
constexpr int64_t kCopyRows = 128;

// Of a tensor, without its pointers; of one that is bf16 as it is, or that is larger than a copy may be, none.
Bf16Copy bf16_copy(int32_t dtype, const RowStrides& strides, int64_t sequences, int64_t rows, int64_t heads, int64_t dim,
                   const Factors& factors, bool has_factors) {
    constexpr double most = double(int64_t(1) << 29);  // dims: a copy of a GiB
    Bf16Copy copy{};
    if ((dtype == FA_BF16 && !has_factors) || double(sequences) * double(rows) * double(heads * dim) > most) return copy;
    copy.strides = strides;
    copy.rows = uint32_t(rows), copy.heads = uint32_t(heads), copy.parts = uint32_t(dim / (is_block_type(dtype) ? 16 : 8));
    copy.total = uint32_t(sequences * rows * heads) * copy.parts;
    copy.dtype = dtype;
    copy.dim = int32_t(dim);
    copy.factors = factors;
    return copy;
}
Bf16Copies bf16_copies(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    return {{bf16_copy(d.k_dtype, row_strides(d.k_stride, problem.packed_k()), sequences_of_k(problem), rows_of_k(problem), d.heads_k,
                       d.dim_qk, k_factors(problem, nullptr, nullptr), problem.has(FA_OPERAND_K_DESCALE)),
             bf16_copy(d.v_dtype, row_strides(d.v_stride, problem.packed_k()), sequences_of_k(problem), rows_of_k(problem), d.heads_v,
                       d.dim_v, v_factors(problem, nullptr, nullptr), problem.has(FA_OPERAND_V_DESCALE)),
             bf16_copy(d.q_dtype, row_strides(d.q_stride, problem.packed_q()), sequences_of_q(problem), rows_of_q(problem), d.heads_q,
                       d.dim_qk, Factors{}, false)}};
}

// Are k and v other than stored numbers of one type, times a factor of each head?
bool has_parts(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    const auto parts = [](int32_t dtype) { return is_block_type(dtype) || is_nibble_type(dtype); };
    return parts(d.k_dtype) || parts(d.v_dtype) || problem.has(FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT) ||
           (problem.options & (option::kv_factors | option::v_dtype)) != 0;
}

// By permission alone, and where k or v is of blocks, of 4 bits or with such factors: no copy of other types is worth its time.
// Probabilities as an output are computed from q itself, and would not be these. Not if the call reads little of a pool of pages.
bool may_copy(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    const auto rounds = [](int32_t dtype) { return dtype == FA_BF16 || is_scaled_type(dtype); };
    constexpr uint64_t rows_in_parts = FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL;
    // Of packed sequences each may have factors of its own, which a row of the tensor does not know.
    const bool own = problem.packed_k() && ((problem.has(FA_OPERAND_K_DESCALE) && d.k_descale_stride[0] != 0) ||
                                            (problem.has(FA_OPERAND_V_DESCALE) && d.v_descale_stride[0] != 0));
    return d.precision == FA_PRECISION_NATIVE && has_parts(problem) && !own && rounds(d.k_dtype) && rounds(d.v_dtype) &&
           (d.q_dtype == FA_F32 || d.q_dtype == FA_F16 || d.q_dtype == FA_BF16) && !problem.has(rows_in_parts | FA_OPERAND_SCORES) &&
           !problem.v_in_k() && !problem.slots() && (d.dim_qk | d.dim_v) % 8 == 0 && d.seqlen_q * problem.group >= kCopyRows &&
           sequences_of_k(problem) * rows_of_k(problem) <= 2 * d.batch * round_up(d.seqlen_k, 64);
}

// The call that reads copies.
Problem copied_problem(const Problem& problem, const Bf16Copies& copies) {
    Problem copied = problem;
    int32_t* const dtypes[] = {&copied.d.k_dtype, &copied.d.v_dtype, &copied.d.q_dtype};
    int64_t* const strides[] = {copied.d.k_stride, copied.d.v_stride, copied.d.q_stride};
    for (int i = 0; i < 3; i++) {
        const Bf16Copy& copy = copies.tensor[i];
        if (copy.total == 0) continue;
        const int64_t dim = copy.dim, dense[] = {copy.rows * (copy.heads * dim), copy.heads * dim, dim, 1};
        *dtypes[i] = FA_BF16;
        memcpy(strides[i], dense, sizeof dense);
    }
    copied.d.operands &= ~(FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT);
    copied.d.k_descale_dtype = copied.d.v_descale_dtype = FA_F32;
    for (int64_t* const block : {copied.d.k_descale_block, copied.d.v_descale_block})
        block[0] = 1, block[1] = max_of(copied.d.dim_qk, copied.d.dim_v);
    for (int64_t* const stride : {copied.d.k_descale_stride, copied.d.v_descale_stride})
        memset(stride, 0, sizeof copied.d.k_descale_stride);
    copied.options = options_of(copied.d);
    return copied;
}

bool is_bf16(const fa_attention_desc_t& desc) { return desc.q_dtype == FA_BF16 && desc.k_dtype == FA_BF16 && desc.v_dtype == FA_BF16; }

// Makes copies at `memory`, and args of those that read them.
fa_status_t launch_copies(const Problem& problem, Bf16Copies copies, const fa_forward_args_t& args, char* memory, fa_forward_args_t* copied,
                          rt::Stream stream, Message* message) {
    const void* const from[] = {args.k, args.v, args.q};
    const void** const to[] = {&copied->k, &copied->v, &copied->q};
    // Others than those of the batch's own sequences may be wanted for longer, or lie in pages.
    const bool own = !problem.packed_k() && !problem.paged() && !problem.has(FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_LEFTPAD_K);
    int64_t blocks = 0;
    *copied = args;
    for (int i = 0; i < 3; i++) {
        Bf16Copy& copy = copies.tensor[i];
        if (copy.total == 0) continue;
        copy.from = from[i];
        if (i < 2)
            copy.factors.factor = operand(problem, i ? FA_OPERAND_V_DESCALE : FA_OPERAND_K_DESCALE, i ? args.v_descale : args.k_descale);
        if (i < 2) copy.factors.shift = operand(problem, i ? FA_OPERAND_V_SHIFT : FA_OPERAND_K_SHIFT, i ? args.v_shift : args.k_shift);
        copy.to = reinterpret_cast<uint16_t*>(memory);
        copy.seqused = i < 2 && own ? operand(problem, FA_OPERAND_SEQUSED_K, args.seqused_k) : nullptr;
        *to[i] = memory;
        memory += copy.bytes();
        blocks += copy.blocks();
    }
    return launched(message, rt::launch(copy_as_bf16, blocks, kCopyThreads, 0, stream, copies), "copy_as_bf16");
}

}  // namespace
}  // namespace gpu
}  // namespace fa
