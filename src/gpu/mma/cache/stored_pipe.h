// Tiles of k and v of 8 bits or fewer, for decoding: a KvPipe of mma/forward.h. Asynchronous copies bring rows to the stages as they are
// stored, each with its factors and shifts behind it, and there they stay. What a warp multiplies with is read by
// mma/cache/scaled_decode.h; what is done here when a tile is wanted is to convert the factors of the warp's own keys, a key for each lane:
// to f32, four of each key, then the offsets of all; or, of halves, to multipliers of pairs of numbers: for k two times the same, for each
// half of each block, for v those of two neighbouring keys.
#pragma once
#include "gpu/mma/cache/scaled_decode.h"
#include "gpu/mma/cache/stored_rows.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::stored> {
    using Mma = typename M::Policy;
    static constexpr int kBlocks = Mma::kBlocks, kPitch = M::kRowBytes, kFactorAt = kPitch - 16, kShiftAt = kFactorAt - 16,
                         kVectors = kBlocks * Type::kBytes / 16;
    static_assert(M::keys == M::threads && M::kTile * M::kKeyTiles == 32 && M::dims == kBlocks * kBlockDims, "a lane has a key");
    using Rows = StoredRows<M, kPitch>;

    const MmaForwardParams& x;
    const int begin, end;

    // What of k lies beyond rows and their factors is 0, which no copy touches: a product with q's 0 there must not be NaN.
    FA_MEMBER KvPipe(const MmaForwardParams& params, Type, int first, int last) : x(params), begin(first), end(last) {
        if (x.dim_qk < M::dims) clear_rest(x);
    }
    FA_COLD_MEMBER static void clear_rest(const MmaForwardParams& params) {
        const int bytes = M::shared().tile.k.bytes, factors = Type::kInBlocks ? 0 : params.k_pieces.bytes;
        for (int i = 0; i < M::stages; i += 2) {
            char* const row = M::stage_tile(i) + rt::thread() * kPitch;
            for (int b = bytes; b < kPitch; b++) {
                const int at = Type::kOffsets && b < kFactorAt ? b - kShiftAt : b - kFactorAt;
                if (at < 0 || at >= factors) row[b] = 0;
            }
        }
    }
    FA_MEMBER void load(bool value, int j, int i) const {
        const int key = begin + j * M::keys;
        if (key < end) {
            const Rows rows(x, value, j, key, end);
            char* const stage = M::stage_tile(i);
            if (rows.from.width == 16 && rows.from.bytes == 16 * kVectors) rows.template copy_vectors<kVectors>(stage);
            else copy_narrow(x, value, j, key, end, stage);
            if constexpr (!Type::kInBlocks) load_factors(value, rows, stage);
        }
        rt::cp_async_commit();
    }
    FA_COLD_MEMBER static void copy_narrow(const MmaForwardParams& params, bool value, int j, int key, int end, char* stage) {
        Rows(params, value, j, key, end).copy(stage);
    }
    template <int n>
    FA_MEMBER void wait() {
        rt::cp_async_wait<n>();
    }
    FA_MEMBER const char* tile(bool value, int i) const {
        if constexpr (!Type::kInBlocks) {
            if (value) convert_factors<true>(x.v_factors, x.v_unit, M::stage_tile(i));
            else convert_factors<false>(x.k_factors, 1.f, M::stage_tile(i));
            rt::warp_barrier();
        }
        return M::stage_tile(i);
    }

    // A thread has a key, whose factors are `bytes` bytes in pieces of `width`.
    FA_MEMBER void load_factors(bool value, const Rows& rows, char* stage) const {
        const Factors& factors = value ? x.v_factors : x.k_factors;
        if (!factors.factor) return;
        const FactorPieces& pieces = value ? x.v_pieces : x.k_pieces;
        const int r = rt::thread();
        char* const row = stage + r * kPitch;
        const int64_t at = (rows.factor_row(factors, r) + M::shared().tile.kv_head * factors.stride[2]) * pieces.size;
        const char* const factor = static_cast<const char*>(factors.factor) + at;
        copy_pieces(row + kFactorAt, factor, pieces, rows.there(r));
        if constexpr (Type::kOffsets) {
            if (factors.shift) copy_pieces(row + kShiftAt, static_cast<const char*>(factors.shift) + at, pieces, rows.there(r));
        }
    }
    FA_MEMBER static void copy_pieces(char* to, const char* from, const FactorPieces& pieces, bool there) {
        switch (pieces.width) {
            case 16: Rows::template copy_piece<16>(to, from, there); break;
            case 8: Rows::template copy_piece<8>(to, from, there); break;
            case 4: return copy_each<4>(to, from, pieces.bytes, there);
            default: return copy_each<1>(to, from, pieces.bytes, there);
        }
    }

    template <int size>
    FA_MEMBER static void copy_each(char* to, const char* from, int bytes, bool there) {
        for (int i = 0; i < bytes; i += size) Rows::template copy_piece<size>(to + i, from + i, there);
    }

    template <bool value>
    FA_MEMBER void convert_factors(const Factors& factors, float unit, const char* stage) const {
        const int key = rt::thread();
        const char* const row = stage + key * kPitch;
        char* const to = M::stage_tile(M::stages);
        if constexpr (Type::kHalves) return convert_halves<value>(row + kFactorAt, key, to);
        else {
            float factor[kBlocks], offset[kBlocks];
            const int shared = factors.block[1] >= M::dims ? kBlocks : int(factors.block[1]) / kBlockDims;  // blocks that share one
            [[maybe_unused]] float watched = 0.f;
            FA_UNROLL_FOR (int c = 0; c < kBlocks; c++) {
                factor[c] = factors.factor ? load_factor(row + kFactorAt, c / shared, factors.dtype) * unit : unit;
                if constexpr (Type::kOffsets)
                    offset[c] = factors.shift ? load_factor(row + kShiftAt, c / shared, factors.dtype) * unit : 0.f;
            }
            // Of k, NaN in place of infinite ones (nan_if_infinite()).
            if constexpr (!value) {
                FA_UNROLL_FOR (int c = 0; c < kBlocks; c += 2) {
                    watched = fmaf(factor[c], factor[c + 1], watched);
                    if constexpr (Type::kOffsets) watched = fmaf(offset[c], offset[c + 1], watched);
                }
                if (__builtin_expect(!(fabsf(watched) <= kMaxFloat), 0)) {
                    FA_UNROLL_FOR (int c = 0; c < kBlocks; c++) {
                        factor[c] = nan_if_infinite(factor[c]);
                        if constexpr (Type::kOffsets) offset[c] = nan_if_infinite(offset[c]);
                    }
                }
            }
            rt::store4(reinterpret_cast<float*>(to) + key * kBlocks, factor);
            if constexpr (Type::kOffsets) rt::store4(reinterpret_cast<float*>(to) + (M::keys + key) * kBlocks, offset);
        }
    }
    template <bool value>
    FA_MEMBER static void convert_halves(const char* factors, int key, char* to) {
        using E = typename M::Element;
        float words[2];
        FA_UNROLL_FOR (int w = 0; w < 2; w++) words[w] = reinterpret_cast<const float*>(factors)[w];
        float multiplier[2][kBlocks];  // the first halves', then the second ones'
        FA_UNROLL_FOR (int w = 0; w < 2; w++) {
            uint32_t pair[2];
            rt::e4m3_to_f16(bits_of(words[w]), pair[0], pair[1]);
            FA_UNROLL_FOR (int i = 0; i < 2; i++) rt::f16x2_to_f32(pair[i], multiplier[0][2 * w + i], multiplier[1][2 * w + i]);
        }
        FA_UNROLL_FOR (int half = 0; half < 2; half++) {
            if constexpr (value) {
                FA_UNROLL_FOR (int c = 0; c < kBlocks; c++)
                    *reinterpret_cast<uint16_t*>(to + key / 2 * 32 + half * 16 + c * 4 + key % 2 * 2) =
                        uint16_t(rt::pack_bf16(multiplier[half][c] * Type::template kHalfFactor<Bf16>, 0.f));
            } else {
                FA_UNROLL_FOR (int c = 0; c < kBlocks; c++) {
                    const float m = multiplier[half][c] * Type::template kHalfFactor<E>;
                    multiplier[half][c] = float_of(kIsF16<E> ? rt::pack_f16(m, m) : rt::pack_bf16(m, m));
                }
                rt::store4(reinterpret_cast<float*>(to + key * 32 + half * 16), multiplier[half]);
            }
        }
    }
};

}  // namespace gpu
}  // namespace fa
