// Merges the splits of the latent kernel that lie in global memory: a block for each row, whose teams of threads take every so many
// splits, a thread four columns. A team loads states and parts of four splits at once, none of which waits for another.
#pragma once
#include "cuda/sm90/latent/params.h"
#include "cuda/sm90/split_o/epilogue.h"

namespace fa {
namespace gpu {

constexpr int kMergeTeam = 512 / 4, kMaxMergeTeams = 8, kMergeAtOnce = 4;
// One where a size of splits promises bits that do not depend on how many there may be.
inline int merge_teams(const SplitParams& split) {
    return split.split_size > 0 ? 1 : int(min_of(ceil_div(split.splits, kMergeAtOnce), kMaxMergeTeams));
}

// A row's state and four columns of its sum.
struct MergedColumns {
    RowState state;
    float sum[4];
    // Several more, of which those whose l is 0 may hold anything.
    template <int n>
    FA_MEMBER void add(const RowState (&states)[n], const float (&parts)[n][4]) {
        float m = state.m;
        FA_UNROLL_FOR (int i = 0; i < n; i++) m = fmaxf(m, states[i].m);
        const float before = state.l == 0.f ? 0.f : rescale(state.m, m);
        state = {m, state.l * before};
        FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] *= before;
        FA_UNROLL_FOR (int i = 0; i < n; i++) {
            const float factor = states[i].l == 0.f ? 0.f : rescale(states[i].m, m);
            state.l += states[i].l * factor;
            FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[e] = factor == 0.f ? sum[e] : fmaf(parts[i][e], factor, sum[e]);
        }
    }
};

FA_KERNEL void FA_BOUNDS((kMergeTeam * kMaxMergeTeams), 1) merge_latent_splits(FA_PARAM LatentCall call) {
    rt::release_successor();
    rt::fetch_parameters(call);
    const int row = int(blockIdx.x) % int(call.rows), batch = int(blockIdx.x) / int(call.rows), group = int(call.group);
    const int team = int(threadIdx.x) / kMergeTeam, teams = int(blockDim.x) / kMergeTeam, thread = int(threadIdx.x) % kMergeTeam;
    const int keys = int(bounded_sequence(call.sequences, batch).k_len), size = split_size_of(call, keys),
              splits = max((keys + size - 1) / size, 1);
    const int64_t all = call.batch * call.rows;
    const RowState* states = call.state + team * all + blockIdx.x;
    const float* parts = call.partial_o + (team * all + blockIdx.x) * 512 + 4 * thread;
    rt::wait_for_predecessor();
    MergedColumns merged{empty_row(), {}};
    FA_UNROLL_BY(1)
    for (int first = team; first < splits; first += teams * kMergeAtOnce) {
        RowState state[kMergeAtOnce];
        float part[kMergeAtOnce][4] = {};
        FA_UNROLL_FOR (int i = 0; i < kMergeAtOnce; i++) {
            state[i] = empty_row();
            if (first + i * teams < splits) state[i] = *states, rt::load4(parts, part[i]);
            states += teams * all, parts += teams * all * 512;
        }
        merged.add(state, part);
    }
    if (teams > 1) {
        __shared__ MergedColumns of_team[kMaxMergeTeams][kMergeTeam];
        of_team[team][thread] = merged;
        __syncthreads();
        if (team > 0) return;
        FA_UNROLL_BY(1)
        for (int i = 1; i < teams; i++) {
            const MergedColumns& other = of_team[i][thread];
            const RowState state[1] = {other.state};
            const float part[1][4] = {{other.sum[0], other.sum[1], other.sum[2], other.sum[3]}};
            merged.add(state, part);
        }
    }
    const Sequence seq{0, call.sequences.q.seqlen, 0, 0, 0, 0};
    const int64_t i = row / group, head = row % group;
    const float factor = finalize_row(call, seq, batch, head, i, merged.state, thread == 0).factor;
    store_four(call.o, call.o_dtype, query_index(call.o_strides, seq, batch, i, head) + 4 * thread, merged.sum, factor);
}

}  // namespace gpu
}  // namespace fa
