// Loads of the latent kernels that find the address of each row of k: keys that lists of slots name, keys in pages of any size, and keys of
// 8 bits. Four warps copy 16 rows of a block each into the panels that the copy engine would fill, swizzled as it does, and zeros for keys
// that are not there.
//
// Copies of 16 bits arrive at the barrier of their group by themselves, so that a warp only ever waits for room. No thread waits for them
// on this side: consumers order them before their products, which read by another proxy.
//
// Rows of 8 bits are copied into the upper half of the place where 16 bits of them belong, and widened there once they have come: a warp
// reads its part of a row before it writes it, so that nobody else waits. Each value is multiplied by its factor and rounded to bf16, which
// is exact where factors are powers of two.
//
// What consumers free comes in groups: of each block of 64 keys its warpgroup's half of v, then the other half with what is no part of v. A
// warp starts the copies of a group as soon as there is room, and, of 8 bits, publishes the oldest group meanwhile; it never waits for room
// while it has copies to publish, which may be what the consumers wait for.
#pragma once
#include "cuda/sm90/latent/producer.h"
#include "cuda/sm90/latent/schedule.h"

namespace fa {
namespace gpu {

template <class Traits>
class LatentRowProducer {
    using Shared = typename Traits::Shared;
    static constexpr bool kBytes = Traits::kBytes;
    static constexpr int kRows = 16, kPanelBytes = Traits::kPanelBytes;  // kRows: of a warp

    const LatentParams& a;
    Shared& s;
    const int warp;
    LatentSchedule<Traits> schedule;         // warp 1's
    PipelineState<Traits::kItemSlots> slot;  // of the item
    int pending = 0, at = 0;                 // groups whose copies are under way; the one that comes next, of the four of a pair of blocks
    // Of the warp's row `lane` mod 16: where it lies, in units of 16 bytes, and of 4; and a bit for each of them.
    uint32_t k_at = 0, tail_at = 0, factor_at = 0, present = 0;

    FA_MEMBER const LatentItem& item() const { return s.item[slot.index].item; }
    FA_MEMBER static int half_of(int group) { return (group >> 1) ^ (group & 1); }
    FA_MEMBER static bool has_tail(int group) { return Traits::kPanels > Traits::kProbPanel ? group & 1 : half_of(group) == 1; }
    // Panels of 8 bits in a half of v.
    FA_MEMBER static int byte_panels(int half) { return min(Traits::kBytePanels - 4 * half, 4); }
    FA_MEMBER static int staged_panel(int half) { return 4 * half + byte_panels(half) - 2; }

    // ---- where rows lie

    FA_MEMBER bool has_list() const { return a.tiles_of_list > 0; }
    FA_MEMBER int key_of(int n, int w) const { return item().begin + (2 * n + 1 - w) * 64 + warp * kRows + rt::read_laneid() % kRows; }
    // What memory says of a lane's key of block w of pair n: an entry or a page, of which nothing is asked yet.
    FA_MEMBER int ask(int n, int w) const {
        const LatentItem& item = this->item();
        const Pages& pages = a.x.pages;
        const int key = key_of(n, w);
        if (key >= item.end) return -1;
        if (has_list()) return list_source(a.rows.list, item.batch, 0, item.tile / a.tiles_of_list, 0).entries[key * a.rows.list.stride[3]];
        return pages.table ? pages.table[item.kv_index * pages.row_stride + (item.k_begin + key) / int(pages.size)] : item.kv_index;
    }
    FA_MEMBER void find(int asked, int n, int w) {
        const LatentRows& rows = a.rows;
        int outer = asked, row;
        bool there = outer >= 0;
        if (has_list()) {
            there = uint32_t(asked) < uint32_t(rows.slots);
            const Quotient page = divide(asked, rows.page_size);
            outer = page.number, row = page.rest;
        } else {
            row = item().k_begin + key_of(n, w);
            if (a.x.pages.table) there = uint32_t(outer) < uint32_t(a.x.pages.count), row %= int(a.x.pages.size);
        }
        const auto offset = [&](const uint32_t (&step)[2]) { return there ? uint32_t(outer) * step[0] + uint32_t(row) * step[1] : 0; };
        k_at = offset(rows.k_step);
        if constexpr (kBytes) tail_at = offset(rows.tail_step), factor_at = offset(rows.factor_step);
        present = __ballot_sync(~0u, there) & 0xffff;
    }
    // Of the warp's row i.
    FA_MEMBER static uint32_t of_row(uint32_t x, int i) { return __shfl_sync(~0u, x, i); }
    FA_MEMBER bool is_present(int i) const { return present >> i & 1; }

