// Which items a CTA of the latent kernel takes. Its first is the one of its number; further ones follow as if each were taken by the CTA
// that has the fewest pairs of blocks behind it. Every CTA finds that out for itself, by a warp that is otherwise idle: lengths may lie
// in device memory, nothing has to be counted there, and a captured graph stays valid.
#pragma once
#include "cuda/sm90/mla_params.h"
#include "cuda/sm90/pipeline.h"

namespace fa {
namespace gpu {

FA_DEVICE LatentItem find_latent_item(const LatentParams& a, const SequenceTable& sequences, int index) {
    const LatentCall& x = a.x;
    LatentItem t;
    static_cast<LatentPlace&>(t) = a.place_of(index);
    const Sequence seq = bounded_sequence(sequences, t.batch);
    const int keys = int(seq.k_len), size = split_size_of(x, keys);
    t.begin = t.split * size;
    t.end = min(t.begin + size, keys);
    t.off = int(clamp(seq.off, -(int64_t(1) << 30), int64_t(1) << 30));
    const int group = int(x.group), last_row = min(64 * t.tile + 63, int(x.rows) - 1) / group;
    t.diagonal = t.off + 64 * t.tile / group;
    // Pairs of blocks that no row of the tile sees are left out; a split without any other has one pair, all of it masked.
    const int seen_end = x.causal ? min(t.end, t.off + last_row + 1) : t.end;
    t.pairs = max((seen_end - t.begin + kPairKeys - 1) / kPairKeys, 1);
    if (t.split > 0 && t.begin >= keys) t.pairs = 0;
    if (a.ctas_of_tile > 1) {
        const int most = (t.pairs + 1) / 2, first = min(t.rank * most, t.pairs);
        t.begin += first * kPairKeys;
        t.pairs = min(most, t.pairs - first);
        t.end = min(t.end, t.begin + t.pairs * kPairKeys);
    }
    t.k_begin = int(seq.k_begin);
    t.kv_index = int(seq.kv_index);
    return t;
}

// The scheduler, a warp.
template <class Traits>
FA_DEVICE void schedule_latent_items(const LatentParams& a) {
    constexpr int kBorder = 1;  // what an item's begin and end are worth, in pairs of blocks
    typename Traits::Shared& s = Traits::shared();
    const int lane = int(threadIdx.x) % 32, ctas = int(gridDim.x);
    PipelineState<2> slot;
    const auto publish = [&](const LatentItem& t, bool mine) {
        LatentItemSlot& to = s.item[slot.index];
        rt::mbarrier_wait(smem_addr(to.consumed), slot.phase ^ 1);
        if (mine) to.item = t, rt::mbarrier_arrive(smem_addr(to.ready));
        slot.advance();
    };
    LatentItem t;
    FA_UNROLL_BY(1)
    for (int pass = 0; pass < 2; pass++) {  // the first without lengths, to load the code while the kernel before this one ends
        SequenceTable sequences = a.x.sequences;
        if (pass == 0) sequences.seqused_k = sequences.cu_seqlens_k = sequences.leftpad_k = sequences.kv_batch_idx = sequences.causal_offset = nullptr;
        else rt::wait_for_predecessor();
        t = find_latent_item(a, sequences, int(blockIdx.x));
        asm volatile("" ::"r"(t.pairs));
    }
    rt::release_successor();  // not before: merge_latent_splits reads lengths before it waits
    publish(t, lane == 0);
    if (ctas < a.items) {
        const auto cost_of = [&](int index) {
            t = find_latent_item(a, a.x.sequences, index);
            return t.pairs > 0 ? uint32_t(t.pairs + kBorder) << 8 : 0;
        };
        uint32_t taken[kMaxLatentCtas / 32];  // pairs that a CTA has taken, and in the lowest byte its number
        FA_UNROLL for (int i = 0; i < kMaxLatentCtas / 32; i++) {
            const int cta = 32 * i + lane;
            taken[i] = ~0u;
            if (cta < ctas) taken[i] = cost_of(cta) | uint32_t(cta);
        }
        FA_UNROLL_BY(1)
        for (int first = ctas; first < a.items; first += 32) {
            const uint32_t cost = first + lane < a.items ? cost_of(first + lane) : 0;
            FA_UNROLL_BY(1)
            for (int i = 0; i < 32; i++) {
                const uint32_t more = __shfl_sync(~0u, cost, i);
                if (more == 0) continue;
                uint32_t least = ~0u;
                FA_UNROLL for (int j = 0; j < kMaxLatentCtas / 32; j++) least = min(least, taken[j]);
                least = __reduce_min_sync(~0u, least);
                FA_UNROLL for (int j = 0; j < kMaxLatentCtas / 32; j++) if (taken[j] == least) taken[j] += more;
                if (int(least & 255) == int(blockIdx.x)) publish(t, lane == i);
            }
        }
    }
    t.pairs = kNoItem;
    publish(t, lane == 0);
}

}  // namespace gpu
}  // namespace fa
