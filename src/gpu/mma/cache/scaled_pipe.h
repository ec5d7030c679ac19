// Tiles of k and v of any type of 8 bits or fewer: a KvPipe of mma/forward.h. Asynchronous copies bring rows to the stages as they are
// stored, with the words that hold their factors and shifts. When a tile is wanted its stage becomes numbers of 16 bits, each 32 dims with
// a factor and an offset, in a tile behind the stages (mma/cache/scaled.h); there is one, for k and v by turns.
#pragma once
#include "gpu/mma/cache/scaled.h"
#include "gpu/mma/cache/stored_rows.h"

namespace fa {
namespace gpu {

template <int32_t dtype>
struct ByteType {
    using type = I8;
};
template <>
struct ByteType<FA_E4M3> {
    using type = E4m3;
};
template <>
struct ByteType<FA_E5M2> {
    using type = E5m2;
};

// 32 dims of a type as they are stored to the bytes of integers or of 8-bit floats: those of 4 bits with a sign and of blocks to integers
// around 0.
template <int32_t dtype>
struct StoredBlock {
    static constexpr bool kBlock = dtype >= FA_Q4_0, kNibbles = dtype == FA_E2M1 || dtype == FA_I4 || dtype == FA_U4;
    static constexpr BlockFormat kFormat = {dtype == FA_Q8_0                       ? 8
                                            : dtype == FA_Q5_0 || dtype == FA_Q5_1 ? 5
                                                                                   : 4,
                                            dtype == FA_Q4_1 || dtype == FA_Q5_1};
    static constexpr int kBytes = kBlock     ? block_bytes(kFormat)
                                  : kNibbles ? 16
                                             : 32,
                         kHead = kFormat.has_min ? 4 : 2, kMiddle = 1 << (kFormat.bits - 1);
    uint32_t word[8];

    // `count` words from an even address on, or from one that is as aligned as blocks are.
    template <int count>
    FA_MEMBER static void load(const char* row, int at, uint32_t* to) {
        const uint32_t* const from = reinterpret_cast<const uint32_t*>(row + (at & ~3));
        if constexpr (kBytes % 16 == 0) {
            FA_UNROLL_FOR (int i = 0; i < count; i += 4) {
                float words[4];
                rt::load4(reinterpret_cast<const float*>(row + at + 4 * i), words);
                FA_UNROLL_FOR (int w = 0; w < 4; w++) to[i + w] = bits_of(words[w]);
            }
        } else if constexpr (kBytes % 4 == 0) {
            FA_UNROLL_FOR (int i = 0; i < count; i++) to[i] = from[i];
        } else {
            const uint32_t which = at % 4 ? 0x5432 : 0x3210;
            FA_UNROLL_FOR (int i = 0; i < count; i++) to[i] = rt::prmt(from[i], from[i + 1], which);
        }
    }
    // Bytes less `middle`, which they are at most 128 larger than.
    FA_MEMBER static uint32_t less(uint32_t bytes, int middle) { return (bytes + uint32_t(128 - middle) * 0x01010101u) ^ 0x80808080u; }
    FA_MEMBER static uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u << 4 & 0x10101010u; }

