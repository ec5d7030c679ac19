// Products of f16 or bf16 queries with k and v of 8 bits: an Mma policy of mma/forward.h. Fragments are read as they are stored and
// widened in registers to q's type, which represents every value of theirs exactly.
//
// ldmatrix moves units of 2 bytes. A lane gets four neighbouring bytes of a key where it wants elements 2 · t, 2 · t + 1, 2 · t + 8
// and 2 · t + 9 of it: the order of dims within 16 does not matter when q has the same, so q is put into shared memory in that
// order. Of v it gets two neighbouring columns of two keys: those of even columns make one product, those of odd columns the other.
#pragma once
#include "gpu/mma/mma_sync.h"
#include "gpu/mma/products.h"

namespace fa {
namespace gpu {

template <class M>
struct WidenedProducts;

template <class T>
struct MmaByte : MmaSync<T> {
    template <class M>
    using Products = WidenedProducts<M>;
    using typename MmaSync<T>::FragmentB;
    struct Key {
        uint8_t x;
    };
    struct PackedB {
        uint32_t r[4];
    };  // 16 keys × 32 dims or columns
    static constexpr const char* kFamily = "fwd_mma_byte";
    using General = MmaByte;
    static constexpr auto& kRows = kMmaByteRows;
    FA_MEMBER static constexpr bool takes(const MmaRow& row) { return row.dims <= 128 || !kIsF16<T>; }  // others are not worth their code
    // Prefill has the one loop: most of it reads pages, and three cost much code.
    FA_MEMBER static constexpr Loops loops(int key_warps) { return key_warps == 1 ? Loops::general : Loops::each; }
    FA_MEMBER static constexpr TileLayout layout(int dims) { return rows_layout<Key>(dims); }
    static constexpr bool kKv8bit = true, kGathers = false, kSmallGeneral = true;

    // Where a byte of a row of q goes: words 2t and 2t + 1 of each eight take the places t and t + 4.
    FA_MEMBER static constexpr int permuted_q_byte(int at) { return (at & ~0x1f) | (at & 4) << 2 | (at & 0x18) >> 1 | (at & 3); }
    FA_MEMBER static int output_column(int c, int i) { return MmaSync<T>::kTile * c + 4 * (rt::thread() % 4) + 2 * (i % 2) + i / 4; }

    template <int row_bytes>
    FA_MEMBER static void load_k(PackedB& b, const SwizzledPtr& ptr, int down, int i) {
        rt::ldmatrix_x4(ptr.pair(i) + down, b.r);
    }
    template <int row_bytes, int keys>
    FA_MEMBER static void load_v(PackedB& b, const SwizzledPtr& ptr, int n, int i) {
        rt::ldmatrix_x4_trans(ptr.pair(i) + MmaSync<T>::kTile * n * row_bytes, b.r);
    }

    FA_MEMBER static uint32_t from_f16(uint32_t pair) { return kIsF16<T> ? pair : rt::f16_to_bf16(pair); }
    // The lower bytes of a pair. f16 has the bits for 1024 + (x + 128) − 1152, bf16 for 128 + x's seven lower bits less 128 or,
    // with the eighth, 256.
    FA_MEMBER static uint32_t from_i8(uint32_t pair) {
        if constexpr (kIsF16<T>) return rt::add_f16((pair & 0x00ff00ffu) ^ 0x64806480u, 0xe480e480u);
        else return rt::subtract_bf16(rt::and_or(pair, 0x007f007fu, 0x43004300u), rt::and_or(pair, 0x00800080u, 0x43004300u));
    }
    // A word's bytes as two pairs: bytes 0 and 1, then 2 and 3; or, `alternate`, bytes 0 and 2, then 1 and 3.
    template <bool alternate>
    FA_MEMBER static void widen(E4m3, uint32_t word, uint32_t& first, uint32_t& second) {
        rt::e4m3_to_f16(alternate ? rt::prmt(word, 0, 0x3120) : word, first, second);
        first = from_f16(first);
        second = from_f16(second);
    }
    template <bool alternate>
    FA_MEMBER static void widen(E5m2, uint32_t word, uint32_t& first, uint32_t& second) {  // the upper half of an f16
        first = from_f16(rt::prmt(word, 0, alternate ? 0x2404 : 0x1404));
        second = from_f16(rt::prmt(word, 0, alternate ? 0x3414 : 0x3424));
    }
    template <bool alternate>
    FA_MEMBER static void widen(I8, uint32_t word, uint32_t& first, uint32_t& second) {
        first = from_i8(alternate ? word : rt::prmt(word, 0, 0x4140));
        second = from_i8(alternate ? word >> 8 : rt::prmt(word, 0, 0x4342));
    }

