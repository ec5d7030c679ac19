// Products of tiles on AMD's matrix cores, one wave each: Mma policies of mma/forward.h over MFMA (CDNA) and WMMA (RDNA 3 and 4). They
// stand on the instructions of matrix_hip.h (or matrix_emu.h).
//
// Scores are computed transposed, Sᵀ = k qᵀ, and so are outputs, Oᵀ = vᵀ Pᵀ: the left operand has keys or columns, the right one
// query rows. A lane's results then all belong to one row, whose maximum is found mostly within the lane, and P is, or nearly is, the
// right operand of the second product as it lies. v is transposed on its way to shared memory.
//
// A product's depth may come in any order that both operands share. So a lane reads neighbouring bytes of a row of q and k, and of
// v those keys whose P it holds.
#pragma once
#include "gpu/mma/common.h"

namespace fa {
namespace gpu {

// An instruction's shape, and which part of its operands and results a lane holds. Tiles have kTile rows, columns and depth, of
// which the instruction may take a part at a time. A lane reads its part of a row of q or k as pieces of kDimBytes, the first at
// dim_byte(lane) of a step's, the next kDimStep further on; and of a column of v alike.

template <class Cdna>
struct Mfma16;

// CDNA: v_mfma_f32_32x32x8, four times; on CDNA 4 v_mfma_f32_32x32x16, twice: of a depth in any order, half as many take the same operands.
// Cdna: what a generation has besides (matrix_hip.h).
template <class Cdna>
struct Mfma32 {
    using General = Mfma16<Cdna>;  // smaller fragments: score mods need registers
    static constexpr const char *kFamily = "fwd_mfma", *kByteFamily = "fwd_mfma_byte";
    static constexpr int kLanes = 64, kTile = 32, kElements = 16, kWords = 8;
    static constexpr int kDimBytes = 16, kDimStep = 32, kKeyBytes = 8, kKeyStep = 16;
    static constexpr bool kOperandsTwice = false, kQInShared = false;
    static constexpr bool kMultipliesF16 = Cdna::kMultipliesF16, kPacksBf16 = Cdna::kPacksBf16, kTransposedLoads = Cdna::kTransposedLoads;
    static constexpr bool kAvailable = rt::kHasMfma;
    FA_MEMBER static constexpr int row(int lane) { return lane % 32; }
    FA_MEMBER static constexpr int column(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
    FA_MEMBER static constexpr int dim_byte(int lane) { return 16 * (lane / 32); }
    FA_MEMBER static constexpr int key_byte(int lane) { return 8 * (lane / 32); }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<16>& d, const uint32_t a[8], const uint32_t b[8]) {
        if constexpr (Cdna::kDeepProducts) {
            FA_UNROLL_FOR (int i = 0; i < 8; i += 4) rt::mfma_f32_32x32x16<kIsF16<T>>(d, a + i, b + i);
        } else {
            FA_UNROLL_FOR (int i = 0; i < 8; i += 2) rt::mfma_f32_32x32x8<kIsF16<T>>(d, a + i, b + i);
        }
    }
};

// CDNA: v_mfma_f32_16x16x16.
template <class Cdna>
struct Mfma16 {
    using General = Mfma16;
    static constexpr const char *kFamily = "fwd_mfma", *kByteFamily = "fwd_mfma_byte";
    static constexpr int kLanes = 64, kTile = 16, kElements = 4, kWords = 2;
    static constexpr int kDimBytes = 8, kDimStep = 0, kKeyBytes = 8, kKeyStep = 0;
    static constexpr bool kOperandsTwice = false, kQInShared = false;
    static constexpr bool kMultipliesF16 = Cdna::kMultipliesF16, kPacksBf16 = Cdna::kPacksBf16, kTransposedLoads = Cdna::kTransposedLoads;
    static constexpr bool kAvailable = rt::kHasMfma;
    FA_MEMBER static constexpr int row(int lane) { return lane % 16; }
    FA_MEMBER static constexpr int column(int lane, int i) { return 4 * (lane / 16) + i; }
    FA_MEMBER static constexpr int dim_byte(int lane) { return 8 * (lane / 16); }
    FA_MEMBER static constexpr int key_byte(int lane) { return 8 * (lane / 16); }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<4>& d, const uint32_t a[2], const uint32_t b[2]) {
        rt::mfma_f32_16x16x16<kIsF16<T>>(d, a, b);
    }
};

// CDNA, of f32, whose products are exact: v_mfma_f32_32x32x2, sixteen times, and v_mfma_f32_16x16x4, four times. Results lie as of 16 bits,
// and are operands as they lie.
struct Mfma16x4;
struct Mfma32x2 : Mfma32<rt::Cdna<3>> {
    using General = Mfma16x4;
    static constexpr int kWords = 16, kKeyBytes = 16, kKeyStep = 32;
    static constexpr bool kTransposedLoads = false;  // those are of 16 bits
    FA_MEMBER static constexpr int key_byte(int lane) { return 16 * (lane / 32); }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<16>& d, const uint32_t a[16], const uint32_t b[16]) {
        FA_UNROLL_FOR (int i = 0; i < 16; i++) rt::mfma_f32_32x32x2(d, a[i], b[i]);
    }
};
struct Mfma16x4 : Mfma16<rt::Cdna<3>> {
    using General = Mfma16x4;
    static constexpr int kWords = 4, kDimBytes = 16, kKeyBytes = 16;
    static constexpr bool kTransposedLoads = false;  // those are of 16 bits
    FA_MEMBER static constexpr int dim_byte(int lane) { return 16 * (lane / 16); }
    FA_MEMBER static constexpr int key_byte(int lane) { return 16 * (lane / 16); }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<4>& d, const uint32_t a[4], const uint32_t b[4]) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) rt::mfma_f32_16x16x4(d, a[i], b[i]);
    }
};

