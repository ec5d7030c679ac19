// What the Hopper kernel makes of products before they become weights: a policy for each option that works on single scores, for where the
// loop over keys asked, it would lose registers and speed to what a call does not want.
//
// What it needs from memory for a block of keys, fetch() asks for before the block's products. Of scores there are two forms. exponent() is what
// the steady loop computes, straight from products and without special functions; it may be wrong for a row of which served() then says so.
// finish() puts exact scores in the products' place, in units that `unit` takes to log2: for blocks that are masked, that begin a row, for which
// exact() asks, or whose row was not served or outgrew its reference.
#pragma once
#include "cuda/tiles_sm90.h"

namespace fa {
namespace gpu {

// A thread's scores: s[i] is of row i / 2 % 2 of its two, and of key 8 · (i / 4) + i % 2 behind the thread's first.
template <Work work, int Keys>
struct Scores;

template <int Keys>
struct Scores<Work::plain, Keys> {
    const float unit;
    FA_MEMBER explicit Scores(const HopperParams& a) : unit(a.x.p.d.scale * kLog2e) {}
    FA_MEMBER void open(const ForwardParams&, const HopperTile&, int) {}
    FA_MEMBER void fetch(int) {}
    FA_MEMBER void begin(int, const float (&)[2]) {}
    FA_MEMBER float exponent(float s, int, int, float shift) { return fmaf(s, unit, -shift); }
    FA_MEMBER bool served(int) const { return true; }
    FA_MEMBER bool exact(int) const { return false; }
    FA_MEMBER void finish(float (&)[Keys / 2], int) const {}
};

// cap · tanh(s / cap): where |s| is at most 3/8 of the cap, s times a polynomial in w = s² − limit², whose sign says whether it is. That is
// within 2^-17.8 of the true value, and tanh through an exponential and a reciprocal would cost the loop three special functions in place of
// one. tanh.approx is within 2^-11: a score of 8 would be wrong by 4e-3, and a weight of f16 may be by 5e-4.
template <int Keys>
struct Scores<Work::softcap, Keys> {
    static constexpr float unit = 1.f;
    const fa_attention_desc_t& d;
    float limit2, factor[3];  // -limit²; of powers of w
    uint32_t below[2];        // the sign bits that all w of a row have
    FA_MEMBER float turns() const { return d.scale * rt::reciprocal_fast(d.softcap); }
    FA_MEMBER explicit Scores(const HopperParams& a) : d(a.x.p.d) {
        const float inverse = 0x1.c71c72p+2f * turns() * turns(), scale = d.scale * kLog2e;
        limit2 = -rt::reciprocal_fast(inverse);
        factor[0] = 0x1.e94786p-1f * scale;
        factor[1] = -0x1.57a022p-5f * scale * inverse;
        factor[2] = 0x1.3de70ep-9f * scale * inverse * inverse;
    }
    FA_MEMBER void open(const ForwardParams&, const HopperTile&, int) {}
    FA_MEMBER void fetch(int) {}
    FA_MEMBER void begin(int, const float (&)[2]) { below[0] = below[1] = ~0u; }
    FA_MEMBER float slope(float w) const { return fmaf(fmaf(factor[2], w, factor[1]), w, factor[0]); }
    FA_MEMBER float exponent(float s, int, int r, float shift) {
        const float w = fmaf(s, s, limit2);
        below[r] &= bits_of(w);
        return fmaf(s, slope(w), -shift);
    }
    FA_MEMBER bool served(int r) const { return int32_t(below[r]) < 0; }
    FA_MEMBER bool exact(int) const { return false; }
    FA_MEMBER void finish(float (&s)[Keys / 2], int) const {
        const float cap = d.softcap * kLog2e, doubled = 2.f * kLog2e * turns();
        FA_UNROLL for (int i = 0; i < Keys / 2; i++) {
            const float w = s[i] * s[i] + limit2;  // with fmaf, the compiler would keep each w of exponent()
            const float quotient = fmaf(-2.f * cap, rt::reciprocal_fast(rt::exp2_fast(doubled * s[i]) + 1.f), cap);
            s[i] = w < 0.f ? s[i] * slope(w) : quotient;
        }
    }
};

// − slope · |row + off − key|: on either side of the diagonal it is linear in the key, one fused multiplication with a constant. Distances
// are taken from the key of a block that lies nearest the diagonal's left, so that those that weigh are small numbers.
template <int Keys>
struct Scores<Work::alibi, Keys> {
    static constexpr float unit = 1.f;
    static constexpr int kNearest = Keys - 7;
    const float scale;
    float slope;    // log2 units
    float falling;  // of a block: slope, or its opposite to the right of the diagonal
    float start[2];
    int at;         // the key on which the thread's first row stands, its own first key being 0
    int near, far;  // blocks that the diagonal of some row of the tile goes through
    FA_MEMBER explicit Scores(const HopperParams& a) : scale(a.x.p.d.scale * kLog2e) {}
    FA_MEMBER void open(const ForwardParams& x, const HopperTile& t, int own_row) {
        slope = log2_slope(x.a.alibi_slopes[t.batch * x.p.d.alibi_batch_stride + t.head]);
        at = t.row0 + own_row + t.off - int(threadIdx.x) % 4 * 2;
        near = max(t.row0 + t.off + 1, 0) / Keys;
        far = t.turn;
    }
    FA_MEMBER void fetch(int) {}
    FA_MEMBER void begin(int n, const float (&shift)[2]) {
        falling = n >= far ? -slope : slope;
        FA_UNROLL for (int r = 0; r < 2; r++) start[r] = fmaf(-falling, float(at + 8 * r - n * Keys - kNearest), -shift[r]);
    }
    FA_MEMBER float exponent(float s, int i, int r, float) const {
        return fmaf(s, scale, fmaf(float(8 * (i / 4) + i % 2 - kNearest), falling, start[r]));
    }
    FA_MEMBER bool served(int) const { return true; }
    FA_MEMBER bool exact(int n) const { return n >= near && n < far; }
    FA_MEMBER void finish(float (&s)[Keys / 2], int n) const {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const float first = float(at + 8 * r - n * Keys);
            FA_UNROLL for (int i = 0; i < Keys / 2; i++)
                if (i / 2 % 2 == r) s[i] = fmaf(-slope, fabsf(first - float(8 * (i / 4) + i % 2)), s[i] * scale);
        }
    }
};

}  // namespace gpu
}  // namespace fa
