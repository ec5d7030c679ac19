// The end of a tile of the latent kernel: LSE and O, normalised, or a split's partial state for merge.h.
#pragma once
#include "cuda/sm90/mla_consumer.h"

namespace fa {
namespace gpu {

// An average of finite v is finite, but P is rounded and the row sum is not.
template <bool f16>
FA_DEVICE float finite_average(float sum, float factor) {
    constexpr float most = f16 ? 65504.f : 0x1.fep+127f;
    const float average = fmaf(sum, factor, 0.f);  // + 0 makes 0 of −0
    return fabsf(average) > most && isfinite(sum) ? copysignf(most, average) : average;
}

template <class Traits>
FA_DEVICE void latent_epilogue(LatentConsumer<Traits>& wg, int warpgroup) {
    const LatentParams& a = wg.a;
    const LatentCall& x = a.x;
    const int c = rt::read_laneid() % 4, place = wg.row_in_tile(), split = wg.s.range.w;
    const int64_t batch = a.batch();
    __syncwarp();
    FA_UNROLL for (int r = 0; r < 2; r++) {
        const int row = a.tile() * 64 + place + 8 * r;
        const bool there = row < int(x.rows), first = warpgroup == 0 && c == 0;
        const RowState part{wg.row_ref[r], wg.s.row_sum[1][place + 8 * r] * (Traits::kPUnscale * kHeadroomUnit)};
        const int64_t i = min(row, int(x.rows) - 1) / int(x.group), head = min(row, int(x.rows) - 1) % int(x.group);
        const Sequence seq{0, x.sequences.q.seqlen, 0, 0, 0, 0};
        float factor = Traits::kPUnscale * kHeadroomUnit;
        float* wide = nullptr;
        int64_t at = query_index(x.o_strides, seq, batch, i, head);
        if (x.partial_o) {
            const int64_t partial = (split * x.batch + batch) * x.rows + row;
            if (first && there) x.state[partial] = part;
            wide = x.partial_o, at = partial * Traits::kHeadDimV;
        } else {
            factor *= finalize_row(x, seq, batch, head, i, part, first && there).factor;
            if (x.o_dtype == FA_F32) wide = static_cast<float*>(x.o);
        }
        const bool empty = part.l == 0.f;
        at += warpgroup * (Traits::kHeadDimV / 2);
        if (wide) {
            FA_UNROLL for (int j = 0; j < 32; j++) {
                const float two[2] = {fmaf(wg.acc_o[4 * j + 2 * r], factor, 0.f), fmaf(wg.acc_o[4 * j + 2 * r + 1], factor, 0.f)};
                if (there)
                    *reinterpret_cast<float2*>(wide + at + 8 * j + 2 * c) =
                        empty ? make_float2(0.f, 0.f) : make_float2(two[0], two[1]);
            }
        } else {
            uint16_t* const out = static_cast<uint16_t*>(x.o) + at + 8 * c;
            FA_UNROLL for (int g = 0; g < 8; g++) {
                uint32_t word[4];
                FA_UNROLL for (int j = 0; j < 4; j++) {
                    const float low = finite_average<Traits::f16>(wg.acc_o[16 * g + 4 * j + 2 * r], factor),
                                high = finite_average<Traits::f16>(wg.acc_o[16 * g + 4 * j + 2 * r + 1], factor);
                    word[j] = empty ? 0 : Traits::f16 ? rt::pack_f16(low, high) : rt::pack_bf16(low, high);
                }
                rt::transpose_4x4(word, c);
                if (there) *reinterpret_cast<uint4*>(out + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }
}

}  // namespace gpu
}  // namespace fa