// RDNA 3: v_wmma_f32_16x16x16. Lanes 16 to 31 give the operands of lanes 0 to 15 once more; of results a lane has every other
// column.
struct WmmaGfx11 {
    using General = WmmaGfx11;
    static constexpr const char *kFamily = "fwd_wmma", *kByteFamily = "fwd_wmma_byte";
    static constexpr int kLanes = 32, kTile = 16, kElements = 8, kWords = 8;
    static constexpr int kDimBytes = 16, kDimStep = 16, kKeyBytes = 16, kKeyStep = 16;
    static constexpr bool kOperandsTwice = true, kQInShared = false, kMultipliesF16 = true, kPacksBf16 = false, kTransposedLoads = false;
    static constexpr bool kAvailable = rt::kHasWmmaGfx11;
    FA_MEMBER static constexpr int row(int lane) { return lane % 16; }
    FA_MEMBER static constexpr int column(int lane, int i) { return 2 * i + lane / 16; }
    FA_MEMBER static constexpr int dim_byte(int) { return 0; }
    FA_MEMBER static constexpr int key_byte(int) { return 0; }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<8>& d, const uint32_t a[8], const uint32_t b[8]) {
        rt::wmma_f32_16x16x16_gfx11<kIsF16<T>>(d, a, b);
    }
};

// RDNA 4: v_wmma_f32_16x16x16, nothing twice.
struct WmmaGfx12 {
    using General = WmmaGfx12;
    static constexpr const char *kFamily = "fwd_wmma", *kByteFamily = "fwd_wmma_byte";
    static constexpr int kLanes = 32, kTile = 16, kElements = 8, kWords = 4;
    static constexpr int kDimBytes = 16, kDimStep = 0, kKeyBytes = 16, kKeyStep = 0;
    static constexpr bool kOperandsTwice = false, kQInShared = false, kMultipliesF16 = true, kPacksBf16 = false, kTransposedLoads = false;
    static constexpr bool kAvailable = rt::kHasWmmaGfx12;
    FA_MEMBER static constexpr int row(int lane) { return lane % 16; }
    FA_MEMBER static constexpr int column(int lane, int i) { return 8 * (lane / 16) + i; }
    FA_MEMBER static constexpr int dim_byte(int lane) { return 16 * (lane / 16); }
    FA_MEMBER static constexpr int key_byte(int lane) { return 16 * (lane / 16); }
    template <class T>
    FA_MEMBER static void multiply(rt::AccVec<8>& d, const uint32_t a[4], const uint32_t b[4]) {
        rt::wmma_f32_16x16x16_gfx12<kIsF16<T>>(d, a, b);
    }
};

// Of wide heads on RDNA: outputs fill the registers, and q lies in shared memory.
struct WideWmmaGfx11 : WmmaGfx11 {
    using General = WideWmmaGfx11;
    static constexpr bool kQInShared = true;
};
struct WideWmmaGfx12 : WmmaGfx12 {
    using General = WideWmmaGfx12;
    static constexpr bool kQInShared = true;
};

