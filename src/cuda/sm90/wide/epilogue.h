// The end of a tile of the kernel of wide heads: LSE and O, normalised, or a split's partial state for merge.h.
#pragma once
#include "cuda/sm90/split_o/epilogue.h"
#include "cuda/sm90/wide/consumer.h"

namespace fa {
namespace gpu {

template <class Consumer>
FA_DEVICE void wide_epilogue(Consumer& wg) {
    using Traits = typename Consumer::Traits;
    const WideParams& a = wg.a;
    const WideCall& x = a.x;
    const auto& s = wg.s;
    wg.publish_row_sum(wg.w);
    rt::mbarrier_arrive(smem_addr(s.other_half));
    rt::mbarrier_wait(smem_addr(s.other_half), 0);
    const int place = wg.row_in_tile(), group = int(x.group);
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int row = wg.row_of_tile(r), head = s.tile.head0 + (place + 8 * r) % a.head_group;
        const bool there = row < s.q_len, first = wg.w == 0 && rt::read_laneid() % 4 == 0;
        const float l = s.exchange.row_sum[0][place + 8 * r] + s.exchange.row_sum[1][place + 8 * r];
        const RowState part{wg.row_ref[r], l * (Traits::kPUnscale * kHeadroomUnit)};
        const Sequence seq{s.q_begin, s.q_len, 0, 0, 0, 0};
        float factor = Traits::kPUnscale * kHeadroomUnit;
        float* wide = nullptr;
        int64_t at = query_index(x.o_strides, seq, s.tile.batch, row, head);
        if (x.partial_o) {
            const int64_t partial =
                ((s.tile.split * x.batch + s.tile.batch) * x.kv_heads + head / group) * x.rows + int64_t(row) * group + head % group;
            if (first && there) x.state[partial] = part;
            wide = x.partial_o, at = partial * x.dim_v;
        } else {
            factor *= finalize_row(x, seq, s.tile.batch, head, min(row, s.q_len - 1), part, first && there).factor;
            if (x.o_dtype == FA_F32) wide = static_cast<float*>(x.o);
        }
        const int column0 = wg.w * 256;
        store_o_row(wg, r, there, part.l == 0.f, factor, wide, x.o, at + column0, int(x.dim_v) - column0);
    }
}

}  // namespace gpu
}  // namespace fa
