// A consumer warpgroup of the latent kernel. Warpgroup w makes S and P of block w of each pair of blocks of keys, and owns 256
// columns of O: its own P multiplies from registers, the other's from shared memory, to which it crosses in the panel of the block
// that is no part of v.
#pragma once
#include "cuda/sm90/latent/params.h"
#include "cuda/sm90/split_o/wgmma.h"
#include "cuda/sm90/split_o/consumer.h"

namespace fa {
namespace gpu {

template <class Traits>
struct LatentConsumer : SplitOConsumer<Traits> {
    using Base = SplitOConsumer<Traits>;
    using Base::acc_o, Base::acc_s, Base::lane, Base::p, Base::row_ref, Base::row_sum, Base::s, Base::start, Base::warp;
    using Base::adopt_row_ref, Base::any_has_moved, Base::has_moved, Base::make_p, Base::needs_exact, Base::row_in_tile;
    using Wgmma = LatentWgmma<Traits::f16>;
    static constexpr int kPanelBytes = Traits::kPanelBytes, kPanels = Traits::kPanels;
    static constexpr int kEarlyPanels = 2;  // of the next product, issued before the one under way is waited for

    const LatentParams& a;
    const LatentItem& item;
    const int diagonal;          // the last key that all rows of the tile see, from the split's first on
    const uint32_t shared_addr;  // of s
    uint32_t phase;

    FA_MEMBER LatentConsumer(const LatentParams& params, const LatentItem& one, uint32_t first_phase)
        : Base(params.x.scale),
          a(params),
          item(one),
          diagonal(rt::warp_uniform(params.x.causal ? one.diagonal - one.begin : INT_MAX)),
          shared_addr(uint32_t(rt::warp_uniform(int(rt::smem_addr(&s))))),
          phase(first_phase) {}

    FA_MEMBER void release_q() const {
        if (lane == 0) rt::mbarrier_arrive(barrier_addr(s.q_empty));
    }
    // From a word that is known to be uniform, not from the reference: waits then are uniform, and need no convergence barriers.
    FA_MEMBER uint32_t barrier_addr(const uint64_t& barrier) const {
        return shared_addr + uint32_t(reinterpret_cast<const char*>(&barrier) - reinterpret_cast<const char*>(&s));
    }
    // Of block w that there are; by address any number below 64 where some are missing. Lane 0 alone reads, which alone tells the producer
    // that this may be overwritten.
    FA_MEMBER int keys_of(int w) const {
        if constexpr (Traits::kByAddress) return rt::warp_uniform(lane == 0 && ~s.present[w] == 0 ? 64 : 0);
        else return rt::warp_uniform(lane == 0 ? s.keys[w] : 0);
    }
    FA_MEMBER void release(int w, int half) const {
        if (lane == 0) rt::mbarrier_arrive(barrier_addr(s.k_empty[w][half]));
    }
    template <int w, int from, int to>
    FA_MEMBER void issue_qk() {
        for_constants<from, to>([&](auto i) {
            constexpr int n = i < 8 ? i ^ (4 * w) : i;  // in the order in which they come
            if (!Traits::kByAddress || (i % 4 == 0 && i < 8)) {
                rt::mbarrier_wait(barrier_addr(s.k_full[w][n]), phase);
                if (Traits::kByAddress && !Traits::kBytes) rt::fence_proxy_async_shared();  // the copies had nobody who waited for them
            }
            rt::wgmma_fence();
            for_constants<0, 4>([&](auto k) {
                Wgmma::template qk<(n * kPanelBytes + 32 * k) / 16, ((1 + w) * Traits::kMatrixBytes + n * kPanelBytes + 32 * k) / 16>(
                    acc_s, start, i + k > 0);
            });
        });
        rt::wgmma_commit();
    }
    template <int w>
    FA_MEMBER void issue_own_pv() {
        rt::wgmma_fence();
        for_constants<0, 4>([&](auto i) {
            Wgmma::template pv<((1 + w) * Traits::kMatrixBytes + w * 4 * kPanelBytes + 2048 * i) / 16 | kPanelBytes / 16 << 16>(
                acc_o, p + 4 * i, start);
        });
        rt::wgmma_commit();
    }
    // Of the other's block w.
    template <int w>
    FA_MEMBER void issue_other_pv() {
        rt::wgmma_fence();
        for_constants<0, 4>([&](auto i) {
            constexpr int block = (1 + w) * Traits::kMatrixBytes;
            Wgmma::template pv<(block + Traits::kProbPanel * kPanelBytes + 32 * i) / 16,
                               (block + (1 - w) * 4 * kPanelBytes + 2048 * i) / 16 | kPanelBytes / 16 << 16>(acc_o, start, start);
        });
        rt::wgmma_commit();
    }

