// The end of a tile in a consumer warpgroup: row sums and LSE, sinks, and O, normalised, to memory. finish_rows runs before the
// tile's last P · V has ended, store_o after it; repair_overflow serves the rare calls for which that is not all.
#pragma once
#include "cuda/sm90/forward/consumer.h"

namespace fa {
namespace gpu {

// What O's rows are to be multiplied by, and where they go. Where registers are short (kEmptyBySign), a negative factor stands for
// `empty`.
template <class T>
struct RowEnds {
    T* out;
    bool in_bounds[2], empty[2];
    float factor[2];
};

template <class Consumer>
FA_DEVICE typename Consumer::Traits::Element* output_of(const Consumer& wg, const WorkTileInfo& tile, int row0, int c) {
    const Sequence seq{tile.q_begin, tile.q_len, 0, tile.k_len, 0, tile.off};
    return static_cast<typename Consumer::Traits::Element*>(wg.x.o) + query_index(wg.x.o_strides, seq, tile.batch, row0, wg.head_of(tile)) +
           8 * c;
}

// All but O, which waits for the last wgmma: row sums over the quad, LSE, sinks.
template <class Consumer, class T>
FA_DEVICE void finish_rows(Consumer& wg, const WorkTileInfo& tile, RowEnds<T>& ends) {
    using Traits = typename Consumer::Traits;
    const Sm90Call& call = wg.x;
    const Sequence seq{tile.q_begin, tile.q_len, 0, tile.k_len, 0, tile.off};
    const typename Consumer::RowPlace place = wg.border_place();
    const int row0 = tile.row0 + place.row;
    FA_UNROLL_FOR (int lanes = 1; lanes < 4; lanes *= 2)
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            if (!Traits::kRowSumByWgmma) wg.row_sum[r] += rt::shuffle_xor16(wg.row_sum[r], lanes);
            if (Traits::kLseSum) wg.lse_sum[r] += rt::shuffle_xor16(wg.lse_sum[r], lanes);
        }
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        ends.in_bounds[r] = row0 + 8 * r < tile.o_rows;
        ends.empty[r] = row0 + 8 * r >= tile.q_len || wg.row_sum[r] == 0.f;
        ends.factor[r] = !ends.empty[r] ? rt::reciprocal_fast(wg.row_sum[r]) : Consumer::kEmptyBySign ? -1.f : 0.f;
    }
    const bool asked = call.sinks || call.lse;
    if (Traits::kP8 && !Traits::kLseSum ? __builtin_expect(asked, 0) : asked)
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const int row = row0 + 8 * r;
            RowState state = ends.empty[r] ? empty_row()
                                           : RowState{wg.row_ref[r] == kNegInf ? kNegInf : wg.row_ref[r] * wg.scale_log2_of(tile),
                                                      wg.row_sum[r] * Traits::kPUnscale};
            RowState exact = state;  // of P before it was rounded, for the LSE
            if (Traits::kLseSum && !ends.empty[r]) exact.l = wg.lse_sum[r] * Traits::kPUnscale;
            if (call.sinks && row < tile.q_len) {
                const Merged merged = merge(state, sink_state(call.sinks[wg.head_of(tile)]));
                exact = Traits::kLseSum ? merge(exact, sink_state(call.sinks[wg.head_of(tile)])).state : merged.state;
                if (!Consumer::kEmptyBySign || !ends.empty[r])
                    ends.factor[r] = Traits::kPUnscale * merged.scale_a * normaliser(merged.state);
            }
            if (call.lse && place.c == 0 && ends.in_bounds[r])
                call.lse[query_index(call.lse_strides, seq, tile.batch, row, wg.head_of(tile))] = log_sum_exp(exact);
        }
    if constexpr (Traits::kDescale) ends.factor[0] *= tile.v_descale, ends.factor[1] *= tile.v_descale;
    ends.out = output_of(wg, tile, row0, place.c);
}

