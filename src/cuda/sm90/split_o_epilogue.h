// The end of a row whose O two warpgroups share: its 256 columns of each to memory.
#pragma once
#include "cuda/sm90/split_o.h"

namespace fa {
namespace gpu {

// An average of finite v is finite, but P is rounded and the row sum is not.
template <bool f16>
FA_DEVICE float finite_average(float sum, float factor) {
    constexpr float most = f16 ? 65504.f : 0x1.fep+127f;
    const float average = fmaf(sum, factor, 0.f);  // + 0 makes 0 of −0
    return fabsf(average) > most && isfinite(sum) ? copysignf(most, average) : average;
}

// Row r of a thread's two, of 256 columns of O from element `at` on, `columns` of which there are: to `wide`, in f32, or to o.
template <class Consumer>
FA_DEVICE void store_o_row(const Consumer& wg, int r, bool there, bool empty, float factor, float* wide, void* o, int64_t at, int columns) {
    const int c = rt::read_laneid() % 4;
    if (wide) {
        // Of 16 columns a lane has two pairs, 8 apart: it gives one to its neighbour for the other's, and stores four in a row.
        const bool odd = c & 1;
        float* const out = wide + at + 8 * odd + 2 * (c & 2);
        FA_UNROLL for (int j = 0; j < 32; j += 2) {
            float four[4];
            FA_UNROLL for (int e = 0; e < 4; e++) four[e] = empty ? 0.f : fmaf(wg.acc_o[4 * (j + e / 2) + 2 * r + e % 2], factor, 0.f);
            const float first = rt::shuffle_xor16(odd ? four[0] : four[2], 1), second = rt::shuffle_xor16(odd ? four[1] : four[3], 1);
            if (there && 8 * j + 8 * odd < columns)
                *reinterpret_cast<float4*>(out + 8 * j) = odd ? make_float4(first, second, four[2], four[3]) : make_float4(four[0], four[1], first, second);
        }
    } else {
        uint16_t* const out = static_cast<uint16_t*>(o) + at + 8 * c;
        FA_UNROLL for (int g = 0; g < 8; g++) {
            uint32_t word[4];
            FA_UNROLL for (int j = 0; j < 4; j++) {
                const float low = finite_average<Consumer::kF16>(wg.acc_o[16 * g + 4 * j + 2 * r], factor),
                            high = finite_average<Consumer::kF16>(wg.acc_o[16 * g + 4 * j + 2 * r + 1], factor);
                word[j] = empty ? 0 : Consumer::kF16 ? rt::pack_f16(low, high) : rt::pack_bf16(low, high);
            }
            rt::transpose_4x4(word, c);
            if (there && 32 * g + 8 * c < columns) *reinterpret_cast<uint4*>(out + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

}  // namespace gpu
}  // namespace fa
