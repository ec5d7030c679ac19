// What the Mma policies of all GPUs share.
#pragma once
#include "gpu/common/memory.h"
#include "gpu/mma/rows.h"
#include "spec/online_softmax.h"

namespace fa {
namespace gpu {

// A tile of q, k or v lies in shared memory row by row, in 16-byte vectors swizzled within a row by its number: the vectors of one
// column in eight neighbouring rows lie in different banks. Tiles begin at multiples of kTileAlign.
constexpr int kTileAlign = 1024;
template <int row_bytes>
FA_FN int swizzle_offset(int row, int vec) {
    static_assert(row_bytes % 128 == 0 || row_bytes == 64 || row_bytes == 32, "a row fills all banks, or a few do together");
    constexpr int vecs = row_bytes < 128 ? row_bytes / 16 : 8;
    return row * row_bytes + ((vec ^ (row / (8 / vecs) & (vecs - 1))) << 4);
}

// What a compiled kernel takes. plain: no score mod but a band, no dropout, and k and v in rows of aligned 16-byte vectors, or what
// takes their place in rows of blocks (kVecBytes), less than 2^31 bytes apart. paged: the same over pages, of which no key lies 2^32 of
// these from the tensor's begin. general: all.
enum class Kind { general, plain, paged };

// How tiles of k and v come to shared memory: async_pipe.h, mma/cache/blocks_pipe.h, scaled_pipe.h, stored_pipe.h, register_pipe.h.
enum class Copies { async, blocks, scaled, stored, registers };

// How they lie there: bytes between rows, pieces of a row that threads copy, and how many of these v's rows have; bytes of a key in a
// stage, and behind all stages.
struct TileLayout {
    int row_bytes, vec_bytes, row_vecs, key_bytes, behind;
};
template <class Key>
constexpr TileLayout rows_layout(int dims) {
    const int bytes = dims * int(sizeof(Key)), columns = dims > 512 ? 512 : dims;
    return {bytes, 16, columns * int(sizeof(Key)) / 16, bytes, 0};
}

// Which Kinds of a row of rows.h are compiled: each; all but the paged one; the general one, or the plain one, or the paged one, for all
// calls.
enum class Loops { each, all_but_paged, general, plain, paged };
// What a policy has for a block M of the forward's kernel: products (its Products), and the loop over the keys (its Mainloop).
template <class M>
struct MmaProducts;
template <class M>
struct SplitProducts;
template <class M, Kind kind>
struct ForwardLoop;
template <class M>
struct LatentLoop;
// Policies whose kernels are in the same lists.
template <class... Policies>
struct PolicyList {};

// What most Mma policies answer alike. Q: the type of q; Kv: that of k and v.
template <class Q, class Kv>
struct MmaPolicy {
    template <class M>
    using Products = MmaProducts<M>;
    template <class M, Kind kind>
    using Mainloop = ForwardLoop<M, kind>;
    using Element = Q;
    using Key = Kv;
    using Beside = PolicyList<>;
    FA_MEMBER static constexpr bool takes(const MmaRow&) { return true; }
    FA_MEMBER static constexpr Loops loops(int) { return Loops::all_but_paged; }
    template <class Instance>
    FA_MEMBER static constexpr void describe(Instance&, int) {}
    FA_MEMBER static constexpr TileLayout layout(int dims) { return rows_layout<Kv>(dims); }
    FA_MEMBER static constexpr int offset_accs(int) { return 0; }  // behind those of its columns
    FA_MEMBER static constexpr int permuted_q_byte(int at) { return at; }
    // Blocks that a multiprocessor holds: where three would leave a general kernel too few registers, two.
    FA_MEMBER static constexpr int blocks_held(Kind kind, int resident) { return kind == Kind::general && resident > 2 ? 2 : resident; }
    static constexpr bool kKv8bit = false, kWidensQ = false;   // k and v are stored as q is
    static constexpr bool kVInK = false;                       // is v the first dims of k? See latent/policies.h
    static constexpr bool kGathers = false, kMayHoldQ = true;  // lists of keys; q's tiles in registers
    static constexpr bool kSmallGeneral = true;  // do registers lack in a general prefill kernel for tiles as large as others'?
    static constexpr bool kRoundsQ = false;      // may q be of a finer type?
    static constexpr bool kSplitTf32 = false;    // is a product three of tf32, in short chains? See split_products.h
    static constexpr bool kModsAtOnce = true;    // score mods without a branch for each score: see mma/scores.h
    static constexpr float kLag = 0.f;           // by how much m may be behind a row's maximum
    static constexpr float kScoreUnit = 1.f;     // takes products of q and k to their value
};

// Rows in blocks lie there as they are, an odd multiple of 16 bytes behind each other (mma/cache/blocks.h): what those of q8_0 need.
FA_FN constexpr int block_pitch(int dims) { return (dims / kBlockDims * block_bytes({8, false}) + 15) / 32 * 32 + 16; }

// Rows that scaled_pipe.h widens: bytes between those of numbers, an odd multiple of 16, and the dims of such rows.
FA_FN constexpr int scaled_pitch(int dims) { return dims * 2 + dims / kBlockDims * 8 + 16; }
FA_FN constexpr int scaled_dims(int pitch) { return (pitch - 16) * 4 / 9; }
// And as they are stored: their bytes, which blocks of q8_0 have most of, then for each 32 dims the words that hold a factor and a shift,
// and a byte that says where in these they begin.
FA_FN constexpr int stored_bytes(int dims) { return dims / kBlockDims * block_bytes({8, false}); }
FA_FN constexpr int stored_pitch(int dims) { return (stored_bytes(dims) + dims / kBlockDims * 9 + 15) / 32 * 32 + 16; }

template <class T>
constexpr bool kIsF16 = false;
template <>
constexpr bool kIsF16<F16> = true;

// Within 2^-22 of the true value, of whatever size: far below the roundoff of f16 and bf16.
FA_DEVICE float tanh_fast(float x) {
    const float square = x * x;
    const float series = x * fmaf(square, fmaf(square, fmaf(square, -17.f / 315.f, 2.f / 15.f), -1.f / 3.f), 1.f);
    const float quotient = 1.f - 2.f * rt::reciprocal_fast(rt::exp2_fast(2.f * kLog2e * x) + 1.f);
    return fabsf(x) < 0.125f ? series : quotient;
}

}  // namespace gpu
}  // namespace fa