// kTile rows × kTile columns of f32. A lane holds elements of one row.
template <class I>
struct AccTransposed {
    static constexpr int kElements = I::kElements, kRows = 1;
    rt::AccVec<kElements> x;
    FA_MEMBER static int lane() { return rt::thread() % I::kLanes; }
    // Opaque: what follows from rows and columns, such as where a bias lies, takes no registers through the loop.
    FA_MEMBER static int row(int) { return I::row(rt::opaque(lane())); }
    FA_MEMBER static constexpr int lane_row(int) { return 0; }
    FA_MEMBER static int column(int i) { return I::column(rt::opaque(lane()), i); }
    FA_MEMBER static bool first_of_row() { return lane() < I::kTile; }
    FA_MEMBER static float max_of_row(float x) {
        FA_UNROLL_FOR (int mask = I::kTile; mask < I::kLanes; mask *= 2) x = rt::max_across<I::kLanes>(x, mask);
        return x;
    }
    FA_MEMBER static float sum_of_row(float x) {
        FA_UNROLL_FOR (int mask = I::kTile; mask < I::kLanes; mask *= 2) x = rt::sum_across<I::kLanes>(x, mask);
        return x;
    }
    // Products that have been added are computed here, not behind a branch, where the fragments that they take would fill all registers.
    FA_MEMBER void finish() { rt::finish_products(x); }
    // x · a + b of all elements, of which some GPUs compute two at a time.
    FA_MEMBER void multiply_add(float a, float b) { rt::multiply_add(x, a, b); }
    FA_MEMBER void multiply(float factor) { rt::multiply(x, factor); }
    // A lane's part of a row's sum, alike.
    struct Sum {
        rt::AccVec<2> part;
        FA_MEMBER float total() const { return part[0] + part[1]; }
    };
    FA_MEMBER void add_to(Sum& sum, bool first) const { rt::add_pairs(sum.part, x, first); }
    static constexpr bool kMaskVecs = false;
    template <int tiles>
    FA_MEMBER static void load_mask(const uint8_t*, uint32_t*) {}
    template <int tiles>
    FA_MEMBER static void set_mask_bits(const uint32_t (&)[tiles], int, uint32_t&) {}
};

template <class T>
struct BitsOf {
    using Type = uint16_t;
};
template <>
struct BitsOf<F32> {
    using Type = uint32_t;
};

// f16, bf16 and f32, kept in the units of MmaSync's and MmaTf32's probabilities. Of all but f16 a row's reference may be 4 behind its
// maximum, so that most tiles rescale no outputs: over fewer than 2^20 keys no sum is larger for that than those of 2^24 keys are without.
template <class I, class T>
struct MmaTransposed : MmaPolicy<T, T> {
    using Acc = AccTransposed<I>;
    using General = MmaTransposed<typename I::General, T>;
    struct FragmentA {
        uint32_t r[I::kWords];
    };  // of query rows: q or P
    struct FragmentB {
        uint32_t r[I::kWords];
    };  // of keys, or of columns of v
    struct QRow {
        const char* base;
        int bytes, width;  // 0: a row that does not exist; of a copy
    };
    using Bits = typename BitsOf<T>::Type;
    using StoredBits = Bits;  // an element of k and v in memory
    static constexpr const char* kFamily = I::kFamily;
    static constexpr int kLanes = I::kLanes, kTile = I::kTile;
    static constexpr bool kAvailable = I::kAvailable && (I::kMultipliesF16 || !kIsF16<T>);
    static constexpr bool kAsyncCopies = false, kClusters = false, kQInShared = I::kQInShared, kOutputInPasses = true;
    static constexpr bool kF16 = kIsF16<T>;
    static constexpr bool kModsAtOnce = false;  // nobody has timed them there, and the machine code that was run has the branches
    static constexpr int kBytes = int(sizeof(T));
    static constexpr float kExponent = kF16 ? 15.f : 0.f, kLag = kF16 ? 0.f : 4.f, kRowSumUnit = kF16 ? 0x1p-47f : 0x1p-32f,
                           kOutputUnit = kF16          ? 0x1p-47f
                                         : kBytes == 4 ? 1.f
                                                       : 0x1p-8f;
    static constexpr int kDimPieces = I::kWords * 4 / I::kDimBytes, kKeyPieces = I::kWords * 4 / I::kKeyBytes;
    static constexpr Copies kCopies = Copies::registers;
    FA_MEMBER static int output_column(int c, int i) { return kTile * c + Acc::column(i); }

