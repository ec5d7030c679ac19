// The end of a row whose O two warpgroups share: its 256 columns of each to memory.
#pragma once
#include "cuda/sm90/split_o/consumer.h"

namespace fa {
namespace gpu {

// An average of finite v is finite, but P is rounded and the row sum is not.
template <bool f16>
FA_DEVICE float finite_average(float sum, float factor) {
    constexpr float most = f16 ? 65504.f : 0x1.fep+127f;
    const float average = fmaf(sum, factor, 0.f);  // + 0 makes 0 of −0
    return fabsf(average) > most && isfinite(sum) ? copysignf(most, average) : average;
}

// Four columns of a row of o, of its type.
FA_DEVICE void store_four(void* o, int32_t dtype, int64_t at, const float (&sum)[4], float factor) {
    if (dtype == FA_F32) {
        *reinterpret_cast<float4*>(static_cast<float*>(o) + at) =
            make_float4(sum[0] * factor, sum[1] * factor, sum[2] * factor, sum[3] * factor);
        return;
    }
    uint32_t word[2];
    FA_UNROLL_FOR (int i = 0; i < 2; i++)
        word[i] = dtype == FA_F16 ? rt::pack_f16(finite_average<true>(sum[2 * i], factor), finite_average<true>(sum[2 * i + 1], factor))
                                  : rt::pack_bf16(finite_average<false>(sum[2 * i], factor), finite_average<false>(sum[2 * i + 1], factor));
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(o) + at) = make_uint2(word[0], word[1]);
}

// Row r of a thread's two, of 256 columns of O from element `at` on, `columns` of which there are: to `wide`, in f32, or to o.
template <class Consumer>
FA_DEVICE void store_wide_row(const Consumer& wg, int r, bool there, float factor, float* wide, int64_t at, int columns) {
    // Of 16 columns a lane has two pairs, 8 apart: it gives one to its neighbour for the other's, and stores four in a row.
    const int c = rt::read_laneid() % 4;
    const bool odd = c & 1;
    float* const out = wide + at + 8 * odd + 2 * (c & 2);
    FA_UNROLL_FOR (int j = 0; j < 32; j += 2) {
        float four[4];
        FA_UNROLL_FOR (int e = 0; e < 4; e++) four[e] = fmaf(wg.acc_o[4 * (j + e / 2) + 2 * r + e % 2], factor, 0.f);
        const float first = rt::shuffle_xor16(odd ? four[0] : four[2], 1), second = rt::shuffle_xor16(odd ? four[1] : four[3], 1);
        if (there && 8 * j + 8 * odd < columns)
            *reinterpret_cast<float4*>(out + 8 * j) =
                odd ? make_float4(first, second, four[2], four[3]) : make_float4(four[0], four[1], first, second);
    }
}
// Returns whether a value of the warp's has become infinite.
template <class Consumer>
FA_DEVICE bool store_narrow_row(const Consumer& wg, int r, bool there, float factor, void* o, int64_t at, int columns) {
    const int c = rt::read_laneid() % 4;
    uint16_t* const out = static_cast<uint16_t*>(o) + at + 8 * c;
    uint32_t largest = 0;
    FA_UNROLL_FOR (int g = 0; g < 8; g++) {
        uint32_t word[4];
        FA_UNROLL_FOR (int j = 0; j < 4; j++) {
            const float* const two = wg.acc_o + 16 * g + 4 * j + 2 * r;
            const float low = fmaf(two[0], factor, 0.f), high = fmaf(two[1], factor, 0.f);  // + 0 makes 0 of −0
            word[j] = Consumer::kF16 ? rt::pack_f16(low, high) : rt::pack_bf16(low, high);
            largest = rt::max_magnitude<Consumer::kF16>(largest, word[j]);
        }
        rt::transpose_4x4(word, c);
        if (there && 32 * g + 8 * c < columns) *reinterpret_cast<uint4*>(out + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    return rt::warp_any(rt::any_infinite<Consumer::kF16>(largest));
}
// empty: no key was seen, and O is 0 whatever v holds there.
template <class Consumer>
FA_DEVICE void store_o_row(Consumer& wg, int r, bool there, bool empty, float factor, float* wide, void* o, int64_t at, int columns) {
    if (rt::warp_any(empty && there)) {
        FA_UNROLL_FOR (int i = 0; i < 128; i++)
            if (i / 2 % 2 == r && empty) wg.acc_o[i] = 0.f;
        rt::keep_in_registers(wg.acc_o);  // a branch, not 64 selections that hardly a tile needs
    }
    if (wide) return store_wide_row(wg, r, there, factor, wide, at, columns);
    if (!store_narrow_row(wg, r, there, factor, o, at, columns)) return;
    // An average of finite v is finite, but P is rounded and the row sum is not.
    constexpr float limit = Consumer::kF16 ? 65520.f : 0x1.ffp+127f, less = Consumer::kF16 ? 1.f - 0x1p-10f : 1.f - 0x1p-8f;
    FA_UNROLL_FOR (int i = 0; i < 128; i++)
        if (i / 2 % 2 == r && fabsf(wg.acc_o[i] * factor) >= limit) wg.acc_o[i] *= less;
    store_narrow_row(wg, r, there, factor, o, at, columns);
}

}  // namespace gpu
}  // namespace fa