    // ---- copies

    // The warp's first row of a panel of block w.
    FA_MEMBER uint32_t panel(int w, int number) const { return Traits::k_tile(w) + number * kPanelBytes + warp * (kRows * 128); }
    FA_MEMBER void copy_half(int w, int half) const {
        const int lane = rt::read_laneid();  // read anew: what follows from it would be kept from call to call
        const uint32_t to = panel(w, 4 * half + lane / 8);
        const char* const from = a.rows.k + 512 * half + 16 * lane;
        FA_UNROLL_BY(8)
        for (int i = 0; i < kRows; i++)
            rt::cp_async16(to + 128 * i + ((lane % 8 ^ i % 8) << 4), from + uint64_t(of_row(k_at, i)) * 16, is_present(i));
    }
    // The last panel of a row as it is.
    FA_MEMBER void copy_tail(int w) const {
        const int lane = rt::read_laneid();
        const uint32_t to = panel(w, Traits::kPanels - 1) + lane / 8 * 128;
        const char* const from = (kBytes ? a.rows.tail : a.rows.k + 128 * Traits::kProbPanel) + 16 * (lane % 8);
        FA_UNROLL_FOR (int four = 0; four < kRows / 4; four++) {
            const int i = 4 * four + lane / 8;
            rt::cp_async16(to + 512 * four + ((lane % 8 ^ i % 8) << 4), from + uint64_t(of_row(kBytes ? tail_at : k_at, i)) * 16,
                           is_present(i));
        }
    }

