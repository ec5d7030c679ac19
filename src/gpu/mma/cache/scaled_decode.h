// Decoding from k and v of 8 bits or fewer with factors: what mma/cache/scaled.h takes, where k and v are of one type and their factors
// such as caches have them. As in mma/cache/blocks_decode.h keys, and columns of v, are the 16 rows of a product and query rows its 8
// columns, and what is stored becomes numbers of 16 bits in the registers of the lanes that multiply them, without a way through shared
// memory.
//
// There, rows are as they are stored. Of blocks lanes read words, as of q4_0. Rows of bytes or nibbles are vectors of 16 bytes that
// ldmatrix hands out: of k, each lane gets four bytes of a key; of v, transposed, two bytes of two keys. Nibbles stay in place until they
// are wanted, four to 16 bits: q takes on the order that they have in k, and o's columns come in the order that they have in v.
//
// Factors of a warp's keys become f32 once for each tile (stored_pipe.h), all of a key one behind the other. They multiply as in
// mma/cache/scaled.h, offsets are added in f32: those of k times sums of q, those of v times probabilities, to sums of their own. Of e2m1
// with factors of e4m3 for 16 dims (NVFP4) number times factor is exact in 16 bits, and is what is multiplied: widening e2m1 takes a
// product anyway.
#pragma once
#include "gpu/common/instance.h"
#include "gpu/mma/cache/blocks_decode.h"
#include "gpu/mma/cache/scaled.h"

