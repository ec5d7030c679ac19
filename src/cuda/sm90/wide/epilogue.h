// The end of a tile of the kernel of wide heads: LSE and O, normalised, or a split's partial state for merge.h.
#pragma once
#include "cuda/sm90/split_o/epilogue.h"
#include "cuda/sm90/wide/consumer.h"

namespace fa {
namespace gpu {

template <class Consumer>
FA_DEVICE void wide_epilogue(Consumer& wg) {
    using Traits = typename Consumer::Traits;
    const WideParams& params = wg.a;
    const WideCall& call = params.x;
    const auto& shared = wg.s;
    wg.publish_row_sum(wg.w);
    rt::mbarrier_arrive(smem_addr(shared.other_half));
    rt::mbarrier_wait(smem_addr(shared.other_half), 0);
    const int place = wg.row_in_tile(), group = int(call.group);
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int row = wg.row_of_tile(r), head = shared.tile.head0 + (place + 8 * r) % params.head_group;
        const bool there = row < shared.q_len, first = wg.w == 0 && rt::read_laneid() % 4 == 0;
        const float l = shared.exchange.row_sum[0][place + 8 * r] + shared.exchange.row_sum[1][place + 8 * r];
        const RowState part{wg.row_ref[r], l * (Traits::kPUnscale * kHeadroomUnit)};
        const Sequence seq{shared.q_begin, shared.q_len, 0, 0, 0, 0};
        float factor = Traits::kPUnscale * kHeadroomUnit;
        float* wide = nullptr;
        int64_t at = query_index(call.o_strides, seq, shared.tile.batch, row, head);
        if (call.partial_o) {
            const int64_t partial = ((shared.tile.split * call.batch + shared.tile.batch) * call.kv_heads + head / group) * call.rows +
                                    int64_t(row) * group + head % group;
            if (first && there) call.state[partial] = part;
            wide = call.partial_o, at = partial * call.dim_v;
        } else {
            factor *= finalize_row(call, seq, shared.tile.batch, head, min(row, shared.q_len - 1), part, first && there).factor;
            if (call.o_dtype == FA_F32) wide = static_cast<float*>(call.o);
        }
        const int column0 = wg.w * 256;
        store_o_row(wg, r, there, part.l == 0.f, factor, wide, call.o, at + column0, int(call.dim_v) - column0);
    }
}

}  // namespace gpu
}  // namespace fa
