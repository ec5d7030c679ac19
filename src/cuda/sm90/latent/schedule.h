// Which items a CTA of the latent kernel takes. Its first is the one of its number; further ones follow as if each were taken by the CTA
// that has the fewest pairs of blocks behind it. Every CTA finds that out for itself, by a warp that is otherwise idle: lengths may lie
// in device memory, nothing has to be counted there, and a captured graph stays valid.
#pragma once
#include "cuda/sm90/latent/params.h"
#include "cuda/sm90/common/pipeline.h"

namespace fa {
namespace gpu {

// known: may memory be read yet?
FA_DEVICE LatentItem find_latent_item(const LatentParams& params, const SequenceTable& sequences, int index, bool known) {
    const LatentCall& call = params.x;
    LatentItem item;
    static_cast<LatentPlace&>(item) = params.place_of(index);
    const int2 rows = params.rows_of(item.tile);
    item.row = rows.x, item.row_end = rows.y;
    const Sequence seq = bounded_sequence(sequences, item.batch);
    const int keys = int(seq.k_len), size = split_size_of(call, keys);
    item.begin = item.split * size;
    item.end = min(item.begin + size, keys);
    if (params.tiles_of_list > 0 && params.rows.list.counts[0] && known)
        item.end = min(item.end, int(list_source(params.rows.list, item.batch, 0, item.tile / params.tiles_of_list, 0).length()));
    item.off = int(clamp(seq.off, -(int64_t(1) << 30), int64_t(1) << 30));
    const int group = int(call.group), last_row = (item.row_end - 1) / group;
    item.diagonal = item.off + item.row / group;
    // Pairs of blocks that no row of the tile sees are left out; a split without any other has one pair, all of it masked.
    const int seen_end = call.causal ? min(item.end, item.off + last_row + 1) : item.end;
    item.pairs = max((seen_end - item.begin + kPairKeys - 1) / kPairKeys, 1);
    if (item.split > 0 && item.begin >= keys) item.pairs = 0;
    if (params.ctas_of_tile > 1) {
        const int most = (item.pairs + 1) / 2, first = min(item.rank * most, item.pairs);
        item.begin += first * kPairKeys;
        item.pairs = min(most, item.pairs - first);
        item.end = min(item.end, item.begin + item.pairs * kPairKeys);
    }
    item.k_begin = int(seq.k_begin);
    item.kv_index = int(seq.kv_index);
    return item;
}

// The scheduler, a warp: publishes one item after the other, and what it knows between two lies in shared memory.
template <class Traits>
class LatentSchedule {
    static constexpr int kBorder = 1;  // what an item's begin and end are worth, in pairs of blocks
    using Shared = typename Traits::Shared;
    const LatentParams& a;
    Shared& s;
    PipelineState<Traits::kItemSlots> slot;

    FA_MEMBER void publish(const LatentItem& item, bool mine) {
        LatentItemSlot& to = s.item[slot.index];
        rt::mbarrier_wait(smem_addr(to.consumed), slot.phase ^ 1);
        if (mine) to.item = item, rt::mbarrier_arrive(smem_addr(to.ready));
        slot.advance();
    }
    FA_MEMBER uint32_t cost_of(int index, LatentItem& item) const {
        item = find_latent_item(a, a.x.sequences, index, true);
        return item.pairs > 0 ? uint32_t(item.pairs + kBorder) << 8 : 0;
    }

  public:
    FA_MEMBER explicit LatentSchedule(const LatentParams& params) : a(params), s(Traits::shared()) {}

    // The first item.
    FA_MEMBER void begin() {
        const int lane = rt::read_laneid();
        LatentItem item;
        FA_UNROLL_BY(1)
        for (int pass = 0; pass < 2; pass++) {  // the first without lengths, to load the code while the kernel before this one ends
            SequenceTable sequences = a.x.sequences;
            if (pass == 0)
                sequences.seqused_k = sequences.cu_seqlens_k = sequences.leftpad_k = sequences.kv_batch_idx = sequences.causal_offset =
                    nullptr;
            else rt::wait_for_predecessor();
            item = find_latent_item(a, sequences, int(blockIdx.x), pass > 0);
            asm volatile("" ::"r"(item.pairs));
        }
        rt::release_successor();  // not before: merge_latent_splits reads lengths before it waits
        publish(item, lane == 0);
        const int ctas = int(gridDim.x);
        LatentSchedulerState& state = s.schedule;
        if (ctas < a.items) {
            FA_UNROLL_BY(1)
            for (int i = 0; i < kMaxLatentCtas / 32; i++) {
                const int cta = 32 * i + lane;
                state.taken[i][lane] = cta < ctas ? cost_of(cta, item) | uint32_t(cta) : ~0u;
            }
        }
        if (lane == 0) state.next = ctas;
        __syncwarp();
    }
    // The next one, or that there is none: false.
    FA_MEMBER bool next() {
        const int lane = rt::read_laneid();
        LatentSchedulerState& state = s.schedule;
        LatentItem item;
        int first = rt::warp_uniform(lane == 0 ? state.next : 0);  // by the lane alone that writes it
        FA_UNROLL_BY(1)
        while (first < a.items) {
            // 32 items, of which those before `first` are done.
            const int group = first - (first - int(gridDim.x)) % 32, index = group + lane;
            const uint32_t cost = index >= first && index < a.items ? cost_of(index, item) : 0;
            FA_UNROLL_BY(1)
            for (int i = first - group; i < 32; i++) {
                const uint32_t more = __shfl_sync(~0u, cost, i);
                if (more == 0) continue;
                uint32_t least = ~0u;
                FA_UNROLL_FOR (int j = 0; j < kMaxLatentCtas / 32; j++) least = min(least, state.taken[j][lane]);
                least = __reduce_min_sync(~0u, least);
                const int cta = int(least & 255);
                if (cta % 32 == lane) state.taken[cta / 32][lane] += more;
                if (cta != int(blockIdx.x)) continue;
                publish(item, lane == i);
                if (lane == 0) state.next = group + i + 1;
                __syncwarp();
                return true;
            }
            first = group + 32;
        }
        item.pairs = kNoItem;
        publish(item, lane == 0);
        return false;
    }
};

}  // namespace gpu
}  // namespace fa
