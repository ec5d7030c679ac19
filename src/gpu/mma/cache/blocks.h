// Products of f16 or bf16 queries with k and v in blocks of 32 dims that share a factor and have no smallest value (q4_0, q5_0, q8_0): an
// Mma policy of mma/forward.h. Integers are widened, exactly, to 16 bits, and no factor touches them. Those of k multiply, in f32, the
// products of a block with q; those of v multiply the probabilities, which are then rounded to bf16: for f16 queries as a sum of two, for
// f16 has not the range of such products.
//
// In shared memory rows are as they are stored, each an odd multiple of 16 bytes behind the one before: the words that lanes read at once,
// four of each of eight keys or eight of each of four, lie in different banks. A block's integers begin between two words where its number
// is even. Within 16 dims the order is that in which a word's bytes widen, and q's registers take it on; columns of v come in an order of
// theirs.
#pragma once
#include "gpu/mma/cache/bytes.h"

namespace fa {
namespace gpu {

// A storage type: bits of an integer, bytes of a block, and where its integers begin.
template <int32_t dtype>
struct BlockType {
    static constexpr BlockFormat kFormat = {dtype == FA_Q8_0                       ? 8
                                            : dtype == FA_Q5_0 || dtype == FA_Q5_1 ? 5
                                                                                   : 4,
                                            dtype == FA_Q4_1 || dtype == FA_Q5_1};
    static constexpr int kBits = kFormat.bits, kBytes = block_bytes(kFormat), kFirst = (kFormat.has_min ? 4 : 2) + (kBits == 5 ? 4 : 0);
    static constexpr uint32_t kMiddle = 1u << (kBits - 1);  // of integers without a sign: the one that stands for 0
    static_assert(kBytes % 4 == kFirst % 4 && kFirst % 2 == 0, "integers begin with a word or between two, in even blocks and in odd ones");
};

template <class M, bool watches = M::key_warps == 1>
struct BlockProducts;
template <class T>
struct MmaQuantisedDecode;

template <class T>
struct MmaQuantised : MmaByte<T> {
    template <class M>
    using Products = BlockProducts<M>;
    using typename MmaByte<T>::FragmentA;
    using typename MmaByte<T>::FragmentB;
    using typename MmaByte<T>::Acc;
    static constexpr const char* kFamily = "fwd_mma_blocks";
    using General = MmaQuantised;
    using Beside = PolicyList<MmaQuantisedDecode<T>>;
    static constexpr auto& kRows = kMmaBlockRows;
    FA_MEMBER static constexpr TileLayout layout(int dims) { return {block_pitch(dims), dims / 16, 16, block_pitch(dims), 0}; }
    static constexpr bool kKv8bit = false;
    static constexpr Copies kCopies = Copies::blocks;
    // Probabilities are 2^24 times too large: the products of those with the smallest factors stay normal numbers.
    static constexpr float kExponent = 24.f, kRowSumUnit = 0x1p-56f, kOutputUnit = 0x1p-56f;

    // Column of element i of the c-th 16 columns' products: of a block's columns a lane reads a word's four, which go to four products.
    FA_MEMBER static int output_column(int c, int i) {
        return kBlockDims * (c / 2) + 8 * (rt::thread() % 4) + 4 * (i % 2) + 2 * (c % 2) + i / 4;
    }

    // pass(type) with a type known at compile time: a mainloop for each that caches usually have, others leave it to the general kernel;
    // and, there, in the one loop for all of them.
    template <class Pass>
    FA_MEMBER static float by_type(int32_t type, Pass pass) {
        return type == FA_Q4_0 ? pass(BlockType<FA_Q4_0>{}) : pass(BlockType<FA_Q8_0>{});
    }
    template <class Pass>
    FA_MEMBER static void in_loop(int32_t type, Pass pass) {
        type == FA_Q4_0 ? pass(BlockType<FA_Q4_0>{}) : type == FA_Q5_0 ? pass(BlockType<FA_Q5_0>{}) : pass(BlockType<FA_Q8_0>{});
    }
    template <int32_t type, class Pass>
    FA_MEMBER static void in_loop(BlockType<type> known, Pass pass) {
        pass(known);
    }

    FA_MEMBER static void load_q(FragmentA& a, const SwizzledPtr& ptr, int down, int i) {
        uint32_t r[4];
        rt::ldmatrix_x4(ptr.pair(i) + down, r);
        FA_UNROLL_FOR (int row = 0; row < 2; row++) {
            a.r[row] = rt::prmt(r[row], r[2 + row], 0x5410);
            a.r[2 + row] = rt::prmt(r[row], r[2 + row], 0x7632);
        }
    }

