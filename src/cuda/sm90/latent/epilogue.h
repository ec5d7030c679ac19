// The end of a tile of the latent kernel: LSE and O, normalised, or a split's partial state for merge.h.
#pragma once
#include "cuda/sm90/latent/consumer.h"
#include "cuda/sm90/split_o/epilogue.h"

namespace fa {
namespace gpu {

template <class Traits>
FA_DEVICE void latent_epilogue(LatentConsumer<Traits>& wg, int warpgroup) {
    const LatentParams& params = wg.a;
    const LatentCall& call = params.x;
    const LatentItem& item = wg.item;
    const int c = rt::read_laneid() % 4, place = wg.row_in_tile(), split = item.split;
    const int64_t batch = item.batch;
    __syncwarp();
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int row = item.row + place + 8 * r;
        const bool there = row < item.row_end, first = warpgroup == 0 && c == 0;
        const RowState part{wg.row_ref[r], wg.s.exchange.row_sum[1][place + 8 * r] * (Traits::kPUnscale * kHeadroomUnit)};
        const int64_t i = min(row, item.row_end - 1) / int(call.group), head = min(row, item.row_end - 1) % int(call.group);
        const Sequence seq{0, call.sequences.q.seqlen, 0, 0, 0, 0};
        float factor = Traits::kPUnscale * kHeadroomUnit;
        float* wide = nullptr;
        int64_t at = query_index(call.o_strides, seq, batch, i, head);
        if (call.partial_o) {
            const int64_t partial = (split * call.batch + batch) * call.rows + row;
            if (first && there) call.state[partial] = part;
            wide = call.partial_o, at = partial * Traits::kHeadDimV;
        } else {
            factor *= finalize_row(call, seq, batch, head, i, part, first && there).factor;
            if (call.o_dtype == FA_F32) wide = static_cast<float*>(call.o);
        }
        const bool empty = part.l == 0.f;
        at += warpgroup * (Traits::kHeadDimV / 2);
        store_o_row(wg, r, there, empty, factor, wide, call.o, at, Traits::kHeadDimV / 2);
    }
}

}  // namespace gpu
}  // namespace fa