namespace fa {
namespace gpu {

// What a loop knows of its storage type at compile time: bytes of 32 dims; are factors among them? Has a value an offset? Have halves
// factors of their own?
template <int32_t dtype>
struct StoredBlocks : BlockType<dtype> {
    static constexpr StoredFormat kStoredFormat = dtype == FA_Q4_1   ? StoredFormat::q4_1
                                                  : dtype == FA_Q5_0 ? StoredFormat::q5_0
                                                                     : StoredFormat::q5_1;
    static constexpr bool kInBlocks = true, kNibbles = false, kOffsets = BlockType<dtype>::kFormat.has_min, kHalves = false;
};
template <class S>
constexpr StoredFormat kFormatOfBytes = StoredFormat::e4m3;
template <>
constexpr StoredFormat kFormatOfBytes<I8> = StoredFormat::i8;
template <class S>
struct StoredBytes {
    using Byte = S;
    static constexpr StoredFormat kStoredFormat = kFormatOfBytes<S>;
    static constexpr int kBytes = 32;
    static constexpr bool kInBlocks = false, kNibbles = false, kOffsets = false, kHalves = false;
};
template <bool halves>
struct StoredE2m1 {
    static constexpr StoredFormat kStoredFormat = halves ? StoredFormat::e2m1_halves : StoredFormat::e2m1;
    static constexpr int kBytes = 16;
    static constexpr bool kInBlocks = false, kNibbles = true, kOffsets = false, kHalves = halves;
    // e2m1 as a number of 16 bits begins below the smallest normal one: 2^126 in bf16, 2^14 in f16 takes it to its value. With its factor
    // in that multiplier, it is kept too small by a power of two, lest the multiplier overflow.
    template <class E>
    static constexpr float kHalfUnit = kIsF16<E> ? 0x1p+7f : 0x1p+16f;
    template <class E>
    static constexpr float kHalfFactor = kIsF16<E> ? 0x1p+7f : 0x1p+110f;
    template <class E>
    FA_MEMBER static uint32_t widen(uint32_t nibbles, int n, uint32_t multiplier) {
        const uint32_t at = nibbles << (12 - 4 * n);  // sign, where it belongs, and behind it the rest
        if constexpr (kIsF16<E>) return rt::multiply_f16(rt::and_or(at, 0x80008000u, at >> 3 & 0x0e000e00u), multiplier);
        else return rt::multiply_bf16(rt::and_or(at, 0x80008000u, at >> 6 & 0x01c001c0u), multiplier);
    }
    template <class E>
    FA_MEMBER uint32_t widen(uint32_t nibbles, int n) const {
        return widen<E>(nibbles, n, kIsF16<E> ? 0x74007400u : 0x7e807e80u);
    }
};
struct StoredInt4 {
    static constexpr StoredFormat kStoredFormat = StoredFormat::int4;
    static constexpr int kBytes = 16;
    static constexpr bool kInBlocks = false, kNibbles = true, kOffsets = true, kHalves = false;
    uint32_t middle;  // 8 in both halves for i4, whose sign becomes a distance from -8; u4 has none, so that its 0 is 0 exactly
    template <class E>
    FA_MEMBER uint32_t widen(uint32_t nibbles, int n) const {
        if constexpr (kIsF16<E>) return rt::add_f16(rt::and_xor(nibbles >> 4 * n, 0x000f000fu, middle ^ 0x64006400u), middle ^ 0xe400e400u);
        else return rt::subtract_bf16(rt::and_xor(nibbles >> 4 * n, 0x000f000fu, middle ^ 0x43004300u), middle ^ 0x43004300u);
    }
};

// What a storage type's integers are distances from: the middle, or 0, where a block's offset is its smallest value as it is.
template <class S, bool from_zero>
struct NumbersOf : S {};
template <class S>
struct NumbersOf<S, true> : S {
    static constexpr uint32_t kMiddle = 0;
};

template <class M>
struct StoredProducts;

template <class T, class S>
struct MmaScaledDecode : MmaQuantisedDecode<T> {
    template <class M>
    using Products = StoredProducts<M>;
    using Type = S;
    // From 0 takes fewer instructions. But number times factor and offset may then be twice as large, with opposite signs, and the sum
    // loses as much more: too much for f16.
    using Numbers = NumbersOf<S, S::kInBlocks && S::kOffsets && !kIsF16<T>>;
    using Usual = MmaQuantisedDecode<T>;
    using typename Usual::Acc;
    using typename Usual::FragmentA;
    using typename Usual::FragmentB;
    static constexpr const char* kFamily = "fwd_mma_stored";
    using General = MmaScaledDecode;
    static constexpr auto& kRows = kMmaScaledDecodeRows;
    // Integers of 4 bits have no registers for two tiles.
    FA_MEMBER static constexpr bool takes(const MmaRow& row) {
        return Usual::takes(row) && (Type::kStoredFormat != StoredFormat::int4 || row.row_tiles == 1);
    }
    FA_MEMBER static constexpr Loops loops(int) { return Loops::plain; }
    template <class Instance>
    FA_MEMBER static constexpr void describe(Instance& one, int) {
        one.scaled = true;
        one.stored = Type::kStoredFormat;
    }
    FA_MEMBER static constexpr TileLayout layout(int dims) { return {block_pitch(dims), dims / 16, 16, block_pitch(dims), 32}; }
    FA_MEMBER static constexpr int offset_accs(int steps) { return Type::kOffsets ? steps / 4 : 0; }
    FA_MEMBER static constexpr int blocks_held(Kind kind, int resident) {
        return rt::kScarceRegisters && resident > 2 ? 2 : Usual::blocks_held(kind, resident);
    }
    FA_MEMBER static Type type_of(int32_t dtype) {
        if constexpr (Type::kStoredFormat == StoredFormat::int4) return {dtype == FA_I4 ? 0x00080008u : 0u};
        else return {};
    }
    static constexpr Copies kCopies = Copies::stored;
    static constexpr float kExponent = MmaScaled<T>::kExponent, kRowSumUnit = MmaScaled<T>::kRowSumUnit,
                           kOutputUnit = MmaScaled<T>::kOutputUnit;
    static constexpr int kBlocks = 4;  // of 32 dims in a row, whose factors are a vector