    // Where a lane reads k: the first of its rows, and those of eight keys behind it; and v, and factors: two rows, and those of eight keys
    // behind them, which are the keys whose scores and probabilities the lane has.
    static constexpr int kFactors = 4;
    template <int pitch>
    FA_MEMBER static const char* factor_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return tile + (key + lane % 4 * 2) * pitch;
    }
    template <int pitch>
    FA_MEMBER static const char* k_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return tile + (key + lane / 4) * pitch;
    }
    template <int pitch, int keys>
    FA_MEMBER static const char* v_ptr(const char* tile, int key, int lane = rt::thread() % 32) {
        return tile + (key + lane % 4 * 2) * pitch;
    }

    // Four bytes, of which the first two end a word where `at` is not a multiple of four.
    FA_MEMBER static uint32_t load_word(const char* word, int at) {
        const uint32_t* const from = reinterpret_cast<const uint32_t*>(word + (at & ~3));
        return at % 4 ? rt::prmt(from[0], from[1], 0x5432) : from[0];
    }
    // Factors of four keys in the order of a lane's scores and probabilities.
    template <class Type, int pitch>
    FA_MEMBER static void load_factors(float (&factor)[4], const char* ptr, int block) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) factor[i] = rt::load_f16(ptr + (i / 2 * 8 + i % 2) * pitch + block * Type::kBytes);
    }
    FA_MEMBER static constexpr int factor_of(int e) { return e / 4 * 2 + e % 2; }

    // Two integers, which are the lower bytes, or nibbles, of a pair. Those without a sign are added to a power of two by setting bits of
    // it.
    template <class Type, class E>
    FA_MEMBER static uint32_t widen(uint32_t pair) {
        if constexpr (Type::kBits == 8) {
            return MmaByte<E>::from_i8(pair);
        } else {
            constexpr uint32_t mask = Type::kBits == 4 ? 0x000f000fu : 0x001f001fu, middle = Type::kMiddle * 0x00010001u;
            if constexpr (kIsF16<E>) return rt::add_f16(rt::and_or(pair, mask, 0x64006400u), 0xe400e400u | middle);
            else return rt::subtract_bf16(rt::and_or(pair, mask, 0x43004300u), 0x43004300u | middle);
        }
    }
    // Four bytes whose bit 4 is one of the lowest four of `fifth`. What is above bit 4 has no meaning.
    FA_MEMBER static uint32_t set_fifth(uint32_t bytes, uint32_t fifth) { return select_fifth(bytes, (fifth & 15) * 0x02040810u); }
    FA_MEMBER static uint32_t select_fifth(uint32_t bytes, uint32_t fifth) { return (bytes & ~0x10101010u) | (fifth & 0x10101010u); }

    // 32 dims of 16 keys.
    template <class Type, int pitch>
    FA_MEMBER static void load_k(FragmentB (&b)[2], const char* ptr, int block) {
        const int at = block * Type::kBytes + Type::kFirst, lane_byte = rt::thread() % 4 * 4;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            const char* const row = ptr + 8 * half * pitch;
            uint32_t words[2] = {load_word(row + lane_byte, at)};
            if constexpr (Type::kBits == 8) words[1] = load_word(row + lane_byte, at + 16);
            else words[1] = words[0] >> 4;
            if constexpr (Type::kBits == 5) {
                const uint32_t fifth = load_word(row, at - 4) >> lane_byte;
                FA_UNROLL_FOR (int i = 0; i < 2; i++) words[i] = set_fifth(words[i], fifth >> 16 * i);
            }
            FA_UNROLL_FOR (int i = 0; i < 2; i++)
                FA_UNROLL_FOR (int e = 0; e < 2; e++) b[i].r[2 * half + e] = widen<Type, T>(words[i] >> 8 * e);
        }
    }
    // 32 columns of 16 keys.
    template <class Type, int pitch>
    FA_MEMBER static void load_v(FragmentB (&b)[2], const char* ptr, int block) {
        const int at = block * Type::kBytes + Type::kFirst, column = rt::thread() % 32 / 4 * 4;
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            uint32_t words[2];
            FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                const char* const row = ptr + (8 * half + i) * pitch;
                words[i] = load_word(row + (Type::kBits == 8 ? column : column % 16), at);
                if constexpr (Type::kBits < 8) words[i] >>= column / 16 * 4;
                if constexpr (Type::kBits == 5) words[i] = set_fifth(words[i], load_word(row, at - 4) >> column);
            }
            FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                const uint32_t pairs = rt::prmt(words[0], words[1], i ? 0x7632 : 0x5410);
                FA_UNROLL_FOR (int e = 0; e < 2; e++) b[i].r[2 * e + half] = widen<Type, Bf16>(pairs >> 8 * e);
            }
        }
    }

    // Probabilities times factors; and what rounding has left of them, in bf16, too.
    FA_MEMBER static void round_products(FragmentA& a, FragmentA& rest, const Acc& p, const float (&factor)[4]) {
        FA_UNROLL_FOR (int i = 0; i < 4; i++) {
            float x[2];
            FA_UNROLL_FOR (int e = 0; e < 2; e++) x[e] = p.x[2 * i + e] * factor[factor_of(2 * i + e)];
            a.r[i] = rt::pack_bf16(x[0], x[1]);
            if constexpr (kIsF16<T>) rest.r[i] = rt::pack_bf16(x[0] - float_of(a.r[i] << 16), x[1] - float_of(a.r[i] & 0xffff0000u));
        }
    }
    FA_MEMBER static void mma_bf16(Acc& d, const FragmentA& a, const FragmentB& b) {
        FA_UNROLL_FOR (int half = 0; half < 2; half++) rt::mma_m16n8k16_bf16(d.x + 4 * half, a.r, b.r + 2 * half);
    }
    FA_MEMBER static void mma_v(Acc& d, const FragmentA& a, const FragmentA& rest, const FragmentB& b) {
        mma_bf16(d, a, b);
        if constexpr (kIsF16<T>) mma_bf16(d, rest, b);
    }
};