    // q's rows are read from global memory, each lane its own, and stay in registers; or those of wide heads from shared memory, for each
    // tile of keys.
    FA_MEMBER static void load_q(FragmentA& a, const QRow& row, int step) {
        constexpr int words = I::kDimBytes / 4;
        FA_UNROLL_FOR (int i = 0; i < kDimPieces; i++) {
            const int at = kBytes * kTile * step + I::dim_byte(Acc::lane()) + I::kDimStep * i;
            FA_UNROLL_FOR (int w = 0; w < words; w++) a.r[words * i + w] = 0;
            if (row.width == 16) {
                if (at < row.bytes) rt::load_words<words>(reinterpret_cast<const uint8_t*>(row.base) + at, a.r + words * i);
            } else {
                FA_UNROLL_FOR (int byte = 0; byte < 4 * words; byte += kBytes)
                    if (at + byte < row.bytes)
                        a.r[words * i + byte / 4] |= uint32_t(*reinterpret_cast<const Bits*>(row.base + at + byte)) << byte % 4 * 8;
            }
        }
    }
    // Byte offsets in shared memory: of a lane's first piece of a tile of keys, and of the columns of v. Pieces of other steps and
    // tiles lie an exclusive or, and a constant, away.
    FA_MEMBER static uint32_t opaque_address(const char* tile, int offset) {
        return uint32_t(rt::opaque(int(rt::smem_addr(tile)) + offset));
    }
    template <int row_bytes>
    FA_MEMBER static uint32_t k_ptr(const char* tile, int key, int lane = Acc::lane()) {
        return opaque_address(tile, swizzle_offset<row_bytes>(key + I::row(lane), 0) ^ I::dim_byte(lane));
    }
    FA_MEMBER static void load_dims(uint32_t r[I::kWords], uint32_t ptr, int down, int step) {
        constexpr int words = I::kDimBytes / 4;
        FA_UNROLL_FOR (int i = 0; i < kDimPieces; i++) {
            const uint32_t at = uint32_t(kBytes * kTile * step + I::kDimStep * i);
            rt::load_shared<words>((ptr ^ at % 128) + at / 128 * 128 + uint32_t(down), r + words * i);
        }
    }
    template <int row_bytes>
    FA_MEMBER static void load_k(FragmentB& b, uint32_t ptr, int down, int step) {
        load_dims(b.r, ptr, down, step);
    }
    template <int row_bytes>
    FA_MEMBER static uint32_t q_ptr(const char* tile, int row, int lane) {
        return k_ptr<row_bytes>(tile, row, lane);
    }
    FA_MEMBER static void load_q(FragmentA& a, uint32_t ptr, int down, int step) { load_dims(a.r, ptr, down, step); }
    // v's tile lies column by column. The pieces of 16 neighbouring columns, or 8, lie in different banks, and so do those of every
    // fourth, which are written at a time.
    template <int keys>
    FA_MEMBER static constexpr int v_swizzle(int column) {
        constexpr int pieces = kBytes * keys / I::kKeyBytes, together = 128 / I::kKeyBytes;
        static_assert(kTile % pieces == 0, "");
        return (column ^ column / (pieces < 4 ? 4 : pieces < together ? pieces : together)) % pieces * I::kKeyBytes;
    }
    template <int keys>
    FA_MEMBER static constexpr int v_offset(int column, int key) {
        return kBytes * keys * column + (kBytes * key ^ v_swizzle<keys>(column));
    }
    // Or row by row, where loads transpose: 16 lanes together, each a quarter of 16 columns of a key. Four neighbouring keys lie in
    // different banks.
    static constexpr bool kTransposedLoads = I::kTransposedLoads;
    // Tiles that lie row by row, as they are in memory, come there without registers between: CDNA 4 has such loads, too.
    static constexpr bool kLoadsToShared = kTransposedLoads;
    template <int row_bytes>
    FA_MEMBER static constexpr int v_row_offset(int key, int vec) {
        return row_bytes * key + (vec ^ (key % 4 * 2 + key / 4 % 2)) * 16;
    }
    template <int row_bytes, int keys>
    FA_MEMBER static uint32_t v_ptr(const char* tile, int key, int lane = Acc::lane()) {
        if constexpr (kTransposedLoads) {
            const int column = I::row(lane / 16 * 16) + lane % 4 * 4, own = I::key_byte(lane) / 2 + lane / 4 % 4;
            return opaque_address(tile, v_row_offset<row_bytes>(key + own, column / 8) + column % 8 * 2);
        }
        return opaque_address(tile, v_offset<keys>(I::row(lane), key) ^ I::key_byte(lane));
    }
    template <int row_bytes, int keys>
    FA_MEMBER static void load_v(FragmentB& b, uint32_t ptr, int n, int c) {
        constexpr int words = I::kKeyBytes / 4;
        if constexpr (kTransposedLoads) {
            FA_UNROLL_FOR (int i = 0; i < kKeyPieces; i++) {
                const int row = kTile * n + I::kKeyStep / 2 * i, at = 2 * kTile * c;
                rt::load_transposed((ptr ^ uint32_t(at % 128)) + uint32_t(at / 128 * 128 + row * row_bytes), b.r + words * i);
            }
            return;
        }
        FA_UNROLL_FOR (int i = 0; i < kKeyPieces; i++) {
            const uint32_t at = uint32_t((kBytes * kTile * n + I::kKeyStep * i) ^ v_swizzle<keys>(kTile * c));
            rt::load_shared<words>((ptr ^ at) + uint32_t(kBytes * keys * kTile * c), b.r + words * i);
        }
    }
    FA_MEMBER static void mma(Acc& d, const FragmentA& a, const FragmentB& b) {
        I::template multiply<T>(d.x, b.r, a.r);
        rt::order_products();
    }