    template <class S, int n>
    FA_MEMBER static void widen_keys(FragmentB (&to)[2 * n], const PackedB (&from)[n]) {
        FA_UNROLL_FOR (int i = 0; i < 2 * n; i++)
            FA_UNROLL_FOR (int half = 0; half < 2; half++) {
                uint32_t* r = to[i].r + 2 * half;
                widen<false>(S{}, from[i / 2].r[2 * half + i % 2], r[0], r[1]);
            }
    }
    template <class S, int n>
    FA_MEMBER static void widen_values(FragmentB (&to)[2 * n], const PackedB (&from)[n]) {
        FA_UNROLL_FOR (int i = 0; i < 2 * n; i++)
            FA_UNROLL_FOR (int half = 0; half < 2; half++)
                widen<true>(S{}, from[i / 2].r[i % 2 * 2 + half], to[i].r[half], to[i].r[2 + half]);
    }
    // n fragments, of a type known at compile time, or tested once for all of them.
    template <int n, class S>
    FA_MEMBER static void widen_k(FragmentB (&to)[2 * n], const PackedB (&from)[n], S) {
        widen_keys<S>(to, from);
    }
    template <int n, class S>
    FA_MEMBER static void widen_v(FragmentB (&to)[2 * n], const PackedB (&from)[n], S) {
        widen_values<S>(to, from);
    }
    template <int n>
    FA_MEMBER static void widen_k(FragmentB (&to)[2 * n], const PackedB (&from)[n], int32_t type) {
        if (type == FA_E4M3) widen_keys<E4m3>(to, from);
        else if (type == FA_E5M2) widen_keys<E5m2>(to, from);
        else widen_keys<I8>(to, from);
    }
    template <int n>
    FA_MEMBER static void widen_v(FragmentB (&to)[2 * n], const PackedB (&from)[n], int32_t type) {
        if (type == FA_E4M3) widen_values<E4m3>(to, from);
        else if (type == FA_E5M2) widen_values<E5m2>(to, from);
        else widen_values<I8>(to, from);
    }

    // pass(type) with a type known at compile time, a mainloop for each: in one that tests the type, loads, conversions and
    // products cannot be interleaved. The last one's code comes first; with few keys the others' take 1 us more, to be fetched.
    template <class Pass>
    FA_MEMBER static float by_type(int32_t type, Pass pass) {
        return type == FA_I8 ? pass(I8{}) : type == FA_E5M2 ? pass(E5m2{}) : pass(E4m3{});
    }
};

// Products of fragments that are widened some before their use.
template <class M>
struct WidenedProducts : MmaProducts<M> {
    using Base = MmaProducts<M>;
    using typename Base::Acc, typename Base::FragmentA, typename Base::FragmentB, typename Base::Held, typename Base::Mma,
        typename Base::Output, typename Base::Score;
    using PackedB = typename Mma::PackedB;
    static constexpr int kWidened = M::row_tiles * M::dims <= 128 ? 2 : 1, kTogether = 2 * kWidened;  // fragments at a time; steps of these