// O to memory, 16-bit, where P and v have 8 bits: a thread has four neighbouring columns of every 16; two lanes swap, so that each writes
// eight. `whole`: rows that all exist, see keys and are as wide as O, without a branch.
template <bool f16, bool whole, class Consumer, class T>
FA_DEVICE void store_o_p8(const Consumer& wg, const RowEnds<T>& ends) {
    const int lane = wg.border_place().c, column = lane % 2 * 16 + lane / 2 * 8;
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        T* const out = ends.out + 8 * r * wg.x.o_strides.row + column - 8 * lane;
        FA_UNROLL_FOR (int g = 0; g < Consumer::kHeadDimV / 32; g++) {
            uint32_t word[2][2];
            FA_UNROLL_FOR (int half = 0; half < 2; half++)
                FA_UNROLL_FOR (int i = 0; i < 2; i++) {
                    const float* const first = wg.acc_o + 16 * g + 8 * half + 2 * r + i;
                    const float x = fmaf(first[0], ends.factor[r], 0.f), y = fmaf(first[4], ends.factor[r], 0.f);
                    word[half][i] = f16 ? rt::pack_f16(x, y) : rt::pack_bf16(x, y);
                    if (!whole && ends.empty[r]) word[half][i] = 0;  // whatever v is
                }
            uint32_t other[2];
            FA_UNROLL_FOR (int i = 0; i < 2; i++) other[i] = __shfl_xor_sync(~0u, lane % 2 ? word[0][i] : word[1][i], 1);
            if (whole || (ends.in_bounds[r] && 32 * g + column < wg.a.o_columns))
                *reinterpret_cast<uint4*>(out + 32 * g) = lane % 2 ? make_uint4(other[0], other[1], word[1][0], word[1][1])
                                                                   : make_uint4(word[0][0], word[0][1], other[0], other[1]);
        }
    }
}

// O to memory, 16-bit: transposes of 4 × 4 words in a quad make units of 16 bytes. Returns the largest magnitudes, as a pair.
template <class Consumer, class T>
FA_DEVICE uint32_t store_o(const Consumer& wg, const RowEnds<T>& ends) {
    using Traits = typename Consumer::Traits;
    if constexpr (Traits::kP8) return 0;  // store_any_o does
    const int c = wg.border_place().c;
    uint32_t largest = 0;
    FA_UNROLL_FOR (int g = 0; g < Consumer::kHeadDimV / 32; g++)
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            uint32_t word[4];
            FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                const float* const two = wg.acc_o + 16 * g + 4 * i + 2 * r;
                // + 0 makes 0 of −0: the signs of masked keys' v never show.
                const float first = fmaf(two[0], ends.factor[r], 0.f), second = fmaf(two[1], ends.factor[r], 0.f);
                if (Traits::k8Bit) word[i] = wg.a.o_f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
                else word[i] = Traits::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
                if (!Traits::k8Bit) largest = rt::max_magnitude<Traits::f16>(largest, word[i]);
                if (Consumer::kEmptyBySign ? ends.factor[r] < 0.f : ends.empty[r]) word[i] = 0;  // whatever v is
            }
            rt::transpose_4x4(word, c);
            if (ends.in_bounds[r] && 32 * g + 8 * c < wg.a.o_columns)
                *reinterpret_cast<uint4*>(ends.out + r * wg.eight_rows + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    return largest;
}

// O to an f32 o, or to one of e4m3. Where the row's place is asked for decides which registers ptxas gives to the steady mainloop, by
// 4 % of its speed.
template <class Consumer, class T>
FA_DEVICE void store_o_pairs(const Consumer& wg, const WorkTileInfo& tile, const RowEnds<T>& ends) {
    const Sm90Call& call = wg.x;
    const typename Consumer::RowPlace place =
        Consumer::kHeadDim == 64 && Consumer::mask == MaskKind::none ? wg.row_place() : wg.row_place_of(rt::read_laneid());
    const Sequence seq{tile.q_begin, tile.q_len, 0, tile.k_len, 0, tile.off};
    const int64_t first = query_index(call.o_strides, seq, tile.batch, tile.row0 + place.row, wg.head_of(tile));
    const bool e4m3 = Consumer::Traits::k8Bit && wg.a.o_e4m3;
    const float o_scale = e4m3 && call.o_scale ? *call.o_scale : 1.f;
    FA_UNROLL_FOR (int i = 0; i < Consumer::kHeadDimV / 2; i += 2) {
        const int r = i / 2 % 2, column = Consumer::Traits::kP8 ? i / 8 * 16 + 4 * place.c + i / 4 % 2 * 2 : i / 4 * 8 + 2 * place.c;
        // Where P and v have 8 bits, a thread's columns of 16 are 4c, 4c + 2 and, four accumulators further, 4c + 1, 4c + 3.
        const int at = Consumer::Traits::kP8 ? i - i / 4 % 2 * 3 : i, step = Consumer::Traits::kP8 ? 4 : 1;
        const bool empty = Consumer::kEmptyBySign ? ends.factor[r] < 0.f : ends.empty[r];
        if (!ends.in_bounds[r] || column >= int(call.dim_v)) continue;
        const int64_t to = first + r * (Consumer::Traits::kP8 ? 8 * call.o_strides.row : wg.eight_rows) + column;
        const float2 pair = empty ? make_float2(0.f, 0.f)
                                  : make_float2(fmaf(wg.acc_o[at], ends.factor[r], 0.f), fmaf(wg.acc_o[at + step], ends.factor[r], 0.f));
        if (e4m3) static_cast<uint16_t*>(call.o)[to / 2] = uint16_t(rt::pack_e4m3(pair.x * o_scale, pair.y * o_scale, 0.f, 0.f));
        else *reinterpret_cast<float2*>(static_cast<float*>(call.o) + to) = pair;
    }
}

