// What f16 and bf16 differ in: how the backward kernels keep P and dS within the range of f16. They are multiplied by powers of two
// before they are rounded, and what is summed from them by the inverse. P is at most 1. Of dS a bound is known before its head's keys are
// worked on: |dS_ij| ≤ P_ij · (|delta_i| + dim_v · max |dO| · max |v|), of all rows and keys of a kv head. bf16 has the range of f32.
#pragma once
#include "cuda/sm90/backward/params.h"

namespace fa {
namespace gpu {

// log2 of what P is kept too large by; and of the largest dS in its unit. Both leave room for a P that is 3, by what an LSE is off.
template <class T>
constexpr int kProbExponent = kIsF16<T> ? 14 : 0;
constexpr int kMaxDsExponent = 14;

// What dS of a kv head is multiplied by. Neither it nor its inverse leaves f32, whatever the bound.
FA_DEVICE float ds_unit(const DsRange& range, int kv_head_of_call) {
    const uint32_t exponent = max(range.bound[kv_head_of_call] >> 23, uint32_t(kMaxDsExponent));
    return float_of((2 * 127 + kMaxDsExponent - 1 - exponent) << 23);
}
FA_FN constexpr float power_of_two(int exponent) { return exponent < 0 ? 1.f / float(1 << -exponent) : float(1 << exponent); }
FA_DEVICE float inverse_of_power(float x) { return float_of((2 * 127u << 23) - bits_of(x)); }

FA_DEVICE float f16_of(uint16_t x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
}
// Of the sums of a kv head; bf16: 1.
template <class T>
FA_DEVICE float acc_unit(const Sm90BackwardParams& params, int batch, int kv_head) {
    if constexpr (kIsF16<T>) return ds_unit(params.ds_range, batch * int(params.heads_k.by) + kv_head);
    else return 1.f;
}
// Halves of words: the lower or the upper one.
template <class T>
FA_DEVICE float half_of(uint32_t word, int upper) {
    if constexpr (kIsF16<T>) return f16_of(uint16_t(upper ? word >> 16 : word));
    else return float_of(upper ? word & 0xffff0000u : word << 16);
}
template <class T>
FA_DEVICE uint32_t pack(float low, float high) {
    if constexpr (kIsF16<T>) return rt::pack_f16(low, high);
    else return rt::pack_bf16(low, high);
}

// What takes P · (delta − dP) to the rounded dS, and what takes sums of P and dS to their value.
template <class T>
FA_DEVICE float ds_factor(const KeyBlockInfo& key_block) {
    return kIsF16<T> ? key_block.ds_unit * power_of_two(-kProbExponent<T>) : 1.f;
}
template <class T>
FA_DEVICE uint32_t pack_ds(float low, float high, float factor) {
    return kIsF16<T> ? pack<T>(low * factor, high * factor) : pack<T>(low, high);
}
template <class T>
FA_DEVICE float dv_factor() {
    return kIsF16<T> ? power_of_two(-kProbExponent<T>) : 1.f;
}
// The sums have the sign of delta − dP.
template <class T>
FA_DEVICE float dk_factor(const Sm90BackwardParams& params, float unit) {
    return kIsF16<T> ? -params.x.scale * inverse_of_power(unit) : -params.x.scale;
}

// The largest magnitude of f16s that are numbers: with 0x0400 added to it, what is none becomes negative.
struct F16Max {
    uint32_t pair = 0x04000400;
    FA_MEMBER void take(uint32_t word) { asm("max.s16x2 %0, %0, %1;" : "+r"(pair) : "r"((word & 0x7fff7fffu) + 0x04000400u)); }
    FA_MEMBER void take(const uint4& words) { take(words.x), take(words.y), take(words.z), take(words.w); }
    FA_MEMBER float of_warp() const { return f16_of(uint16_t(__reduce_max_sync(~0u, max(pair & 0xffffu, pair >> 16)) - 0x0400u)); }
};

// The largest |v| of each kv head, in pieces; and no bound of dS yet. By prepare_sm90's predecessor, a CTA for each piece.
template <class T>
FA_KERNEL void FA_BOUNDS(256, 4) max_v_sm90(FA_PARAM Sm90BackwardParams params) {
    const BackwardRowParams& call = params.x;
    __shared__ float of_warp[8];
    rt::fetch_parameters(params);
    rt::release_successor();
    rt::wait_for_predecessor();
    const int index = int(rt::block()) / DsRange::kPieces, piece = int(rt::block()) % DsRange::kPieces;
    const int batch = index / int(call.kv_heads), head = index % int(call.kv_heads);
    const Sequence seq = bounded_sequence(call.sequences, batch);
    const int rows = int(ceil_div(seq.k_len, int64_t(DsRange::kPieces))), end = min(int(seq.k_len), (piece + 1) * rows);
    const int lanes = int(call.dim_v) / 8, rows_at_once = 256 / lanes, own = rt::thread() / lanes, column = rt::thread() % lanes * 8;
    const T* const from = static_cast<const T*>(params.ds_range.v) +
                          params.ds_range.v_strides.index(call.sequences.packed_k() ? 0 : batch, seq.k_begin, head) + column;
    F16Max largest;
    FA_UNROLL_BY(4)
    for (int row = piece * rows + own; row < end && own < rows_at_once; row += rows_at_once)
        largest.take(*reinterpret_cast<const uint4*>(from + row * params.ds_range.v_strides.row));
    const float of_own = largest.of_warp();
    if (rt::thread() % 32 == 0) of_warp[rt::thread() / 32] = of_own;
    rt::barrier();
    if (rt::thread() > 0) return;
    float all = 0.f;
    for (int i = 0; i < 8; i++) all = fmaxf(all, of_warp[i]);
    params.ds_range.max_v[int64_t(index) * DsRange::kPieces + piece] = all;
    if (piece == 0) params.ds_range.bound[index] = 0;
}

template <class T>
constexpr auto max_v_of() -> void (*)(Sm90BackwardParams) {
    if constexpr (kIsF16<T>) return max_v_sm90<T>;
    else return nullptr;
}

// By one warp: rows of the head have this |delta| in each lane, and dout's magnitudes. A row whose delta is no number has gradients
// that are none, whatever their unit.
FA_DEVICE void raise_ds_bound(const Sm90BackwardParams& params, int batch, int head, float delta, const F16Max& dout) {
    const int64_t index = int64_t(batch) * params.heads_k.by + head / int(params.x.group);
    const uint32_t delta_bits = bits_of(fabsf(delta)), infinite = bits_of(kPosInf);
    const float of_rows = float_of(__reduce_max_sync(~0u, delta_bits < infinite ? delta_bits : 0u)), of_dout = dout.of_warp();
    const float piece = params.ds_range.max_v[index * DsRange::kPieces + rt::read_laneid() % DsRange::kPieces];
    const float of_v = float_of(__reduce_max_sync(~0u, bits_of(piece)));
    const float bound = fminf(of_rows + float(int(params.x.dim_v)) * of_dout * of_v, 0x1.fffffep127f);
    if (rt::read_laneid() == 0) atomicMax(params.ds_range.bound + index, bits_of(bound));
}

}  // namespace gpu
}  // namespace fa
