// What two consumer warpgroups share that have the same 64 rows: each makes S and P of every other block of keys, and owns 256 columns
// of O, so that P crosses from one to the other. Both measure scores from one row_ref, which moves only when a thread's part of a
// block's row sum has outgrown it: mainloops exchange P and one flag a warp, no maxima, and who moves row_ref leaves it beside P.
// Blocks are made in turn, so that each move is known before the next. The latent kernel (latent/consumer.h) and the one of wide heads
// (wide/consumer.h) build on this.
#pragma once
#include "cuda/sm90/forward/params.h"

namespace fa {
namespace gpu {

template <int i>
struct Constant {
    __host__ __device__ constexpr operator int() const { return i; }
};
template <int from, int to, class F>
FA_DEVICE void for_constants(const F& function) {
    if constexpr (from < to) function(Constant<from>{}), for_constants<from + 1, to>(function);
}

// A split's keys, as split_keys has them, in 32 bits, which the dispatch has checked to be enough: a division of 64 takes several times as
// long, and a tile's loads wait for it.
FA_DEVICE int split_size_of(const SplitParams& split, int keys) {
    if (split.split_size > 0) return int(min_of(split.split_size, int64_t(1) << 30));
    const int splits = int(split.num_splits);
    if (splits <= 1) return max(keys, 1);
    return max((keys / splits + (keys % splits != 0) + int(kSplitQuantum) - 1) / int(kSplitQuantum) * int(kSplitQuantum), 1);
}

// In shared memory, from one warpgroup to the other.
struct SplitOExchange {
    float row_ref[2][64], alpha[2][64], row_sum[2][64];
    alignas(16) int moved[4][4];  // by warps: has row_ref moved with this P? Of the wide kernel, four P in turn
};

// Traits: f16, kPScaleLog2, kRescaleThreshold and shared().
template <class Traits>
struct SplitOConsumer {
    static constexpr bool kF16 = Traits::f16;

    typename Traits::Shared& s;
    const int lane, warp;  // warp: of the warpgroup
    const float scale_log2;
    const uint32_t start;                                                                     // of shared memory, in units of 16 bytes
    float acc_s[32] = {}, acc_o[128] = {}, row_ref[2] = {kNegInf, kNegInf}, row_sum[2] = {};  // row_ref: in log2 units
    uint32_t p[16] = {};

    FA_MEMBER explicit SplitOConsumer(float scale)
        : s(Traits::shared()),
          lane(int(threadIdx.x) % 32),
          warp(rt::warp_uniform(int(threadIdx.x) / 32 % 4)),
          scale_log2(scale * kLog2e),
          start(uint32_t(rt::warp_uniform(int((Traits::q_tile() & 0x3FFFF) >> 4)))) {}

    // Read anew: what is derived from the lane would otherwise be kept over the mainloop.
    FA_MEMBER int row_in_tile() const { return warp * 16 + rt::read_laneid() / 4; }

    FA_MEMBER void scale_o(int r, float alpha) {
        FA_UNROLL_FOR (int i = 0; i < 128; i++)
            if (i / 2 % 2 == r) acc_o[i] *= alpha;
    }
    FA_MEMBER void scale_rows(int r, float alpha) {
        row_sum[r] *= alpha;
        scale_o(r, alpha);
    }
    // P of the scores, and this thread's part of the block's row sums.
    FA_MEMBER void make_p(float (&sum)[2]) {
        float other[2] = {}, from[2];
        FA_UNROLL_FOR (int r = 0; r < 2; r++) from[r] = Traits::kPScaleLog2 - (row_ref[r] == kNegInf ? 0.f : row_ref[r]), sum[r] = 0.f;
        FA_UNROLL_FOR (int i = 0; i < 16; i++) {
            const float first = rt::exp2_fast(fmaf(acc_s[2 * i], scale_log2, from[i % 2])),
                        second = rt::exp2_fast(fmaf(acc_s[2 * i + 1], scale_log2, from[i % 2]));
            sum[i % 2] += first;
            other[i % 2] += second;
            p[i] = Traits::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
        }
        FA_UNROLL_FOR (int r = 0; r < 2; r++) sum[r] += other[r];
    }
    // Must the block be made by exact_p? A row without row_ref has seen no key yet.
    FA_MEMBER bool needs_exact(const float (&sum)[2]) const {
        return rt::warp_any(!(sum[0] <= Traits::kRescaleThreshold && sum[1] <= Traits::kRescaleThreshold) || row_ref[0] == kNegInf ||
                            row_ref[1] == kNegInf);
    }
    // To the largest score of row r in a block of warpgroup w, which the other's warp of the same rows is told of. Returns what l and O so
    // far are to be multiplied by.
    FA_MEMBER float move_row_ref(int w, int r, float row_max) {
        FA_UNROLL_FOR (int lanes = 1; lanes < 4; lanes *= 2) row_max = fmaxf(row_max, rt::shuffle_xor16(row_max, lanes));
        row_max = fmaxf(row_ref[r], row_max * scale_log2);
        const float alpha = row_max == kNegInf ? 1.f : rt::exp2_fast(row_ref[r] - row_max);
        row_ref[r] = row_max;
        const int place = row_in_tile() + 8 * r;
        if (rt::read_laneid() % 4 == 0) s.exchange.row_ref[w][place] = row_max, s.exchange.alpha[w][place] = alpha;
        return alpha;
    }
    FA_MEMBER bool has_moved(int w) const { return rt::warp_uniform(*const_cast<volatile int*>(&s.exchange.moved[w][warp])) != 0; }
    FA_MEMBER bool any_has_moved(int w) const {
        const int4 moved = *reinterpret_cast<const int4*>(s.exchange.moved[w]);
        return rt::warp_uniform(moved.x | moved.y | moved.z | moved.w) != 0;
    }
    FA_MEMBER void adopt_row_ref(int w, bool first) {
        const int place = row_in_tile();
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            row_ref[r] = s.exchange.row_ref[w][place + 8 * r];
            if (!first) scale_rows(r, s.exchange.alpha[w][place + 8 * r]);
        }
    }
    // P to a panel of shared memory.
    FA_MEMBER void store_p(uint32_t panel) const {
        const uint32_t row = panel + (warp * 16 + lane % 16) * 128;
        FA_UNROLL_FOR (int i = 0; i < 4; i++) rt::stmatrix(row + (((2 * i + lane / 16) ^ (lane % 8)) << 4), p + 4 * i);
    }
    FA_MEMBER void publish_row_sum(int w) const {
        const int c = rt::read_laneid() % 4, place = row_in_tile();
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            float sum = row_sum[r];
            FA_UNROLL_FOR (int lanes = 1; lanes < 4; lanes *= 2) sum += rt::shuffle_xor16(sum, lanes);
            if (c == 0) s.exchange.row_sum[w][place + 8 * r] = sum;
        }
    }
};

}  // namespace gpu
}  // namespace fa