// Of 8-bit P and v, in whichever type: what is common goes by straight code, as it is a part of every tile's time.
template <class Consumer, class T>
FA_DEVICE void store_any_o(const Consumer& wg, const WorkTileInfo& tile, const RowEnds<T>& ends) {
    const bool whole =
        ends.in_bounds[0] && ends.in_bounds[1] && !ends.empty[0] && !ends.empty[1] && wg.a.o_columns == Consumer::kHeadDimV && !wg.a.o_f16;
    if (__builtin_expect(__all_sync(~0u, whole), 1)) store_o_p8<false, true>(wg, ends);
    else if (wg.a.o_columns == 0) store_o_pairs(wg, tile, ends);
    else if (wg.a.o_f16) store_o_p8<true, false>(wg, ends);
    else store_o_p8<false, false>(wg, ends);
}

// O of finite v is finite, but P is rounded and the row sum is not: brings back what has become infinite, and stores it again. An
// f32 o is stored here, too, so that a 16-bit one pays for one branch only.
template <class Consumer, class T>
FA_DEVICE void repair_overflow(Consumer& wg, const WorkTileInfo& tile, RowEnds<T>& ends, uint32_t largest) {
    using Traits = typename Consumer::Traits;
    const bool in_pairs = wg.a.o_columns == 0;
    if constexpr (Traits::kP8) return store_any_o(wg, tile, ends);
    if constexpr (Traits::k8Bit) {  // whose v, with its factor, need not be in o's range
        if (in_pairs) store_o_pairs(wg, tile, ends);
        return;
    }
    constexpr float limit = Traits::f16 ? 65520.f : 0x1.ffp+127f, less = Traits::f16 ? 1.f - 0x1p-10f : 1.f - 0x1p-8f;
    // Asked of the stored words, the compiler keeps all of them until it takes the largest of three at a time; where registers are
    // short, acc_o is asked.
    constexpr bool ask_acc_o = Consumer::kRecomputePlace || (Consumer::score_mod == ScoreMod::softcap && Consumer::kWarpgroups == 3);
    bool infinite = rt::any_infinite<Traits::f16>(largest);
    if constexpr (ask_acc_o) {
        float most[2] = {};
        FA_UNROLL_FOR (int i = 0; i < Consumer::kHeadDimV / 2; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(wg.acc_o[i]));
        infinite = most[0] * fabsf(ends.factor[0]) >= limit || most[1] * fabsf(ends.factor[1]) >= limit;
    }
    if (__builtin_expect(!rt::warp_any(infinite || in_pairs), 1)) return;
    if (!ask_acc_o || rt::warp_any(infinite))
        FA_UNROLL_FOR (int i = 0; i < Consumer::kHeadDimV / 2; i++)
            if (fabsf(wg.acc_o[i] * ends.factor[i / 2 % 2]) >= limit) wg.acc_o[i] *= less;
    if (in_pairs) return store_o_pairs(wg, tile, ends);
    if (Consumer::kRecomputePlace) ends.out = output_of(wg, tile, tile.row0 + wg.row_place().row, wg.row_place().c);
    store_o(wg, ends);
}

}  // namespace gpu
}  // namespace fa
