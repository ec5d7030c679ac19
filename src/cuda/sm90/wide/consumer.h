// A consumer warpgroup of the kernel of wide heads. Warpgroup w makes S and P of every second block of keys and owns columns
// 256 · w … of O, so that it multiplies the P of every block, its own and the other's, with its half of v.
//
//   a step:   P(t) beside O += P(t−2) v  ·  publish P(t)  ·  issue O += P(t−1) v | S(t+2) | O += P(t) v  ·  wait for S
//
// The warpgroups are half a step apart, so that softmax of one runs beside products of the other. Between two products with k, and
// between two with a half of v, lies another: that is the time in which TMA replaces the panels.
#pragma once
#include "cuda/sm90/split_o/wgmma.h"
#include "cuda/sm90/forward/tile_scheduler.h"
#include "cuda/sm90/wide/params.h"

namespace fa {
namespace gpu {

template <class Traits_>
struct WideConsumer : SplitOConsumer<Traits_> {
    using Traits = Traits_;
    using Base = SplitOConsumer<Traits>;
    using Base::acc_o, Base::acc_s, Base::lane, Base::p, Base::row_sum, Base::s, Base::start, Base::warp;
    using Wgmma = LatentWgmma<Traits::f16>;
    static constexpr int kUnits = Traits::kPanelBytes / 16, kMatrixUnits = Traits::kMatrixBytes / 16;
    static constexpr int kHalf = Traits::kPanels / 2;

    const WideParams& a;
    const int w;   // the warpgroup: not known when compiled, so that both fetch the same instructions
    int keys = 0;  // of the block whose S there is

    FA_MEMBER explicit WideConsumer(const WideParams& params)
        : Base(params.x.scale), a(params), w(rt::warp_uniform(int(threadIdx.x) / 128) - 1) {}

    FA_MEMBER void release(const uint64_t& empty) const {
        if constexpr (!Traits::kPair) {
            if (lane == 0) rt::mbarrier_arrive(smem_addr(empty));
        } else if (lane < 2) rt::mbarrier_arrive_remote(smem_addr(empty), lane ^ rt::cluster_rank());
    }
    FA_MEMBER int row_of_tile(int r) const { return s.tile.row0 + (Base::row_in_tile() + 8 * r) / a.head_group; }

    // Where the four warps that made P(t) tell whether they moved row_ref: each other time elsewhere, as one of them may still read what
    // the others told when P(t + 2) is made. That it no longer does when P(t + 4) is, p_full of P(t + 2) says.
    FA_MEMBER static int moved_of(int t) { return t & 3; }
    // Half of the k-steps of S(t).
    template <int half>
    FA_MEMBER void issue_qk(int t) {
        for_constants<half * kHalf, (half + 1) * kHalf>([&](auto i) {
            constexpr int n = i;
            rt::mbarrier_wait(smem_addr(s.k_full[w][n]), t >> 1 & 1);
            rt::wgmma_fence();
            for_constants<0, 4>(
                [&](auto k) { Wgmma::template qk<n * kUnits + 2 * k, kMatrixUnits + n * kUnits + 2 * k>(acc_s, start, n + k > 0); });
        });
        rt::wgmma_commit();
    }
    // O += P(t) v, with P of warpgroup `from`.
    FA_MEMBER void issue_pv(int from, int t) {
        rt::mbarrier_wait(smem_addr(s.p_full[from]), t >> 1 & 1);
        rt::mbarrier_wait(smem_addr(s.v_full[w]), t & 1);
        const int v_keys = rt::warp_uniform(lane == 0 ? s.v_keys[w] : 0);
        if (v_keys < Traits::kBlock) zero_v_tail(v_keys);
        rt::keep_in_registers(acc_o);
        rt::wgmma_fence();
        const uint32_t p_tile = start + 3 * kMatrixUnits + from * kUnits, v_tile = start + 2 * kMatrixUnits + w * kHalf * kUnits;
        for_constants<0, 4>([&](auto i) { Wgmma::template pv<2 * i, 128 * i | kUnits << 16>(acc_o, p_tile, v_tile); });
        rt::wgmma_commit();
    }
    FA_MEMBER void released_pv(int from) const {
        release(s.v_empty[w]);
        if (from != w && lane == 0) rt::mbarrier_arrive(smem_addr(s.p_empty[from]));
    }
    // What lies behind a sequence's last value may be anything, and 0 · NaN is NaN.
    FA_MEMBER void zero_v_tail(int v_keys) const {
        const int units = (Traits::kBlock - v_keys) * 8;  // of 16 bytes, in a panel
        for (int i = int(threadIdx.x) % 128; i < units * kHalf; i += 128)
            rt::st_shared_zero_v4(Traits::v_tile() + (w * kHalf + i / units) * Traits::kPanelBytes + v_keys * 128 + i % units * 16);
        rt::fence_proxy_async_shared();
        rt::named_barrier_sync(1 + w, 128);
    }

