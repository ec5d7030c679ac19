// Mma policies of latent attention, whose v is the first dims of k: a tile of keys lies in shared memory once, and both products read it. k of q's
// type, or of e4m3 with factors of blocks of dims beside a tail of q's type. fwd_latent.h has their mainloop.
//
// In shared memory a tile is rows of 512 dims, and behind them rows of the last 64, which v has not.
#pragma once
#include "gpu/mma_byte.h"

namespace fa {
namespace gpu {

constexpr int kLatentDims = 512, kLatentTail = 64;

template <class T>
struct MmaLatent : MmaSync<T> {
    static constexpr const char* kFamily = "fwd_mma_latent";
    static constexpr bool kQInShared = false;
    using General = MmaLatent;
};
// Products with factors leave bf16's range at neither end: see LatentFactors.
template <class T>
struct MmaLatentByte : MmaByte<T> {
    static_assert(!kIsF16<T>, "f16 has not the range of probabilities times factors");
    static constexpr const char* kFamily = "fwd_mma_byte_latent";
    static constexpr bool kQInShared = false;
    static constexpr float kExponent = 0.f, kOutputUnit = 1.f;
    using General = MmaLatentByte;
};
// The same where v has the tail, too: 448 bytes with factors of 64, and 64 dims of T.
template <class T>
struct MmaLatentMixed : MmaLatentByte<T> {
    using General = MmaLatentMixed;
    FA_MEMBER static int output_column(int column_warp, int c, int i) {
        return column_warp == 3 && c >= 4 ? MmaSync<T>::output_column(c, i) : MmaLatentByte<T>::output_column(c, i);
    }
};
template <class T>
constexpr int kLatentParts<MmaLatentMixed<T>> = 2;
template <class T>
constexpr int kLatentKeyBytes<MmaLatentMixed<T>> = kLatentDims + kLatentTail * int(sizeof(T));
template <class T>
constexpr int kLatentKeyBytes<MmaLatent<T>> = (kLatentDims + kLatentTail) * int(sizeof(T));
template <class T>
constexpr int kLatentKeyBytes<MmaLatentByte<T>> = kLatentDims + kLatentTail * int(sizeof(T));

}  // namespace gpu
}  // namespace fa
