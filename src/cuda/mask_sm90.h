// The mask operand in the Hopper kernel: the loop asks for a block's bits before its products, and they become predicates, seven or eight at
// a time.
#pragma once
#include "cuda/scores_sm90.h"

namespace fa {
namespace gpu {

template <int Keys>
struct Scores<Work::mask, Keys> {
    static_assert(Keys == PackedMask::kKeys, "two words have the bits of a thread's scores");
    const PackedMask& mask;
    const float unit;
    const uint2* first;  // the thread's of block 0
    uint2 bits;
    FA_MEMBER explicit Scores(const HopperParams& a) : mask(a.mask), unit(a.x.p.d.scale * kLog2e) {}
    FA_MEMBER void open(const ForwardParams&, const HopperTile& t, int own_row) {
        first = mask.bits + mask.place_of(mask.tile_of(t.batch, t.head, t.row0), own_row, 0) + threadIdx.x % 32;
    }
    FA_MEMBER void fetch(int n) { bits = first[n * 32]; }
    FA_MEMBER void begin(int, const float (&)[2]) {}
    FA_MEMBER float attended(float s, int i) const { return (i < 32 ? bits.x : bits.y) >> i % 32 & 1 ? s : kNegInf; }
    FA_MEMBER float exponent(float s, int i, int, float shift) { return attended(fmaf(s, unit, -shift), i); }
    FA_MEMBER bool served(int) const { return true; }
    FA_MEMBER bool exact(int) const { return false; }
    FA_MEMBER void finish(float (&s)[Keys / 2], int) {
        // Or the loop would keep its 64 predicates for this, by three instructions each.
        bits.x ^= rt::hidden_zero(), bits.y ^= rt::hidden_zero();
        FA_UNROLL for (int i = 0; i < Keys / 2; i++) s[i] = attended(s[i], i);
    }
};

}  // namespace gpu
}  // namespace fa
