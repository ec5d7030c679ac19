// Mma policies of latent attention, whose v is the first dims of k: a tile of keys lies in shared memory once, and both products read it. k
// of q's type, or of e4m3 with factors of blocks of dims beside a tail of q's type. latent/forward.h has their mainloop.
//
// In shared memory a tile is rows of 512 dims, and behind them rows of the last 64, which v has not.
#pragma once
#include "gpu/mma/cache/bytes.h"

namespace fa {
namespace gpu {

constexpr int kLatentDims = 512, kLatentTail = 64;

// A stage's tile, of k and v in one.
template <class Mma>
constexpr TileLayout latent_layout(int dims) {
    TileLayout layout = Mma::layout(dims);
    layout.key_bytes = kLatentDims * int(sizeof(typename Mma::Key)) + kLatentTail * int(sizeof(typename Mma::Element));
    return layout;
}

template <class T>
struct MmaLatent : MmaSync<T> {
    template <class M, Kind>
    using Mainloop = LatentLoop<M>;
    static constexpr auto& kRows = kMmaLatentRows;
    FA_MEMBER static constexpr Loops loops(int) { return Loops::paged; }
    FA_MEMBER static constexpr TileLayout layout(int dims) { return latent_layout<MmaSync<T>>(dims); }
    static constexpr bool kVInK = true, kGathers = false;
    static constexpr const char* kFamily = "fwd_mma_latent";
    static constexpr bool kQInShared = false;
    using General = MmaLatent;
};
// Products with factors leave bf16's range at neither end: see LatentFactors.
template <class T>
struct MmaLatentByte : MmaByte<T> {
    static_assert(!kIsF16<T>, "f16 has not the range of probabilities times factors");
    template <class M, Kind>
    using Mainloop = LatentLoop<M>;
    static constexpr auto& kRows = kMmaLatentByteRows;
    FA_MEMBER static constexpr bool takes(const MmaRow&) { return true; }
    FA_MEMBER static constexpr Loops loops(int) { return Loops::paged; }
    FA_MEMBER static constexpr TileLayout layout(int dims) { return latent_layout<MmaByte<T>>(dims); }
    static constexpr bool kVInK = true;
    static constexpr const char* kFamily = "fwd_mma_byte_latent";
    static constexpr bool kQInShared = false;
    static constexpr float kExponent = 0.f, kOutputUnit = 1.f;
    using General = MmaLatentByte;
    using typename MmaByte<T>::FragmentA;
    using typename MmaByte<T>::FragmentB;
    using typename MmaByte<T>::PackedB;

    // k beside a q of f16.
    FA_MEMBER static void widen_to_f16(FragmentB (&to)[2], const PackedB& from) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++)
            FA_UNROLL_FOR (int half = 0; half < 2; half++) rt::e4m3_to_f16(from.r[2 * half + i], to[i].r[2 * half], to[i].r[2 * half + 1]);
    }
    FA_MEMBER static void mma_f16(typename MmaByte<T>::Acc& d, const FragmentA& a, const FragmentB& b) {
        FA_UNROLL_FOR (int half = 0; half < 2; half++) rt::mma_m16n8k16_f16(d.x + 4 * half, a.r, b.r + 2 * half);
    }
    // v: a byte's exponent and fraction at their places in bf16, which makes its value 2^-kValueLog2 times as large, down to the smallest;
    // P makes up for it. Not a number becomes 480: where v is none, k is none, and so is P.
    static constexpr int kValueLog2 = 120;
    FA_MEMBER static uint32_t place(uint32_t bytes, uint32_t selector) { return rt::prmt_signed(bytes, selector) << 4 & 0x87f087f0u; }
    FA_MEMBER static void widen_in_place(FragmentB (&to)[2], const PackedB& from) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++)
            FA_UNROLL_FOR (int half = 0; half < 2; half++) {
                to[i].r[half] = place(from.r[2 * i + half], 0xa280);
                to[i].r[2 + half] = place(from.r[2 * i + half], 0xb391);
            }
    }
};
// The same where v has the tail, too: 448 bytes with factors of 64, and 64 dims of T.
template <class T>
struct MmaLatentMixed : MmaLatentByte<T> {
    using General = MmaLatentMixed;
    static constexpr auto& kRows = kMmaLatentMixedRows;
    FA_MEMBER static int output_column(int column_warp, int c, int i) {
        return column_warp == 3 && c >= 4 ? MmaSync<T>::output_column(c, i) : MmaLatentByte<T>::output_column(c, i);
    }
};
template <class T>
constexpr int kLatentParts<MmaLatentMixed<T>> = 2;

}  // namespace gpu
}  // namespace fa