    // P(t) with the mask, and row_ref moved to the true maxima. O lacks the product of the block before, which is measured from the old
    // one: it is to be multiplied by alpha behind that.
    FA_MEMBER void exact_p(int key0, float (&alpha)[2]) {
        const int c = rt::read_laneid() % 4;
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const int row = row_of_tile(r);
            const KeyRange range = key_range_of<MaskKind::band>(a.x.window, row, s.off, s.source.w);
            const int first = range.begin - key0 - 2 * c, last = min(keys, range.end - key0) - 1 - 2 * c;
            float row_max = row < s.q_len ? kNegInf : 1e30f;  // rows that are not there get P of 0, which takes less power
            FA_UNROLL_FOR (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r) {
                    const int key = i / 4 * 8 + i % 2;
                    if (key > last || key < first) acc_s[i] = kNegInf;
                    row_max = fmaxf(row_max, acc_s[i]);
                }
            alpha[r] = Base::move_row_ref(w, r, row_max);
            row_sum[r] *= alpha[r];
        }
        float sum[2];
        Base::make_p(sum);
        FA_UNROLL_FOR (int r = 0; r < 2; r++) row_sum[r] += sum[r];
    }
    // Lane 0 alone reads, which alone tells this CTA's producer that it may be overwritten.
    FA_MEMBER void read_keys() { keys = rt::warp_uniform(lane == 0 ? s.k_keys[w] : 0); }
    FA_MEMBER void release_k(int half) const { release(s.k_empty[half]); }

    // P(t) of the scores that there are, to both warpgroups. What O sums up to block t − 1 is to be multiplied by alpha.
    FA_MEMBER void publish_p(int t, float (&alpha)[2]) {
        const int key0 = s.range.w - t * Traits::kBlock;
        if (t > 0) {
            rt::mbarrier_wait(smem_addr(s.p_full[1 - w]), (t - 1) >> 1 & 1);
            const int other = moved_of(t - 1);
            if (Base::any_has_moved(other)) {
                rt::wgmma_wait<0>();  // of all four warps or of none
                rt::keep_in_registers(acc_o);
                if (Base::has_moved(other)) Base::adopt_row_ref(1 - w, false);
            }
        }
        float sum[2];
        Base::make_p(sum);
        const bool exact = keys < Traits::kBlock || key0 < s.all_see.x || key0 + Traits::kBlock > s.all_see.y || Base::needs_exact(sum);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_o);
        if (t >= 2) released_pv(w);
        rt::mbarrier_wait(smem_addr(s.p_empty[w]), (t >> 1 & 1) ^ 1);
        if (exact) exact_p(key0, alpha);
        else row_sum[0] += sum[0], row_sum[1] += sum[1];
        Base::store_p(Traits::p_tile(w));
        if (lane == 0) s.exchange.moved[moved_of(t)][warp] = exact;
        rt::fence_proxy_async_shared();
        rt::mbarrier_arrive(smem_addr(s.p_full[w]));  // each lane for what it wrote
    }

    // The first S of this warpgroup, block w.
    FA_MEMBER void prologue() {
        rt::keep_in_registers(acc_s);
        issue_qk<0>(w);
        issue_qk<1>(w);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_s);
        read_keys();
        release_k(0), release_k(1);
    }

    // One text for all steps: what runs once in a tile would be fetched anew for each tile.
    FA_MEMBER void mainloop() {
        const int blocks = rt::warp_uniform(s.range.z);
        if (w < blocks) prologue();
        FA_UNROLL_BY(1)
        for (int t = w; t < blocks; t += 2) {
            float alpha[2] = {1.f, 1.f};
            publish_p(t, alpha);
            const auto finish_other_pv = [&] {
                if (t > 0) released_pv(1 - w);
                rt::mbarrier_wait(smem_addr(s.p_full[w]), t >> 1 & 1);
                if (!Base::any_has_moved(moved_of(t)))
                    return;  // of all four warps or of none: the wgmma behind it are those of a warpgroup
                rt::wgmma_wait<0>();
                rt::keep_in_registers(acc_o);
                FA_UNROLL_FOR (int r = 0; r < 2; r++) Base::scale_o(r, alpha[r]);
            };
            if (t > 0) issue_pv(1 - w, t - 1);
            if (t + 2 < blocks) {
                rt::keep_in_registers(acc_s);
                issue_qk<0>(t + 2);
                issue_qk<1>(t + 2);
                rt::wgmma_wait<2>();
                finish_other_pv();
                issue_pv(w, t);
                rt::wgmma_wait<2>();
                read_keys();
                release_k(0);
                rt::wgmma_wait<1>();
                release_k(1);
                rt::keep_in_registers(acc_s);
            } else {
                rt::wgmma_wait<0>();
                finish_other_pv();
                issue_pv(w, t);
            }
        }
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_o);
        const int last = blocks - 1;
        if (last % 2 == w) return;
        if (last > 0) released_pv(w);
        rt::mbarrier_wait(smem_addr(s.p_full[1 - w]), last >> 1 & 1);
        if (Base::has_moved(moved_of(last))) Base::adopt_row_ref(1 - w, false);
        issue_pv(1 - w, last);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(acc_o);
    }
};

}  // namespace gpu
}  // namespace fa
