// Where the gradients are. Caches have none, so a slot is a row of the sequence's own.
#include <algorithm>
#include "oracle/backward.h"

namespace oracle {
namespace {

// The tensor by strides of its own; when they are all zero, by those that it has already.
template <size_t N>
Tensor restrided(Tensor tensor, const int64_t (&strides)[N]) {
    if (std::any_of(strides, strides + N, [](int64_t s) { return s != 0; })) std::copy_n(strides, N, tensor.stride.begin());
    return tensor;
}

}  // namespace

BackwardReading::BackwardReading(const fa_attention_desc_t& desc, const fa_backward_args_t& args)
    : Reading(desc, *args.forward),
      g(args),
      dout_tensor(restrided(o_tensor, args.dout_stride)),
      dlse_tensor(restrided(lse_tensor, args.dlse_stride)),
      dq_tensor(restrided(q_tensor, args.dq_stride)),
      dk_tensor(restrided(k_tensor, args.dk_stride)),
      dv_tensor(restrided(v_tensor, args.dv_stride)),
      dbias_tensor(restrided(bias_tensor, args.dbias_stride)) {}

int64_t BackwardReading::of_row(const Tensor& tensor, int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? tensor.at(0, a.cu_seqlens_q[b] + i, h) : tensor.at(b, i, h);
}
int64_t BackwardReading::of_slot(const Tensor& tensor, int64_t b, int64_t kv_head, int64_t slot) const {
    return has(FA_OPERAND_CU_SEQLENS_K) ? tensor.at(0, a.cu_seqlens_k[b] + slot, kv_head) : tensor.at(b, slot, kv_head);
}
int64_t BackwardReading::dlse(int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? dlse_tensor.at(0, h, a.cu_seqlens_q[b] + i) : dlse_tensor.at(b, h, i);
}

Upstream BackwardReading::upstream() const {
    Upstream up;
    const int64_t rows_of_all = d.batch * d.heads_q * d.seqlen_q;
    up.d_o.assign(size_t(rows_of_all * dim_v), 0);
    up.d_lse.assign(size_t(rows_of_all), 0);
    for (int64_t b = 0; b < d.batch; b++)
        for (int64_t h = 0; h < d.heads_q; h++)
            for (int64_t i = 0; i < rows(b); i++) {
                const int64_t n = (b * d.heads_q + h) * d.seqlen_q + i;
                for (int64_t c = 0; c < dim_v; c++) up.d_o[size_t(n * dim_v + c)] = load(g.dout, dout(b, h, i) + c, q_dtype);
                if (g.dlse) up.d_lse[size_t(n)] = double(g.dlse[dlse(b, h, i)]);
            }
    return up;
}

}  // namespace oracle