    FA_MEMBER static uint32_t pack(const float x[2]) { return kF16 ? rt::cvt_pk_f16(x[0], x[1]) : rt::pack_bf16(x[0], x[1]); }
    FA_MEMBER static void store4(T* to, const float x[4]) {
        if constexpr (kBytes == 4) {
            rt::store4(&to->x, x);
        } else {
            const uint32_t words[] = {pack(x), pack(x + 2)};
            rt::store_words<2>(reinterpret_cast<char*>(to), words);
        }
    }
    FA_MEMBER static float tanh(float x) { return kBytes == 4 ? tanhf(x) : tanh_fast(x); }
    // P as the right operand. bf16: 2^-24 times as large only here, for the exponential's result would be 0 instead of subnormal; and
    // halves are rounded up, for a third of the instructions that rounding them to even takes, where none does it. A NaN may lose its bits
    // on the way, but the row's sum has it, too.
    FA_MEMBER static void round_probs(FragmentA& a, const Acc& p) {
        Acc scaled = p;
        if constexpr (!kF16) scaled.multiply(kRowSumUnit / kOutputUnit);
        if constexpr (kBytes == 4) return keep(a, scaled);
        spread_pairs(a, scaled, [](const float x[2]) {
            if constexpr (kF16) return rt::cvt_pk_f16(x[0], x[1]);
            else if constexpr (I::kPacksBf16) return rt::cvt_pk_bf16(x[0], x[1]);
            else return rt::prmt(bits_of(x[0]) + 0x8000u, bits_of(x[1]) + 0x8000u, 0x7632);
        });
    }
    template <class Tile>
    FA_MEMBER static void keep(FragmentA& a, const Tile& p) {
        FA_UNROLL_FOR (int i = 0; i < Acc::kElements; i++) a.r[i] = bits_of(p.x[i]);
    }
    // The pairs of a result's elements, as round(pair) makes them words.
    template <class Tile, class Round>
    FA_MEMBER static void spread_pairs(FragmentA& a, const Tile& p, Round round) {
        FA_UNROLL_FOR (int i = 0; i < Acc::kElements; i += 2) {
            const float pair[] = {p.x[i], p.x[i + 1]};
            const uint32_t own = round(pair);
            if constexpr (!I::kOperandsTwice) {
                a.r[i / 2] = own;
            } else {  // columns 2i and 2i + 2 of the even or odd ones; the other half of the wave has the others
                const uint32_t other = bits_of(rt::exchange<I::kLanes>(float_of(own), 16));
                const bool odd = Acc::lane() >= 16;
                const uint32_t even_columns = odd ? other : own, odd_columns = odd ? own : other;
                a.r[i] = rt::prmt(even_columns, odd_columns, 0x5410);
                a.r[i + 1] = rt::prmt(even_columns, odd_columns, 0x7632);
            }
        }
    }

