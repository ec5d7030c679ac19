// The end of a tile of the latent kernel whose keys a pair of CTAs share, where tiles alone leave half of the multiprocessors idle: each
// leaves its part of O and the states of its rows in its shared memory, and merges half of the rows. Nothing else is launched, and no
// part goes to global memory. More CTAs to a tile gain nothing: each row then comes from more of them, and most begin later.
#pragma once
#include "cuda/sm90/latent/consumer.h"
#include "cuda/sm90/split_o/epilogue.h"

namespace fa {
namespace gpu {

// Floats from one row to the next: rows begin in different banks.
constexpr int kPartStride = 512 + 8;
FA_DEVICE float* latent_part(int row, int column) { return reinterpret_cast<float*>(rt::shared_memory()) + row * kPartStride + column; }

// What a warp reads of a row before it merges it: both parts, four columns a lane of every 128, and both states. An access to the other
// multiprocessor takes as long as a step of the softmax, so that a row is read while the one before is merged.
struct LatentRowParts {
    float part[2][4][4];
    RowState state[2];
    FA_MEMBER void read(const RowState* states, int place) {
        const int lane = rt::read_laneid();
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            FA_UNROLL_FOR (int i = 0; i < 4; i++) rt::ld_cluster4(latent_part(place, 128 * i + 4 * lane), r, part[r][i]);
            rt::ld_cluster2(&states[place].m, r, &state[r].m, &state[r].l);
        }
    }
};

template <class Traits>
FA_DEVICE void merge_latent_row(const LatentCall& call, const LatentItem& item, int place, const LatentRowParts& from) {
    const int lane = rt::read_laneid(), row = item.row + place;
    const Merged merged = merge(from.state[0], from.state[1]);
    const int64_t i = row / int(call.group), head = row % int(call.group);
    const Sequence seq{0, call.sequences.q.seqlen, 0, 0, 0, 0};
    const float factor = finalize_row(call, seq, item.batch, head, i, merged.state, lane == 0).factor * (Traits::kPUnscale * kHeadroomUnit);
    const int64_t at = query_index(call.o_strides, seq, item.batch, i, head) + 4 * lane;
    FA_UNROLL_FOR (int j = 0; j < 4; j++) {
        float sum[4];
        FA_UNROLL_FOR (int e = 0; e < 4; e++) {  // where a factor is 0, v may be anything
            sum[e] = merged.scale_a == 0.f ? 0.f : from.part[0][j][e] * merged.scale_a;
            sum[e] = merged.scale_b == 0.f ? sum[e] : fmaf(from.part[1][j][e], merged.scale_b, sum[e]);
        }
        store_four(call.o, call.o_dtype, at + 128 * j, sum, factor);
    }
}

// empty: the CTA had no keys.
template <class Traits>
FA_DEVICE void merge_latent_pair(LatentConsumer<Traits>& wg, int warpgroup, bool empty) {
    constexpr int kBarrier = 3, kWarps = 8;
    const LatentCall& call = wg.a.x;
    const LatentItem& item = wg.item;
    const int c = rt::read_laneid() % 4, place = wg.row_in_tile(), rows = item.row_end - item.row;
    rt::named_barrier_sync(kBarrier, 32 * kWarps);  // q and keys have been used
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        float* const to = latent_part(place + 8 * r, warpgroup * (Traits::kHeadDimV / 2) + 2 * c);
        FA_UNROLL_FOR (int j = 0; j < 32; j++)
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(wg.acc_o[4 * j + 2 * r], wg.acc_o[4 * j + 2 * r + 1]);
        if (warpgroup == 1 && c == 0) {
            const float l = wg.s.exchange.row_sum[1][place + 8 * r] * (Traits::kPUnscale * kHeadroomUnit);
            wg.s.part[place + 8 * r] = empty ? empty_row() : RowState{wg.row_ref[r], l};
        }
    }
    rt::cluster_sync();
    LatentRowParts now, next;
    int row = item.rank * kWarps + warpgroup * 4 + wg.warp;
    if (row < rows) now.read(wg.s.part, row);
    FA_UNROLL_BY(1)
    while (row < rows) {
        const int after = row + 2 * kWarps;
        if (after < rows) next.read(wg.s.part, after);
        merge_latent_row<Traits>(call, item, row, now);
        row = after, now = next;
    }
    rt::cluster_sync();  // the other may still read here
}

}  // namespace gpu
}  // namespace fa