    // Of 8 bits a lane has 16 values of one of two rows: of eight lanes that access shared memory together four have an even row and four
    // the odd one behind it, to meet no bank twice.
    FA_MEMBER static int sub_row_of(int lane) { return lane / 4 % 2; }
    FA_MEMBER static int unit_of(int lane) { return lane % 4 + lane / 8 * 4; }
    // Rows 2 i and 2 i + 1 follow 256 bytes a step behind.
    FA_MEMBER uint32_t staged(int w, int half, int unit, int sub_row) const {
        return panel(w, staged_panel(half) + unit / 8) + sub_row * 128 + ((unit % 8 ^ sub_row << 2) << 4);
    }
    FA_MEMBER static bool has_bytes(int half, int unit) { return Traits::kBytePanels % 4 == 0 || unit < 4 * byte_panels(half); }
    FA_MEMBER void copy_bytes(int w, int half) const {
        const int lane = rt::read_laneid(), unit = unit_of(lane), sub_row = sub_row_of(lane);
        const int shift = a.rows.factor_shift;
        const char* const from = a.rows.k + 256 * half + 16 * unit;
        const uint32_t to = staged(w, half, unit, sub_row);
        // Words of factors that the half has, the first one's number, and the bytes of the last.
        const int parts = (64 * Traits::kBytePanels + (1 << shift) - 1) >> shift, of_half = 256 >> shift,
                  own = min(parts - half * of_half, of_half);
        const bool packed = a.rows.factor_e8m0;
        const int words = !a.rows.factor ? 0
                          : packed       ? 1
                                         : own,
                  first_word = packed ? half * of_half / 4 : half * of_half, last_bytes = packed ? min(parts - 4 * first_word, 4) : 4;
        const char* const factor = a.rows.factor + 4 * (first_word + unit);
        const uint32_t factor_to = rt::smem_addr(&s.factor[w][warp * kRows + sub_row][4 * half + unit % 4]);
        const int factor_bytes = unit == words - 1 ? last_bytes : 4;
        FA_UNROLL_FOR (int two = 0; two < kRows / 2; two++) {
            const int i = 2 * two + sub_row;
            const uint32_t there = of_row(k_at, i), factor_there = of_row(factor_at, i);
            const bool is = is_present(i);
            if (has_bytes(half, unit)) rt::cp_async16(to + 256 * two, from + uint64_t(there) * 16, is);
            if (unit < words) rt::cp_async_some<4>(factor_to + 64 * two, factor + uint64_t(factor_there) * 4, is ? factor_bytes : 0);
        }
    }
    FA_MEMBER static void widen(uint32_t bytes, float factor, uint32_t& first, uint32_t& second) {
        uint32_t pair[2];
        rt::e4m3_to_f16(bytes, pair[0], pair[1]);
        float x[4];
        FA_UNROLL_FOR (int i = 0; i < 2; i++) rt::f16x2_to_f32(pair[i], x[2 * i], x[2 * i + 1]);
        first = rt::pack_bf16(x[0] * factor, x[1] * factor);
        second = rt::pack_bf16(x[2] * factor, x[3] * factor);
    }
    FA_MEMBER void widen_half(int w, int half) const {
        const int lane = rt::read_laneid(), unit = unit_of(lane), sub_row = sub_row_of(lane);
        constexpr int kAtOnce = 4;  // steps, to hide how long each takes
        const uint32_t from = staged(w, half, unit, sub_row), to = panel(w, 4 * half + unit / 4) + sub_row * 128;
        const uint32_t column = (unit % 4 * 2 ^ sub_row) << 4;
        const int part = 16 * unit >> a.rows.factor_shift;  // of the half
        const bool packed = a.rows.factor_e8m0;
        const uint32_t factor_from = rt::smem_addr(&s.factor[w][warp * kRows + sub_row][4 * half + (packed ? 0 : part)]);
        const int factor_bit = 8 * (part + (a.rows.factor_shift == 7 ? 2 * half : 0));
        FA_UNROLL_FOR (int first = 0; first < kRows / 2; first += kAtOnce) {
            uint4 bytes[kAtOnce];
            float factor[kAtOnce];
            FA_UNROLL_FOR (int j = 0; j < kAtOnce; j++)
                bytes[j] = rt::ld_shared_v4(from + 256 * (first + j)), factor[j] = rt::ld_shared(factor_from + 64 * (first + j));
            __syncwarp();
            if (packed)
                FA_UNROLL_FOR (int j = 0; j < kAtOnce; j++) factor[j] = e8m0_to_f32(uint8_t(bits_of(factor[j]) >> factor_bit));
            FA_UNROLL_FOR (int j = 0; j < kAtOnce; j++) {
                const int two = first + j;
                uint32_t pair[8];
                widen(bytes[j].x, factor[j], pair[0], pair[1]);
                widen(bytes[j].y, factor[j], pair[2], pair[3]);
                widen(bytes[j].z, factor[j], pair[4], pair[5]);
                widen(bytes[j].w, factor[j], pair[6], pair[7]);
                const uint32_t at = to + (column ^ (2 * two % 8) << 4);
                if (has_bytes(half, unit)) {
                    rt::st_shared_v4(at + 256 * two, pair[0], pair[1], pair[2], pair[3]);
                    rt::st_shared_v4((at ^ 16) + 256 * two, pair[4], pair[5], pair[6], pair[7]);
                }
            }
        }
    }

    // ---- groups

    FA_MEMBER void issue() {
        const int w = at >> 1, half = half_of(at);
        if constexpr (kBytes) copy_bytes(w, half);
        else copy_half(w, half);
        if ((kBytes || Traits::kPanels > Traits::kProbPanel) && has_tail(at)) copy_tail(w);
        if constexpr (kBytes) {
            rt::cp_async_commit();
            pending++;
        } else {
            const uint32_t full = rt::smem_addr(&s.k_full[w][4 * half]);
            if (rt::read_laneid() == 0) rt::mbarrier_arrive(full);
            rt::cp_async_mbarrier_arrive(full);
        }
        at = (at + 1) & 3;
    }
    FA_MEMBER void publish() {
        switch (pending) {
            case 1: rt::cp_async_wait<0>(); break;
            case 2: rt::cp_async_wait<1>(); break;
            case 3: rt::cp_async_wait<2>(); break;
            default: rt::cp_async_wait<3>();
        }
        const int group = (at - pending) & 3, w = group >> 1, half = half_of(group);
        __syncwarp();  // a lane's bytes are of its own copies, but its factor may be another's
        widen_half(w, half);
        rt::fence_proxy_async_shared();
        rt::mbarrier_arrive(rt::smem_addr(&s.k_full[w][4 * half]));
        pending--;
    }
    // Publishes what is under way until the barrier's phase is complete, or, without one, all of it.
    FA_MEMBER void await(bool has_barrier, uint32_t barrier, uint32_t phase) {
        if constexpr (kBytes) {
            FA_UNROLL_BY(1)
            while (pending > 0 && !(has_barrier && __all_sync(~0u, rt::mbarrier_test(barrier, phase)))) publish();
        }
        if (has_barrier) rt::mbarrier_wait(barrier, phase);
    }

