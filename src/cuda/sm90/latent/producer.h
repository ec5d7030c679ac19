// Loads of the latent kernel, all by one thread of a warp whose others keep up: q of an item, and pairs of blocks of keys from right to
// left, panel by panel in the order in which the consumers free them. The first blocks of an item come while the one before it ends.
#pragma once
#include <limits.h>
#include "cuda/sm90/latent/params.h"
#include "cuda/sm90/common/pipeline.h"

namespace fa {
namespace gpu {

// An item's blocks of 64 keys, from right to left, each of which lies in one page where there are pages. A page is asked for by ask(), a
// pair ahead, and only found() waits for what the table says; no block costs a division. Both stood between an empty buffer and its loads.
class LatentBlocks {
  public:
    struct Block {
        int outer, row, keys;  // keys: that there are before the item's end
    };
    FA_MEMBER LatentBlocks(const Pages& pages, const LatentItem& item)
        : table_(pages.table ? pages.table + item.kv_index * pages.row_stride : nullptr),
          size_(pages.table ? int(pages.size) : INT_MAX),
          count_(int(pages.count)),
          left_(item.end - (item.begin + item.pairs * kPairKeys - 64)),
          kv_index_(item.kv_index),
          hidden_zero_(rt::opaque(0)) {
        const int key = item.begin + item.pairs * kPairKeys - 64;
        column_ = key / size_;
        row_ = key - column_ * size_ + (table_ ? 0 : item.k_begin);
    }
    FA_MEMBER Block ask() {
        Block block{table_ ? -1 : kv_index_, row_, min(max(left_, 0), 64)};
        if (table_ && left_ > 0) block.outer = table_[column_ + hidden_zero_];
        left_ += 64;
        row_ -= 64;
        if (table_ && row_ < 0) row_ += size_, column_--;
        return block;
    }
    // A page that does not exist holds no keys, and comes as zeros. The whole warp asks, so that page and row are known to be uniform: they
    // go to uniform registers once, not for every panel.
    FA_MEMBER Block found(Block block) const {
        if (table_ && uint32_t(block.outer) >= uint32_t(count_)) block.outer = -1, block.keys = 0;
        block.outer = rt::warp_uniform(block.outer), block.row = rt::warp_uniform(block.row);
        return block;
    }

  private:
    const int32_t* table_;
    int size_, count_, left_, kv_index_, column_, row_;
    const int hidden_zero_;  // a page from an address known to be uniform would be moved to a uniform register, and waited for, at once
};

// One thread's, once there is room.
template <class Traits>
FA_DEVICE void load_latent_q(const LatentParams& params, const LatentPlace& place) {
    const uint32_t full = smem_addr(Traits::shared().q_full);
    const int row = params.rows_of(place.tile).x;
    rt::mbarrier_expect_tx(full, Traits::kPanels * Traits::kPanelBytes);
    for (int i = 0; i < Traits::kPanels; i++)
        rt::tma_load(Traits::q_tile() + i * Traits::kPanelBytes, &params.q, full, 64 * i, row, 0, place.batch, rt::kEvictFirst);
}

template <class Traits>
FA_DEVICE void latent_producer(const LatentParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    const bool loads = rt::read_laneid() == 0;
    uint32_t phase = 0, q_phase = 0;
    const auto load_q = [&](const LatentPlace& place) {
        rt::mbarrier_wait(smem_addr(shared.q_empty), q_phase ^ 1);
        q_phase ^= 1;
        if (loads) load_latent_q<Traits>(params, place);
    };
    rt::wait_for_predecessor();
    load_q(params.place_of(int(blockIdx.x)));  // while the scheduler reads lengths
    bool loaded = true;
    FA_UNROLL_BY(1)
    for (PipelineState<2> slot;; slot.advance()) {
        rt::mbarrier_wait(smem_addr(shared.item[slot.index].ready), slot.phase);
        const LatentItem item = shared.item[slot.index].item;
        const int pairs = rt::warp_uniform(item.pairs);
        if (pairs == kNoItem) return;
        __syncwarp();
        if (loads) rt::mbarrier_arrive(smem_addr(shared.item[slot.index].consumed));
        LatentBlocks blocks(params.x.pages, item);
        LatentBlocks::Block next[2];
        FA_UNROLL_FOR (int w = 0; w < 2; w++) next[w] = blocks.ask();
        FA_UNROLL_BY(1)
        for (int n = pairs - 1; n >= 0; n--) {
            LatentBlocks::Block block[2];
            FA_UNROLL_FOR (int w = 0; w < 2; w++) block[w] = blocks.found(next[w]);
            if (n > 0)
                FA_UNROLL_FOR (int w = 0; w < 2; w++) next[w] = blocks.ask();
            FA_UNROLL_FOR (int w = 0; w < 2; w++) {
                const auto load = [&](int panel) {
                    const uint32_t barrier = smem_addr(shared.k_full[w][panel]);
                    rt::mbarrier_expect_tx(barrier, Traits::kPanelBytes);
                    rt::tma_load(Traits::k_tile(w) + panel * Traits::kPanelBytes, &params.k, barrier, 64 * panel, block[w].row, 0,
                                 block[w].outer, rt::kEvictFirst);
                };
                rt::mbarrier_wait(smem_addr(shared.k_empty[w][w]), phase ^ 1);
                if (loads) {
                    shared.keys[w] = block[w].keys;  // read behind k_full
                    for (int i = 0; i < 4; i++) load(4 * w + i);
                }
                if (w == 0 && !loaded) load_q(item), loaded = true;
                rt::mbarrier_wait(smem_addr(shared.k_empty[w][1 - w]), phase ^ 1);
                if (loads) {
                    for (int i = 0; i < 4; i++) load(4 - 4 * w + i);
                    if (Traits::kPanels > Traits::kProbPanel) load(Traits::kProbPanel);
                }
            }
            phase ^= 1;
        }
        loaded = false;
    }
}

}  // namespace gpu
}  // namespace fa
