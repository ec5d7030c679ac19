// What kernels of every family read of a call: lengths of sequences and heads, where rows of o and LSE go, and what those that cut keys
// into splits read of these. Each family's struct of parameters is made of them and of what it reads besides: SimtForwardParams
// (simt_params.h) and MmaForwardParams (mma_params.h) of the portable kernels, SplitMergeParams of what merges splits, Sm90ForwardParams
// and LatentParams of Hopper's. What follows from the descriptor is filled in when the call is planned; pointers, and lengths behind
// pointers, when it is made.
#pragma once
#include "gpu/common/memory.h"
#include "spec/online_softmax.h"

namespace fa {
namespace gpu {

// Strides are of elements; pointers of operands that the call has not are NULL.
struct ShapeParams {
    SequenceTable sequences;
    int64_t batch, heads_q, kv_heads, group, dim_v;  // group: query heads of a kv head
};
struct RowParams : ShapeParams {
    void* o;
    float* lse;
    RowStrides o_strides, lse_strides;
    const float* sinks;
    int32_t o_dtype;
};

// A pointer of the args, NULL without its operand.
template <class T>
T* operand(const Problem& problem, uint64_t operand, T* pointer) {
    return problem.has(operand) ? pointer : nullptr;
}

inline void set_shape(const Problem& problem, ShapeParams* params) {
    const fa_attention_desc_t& d = problem.d;
    params->sequences = sequence_table(problem, fa_forward_args_t{});
    params->batch = d.batch;
    params->heads_q = d.heads_q;
    params->kv_heads = problem.kv_heads;
    params->group = problem.group;
    params->dim_v = d.dim_v;
}
inline void set_rows(const Problem& problem, RowParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_shape(problem, params);
    params->o_strides = row_strides(d.o_stride, problem.packed_q());
    params->lse_strides = lse_strides(d.lse_stride, problem.packed_q());
    params->o_dtype = d.o_dtype;
}
inline void set_row_tensors(const Problem& problem, const fa_forward_args_t& args, RowParams* params) {
    params->sequences = sequence_table(problem, args);
    params->o = args.o;
    params->lse = operand(problem, FA_OPERAND_LSE, args.lse);
    params->sinks = operand(problem, FA_OPERAND_SINKS, args.sinks);
}

struct SplitParams {
    int64_t rows;                    // seqlen_q · group: group-major rows of a sequence and kv head
    int64_t num_splits, split_size;  // as split_keys takes them
    int64_t splits;                  // upper bound for any sequence
    float* partial_o;                // [splits][batch · kv_heads · rows][dim_v], in the units of kHeadroomUnit; NULL: one split
    RowState* state;                 // [splits][batch · kv_heads · rows]; also the final states that the scores output needs
};

// The most splits that `keys` keys have.
inline int64_t max_splits(int64_t keys, int64_t num_splits, int64_t split_size) {
    if (split_size > 0) return ceil_div(max_of(keys, 1), split_size);
    return max_of(min_of(num_splits, ceil_div(keys, kSplitQuantum)), 1);
}

// Where splits keep their partial results in a call's workspace: first partial_o, then state.
struct SplitMemory {
    uint64_t partial_bytes, state_bytes;
    uint64_t bytes() const { return partial_bytes + state_bytes; }
};
inline SplitMemory split_memory(const Problem& problem, const SplitParams& params, bool final_states) {
    const int64_t rows = params.splits * problem.d.batch * problem.kv_heads * params.rows;
    const bool cut = params.splits > 1;
    return {cut ? uint64_t(round_up(rows * problem.d.dim_v * 4, 256)) : 0,
            cut || final_states ? uint64_t(round_up(rows * int64_t(sizeof(RowState)), 256)) : 0};
}
inline void set_split_memory(const SplitMemory& split, char* memory, SplitParams* params) {
    params->partial_o = split.partial_bytes ? reinterpret_cast<float*>(memory) : nullptr;
    params->state = split.state_bytes ? reinterpret_cast<RowState*>(memory + split.partial_bytes) : nullptr;
}

}  // namespace gpu
}  // namespace fa