    // Decoding reads q's words, each to its permuted place; prefill has no time for more than the narrow way.
    FA_MEMBER static void load_q(const MmaForwardParams& params) {
        if constexpr (M::key_warps > 1)
            if (params.q_width == 16) return load_q_words(params);
        M::load_q_narrow(params);
    }
    FA_MEMBER static void load_q_words(const MmaForwardParams& params) {
        constexpr int words = M::kQRowBytes / 4;
        const int bytes = int(params.dim_qk) * int(sizeof(typename M::Element)), valid = M::shared().tile.valid;
        for (int i = rt::thread(); i < M::rows * words; i += M::threads) {
            const int r = i / words, at = i % words * 4, to_byte = Mma::permuted_q_byte(at);
            const char* const from = M::q_row(params, r < valid ? r : 0);
            rt::cp_async4(rt::smem_addr(M::q_tile()) + uint32_t(swizzle_offset<M::kQRowBytes>(r, to_byte / 16) + to_byte % 16), from + at,
                          r < valid && at < bytes);
        }
    }
    template <Kind kind, class Loop>
    FA_MEMBER static float by_type(int32_t dtype, Loop loop) {
        if constexpr (kind == Kind::general) return loop(dtype);
        else return Mma::by_type(dtype, loop);
    }
    template <Kind kind, class Type>
    FA_MEMBER static void add_scores(const MmaForwardParams& params, Type type, const Held& held, const char* k, int row0, int key0,
                                     Score& score) {
        add_scores_of(params, type, held, k, row0, rt::thread() % Mma::kLanes, key0, score);
    }
    template <class Type>
    FA_MEMBER static void add_scores_of(const MmaForwardParams& params, Type type, const Held& held, const char* k, int row0, int lane,
                                        int key0, Score& score) {
        constexpr int all = M::kSteps / kTogether * M::kKeyTiles;
        const auto q_ptr = Base::q_ptr(params, row0, lane);
        const auto k_ptr = Mma::template k_ptr<M::kRowBytes>(k, key0);
        FragmentA q[M::row_tiles][M::kHoldQ ? 1 : kTogether];
        PackedB packed[2][kWidened];
        const auto load = [&](int i) {
            FA_UNROLL_FOR (int c = 0; c < kWidened; c++)
                Mma::template load_k<M::kRowBytes>(packed[i % 2][c], k_ptr, M::kTile * (i % M::kKeyTiles) * M::kRowBytes,
                                                   i / M::kKeyTiles * kWidened + c);
        };
        load(0);
        FA_UNROLL_FOR (int i = 0; i < all; i++) {
            const int step = i / M::kKeyTiles * kTogether, n = i % M::kKeyTiles;
            if constexpr (!M::kHoldQ)
                if (n == 0)
                    FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                        FA_UNROLL_FOR (int c = 0; c < kTogether; c++) M::load_q_tile(q[m][c], q_ptr, m, step + c);
            if (i + 1 < all) load(i + 1);
            FragmentB right[kTogether];
            Mma::template widen_k<kWidened>(right, packed[i % 2], type);
            FA_UNROLL_FOR (int c = 0; c < kTogether; c++)
                FA_UNROLL_FOR (int m = 0; m < M::row_tiles; m++)
                    Mma::mma(score[m][n], M::kHoldQ ? held[m][M::kHoldQ ? step + c : 0] : q[m][M::kHoldQ ? 0 : c], right[c]);
        }
    }
    template <class Type, class Probs>
    FA_MEMBER static void add_outputs(Type type, Score& score, Probs compute_probs, const char* v, int key0, int, Output& o) {
        constexpr int all = M::kSteps / kTogether * M::kKeyTiles;
        const auto ptr = Mma::template v_ptr<M::kRowBytes, M::keys>(v, key0);
        FragmentA left[M::row_tiles];
        PackedB packed[2][kWidened];
        const auto load = [&](int j) {
            FA_UNROLL_FOR (int c = 0; c < kWidened; c++)
                Mma::template load_v<M::kRowBytes, M::keys>(packed[j % 2][c], ptr, j * kTogether / M::kSteps,
                                                            j * kWidened % (M::kSteps / 2) + c);
        };
        load(0);
        compute_probs(0);
        FA_UNROLL_FOR (int j = 0; j < all; j++) {
            const int n = j * kTogether / M::kSteps, first = j * kTogether % M::kSteps;
            if (first == 0) {
                FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::round_probs(left[i], score[i][n]);
                if (n + 1 < M::kKeyTiles) compute_probs(n + 1);
            }
            if (j + 1 < all) load(j + 1);
            FragmentB right[kTogether];
            Mma::template widen_v<kWidened>(right, packed[j % 2], type);
            FA_UNROLL_FOR (int c = 0; c < kTogether; c++)
                FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) Mma::mma(o[i][first + c], left[i], right[c]);
        }
    }
};

}  // namespace gpu
}  // namespace fa