    FA_MEMBER static int output_column(int c, int i) {
        return Type::kNibbles ? kBlockDims * (c / 2) + rt::thread() % 32 / 4 * 4 + 2 * (c % 2) + i / 2 : Usual::output_column(c, i);
    }

    // All of q's tiles, in the order of k's dims: of nibbles a lane takes eight neighbouring dims of each 32.
    template <int row_bytes, int row_tiles, int steps>
    FA_MEMBER static void load_held(FragmentA (&q)[row_tiles][steps], const char* tile, int lane = rt::thread() % 32) {
        FA_UNROLL_FOR (int m = 0; m < row_tiles; m++)
            FA_UNROLL_FOR (int i = 0; i < steps; i++) {
                if constexpr (Type::kNibbles) {
                    const SwizzledPtr ptr(rt::smem_addr(tile) + uint32_t(swizzle_offset<row_bytes>(8 * m + lane / 4, lane % 4)));
                    const uint32_t at = ptr.pair(i / 2 * 2) + uint32_t(i % 2 * 4);
                    const uint32_t words[] = {bits_of(rt::ld_shared(at)), bits_of(rt::ld_shared(at + 8))};
                    q[m][i].r[0] = rt::prmt(words[0], words[1], 0x5410);
                    q[m][i].r[1] = rt::prmt(words[0], words[1], 0x7632);
                } else {
                    Usual::load_q(q[m][i], Usual::template q_ptr<row_bytes>(tile, 8 * m, lane), 0, i);
                }
            }
    }

    // Where a lane's row for ldmatrix begins, in 16 keys of k or of v: matrices are keys and eight further ones of 16 bytes, then of the
    // next 16.
    template <int pitch>
    FA_MEMBER static uint32_t vector_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return rt::smem_addr(tile) + uint32_t((key + lane % 16) * pitch + lane / 16 * 16);
    }
    // Blocks `pair` and the next one of 16 keys of k, or of v, transposed. multiplier: of halves, what number and factor are multiplied by,
    // for both of a lane's keys.
    template <bool value, class E, int pitch>
    FA_MEMBER static void load_blocks(const Type& type, FragmentB (&b)[4], const char* tile, int key, int pair,
                                      const uint32_t (&multiplier)[2][kBlocks]) {
        const auto load_vectors = [&](int column, uint32_t (&words)[4]) {
            const uint32_t at = vector_ptr<pitch>(tile, key) + uint32_t(column);
            if constexpr (value) rt::ldmatrix_x4_trans(at, words);
            else rt::ldmatrix_x4(at, words);
        };
        if constexpr (Type::kInBlocks) {
            FA_UNROLL_FOR (int block = 0; block < 2; block++) {
                FragmentB own[2];
                if constexpr (value) Usual::template load_v<Numbers, pitch>(own, Usual::template v_ptr<pitch, 0>(tile, key), pair + block);
                else Usual::template load_k<Numbers, pitch>(own, Usual::template k_ptr<pitch>(tile, key), pair + block);
                b[2 * block] = own[0], b[2 * block + 1] = own[1];
            }
        } else if constexpr (Type::kNibbles) {
            uint32_t words[4];
            load_vectors(16 * pair, words);
            FA_UNROLL_FOR (int i = 0; i < 4; i++)
                FA_UNROLL_FOR (int n = 0; n < 4; n++) {
                    uint32_t& to = b[i / 2 * 2 + n / 2].r[value ? n % 2 * 2 + i % 2 : i % 2 * 2 + n % 2];
                    if constexpr (Type::kHalves) to = Type::template widen<E>(words[i], n, multiplier[i % 2][pair + i / 2]);
                    else to = type.template widen<E>(words[i], n);
                }
        } else {
            FA_UNROLL_FOR (int block = 0; block < 2; block++) {
                uint32_t words[4];
                load_vectors(32 * (pair + block), words);
                FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                    uint32_t* const to = b[2 * block + i / 2].r + i % 2 * (value ? 1 : 2);
                    MmaByte<E>::template widen<true>(typename Type::Byte{}, words[i], to[0], to[value ? 2 : 1]);
                }
            }
        }
    }

