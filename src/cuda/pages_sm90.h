// Keys and values in pages: what the Hopper kernel's loaders do in place of load_blocks.
//
// A block of keys comes in pieces, none of which reaches over a page's end; each lane of a warp looks up the page of one and brings it. A
// page that does not exist removes its keys: they come as NaN, with which their block takes the exact way to weights, and that looks pages
// up again. So the loop over blocks knows nothing of them.
#pragma once
#include "cuda/tiles_sm90.h"

namespace fa {
namespace gpu {

// Where a key lies, by its page, which need not exist, and the row in it.
struct PagePlace {
    int page, row;
    FA_MEMBER bool exists(const HopperParams& a) const { return uint32_t(page) < uint32_t(a.x.p.d.num_pages); }
};
FA_DEVICE PagePlace find_page(const HopperParams& a, const HopperTile& t, int key) {
    const int size = int(a.x.p.d.page_size), column = key / size;
    return {a.x.a.page_table[t.sequence * a.x.p.d.page_table_stride + column], key - column * size};
}

// Before any key is masked: may keys be missing, as their scores tell?
template <int n>
FA_DEVICE bool may_have_holes(const float (&s)[n]) {
    bool nan = false;
    FA_UNROLL for (int i = 0; i < n; i += 8) nan |= s[i] != s[i];
    return nan;
}
// Removes what stands in block n for keys whose page does not exist.
template <int Keys>
FA_DEVICE void remove_holes(const HopperParams& a, const HopperTile& t, int n, float (&s)[Keys / 2]) {
    uint32_t holes = 0;
    FA_UNROLL_BY(1)
    for (int j = 0; j < min(Keys, t.k_len - n * Keys); j += 16)
        holes |= uint32_t(!find_page(a, t, n * Keys + j).exists(a)) << j / 16;
    FA_UNROLL for (int i = 0; i < Keys / 2; i++)
        if (holes >> (i / 8) & 1) s[i] = kNegInf;
}

// Brings the blocks of k or v of all tiles, as a whole warp.
template <class H, Side side, int slots>
FA_DEVICE void load_pages(const HopperParams& a) {
    constexpr bool keys = side == Side::keys;
    constexpr int panels = keys ? H::kQPanels : H::kVPanels;
    typename H::Shared& s = H::shared();
    const auto& full = keys ? s.barrier.k_full : s.barrier.v_full;
    const auto& free = keys ? s.barrier.k_free : s.barrier.v_free;
    const int lane = int(threadIdx.x) % 32, panel = lane % panels, first = lane / panels * a.piece;
    Ring<slots> ring;
    for (Ring<H::kTiles> slot;; slot.next()) {
        const HopperTile& t = s.tile[slot.i];
        rt::barrier_wait(at(t.told), slot.parity);
        if (t.top < 0) return;
        // Nothing is looked up beyond the sequence's end. Of page −1 comes 0.
        const auto find = [&](int key) { return key < t.k_len ? find_page(a, t, key) : PagePlace{-1, 0}; };
        const int blocks = t.top - t.low + 1;
        int n = t.first();
        PagePlace place = find(n * H::keys + first);
        FA_UNROLL_BY(1)
        for (int left = blocks; left > 0; left--) {
            if (keys && a.counter && left == min(blocks, H::kLead) && lane == 0) rt::barrier_arrive(at(s.barrier.nearly_done));
            const int after = t.after(n);
            const PagePlace next = left > 1 ? find(after * H::keys + first) : place;  // asked for a block before it is needed
            rt::barrier_wait(at(free[ring.i]), ring.parity ^ 1);
            const uint32_t barrier = at(full[ring.i]), to = keys ? H::k_tile(ring.i) : H::v_tile(ring.i);
            if (lane == 0) rt::barrier_expect(barrier, panels * H::kPanelBytes);
            const bool hole = keys && n * H::keys + first < t.k_len && !place.exists(a);
            const CUtensorMap* const map = !keys ? &a.v : hole ? &a.holes : &a.k;
            if (first < H::keys)
                rt::copy_box(to + panel * H::kPanelBytes + first * 128, map, barrier, 64 * panel, place.row, t.kv_head, place.page, rt::kEvictLast);
            n = after;
            place = next;
            ring.next();
        }
    }
}

}  // namespace gpu
}  // namespace fa