// Products of blocks, each summed by itself before its factor multiplies it.
//
// Factors of k multiply sums of products as they are stored. Infinite ones would make a score ±∞ where it must be NaN (nan_if_infinite()).
// Decoding tests each factor where it is read. Prefill reads each once a row warp and tile, where such a test takes 5 % of a call's time.
// So it `watches`, of each key, a score of one row; where one was not finite the block begins again, with kInfiniteFactors, and makes NaN
// of infinite factors before it reads them.
template <class M, bool watches>
struct BlockProducts : WidenedProducts<M> {
    using Base = WidenedProducts<M>;
    using typename Base::Acc, typename Base::FragmentA, typename Base::FragmentB, typename Base::Held, typename Base::Mma,
        typename Base::Output, typename Base::Score;

    // 32 dims of q.
    template <class Ptr>
    struct QBlock {
        const Held& held;
        const Ptr& ptr;
        FragmentA own[M::row_tiles][M::kHoldQ ? 1 : 2];
        FA_MEMBER QBlock(const Held& held_q, const Ptr& q_ptr) : held(held_q), ptr(q_ptr) {}
        FA_MEMBER void load(int block) {
            if constexpr (!M::kHoldQ) {
                FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                    FA_UNROLL_FOR (int c = 0; c < 2; c++) M::load_q_tile(own[m][c], ptr, m, 2 * block + c);
            }
        }
        FA_MEMBER const FragmentA& tile(int block, int m, int c) const {
            return M::kHoldQ ? held[m][M::kHoldQ ? 2 * block + c : 0] : own[m][M::kHoldQ ? 0 : c];
        }
    };