    // Factors and offsets of the two keys whose scores and probabilities a lane has: `key` and the one 8 behind it.
    template <int pitch, int keys>
    FA_MEMBER static void load_factors(float (&factor)[2][kBlocks], float (&offset)[2][kBlocks], const char* tile, const char* factors,
                                       int key) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            if constexpr (Type::kInBlocks) {
                FA_UNROLL_FOR (int block = 0; block < kBlocks; block++) {
                    const char* const head = tile + (key + 8 * i) * pitch + block * Type::kBytes;
                    if constexpr (Type::kOffsets) {
                        rt::f16x2_to_f32(*reinterpret_cast<const uint32_t*>(head), factor[i][block], offset[i][block]);
                        if constexpr (Numbers::kMiddle > 0)
                            offset[i][block] = fmaf(factor[i][block], float(Numbers::kMiddle), offset[i][block]);
                    } else {
                        factor[i][block] = rt::load_f16(head);
                    }
                }
            } else {
                const float* const from = reinterpret_cast<const float*>(factors) + (key + 8 * i) * kBlocks;
                rt::load4(from, factor[i]);
                if constexpr (Type::kOffsets) rt::load4(from + keys * kBlocks, offset[i]);
            }
        }
    }
    FA_MEMBER static void load_multipliers(uint32_t (&to)[2][kBlocks], const char* first, int step) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            float words[4];
            rt::load4(reinterpret_cast<const float*>(first + i * step), words);
            FA_UNROLL_FOR (int block = 0; block < kBlocks; block++) to[i][block] = bits_of(words[block]);
        }
    }

    // Scores of a warp's keys from `key0` on.
    template <int pitch, int keys, int row_tiles, int key_tiles>
    FA_MEMBER static void add_scores(const Type& type, const FragmentA (&q)[row_tiles][2 * kBlocks], const char* k, const char* factors,
                                     int key0, Acc (*score)[key_tiles]) {
        const int lane = rt::thread() % 32;
        const auto sum_of_q = [&](int m, int block) {
            constexpr uint32_t one = kIsF16<T> ? 0x3c003c00u : 0x3f803f80u;
            Acc sum{};
            FA_UNROLL_FOR (int c = 0; c < 2; c++) Usual::mma(sum, q[m][2 * block + c], FragmentB{{one, one, one, one}});
            return sum;
        };
        constexpr bool kept = Type::kOffsets && row_tiles == 1;  // two tiles leave no registers for it
        float q_sum[kBlocks][2];
        if constexpr (kept) {
            FA_UNROLL_FOR (int block = 0; block < kBlocks; block++) {
                const Acc sum = sum_of_q(0, block);
                q_sum[block][0] = sum.x[0], q_sum[block][1] = sum.x[1];
            }
        }
        FA_UNROLL_FOR (int n = 0; n < key_tiles; n++) {
            const int key = key0 + 16 * n;
            float factor[2][kBlocks], offset[2][kBlocks];
            uint32_t multiplier[2][kBlocks];
            if constexpr (Type::kHalves) load_multipliers(multiplier, factors + (key + lane / 4) * 32 + lane % 4 / 2 * 16, 8 * 32);
            else load_factors<pitch, keys>(factor, offset, k, factors, key + lane / 4);
            // NaN of an infinite factor or offset (nan_if_infinite()). Offsets from a middle have factors in them; what is not in blocks
            // was converted so.
            if constexpr (Type::kInBlocks) {
                FA_UNROLL_FOR (int i = 0; i < 2; i++)
                    FA_UNROLL_FOR (int block = 0; block < kBlocks; block++) {
                        float& x = Type::kOffsets ? offset[i][block] : factor[i][block];
                        if constexpr (Type::kOffsets && Numbers::kMiddle == 0) x = fmaf(0.f, factor[i][block], x);
                        x = fmaf(0.f, x, x);
                    }
            }
            FA_UNROLL_FOR (int pair = 0; pair < kBlocks; pair += 2) {
                FragmentB right[4];
                load_blocks<false, T, pitch>(type, right, k, key, pair, multiplier);
                FA_UNROLL_FOR (int i = 0; i < 2; i++)
                    FA_UNROLL_FOR (int m = 0; m < row_tiles; m++) {
                        const int block = pair + i;
                        if constexpr (Type::kHalves) {
                            FA_UNROLL_FOR (int c = 0; c < 2; c++) Usual::mma(score[m][n], q[m][2 * block + c], right[2 * i + c]);
                        } else {
                            Acc products{};
                            FA_UNROLL_FOR (int c = 0; c < 2; c++) Usual::mma(products, q[m][2 * block + c], right[2 * i + c]);
                            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                                score[m][n].x[e] = fmaf(products.x[e], factor[e / 2][block], score[m][n].x[e]);
                            if constexpr (Type::kOffsets) {
                                Acc sum;
                                if constexpr (kept) sum.x[0] = q_sum[block][0], sum.x[1] = q_sum[block][1];
                                else sum = sum_of_q(m, block);
                                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                                    score[m][n].x[e] = fmaf(sum.x[e % 2], offset[e / 2][block], score[m][n].x[e]);
                            }
                        }
                    }
            }
            if constexpr (Type::kHalves) {
                FA_UNROLL_FOR (int m = 0; m < row_tiles; m++)
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) score[m][n].x[e] *= Type::template kHalfUnit<T>;
            }
        }
    }

    // Probabilities times factors as the right side of a product, in bf16; `both`: and what rounding has left of them.
    template <bool both>
    FA_MEMBER static void round_products(FragmentA& a, FragmentA& rest, const Acc& p, float factor0, float factor1) {
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const float factor = i ? factor1 : factor0, x[] = {p.x[2 * i] * factor, p.x[2 * i + 1] * factor};
            const uint32_t pair = rt::pack_bf16(x[0], x[1]);
            a.r[i] = rt::transpose_8x8(pair);
            if constexpr (both)
                rest.r[i] = rt::transpose_8x8(rt::pack_bf16(x[0] - float_of(pair << 16), x[1] - float_of(pair & 0xffff0000u)));
        }
    }
    template <bool both>
    FA_MEMBER static void mma_v(Acc& d, const FragmentA& a, const FragmentA& rest, const FragmentB& b) {
        const uint32_t left[] = {b.r[0], b.r[2], b.r[1], b.r[3]};
        rt::mma_m16n8k16_bf16(d.x, left, a.r);
        if constexpr (both) rt::mma_m16n8k16_bf16(d.x, left, rest.r);
    }
    // Outputs of 16 keys' probabilities. Behind those of all columns, o has the sums of offsets, which are those of all columns of a block.
    template <int pitch, int keys, int row_tiles, int key_tiles, int accs>
    FA_MEMBER static void add_outputs(const Type& type, const Acc (*p)[key_tiles], int n, const char* v, const char* factors, int key,
                                      Acc (*o)[accs]) {
        // Where values have offsets, both parts of one may be much larger than it is, so that neither may lose what rounding takes away.
        constexpr bool both = kIsF16<T> || Type::kOffsets;
        const int lane = rt::thread() % 32;
        float factor[2][kBlocks], offset[2][kBlocks];
        uint32_t multiplier[2][kBlocks];
        FragmentA left[row_tiles], rest[row_tiles];
        if constexpr (Type::kHalves) {
            load_multipliers(multiplier, factors + (key / 2 + lane % 4) * 32 + lane / 16 * 16, 4 * 32);
            FA_UNROLL_FOR (int m = 0; m < row_tiles; m++)
                round_products<both>(left[m], rest[m], p[m][n], Type::template kHalfUnit<Bf16>, Type::template kHalfUnit<Bf16>);
        } else {
            load_factors<pitch, keys>(factor, offset, v, factors, key + lane / 4);
        }
        FA_UNROLL_FOR (int pair = 0; pair < kBlocks; pair += 2) {
            FragmentB right[4];
            load_blocks<true, Bf16, pitch>(type, right, v, key, pair, multiplier);
            FA_UNROLL_FOR (int i = 0; i < 2; i++)
                FA_UNROLL_FOR (int m = 0; m < row_tiles; m++) {
                    const int block = pair + i;
                    if constexpr (!Type::kHalves) round_products<both>(left[m], rest[m], p[m][n], factor[0][block], factor[1][block]);
                    FA_UNROLL_FOR (int c = 0; c < 2; c++) mma_v<both>(o[m][2 * block + c], left[m], rest[m], right[2 * i + c]);
                    if constexpr (Type::kOffsets) {
                        float* const sum = o[m][2 * kBlocks + block / 2].x + block % 2 * 2;
                        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                            sum[e % 2] = fmaf(p[m][n].x[e], offset[e / 2][block], sum[e % 2]);
                    }
                }
        }
    }
    template <int row_tiles, int accs>
    FA_MEMBER static void add_offsets(Acc (&o)[row_tiles][accs]) {
        FA_UNROLL_FOR (int m = 0; m < row_tiles; m++)
            FA_UNROLL_FOR (int block = 0; block < kBlocks; block++)
                FA_UNROLL_FOR (int r = 0; r < 2; r++) {
                    const float sum = Acc::sum_of_row(o[m][2 * kBlocks + block / 2].x[block % 2 * 2 + r]);
                    FA_UNROLL_FOR (int c = 0; c < 2; c++)
                        FA_UNROLL_FOR (int e = r; e < Acc::kElements; e += 2) o[m][2 * block + c].x[e] += sum;
                }
    }
};
template <class T, class S>
constexpr int kRowsOfTile<MmaScaledDecode<T, S>> = 8;