    // Block `c` of a row. Of q4_1 and its like the middle is the type's own.
    FA_MEMBER void load_row(const char* row, int c) {
        if constexpr (kNibbles) {
            load_nibbles(row, c);
        } else if constexpr (!kBlock || kFormat.bits == 8) {
            load<8>(row, c * kBytes + (kBlock ? kHead : 0), word);
        } else {
            uint32_t fifth = 0;
            if constexpr (kFormat.bits == 5) load<1>(row, c * kBytes + kHead, &fifth);
            load<4>(row, c * kBytes + kHead + (kFormat.bits == 5 ? 4 : 0), word);
            FA_UNROLL_FOR (int i = 3; i >= 0; i--) {
                word[4 + i] = less((word[i] >> 4 & 0x0f0f0f0fu) | spread(fifth >> (16 + 4 * i)), kMiddle);
                word[i] = less((word[i] & 0x0f0f0f0fu) | spread(fifth >> 4 * i), kMiddle);
            }
        }
    }
    // 32 neighbouring 4-bit values, those of E2M1 doubled.
    FA_MEMBER void load_nibbles(const char* row, int c) {
        load<4>(row, c * kBytes, word);
        FA_UNROLL_FOR (int i = 3; i >= 0; i--) {
            const uint32_t both = word[i], low = both & 0x0f0f0f0fu, high = both >> 4 & 0x0f0f0f0fu;
            FA_UNROLL_FOR (int half = 0; half < 2; half++) {
                const uint32_t codes = rt::prmt(low, high, half ? 0x7362 : 0x5140);
                if constexpr (dtype == FA_E2M1) {
                    const uint32_t which = both >> 16 * half & 0x7777u, sign = (codes >> 3 & 0x01010101u) * 255u;
                    const uint32_t positive = rt::prmt(0x03020100u, 0x0c080604u, which),
                                   negative = rt::prmt(0xfdfeff00u, 0xf4f8fafcu, which);
                    word[2 * i + half] = (positive & ~sign) | (negative & sign);
                } else {
                    word[2 * i + half] = dtype == FA_I4 ? less(codes ^ 0x08080808u, 8) : codes;
                }
            }
        }
    }
    // Two words' bytes as numbers of 16 bits.
    template <class E>
    FA_MEMBER void widen(int first, float (&words)[4]) const {
        using Byte = typename ByteType<dtype>::type;
        FA_UNROLL_FOR (int w = 0; w < 2; w++) {
            uint32_t pairs[2];
            MmaByte<E>::template widen<false>(Byte{}, word[first + w], pairs[0], pairs[1]);
            words[2 * w] = float_of(pairs[0]), words[2 * w + 1] = float_of(pairs[1]);
        }
    }
};

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::scaled> {
    static constexpr int kBlocks = M::dims / kBlockDims, kPitch = stored_pitch(M::dims), kFactorAt = stored_bytes(M::dims),
                         kShiftAt = kFactorAt + 4 * kBlocks, kPlaceAt = kShiftAt + 4 * kBlocks, kDown = M::threads / kBlocks;
    static_assert(M::threads % kBlocks == 0 && M::keys % kDown == 0, "a thread has one block of some rows");

    const MmaForwardParams& x;
    const int begin, end;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type, int first, int last) : x(params), begin(first), end(last) {}
    FA_MEMBER void load(bool value, int j, int i) {
        if (begin + j * M::keys < end) load_tile(x, value, j, i, begin + j * M::keys, end);
        rt::cp_async_commit();
    }
    template <int n>
    FA_MEMBER void wait() {
        rt::cp_async_wait<n>();
    }
    // All threads of the block come here. Those that read the last tile have passed a barrier.
    FA_MEMBER const char* tile(bool value, int i) const {
        widen_tile(x, value, i);
        rt::barrier();
        return M::stage_tile(M::stages);
    }

    // ---- from memory to a stage

    using Rows = StoredRows<M, kPitch>;
    FA_COLD_MEMBER static void load_tile(const MmaForwardParams& params, bool value, int j, int i, int key, int end) {
        const Rows rows(params, value, j, key, end);
        char* const stage = M::stage_tile(i);
        rows.copy(stage);
        const Factors factors =
            value ? params.v_factors : params.k_factors;  // a copy: what is stored might be parameters, for all that the compiler knows
        const int c = rt::thread() % kBlocks;
        if (!factors.factor || c * kBlockDims >= int(value ? params.dim_v : params.dim_qk)) return;
        const int64_t in_row =
            M::shared().tile.kv_head * factors.stride[2] + int64_t(c * kBlockDims / int(factors.block[1])) * factors.stride[3];
        const void* const second = factors.shift ? factors.shift : factors.block[1] == kBlockDims / 2 ? factors.factor : nullptr;
        const int64_t to_second = factors.shift ? 0 : factors.stride[3];
        const bool words = lie_in_words(factors, int(value ? params.dim_v : params.dim_qk));
        const bool by_rows = !rows.location && factors.block[0] == 1;  // the next index is a step away
        int r = rt::thread() / kBlocks;
        int64_t index = rows.factor_row(factors, r) + in_row;
        FA_UNROLL_BY(2)
        for (; r < M::keys; r += kDown) {
            if (!by_rows) index = rows.factor_row(factors, r) + in_row;
            char* const row = stage + r * kPitch;
            const int place = copy_factor(row + kFactorAt + 4 * c, factors.factor, index, factors.dtype, words, rows.there(r));
            const int other =
                second ? copy_factor(row + kShiftAt + 4 * c, second, index + to_second, factors.dtype, words, rows.there(r)) : 0;
            if (factors.dtype != FA_F32) row[kPlaceAt + c] = char(place | other << 2);
            index += kDown * factors.stride[1];
        }
    }
    // Do the factors of a row and head fill whole words, so that a word that holds one of them holds nothing else?
    FA_MEMBER static bool lie_in_words(const Factors& factors, int dim) {
        const int64_t size = type_bytes(factors.dtype), in_row = (dim + factors.block[1] - 1) / factors.block[1];
        const int64_t strides = factors.stride[0] | factors.stride[1] | factors.stride[2] | in_row;
        return size == 4 ||
               ((reinterpret_cast<uintptr_t>(factors.factor) | reinterpret_cast<uintptr_t>(factors.shift) | uint64_t(strides * size)) % 4 ==
                    0 &&
                factors.stride[3] == 1);
    }
    // A factor to where it lies in its word, with the rest of that if it is a word of factors; returns where in it that is.
    FA_MEMBER static int copy_factor(char* to, const void* factors, int64_t index, int32_t dtype, bool words, bool there) {
        const int size = int(type_bytes(dtype));
        const char* const from = static_cast<const char*>(factors) + index * size;
        const int place = int(reinterpret_cast<uintptr_t>(from) % 4);
        if (words) rt::cp_async<4>(rt::smem_addr(to), from - place, there);
        else if (size == 2) *reinterpret_cast<uint16_t*>(to + place) = there ? *reinterpret_cast<const uint16_t*>(from) : uint16_t(0);
        else to[place] = there ? *from : char(0);
        return place;
    }

