// The end of a split of the latent kernel that the CTAs of a cluster share, where rows alone leave multiprocessors idle: each leaves its
// part of O and the states of its rows in its shared memory, and merges every so many rows of all parts, in the order of keys. What
// comes of it is an item's end as in mla_epilogue.h: nothing else is launched, and no part goes to global memory.
#pragma once
#include "cuda/sm90/mla_consumer.h"
#include "cuda/sm90/split_o_epilogue.h"

namespace fa {
namespace gpu {

// Floats from one row to the next: rows begin in different banks.
constexpr int kPartStride = 512 + 8;
FA_DEVICE float* latent_part(int row, int column) {
    return reinterpret_cast<float*>(rt::shared_memory()) + row * kPartStride + column;
}

// A row of all parts, by a warp: four columns a lane of every 128. Two parts are read at once, the first of them before the states, as
// each access to another multiprocessor takes as long as a step of the softmax.
template <class Traits>
FA_DEVICE void merge_latent_row(const LatentParams& a, const LatentItem& t, int place) {
    const LatentCall& x = a.x;
    typename Traits::Shared& s = Traits::shared();
    const int lane = rt::read_laneid(), row = t.tile * 64 + place;
    float from[2][4][4];
    const auto read = [&](int rank) {
        FA_UNROLL for (int r = 0; r < 2; r++)
            FA_UNROLL for (int i = 0; i < 4; i++) rt::ld_cluster4(latent_part(place, 128 * i + 4 * lane), rank + r, from[r][i]);
    };
    read(0);
    RowState part = empty_row();
    if (lane < a.cluster) rt::ld_cluster2(&s.part[place].m, lane, &part.m, &part.l);
    RowState all = part;
    FA_UNROLL for (int mask = 1; mask < 32; mask *= 2) all.m = fmaxf(all.m, __shfl_xor_sync(~0u, all.m, mask));
    const float own = part.l == 0.f ? 0.f : rescale(part.m, all.m);
    all.l = part.l * own;
    FA_UNROLL for (int mask = 1; mask < 32; mask *= 2) all.l += __shfl_xor_sync(~0u, all.l, mask);
    float sum[4][4] = {};
    FA_UNROLL_BY(1)
    for (int rank = 0; rank < a.cluster; rank += 2) {
        if (rank > 0) read(rank);
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const float factor = __shfl_sync(~0u, own, rank + r);
            FA_UNROLL for (int i = 0; i < 16; i++)  // where it is 0, v may be anything
                sum[i / 4][i % 4] = factor == 0.f ? sum[i / 4][i % 4] : fmaf(from[r][i / 4][i % 4], factor, sum[i / 4][i % 4]);
        }
    }
    const int64_t i = row / int(x.group), head = row % int(x.group);
    const Sequence seq{0, x.sequences.q.seqlen, 0, 0, 0, 0};
    float factor = Traits::kPUnscale * kHeadroomUnit;
    void* o = x.o;
    int32_t dtype = x.o_dtype;
    int64_t at = query_index(x.o_strides, seq, t.batch, i, head);
    if (x.partial_o) {
        const int64_t partial = (int64_t(t.split) * x.batch + t.batch) * x.rows + row;
        if (lane == 0) x.state[partial] = all;
        o = x.partial_o, dtype = FA_F32, at = partial * Traits::kHeadDimV;
    } else {
        factor *= finalize_row(x, seq, t.batch, head, i, all, lane == 0).factor;
    }
    FA_UNROLL for (int j = 0; j < 4; j++) store_four(o, dtype, at + 128 * j + 4 * lane, sum[j], factor);
}

template <class Traits>
FA_DEVICE void merge_latent_cluster(LatentConsumer<Traits>& wg, int warpgroup, bool empty) {
    constexpr int kBarrier = 3, kWarps = 8;
    const LatentParams& a = wg.a;
    const LatentItem& t = wg.item;
    const int c = rt::read_laneid() % 4, place = wg.row_in_tile(), rows = min(int(a.x.rows) - t.tile * 64, 64);
    rt::named_barrier_sync(kBarrier, 32 * kWarps);  // q and keys have been used
    FA_UNROLL for (int r = 0; r < 2; r++) {
        float* const to = latent_part(place + 8 * r, warpgroup * (Traits::kHeadDimV / 2) + 2 * c);
        FA_UNROLL for (int j = 0; j < 32; j++)
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(wg.acc_o[4 * j + 2 * r], wg.acc_o[4 * j + 2 * r + 1]);
        if (warpgroup == 1 && c == 0)
            wg.s.part[place + 8 * r] =
                empty ? empty_row()
                      : RowState{wg.row_ref[r], wg.s.exchange.row_sum[1][place + 8 * r] * (Traits::kPUnscale * kHeadroomUnit)};
    }
    rt::cluster_sync();
    FA_UNROLL_BY(1)
    for (int row = t.rank * kWarps + warpgroup * 4 + wg.warp; row < rows; row += a.cluster * kWarps) merge_latent_row<Traits>(a, t, row);
    rt::cluster_sync();  // others may still read here
}

}  // namespace gpu
}  // namespace fa