// Its products, of all of q in registers.
template <class M>
struct StoredProducts : BlockProducts<M, false> {
    using Base = BlockProducts<M, false>;
    using typename Base::Held, typename Base::Mma, typename Base::Output, typename Base::Score;
    using Type = typename Mma::Type;
    static constexpr bool kReadsPages = true;

    FA_MEMBER static float v_factor(const MmaForwardParams& params, bool) { return 1.f / params.v_unit; }
    FA_MEMBER static void hold_q(const MmaForwardParams&, int, Held& q) { Mma::template load_held<M::kQRowBytes>(q, M::q_tile()); }
    template <Kind kind, class Loop>
    FA_MEMBER static float by_type(int32_t dtype, Loop loop) {
        return loop(Mma::type_of(dtype));
    }
    template <Kind kind>
    FA_MEMBER static void add_scores(const MmaForwardParams&, Type type, const Held& held, const char* k, int, int key0, Score& score) {
        Mma::template add_scores<M::kRowBytes, M::keys>(type, held, k, M::stage_tile(M::stages), key0, score);
    }
    template <class Probs>
    FA_MEMBER static void add_outputs(Type type, Score& score, Probs compute_probs, const char* v, int key0, int, Output& o) {
        compute_probs(0);
        FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) {
            if (n + 1 < M::kKeyTiles) compute_probs(n + 1);
            Mma::template add_outputs<M::kRowBytes, M::keys, M::row_tiles>(type, score, n, v, M::stage_tile(M::stages), key0 + M::kTile * n,
                                                                           o);
        }
    }
    FA_MEMBER static void finish_outputs(Output& o) {
        if constexpr (Type::kOffsets) Mma::add_offsets(o);
    }
};

}  // namespace gpu
}  // namespace fa