    // What lies behind a sequence's last value may be anything, and 0 · NaN is NaN. By address rows that are not there come as zeros.
    FA_MEMBER void zero_v_tail(int w, int keys) const {
        if constexpr (Traits::kByAddress) return;
        const int units = (64 - keys) * 8;  // of 16 bytes, in a panel
        for (int i = int(threadIdx.x) % 128; i < units * Traits::kProbPanel; i += 128)
            rt::st_shared_zero_v4(Traits::k_tile(w) + i / units * kPanelBytes + keys * 128 + i % units * 16);
        rt::fence_proxy_async_shared();
        rt::named_barrier_sync(1 + w, 128);
    }

    // P with the mask, and row_ref moved to the true maxima.
    FA_MEMBER void exact_p(int w, int n, int keys, bool first) {
        const int c = rt::read_laneid() % 4, place = row_in_tile(), key0 = item.begin + (2 * n + 1 - w) * 64;
        uint32_t present[2] = {};  // keys from the lane's first on
        if constexpr (Traits::kByAddress) {
            const uint64_t bits = lane == 0 ? s.present[w] : 0;
            present[0] = uint32_t(rt::warp_uniform(int(bits))) >> 2 * c, present[1] = uint32_t(rt::warp_uniform(int(bits >> 32))) >> 2 * c;
            keys = 64;
        }
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const int row = item.row + place + 8 * r;
            const int last = min(keys - 1, a.x.causal ? item.off + row / int(a.x.group) - key0 : keys - 1) - 2 * c;
            float row_max = row < item.row_end ? kNegInf : 1e30f;  // rows that are not there get P of 0, which takes less power
            FA_UNROLL_FOR (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r) {
                    if (i / 4 * 8 + i % 2 > last) acc_s[i] = kNegInf;
                    if constexpr (Traits::kByAddress) {
                        if (!(present[i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1)) acc_s[i] = kNegInf;
                    }
                    row_max = fmaxf(row_max, acc_s[i]);
                }
            const float alpha = Base::move_row_ref(w, r, row_max);
            if (!first) Base::scale_rows(r, alpha);
        }
        float sum[2];
        make_p(sum);
        FA_UNROLL_FOR (int r = 0; r < 2; r++) row_sum[r] += sum[r];
    }
    // P to the other warpgroup, and with the last one the row sums.
    FA_MEMBER void publish_p(int w, bool moved, bool last) {
        Base::store_p(Traits::k_tile(w) + Traits::kProbPanel * kPanelBytes);
        if (last) Base::publish_row_sum(w);
        if (lane == 0) s.exchange.moved[w][warp] = moved;
        rt::fence_proxy_async_shared();
        rt::mbarrier_arrive(barrier_addr(s.p_full[w]));  // each lane for what it wrote
    }
    FA_MEMBER void add_row_sum(int w) {
        const int place = row_in_tile();
        if (rt::read_laneid() % 4 == 0)
            FA_UNROLL_FOR (int r = 0; r < 2; r++) row_sum[r] += s.exchange.row_sum[w][place + 8 * r];
    }
    FA_MEMBER void keep_operands() {
        rt::keep_in_registers(acc_o);
        rt::keep_in_registers(p);
    }