  public:
    FA_MEMBER LatentRowProducer(const LatentParams& params, int own) : a(params), s(Traits::shared()), warp(own), schedule(params) {}

    // One wait for all that may be waited for, and so one copy of the code that publishes.
    FA_MEMBER void run() {
        enum { next_item, new_item, next_group, next_q, ends } then = warp == 1 ? next_item : new_item;
        uint32_t phase = 0, q_phase = 0;  // q_phase: of the next q's place
        int n = 0;                        // the pair of blocks
        bool q_loaded = true;             // of the item
        int asked = 0, next[2] = {};      // of the block at hand, and of those of the next pair
        if constexpr (kBytes) {
            if (!a.rows.factor)
                for (int i = warp * 32 + rt::read_laneid(); i < int(sizeof s.factor / 4); i += 128) s.factor[0][0][i] = bits_of(1.f);
        }
        if (warp == 1) schedule.begin();
        rt::wait_for_predecessor();
        if (warp == 0 && rt::read_laneid() == 0)
            load_latent_q<Traits>(a, a.place_of(int(blockIdx.x)));  // while the scheduler reads lengths
        FA_UNROLL_BY(1)
        while (true) {
            const int w = at >> 1;
            await(then != ends && then != next_item,
                  smem_addr(then == new_item ? s.item[slot.index].ready
                            : then == next_q ? s.q_empty
                                             : s.k_empty[w][half_of(at)]),
                  then == new_item ? slot.phase
                  : then == next_q ? q_phase
                                   : phase ^ 1);
            if (then == ends) return;
            if (then == next_item) {  // warp 1 finds the item behind the one that it is about to load
                schedule.next();
                then = new_item;
                continue;
            }
            if (then == new_item) {
                const int pairs = rt::warp_uniform(item().pairs);
                n = pairs - 1;
                if (pairs > 0)
                    FA_UNROLL_FOR (int i = 0; i < 2; i++) next[i] = ask(n, i);
                if (pairs == kNoItem) then = ends;
                else if (pairs > 0) then = next_group;
                else q_loaded = false, then = leave_item() ? next_item : new_item;
                continue;
            }
            if (then == next_q) {
                if (rt::read_laneid() == 0) load_latent_q<Traits>(a, item());
                q_loaded = true, q_phase ^= 1;
                then = next_group;
                continue;
            }
            if (at % 2 == 0) {
                asked = w ? next[1] : next[0];
                if (n > 0) (w ? next[1] : next[0]) = ask(n - 1, w);
            }
            find(asked, n, w);  // twice, so that nothing of it is kept while a group is published
            if (at % 2 == 0 && rt::read_laneid() == 0)
                reinterpret_cast<uint16_t*>(&s.present[w])[warp] = uint16_t(present);  // read behind k_full
            issue();
            if (!q_loaded && warp == 0) then = next_q;  // behind an item's first keys
            if (at > 0) continue;
            phase ^= 1;
            if (--n >= 0) continue;
            q_loaded = false;
            then = leave_item() ? next_item : new_item;
        }
    }

  private:
    // Is the warp the one that schedules?
    FA_MEMBER bool leave_item() {
        __syncwarp();
        if (rt::read_laneid() == 0) rt::mbarrier_arrive(smem_addr(s.item[slot.index].consumed));
        slot.advance();
        return warp == 1;
    }
};

}  // namespace gpu
}  // namespace fa
