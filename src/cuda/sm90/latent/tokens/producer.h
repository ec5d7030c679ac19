// Loads of the latent kernel of tokens, by four warps: each finds where 16 of a tile's 64 keys lie and copies them as they are, by one bulk
// copy where they follow each other, else by `cp.async`, 16 bytes a lane, and zeros for keys that are not there. One of them also
// schedules, once the keys of an item are under way.
#pragma once
#include "cuda/sm90/latent/schedule.h"
#include "cuda/sm90/latent/tokens/params.h"

namespace fa {
namespace gpu {

template <class Traits>
class TokenProducer {
    using Form = typename Traits::Form;
    static constexpr int kRows = Traits::kLoadRows, kPitch = Form::kPitch, kOwn = Form::kOwn;  // kRows: of a warp
    static constexpr bool kWhole = Form::kPitch == 656;                                        // are tokens in memory as they are here?

    const LatentParams& a;
    typename Traits::Shared& s;
    const int warp;
    // Of the warp's row `lane` mod 16: where it lies, in units of 16 bytes, and of 4; and a bit for each of them.
    uint32_t k_at = 0, tail_at = 0, factor_at = 0, present = 0;

    FA_MEMBER static int lane() { return rt::read_laneid(); }
    // What memory says of a key: an entry or a page, of which nothing is asked yet.
    FA_MEMBER int ask(const LatentItem& item, int key) const {
        const Pages& pages = a.x.pages;
        if (key >= item.end) return -1;
        if (a.tiles_of_list > 0)
            return list_source(a.rows.list, item.batch, 0, item.tile / a.tiles_of_list, 0).entries[key * a.rows.list.stride[3]];
        return pages.table ? pages.table[item.kv_index * pages.row_stride + (item.k_begin + key) / int(pages.size)] : item.kv_index;
    }
    FA_MEMBER void find(const LatentItem& item, int key, int asked) {
        const LatentRows& rows = a.rows;
        int outer = asked, row = item.k_begin + key;
        bool there = asked >= 0;
        if (a.tiles_of_list > 0) {
            there = uint32_t(asked) < uint32_t(rows.slots);
            const Quotient page = divide(asked, rows.page_size);
            outer = page.number, row = page.rest;
        } else if (a.x.pages.table) {
            there = uint32_t(asked) < uint32_t(a.x.pages.count), row %= int(a.x.pages.size);
        }
        const auto offset = [&](const uint32_t (&step)[2]) { return there ? uint32_t(outer) * step[0] + uint32_t(row) * step[1] : 0; };
        k_at = offset(rows.k_step), tail_at = offset(rows.tail_step), factor_at = offset(rows.factor_step);
        present = __ballot_sync(~0u, there) & 0xffff;
    }
    FA_MEMBER static uint32_t of_row(uint32_t x, int i) { return __shfl_sync(~0u, x, i); }
    FA_MEMBER bool is_present(int i) const { return present >> i & 1; }
    // Rows that follow each other, all of which there are.
    FA_MEMBER bool are_together() const {
        return present == 0xffff && __all_sync(~0u, k_at == of_row(k_at, 0) + uint32_t(lane() % kRows) * (kPitch / 16));
    }
    FA_MEMBER void copy(uint32_t to, bool aligned) const {
        const LatentRows& rows = a.rows;
        FA_UNROLL_BY(8)
        for (int i = 0; i < kRows; i++) {
            const char* const from = rows.k + uint64_t(of_row(k_at, i)) * 16 + 16 * lane();
            if (lane() < kOwn / 16) rt::cp_async16(to + i * kPitch + 16 * lane(), from, is_present(i));
        }
        FA_UNROLL_FOR (int four = 0; four < kRows; four += 4) {
            const int i = four + lane() / 8;
            rt::cp_async16(to + i * kPitch + Form::kTail + lane() % 8 * 16, rows.tail + uint64_t(of_row(tail_at, i)) * 16 + lane() % 8 * 16,
                           is_present(i));
        }
        const int i = lane() % kRows;
        const char* const factor = rows.factor + uint64_t(factor_at) * 4;
        const uint32_t factor_to = to + i * kPitch + Form::kFactors;
        if (aligned && lane() < kRows) {
            if constexpr (Form::kFactorBytes == 16) rt::cp_async16(factor_to, factor, is_present(i));
            else rt::cp_async_some<8>(factor_to, factor, is_present(i) ? Form::kParts : 0);
        }
        if (!aligned)
            FA_UNROLL_FOR (int j = lane() / kRows * 4; j < Form::kFactorBytes; j += 8)
                rt::cp_async_some<4>(factor_to + j, factor + j,
                                     is_present(i) ? min(Form::kFactorBytes == 16 ? 4 : Form::kParts - j, 4) : 0);
    }

  public:
    FA_MEMBER TokenProducer(const LatentParams& params, int own) : a(params), s(Traits::shared()), warp(own) {}

    FA_MEMBER void run() {
        LatentSchedule<Traits> schedule(a);
        if (warp == 0) schedule.begin();
        rt::wait_for_predecessor();
        const LatentRows& rows = a.rows;
        const bool aligned = reinterpret_cast<uintptr_t>(rows.factor) % Form::kFactorBytes == 0 &&
                             (rows.factor_step[0] | rows.factor_step[1]) % (Form::kFactorBytes / 4) == 0;
        const bool whole = kWhole && rows.tail == rows.k + Form::kTail && rows.factor == rows.k + Form::kFactors &&
                           rows.tail_step[0] == rows.k_step[0] && rows.tail_step[1] == rows.k_step[1] &&
                           rows.factor_step[0] == 4 * rows.k_step[0] && rows.factor_step[1] == 4 * rows.k_step[1];
        PipelineState<Traits::kStages> stage;
        FA_UNROLL_BY(1)
        for (PipelineState<Traits::kItemSlots> slot;; slot.advance()) {
            LatentItemSlot& now = s.item[slot.index];
            rt::mbarrier_wait(rt::smem_addr(&now.ready), slot.phase);
            const LatentItem& item = now.item;
            const int tiles = rt::warp_uniform(Traits::tiles_of(item));
            if (rt::warp_uniform(item.pairs) == kNoItem) return;
            const int first = warp * kRows + lane() % kRows;
            int asked = ask(item, item.begin + first);
            FA_UNROLL_BY(1)
            for (int j = 0; j < tiles; j++, stage.advance()) {
                const int key = item.begin + j * kTokenKeys + first;
                find(item, key, asked);
                if (j + 1 < tiles) asked = ask(item, key + kTokenKeys);
                rt::mbarrier_wait(rt::smem_addr(&s.empty[stage.index]), stage.phase ^ 1);
                const uint32_t full = rt::smem_addr(&s.full[stage.index]), to = Traits::stage(stage.index) + warp * (kRows * kPitch);
                if (lane() == 0) reinterpret_cast<uint16_t*>(&s.present[stage.index])[warp] = uint16_t(present);
                if (whole && are_together()) {
                    if (lane() == 0) {
                        rt::mbarrier_expect_tx(full, kRows * kPitch);
                        rt::fence_proxy_async_shared();
                        rt::bulk_load(to, rows.k + uint64_t(k_at) * 16, kRows * kPitch, full);
                    }
                } else {
                    copy(to, aligned);
                    if (lane() == 0) rt::mbarrier_arrive(full);
                }
                rt::cp_async_mbarrier_arrive(full);
            }
            Traits::release(now.consumed);
            if (warp == 0) schedule.next();
        }
    }
};

}  // namespace gpu
}  // namespace fa
