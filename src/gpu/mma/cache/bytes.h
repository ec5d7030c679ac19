// Products of f16 or bf16 queries with k and v of 8 bits: an Mma policy of mma/forward.h. Fragments are read as they are stored and
// widened in registers to q's type, which represents every value of theirs exactly.
//
// ldmatrix moves units of 2 bytes. A lane gets four neighbouring bytes of a key where it wants elements 2 · t, 2 · t + 1, 2 · t + 8
// and 2 · t + 9 of it: the order of dims within 16 does not matter when q has the same, so q is put into shared memory in that
// order. Of v it gets two neighbouring columns of two keys: those of even columns make one product, those of odd columns the other.
#pragma once
#include "gpu/mma/mma_sync.h"

namespace fa {
namespace gpu {

template <class T>
struct MmaByte : MmaSync<T> {
    using typename MmaSync<T>::FragmentB;
    struct Key {
        uint8_t x;
    };
    struct PackedB {
        uint32_t r[4];
    };  // 16 keys × 32 dims or columns
    static constexpr const char* kFamily = "fwd_mma_byte";
    using General = MmaByte;
    static constexpr bool kKv8bit = true, kWidens = true;

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

}  // namespace gpu
}  // namespace fa