    // Warpgroup 0, whose block is the right one of a pair:  S0 | P0 | O += P0 v0 | wait for P1 | O += P1 v1 beside the next S0.
    FA_MEMBER void right_mainloop(int pairs) {
        rt::keep_in_registers(acc_s);
        issue_qk<0, 0, kPanels>();
        int keys = keys_of(0);  // while S is made
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_s);
        for (int n = pairs - 1;; n--) {
            const bool first = n == pairs - 1;
            if (n == 0) release_q();
            if (keys < 64) zero_v_tail(0, keys);
            bool exact = first || keys < 64 || crosses_diagonal(n, 0);
            if (!exact) {
                float sum[2];
                make_p(sum);
                exact = needs_exact(sum);
                if (!exact) row_sum[0] += sum[0], row_sum[1] += sum[1];
            }
            if (exact) exact_p(0, n, keys, first);
            publish_p(0, exact, n == 0);
            keep_operands();
            issue_own_pv<0>();
            rt::wgmma_wait<0>();
            keep_operands();
            release(0, 0);
            rt::mbarrier_wait(barrier_addr(s.p_full[1]), phase);
            if (has_moved(1)) adopt_row_ref(1, false);
            phase ^= 1;
            if (n == 0) break;
            rt::keep_in_registers(acc_o);
            rt::keep_in_registers(acc_s);
            issue_other_pv<1>();
            issue_qk<0, 0, kEarlyPanels>();
            rt::wgmma_wait<1>();  // early, for the other warpgroup's next keys come here
            rt::keep_in_registers(acc_o);
            release(1, 0);
            issue_qk<0, kEarlyPanels, kPanels>();
            keys = keys_of(0);
            rt::wgmma_wait<0>();
            rt::keep_in_registers(acc_s);
        }
        rt::keep_in_registers(acc_o);
        issue_other_pv<1>();
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_o);
        release(1, 0);
    }
    // Warpgroup 1:  S1 | wait for P0 | O += P0 v0 beside P1 | O += P1 v1.
    FA_MEMBER void left_mainloop(int pairs) {
        for (int n = pairs - 1; n >= 0; n--) {
            rt::keep_in_registers(acc_s);
            rt::keep_in_registers(acc_o);
            issue_qk<1, 0, kPanels>();
            rt::mbarrier_wait(barrier_addr(s.p_full[0]), phase);
            if (any_has_moved(0)) {
                rt::wgmma_wait<0>();  // of all four warps or of none
                if (has_moved(0)) adopt_row_ref(0, n == pairs - 1);
            }
            if (n == 0) add_row_sum(0);
            rt::keep_in_registers(acc_o);
            issue_other_pv<0>();
            const int keys = keys_of(1);
            rt::wgmma_wait<1>();
            rt::keep_in_registers(acc_s);
            if (n == 0) release_q();
            if (keys < 64) zero_v_tail(1, keys);
            float sum[2];
            make_p(sum);
            const bool exact = keys < 64 || crosses_diagonal(n, 1) || needs_exact(sum);
            if (!exact) {
                row_sum[0] += sum[0], row_sum[1] += sum[1];
                publish_p(1, false, n == 0);
            }
            rt::wgmma_wait<0>();
            rt::keep_in_registers(acc_o);
            release(0, 1);
            if (exact) {
                exact_p(1, n, keys, false);
                publish_p(1, true, n == 0);
            }
            keep_operands();
            issue_own_pv<1>();
            rt::wgmma_wait<0>();
            keep_operands();
            release(1, 1);
            phase ^= 1;
        }
    }
    // Does some row of the tile not see all keys of the block?
    FA_MEMBER bool crosses_diagonal(int n, int w) const { return (2 * n + 2 - w) * 64 - 1 > diagonal; }
};

}  // namespace gpu
}  // namespace fa