    FA_MEMBER static void watch(const Score& score) {
        if constexpr (watches) {
            float sum = 0.f;
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++)
                FA_UNROLL_FOR (int i = 0; i < Mma::kFactors; i += 2)
                    sum = fmaf(score[0][n].x[first_of_factor(i)], score[0][n].x[first_of_factor(i + 1)], sum);
            if (!(fabsf(sum) <= kMaxFloat)) M::shared().tile.infinite = 1;
        }
    }
    FA_MEMBER static constexpr int first_of_factor(int factor) {
        int e = 0;
        while (Mma::factor_of(e) != factor) e++;
        return e;
    }
    FA_MEMBER static bool begins_again() {
        if constexpr (!watches) return false;
        typename M::Tile& tile = M::shared().tile;
        rt::barrier();
        if (__builtin_expect(!tile.infinite, 1)) return false;
        rt::barrier();
        if (rt::thread() == 0) tile.features |= kInfiniteFactors;
        rt::barrier();
        return true;
    }
    template <class Type>
    FA_MEMBER static void prepare_keys(Type type, char* k) {
        if constexpr (watches)
            if (__builtin_expect(M::shared().tile.features & kInfiniteFactors, 0)) spoil_infinite(type, k);
    }
    // NaN in place of infinite factors.
    template <class Type>
    FA_COLD_MEMBER static void spoil_infinite(Type type, char* k) {
        const auto spoil = [&](auto known) {
            using Known = decltype(known);
            static_assert(!Known::kFormat.has_min, "");
            FA_UNROLL_BY(1)
            for (int i = rt::thread(); i < M::keys * M::kSteps / 2; i += M::threads) {
                uint16_t& d = *reinterpret_cast<uint16_t*>(k + i % M::keys * M::kRowBytes + i / M::keys * Known::kBytes);
                if ((d & 0x7c00) == 0x7c00) d = 0x7e00;
            }
        };
        Mma::in_loop(type, spoil);
        rt::barrier();
    }

    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type type, const Held& held, const char* k, int row0, int key0,
                                     Score& score) {
        const auto q_ptr = Base::q_ptr(params, row0, rt::thread() % Mma::kLanes);
        const auto k_ptr = Mma::template k_ptr<M::kRowBytes>(k, key0);
        const char* const factors = Mma::template factor_ptr<M::kRowBytes>(k, key0);
        QBlock q(held, q_ptr);
        FA_UNROLL_FOR (int block = 0; block < M::kSteps / 2; block++) {
            q.load(block);
            FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++)
                Mma::in_loop(type, [&](auto known) {
                    FragmentB right[2];
                    float factor[Mma::kFactors];
                    Mma::template load_k<decltype(known), M::kRowBytes>(right, k_ptr + M::kTile * n * M::kRowBytes, block);
                    Mma::template load_factors<decltype(known), M::kRowBytes>(factor, factors + M::kTile * n * M::kRowBytes, block);
                    if constexpr (!watches) {
                        FA_UNROLL_FOR (int i = 0; i < Mma::kFactors; i++) factor[i] = fmaf(0.f, factor[i], factor[i]);
                    }
                    add_products(q, block, right, factor, n, score);
                });
        }
        watch(score);
    }
    template <class Q>
    FA_MEMBER static void add_products(const Q& q, int block, const FragmentB (&right)[2], const float (&factor)[Mma::kFactors], int n,
                                       Score& score) {
        FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++) {
            Acc products{};
            FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma(products, q.tile(block, m, c), right[c]);
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                score[m][n].x[e] = fmaf(products.x[e], factor[Mma::factor_of(e)], score[m][n].x[e]);
        }
    }

    // Factors take the instructions: outputs are multiplied only where a reference has moved, by 1 otherwise.
    FA_MEMBER static void rescale(const typename M::PerRow& factor, typename M::PerRow& l, Output& o) {
        bool moved = false;
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                l[i][r] *= factor[i][r];
                moved |= factor[i][r] != 1.f;
            }
        if (rt::warp_any(moved)) Base::rescale_outputs(factor, o);
    }
    template <class Type, class Probs>
    FA_MEMBER static void add_outputs(Type type, Score& score, Probs compute_probs, const char* v, int key0, int, Output& o) {
        const auto ptr = Mma::template v_ptr<M::kRowBytes, M::keys>(v, key0);
        const char* const factors = Mma::template factor_ptr<M::kRowBytes>(v, key0);
        for_each_block(compute_probs, [&](int n, int block) {
            Mma::in_loop(type, [&](auto known) {
                FragmentB right[2];
                float factor[Mma::kFactors];
                Mma::template load_v<decltype(known), M::kRowBytes>(right, ptr + M::kTile * n * M::kRowBytes, block);
                Mma::template load_factors<decltype(known), M::kRowBytes>(factor, factors + M::kTile * n * M::kRowBytes, block);
                add_outputs_of_block(score, n, block, right, factor, o);
            });
        });
    }
    // add(n, block) of each block of the n-th 16 keys, whose probabilities are there.
    template <class Probs, class Add>
    FA_MEMBER static void for_each_block(Probs compute_probs, Add add) {
        compute_probs(0);
        FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) {
            if (n + 1 < M::kKeyTiles) compute_probs(n + 1);
            FA_UNROLL_FOR (int block = 0; block < M::kSteps / 2; block++) add(n, block);
        }
    }
    FA_MEMBER static void add_outputs_of_block(const Score& score, int n, int block, const FragmentB (&right)[2],
                                               const float (&factor)[Mma::kFactors], Output& o) {
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) {
            FragmentA left, rest;
            Mma::round_products(left, rest, score[i][n], factor);
            FA_UNROLL_FOR (int c = 0; c < 2; c++) Mma::mma_v(o[i][2 * block + c], left, rest, right[c]);
        }
    }
};

}  // namespace gpu
}  // namespace fa