    // For the backward (transposed/backward.h): P and dS as left sides, rounded to even; and columns of tiles that lie row by row. Of
    // kColumnGroup products side by side a lane has neighbouring columns, which it reads together: of a row as many as its fragments have
    // keys.
    static constexpr int kColumnGroup = 4;
    static constexpr bool kHoldsProbs = true, kHoldsOwned = kLanes == 64;  // where registers suffice
    static constexpr float kProbExponent = kExponent, kProbUnit = kF16 ? 0x1p+15f : 1.f, kProductUnit = 1.f;
    static constexpr bool kNarrow = kF16;
    static constexpr int kKeysHeld = 4 * I::kWords / kBytes;  // of a fragment
    struct RawColumns {
        uint32_t r[kKeysHeld][kBytes];
    };
    template <class Tile>
    FA_MEMBER static void pack_probs(FragmentA& a, const Tile& p) {
        if constexpr (kBytes == 4) keep(a, p);
        else spread_pairs(a, p, pack);
    }
    FA_MEMBER static void load_shared_q(FragmentA& a, uint32_t ptr, int down, int step) { load_dims(a.r, ptr, down, step); }
    template <int row_bytes>
    FA_MEMBER static uint32_t columns_ptr(const char* tile) {
        const int lane = Acc::lane(), key = I::key_byte(lane) / kBytes, byte = kBytes * kColumnGroup * I::row(lane);
        return rt::smem_addr(tile) + uint32_t(rt::opaque(swizzle_offset<row_bytes>(key, byte / 16) + byte % 16));
    }
    // Of the n-th kTile rows, and of the columns of a group.
    template <int row_bytes>
    FA_MEMBER static void load_columns(RawColumns& to, uint32_t ptr, int n, int group) {
        static_assert(kBytes * kColumnGroup * kTile % 128 == 0, "a group's columns are swizzled among themselves");
        FA_UNROLL_FOR (int i = 0; i < kKeysHeld; i++) {
            constexpr int keys = I::kKeyBytes / kBytes;  // of a piece
            const int key = I::kKeyStep / kBytes * (i / keys) + i % keys;
            const uint32_t at = uint32_t((kTile * n + key) * row_bytes + kBytes * kColumnGroup * kTile * group);
            rt::load_shared<kBytes>((ptr ^ uint32_t(key % 8 * 16)) + at, to.r[i]);
        }
    }
    FA_MEMBER static void column_of(FragmentB& b, const RawColumns& from, int c) {
        FA_UNROLL_FOR (int i = 0; i < I::kWords; i++) {
            if constexpr (kBytes == 4) b.r[i] = from.r[i][c];
            else b.r[i] = rt::prmt(from.r[2 * i][c / 2], from.r[2 * i + 1][c / 2], c % 2 ? 0x7632 : 0x5410);
        }
    }
};

// The same with k and v of 8 bits, which are widened to q's type on their way to shared memory; that represents every value of theirs
// exactly. e4m3 is OCP's everywhere: no instruction of CDNA 3 takes part, whose own format of that name lacks the largest values and −0.
template <class I, class T>
struct MmaTransposedByte : MmaTransposed<I, T> {
    using General = MmaTransposedByte<typename I::General, T>;
    using StoredBits = uint8_t;
    static constexpr const char* kFamily = I::kByteFamily;
    static constexpr bool kKv8bit = true, kLoadsToShared = false;

    // The i-th byte of a word. e4m3's exponent and mantissa at a float's place lack the difference of the biases; what only NaN has comes
    // out as 480.
    FA_MEMBER static float value(E4m3, uint32_t word, int i) {
        const float x = float_of(uint32_t(int32_t(word << (24 - 8 * i)) >> 4) & 0x87f00000u) * 0x1p+120f;
        return fabsf(x) > kMaxE4M3 ? float_of(0x7fc00000u) : x;
    }
    FA_MEMBER static float value(E5m2, uint32_t word, int i) { return rt::cvt_f32_f16(uint16_t(word >> 8 * i << 8)); }
    FA_MEMBER static float value(I8, uint32_t word, int i) { return float(int32_t(word << (24 - 8 * i)) >> 24); }
    template <class S>
    FA_MEMBER static void widen(S, uint32_t word, uint32_t to[2]) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const float low = value(S{}, word, 2 * i), high = value(S{}, word, 2 * i + 1);
            to[i] = kIsF16<T> ? rt::cvt_pk_f16(low, high) : rt::prmt(bits_of(low), bits_of(high), 0x7632);
        }
    }
};

}  // namespace gpu
}  // namespace fa
