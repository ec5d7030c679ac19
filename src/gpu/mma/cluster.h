// Splits whose blocks form a cluster, on Hopper: they merge through each other's shared memory.
#pragma once
#include "gpu/mma/output.h"

namespace fa {
namespace gpu {

template <class M>
struct ClusterMerge {
    static constexpr int kAcross = M::columns / 4;
    // For a block without keys in a cluster of splits.
    FA_MEMBER static void stage_empty() {
        for (int r = rt::thread(); r < M::rows; r += M::threads) M::shared().state[0][r] = empty_row();
    }
    // Sums and states over all key warps, to be read by the cluster.
    FA_MEMBER static void stage_merged() {
        typename M::Shared& shared = M::shared();
        for (int r = rt::thread(); r < shared.tile.valid; r += M::threads) shared.state[0][r] = M::merge_warps(r);
        rt::barrier();
        for (int i = rt::thread(); i < shared.tile.valid * kAcross; i += M::threads) {
            float sum[4];
            M::merge_key_warps(i / kAcross, i % kAcross * 4, sum);
            rt::store4(M::output_at(0, i / kAcross, i % kAcross * 4), sum);
        }
    }
    // Each block of a cluster of splits merges some of its rows' columns: a team of 16 lanes for four columns, a lane for each
    // split.
    FA_MEMBER static void merge(const MmaForwardParams& params, int rank) {
        rt::cluster_sync();
        const typename M::Shared& shared = M::shared();
        const typename M::Tile& tile = shared.tile;
        constexpr int teams = M::threads / kMaxClusterSplits;
        const int lane = rt::thread() % kMaxClusterSplits, splits = int(params.splits), items = tile.valid * kAcross,
                  group = int(params.group);
        for (int first = rank * teams; first < items; first += splits * teams) {
            const int item = first + rt::thread() / kMaxClusterSplits, i = min_of(item, items - 1), r = i / kAcross,
                      column = i % kAcross * 4;
            RowState state = empty_row();
            float sum[4] = {};
            if (lane < splits) rt::ld_cluster2(&shared.state[0][r].m, lane, &state.m, &state.l);
            if (state.l != 0.f) rt::ld_cluster4(M::output_at(0, r, column), lane, sum);
            float m = state.m;
            FA_UNROLL_FOR (int mask = 1; mask < kMaxClusterSplits; mask *= 2) m = max_fn(m, rt::shuffle_xor16(m, mask));
            const float factor = state.l == 0.f ? 0.f : rescale(state.m, m);
            state = {m, state.l * factor};
            FA_UNROLL_FOR (int mask = 1; mask < kMaxClusterSplits; mask *= 2) state.l += rt::shuffle_xor16(state.l, mask);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) {
                sum[e] *= factor;
                FA_UNROLL_FOR (int mask = 1; mask < kMaxClusterSplits; mask *= 2) sum[e] += rt::shuffle_xor16(sum[e], mask);
            }
            const int row = (tile.first + r) / group, head = int(tile.kv_head) * group + (tile.first + r) % group;
            const bool writes = lane == 0 && item < items;
            const RowOutput output = finalize_row(params, tile.seq, tile.batch, head, row, state, writes && column == 0);
            if (!writes || column >= params.dim_v) continue;
            const int64_t at = query_index(params.o_strides, tile.seq, tile.batch, row, head) + column;
            if (params.o_plain) {
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] = normalized(sum[e], output.factor);
                M::Policy::store4(static_cast<typename M::Element*>(params.o) + at, sum);
            } else {
                for (int e = 0; e < 4 && column + e < params.dim_v; e++) store_output(params, at + e, sum[e], output.factor);
            }
        }
        rt::cluster_sync();  // others may still read here
    }
};

}  // namespace gpu
}  // namespace fa