    // ---- from a stage to numbers

    FA_COLD_MEMBER static void widen_tile(const MmaForwardParams& params, bool value, int i) {
        if (value) widen_type<Bf16>(params.v_dtype, params.v_factors, int(params.dim_v), params.v_unit, i);
        else widen_type<typename M::Element>(params.k_dtype, params.k_factors, int(params.dim_qk), 1.f, i);
    }
    template <class E>
    FA_MEMBER static void widen_type(int32_t dtype, const Factors factors, int dim, float unit, int i) {
        switch (dtype) {
            case FA_E4M3: return widen_rows<E, FA_E4M3>(factors, dim, unit, i);
            case FA_E5M2: return widen_rows<E, FA_E5M2>(factors, dim, unit, i);
            case FA_I8: return widen_rows<E, FA_I8>(factors, dim, unit, i);
            case FA_E2M1: return widen_rows<E, FA_E2M1>(factors, dim, unit, i);
            case FA_I4: return widen_rows<E, FA_I4>(factors, dim, unit, i);
            case FA_U4: return widen_rows<E, FA_U4>(factors, dim, unit, i);
            case FA_Q4_0: return widen_rows<E, FA_Q4_0>(factors, dim, unit, i);
            case FA_Q4_1: return widen_rows<E, FA_Q4_1>(factors, dim, unit, i);
            case FA_Q5_0: return widen_rows<E, FA_Q5_0>(factors, dim, unit, i);
            case FA_Q5_1: return widen_rows<E, FA_Q5_1>(factors, dim, unit, i);
            default: return widen_rows<E, FA_Q8_0>(factors, dim, unit, i);
        }
    }
    template <class E, int32_t dtype>
    FA_MEMBER static void widen_rows(const Factors factors, int dim, float unit, int i) {
        const int c = rt::thread() % kBlocks, first = rt::thread() / kBlocks;
        const char* const from = M::stage_tile(i) + first * kPitch;
        char* const to = M::stage_tile(M::stages) + first * M::kRowBytes;
        const bool there = c * kBlockDims < dim;
        FA_UNROLL_BY(2)
        for (int n = 0; n < M::keys / kDown; n++) {
            const char* const row = from + n * kDown * kPitch;
            char* const numbers = to + n * kDown * M::kRowBytes;
            StoredBlock<dtype> block{};
            Scaling32 scaling = {0.f, 0.f};
            if (there) block.load_row(row, c), scaling = load_scaling<dtype>(row, c, factors, unit);
            *reinterpret_cast<Scaling32*>(numbers + 2 * M::dims + int(sizeof(Scaling32)) * c) = scaling;
            FA_UNROLL_FOR (int w = 0; w < 8; w += 2) {
                float words[4];
                block.template widen<E>(w, words);
                rt::store4(reinterpret_cast<float*>(numbers + 2 * kBlockDims * c) + 2 * w, words);
            }
        }
    }
    // Infinite ones count as NaN: see nan_if_infinite().
    template <int32_t dtype>
    FA_MEMBER static Scaling32 load_scaling(const char* row, int c, const Factors& factors, float unit) {
        using Stored = StoredBlock<dtype>;
        if constexpr (Stored::kBlock) {
            const char* const head = row + c * Stored::kBytes;
            const float d = nan_if_infinite(rt::load_f16(head));
            if constexpr (Stored::kFormat.has_min)
                return {d * unit, fmaf(d, float(Stored::kMiddle), nan_if_infinite(rt::load_f16(head + 2))) * unit};
            else return {d * unit, 0.f};
        } else {
            const bool halves = factors.factor && factors.block[1] == kBlockDims / 2;
            const int place = factors.dtype == FA_F32 ? 0 : row[kPlaceAt + c];
            const auto load = [&](const char* at) { return nan_if_infinite(load_factor(at, 0, factors.dtype)); };
            const float factor = factors.factor ? load(row + kFactorAt + 4 * c + (place & 3)) : 1.f,
                        second = factors.shift || halves ? load(row + kShiftAt + 4 * c + (place >> 2)) : 0.f;
            const float of_numbers = dtype == FA_E2M1 ? 0.5f * unit : unit;
            if (halves) return {factor * of_numbers, second * of_numbers};
            return {factor * of_numbers, second * unit};
        }
    }
};

}  // namespace gpu
}  // namespace fa
