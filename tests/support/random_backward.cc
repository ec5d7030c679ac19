#include <algorithm>
#include "support/random_case.h"

namespace test {
namespace {

bool shares_elements(const oracle::Tensor& tensor) {
    for (int axis = 0; axis < 4; axis++)
        if (tensor.stride[size_t(axis)] == 0 && tensor.count[size_t(axis)] > 1) return true;
    return false;
}

// Strides of its own for a gradient that needs them, and now and then for one that does not. packed: there is no batch stride.
void stride_gradient(Rng& rng, const oracle::Tensor& primal, bool packed, int64_t (&stride)[4]) {
    if (!shares_elements(primal) && rng.chance(0.7)) return;
    random_strides(rng, 3, primal.count.data(), primal.count[3], stride);
    stride[3] = 1;
    if (packed) stride[0] = 0;
}

}  // namespace

void choose_gradients(Rng& rng, BackwardCase& backward) {
    const oracle::Reading r = backward.c.reading();
    const bool packed_q = r.has(FA_OPERAND_CU_SEQLENS_Q), packed_k = r.has(FA_OPERAND_CU_SEQLENS_K);
    backward.wants_dq = rng.chance(0.85), backward.wants_dk = rng.chance(0.85), backward.wants_dv = rng.chance(0.85);
    backward.wants_dbias = rng.chance(0.7), backward.wants_dsinks = rng.chance(0.7);
    backward.gives_dlse = rng.chance(0.3);
    if (rng.chance(0.2)) backward.a.flags |= FA_BACKWARD_ACCUMULATE;
    stride_gradient(rng, r.q_tensor, packed_q, backward.a.dq_stride);
    stride_gradient(rng, r.k_tensor, packed_k, backward.a.dk_stride);
    stride_gradient(rng, r.v_tensor, packed_k, backward.a.dv_stride);
    if (rng.chance(0.3)) {  // an input: it may be broadcast
        stride_gradient(rng, r.o_tensor, packed_q, backward.a.dout_stride);
        for (int axis = packed_q ? 1 : 0; axis < 3 && backward.a.dout_stride[3] == 1; axis++)
            if (rng.chance(0.15)) backward.a.dout_stride[axis] = 0;
    }
    if (backward.gives_dlse && rng.chance(0.3)) {
        random_strides(rng, 3, r.lse_tensor.count.data(), 1, backward.a.dlse_stride);
        if (packed_q) backward.a.dlse_stride[0] = 0;
    }
    if (r.has(FA_OPERAND_BIAS) && rng.chance(0.5)) {
        random_strides(rng, 4, r.bias_tensor.count.data(), 1, backward.a.dbias_stride);
        for (int axis = 0; axis < 4; axis++)
            if (rng.chance(0.3)) backward.a.dbias_stride[axis] = 0;
    }
}

}  // namespace test
