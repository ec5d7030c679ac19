// The kernels after the main backward kernel: one converts the f32 sums of dq, which lie in the order of accumulators, to dq; one
// adds up the partial sums of dk and dv of blocks of keys whose rows were split among CTAs.
#pragma once
#include "cuda/sm90/backward/epilogue.h"

namespace fa {
namespace gpu {

// dv or dk, 32 dims of it, of a block of keys whose rows were split into pieces: adds up their partial sums, in the order of the
// pieces.
template <class T, int HeadDim, int BlockM, BwdVariant variant>
FA_KERNEL void FA_BOUNDS(256, 1) add_split_sm90(FA_PARAM Sm90BackwardParams params) {
    using Traits = Sm90BackwardTraits<T, HeadDim, BlockM, variant>;
    constexpr int kGroups = HeadDim / 32;
    rt::fetch_parameters(params);
    rt::release_successor();
    rt::wait_for_predecessor();
    const BackwardRowParams& call = params.x;
    const int index = int(rt::block()), pieces = int(params.split.pieces.by), group = index % kGroups, half = index / kGroups % 2;
    const int number = index / (2 * kGroups);
    void* const out = half ? call.dk : call.dv;
    if (!out) return;
    KeyBlockInfo key_block;
    fill_key_block_info<Traits>(params, params.split.first_block + number, 0, 0, key_block);
    float sum[16] = {};
    const float* from = partial_of_split<HeadDim>(params, number * pieces) + (half * kGroups + group) * 4096 + rt::thread() * 4;
    FA_UNROLL_BY(2)
    for (int piece = 0; piece < pieces; piece++, from += 2 * 128 * HeadDim)
        FA_UNROLL_FOR (int i = 0; i < 4; i++) {
            float more[4];
            rt::load4(from + i * 1024, more);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[4 * i + e] += more[e];
        }
    const int own_key = rt::thread() / 32 * 16 + rt::thread() % 32 / 4;
    const float factor = half ? dk_factor<T>(params, acc_unit<T>(params, key_block.batch, key_block.kv_head)) : dv_factor<T>();
    store_dkv<T, 32>(params, key_block, own_key, out, half ? call.dk_strides : call.dv_strides, 32 * group, half ? call.dim_qk : call.dim_v,
                     factor, sum);
}

// dq from its f32 sums, which lie in the order of the mainloop's accumulators. A CTA for each block of rows.
template <class T, int HeadDim, int BlockM>
FA_KERNEL void FA_BOUNDS(256, 1) finish_sm90(FA_PARAM Sm90BackwardParams params) {
    using Traits = Sm90BackwardTraits<T, HeadDim, BlockM, BwdVariant::general>;
    const BackwardRowParams& call = params.x;
    constexpr int kStride = HeadDim + 4;
    float* const tile = reinterpret_cast<float*>(rt::shared_memory());
    rt::fetch_parameters(params);
    rt::wait_for_predecessor();
    const int blocks = int(ceil_div(call.sequences.q.seqlen, BlockM)), index = int(rt::block()) / blocks, m = int(rt::block()) % blocks;
    const int batch = index / int(call.heads_q), head = index % int(call.heads_q);
    const Sequence seq = bounded_sequence(call.sequences, batch);
    const int left = int(seq.q_len) - m * BlockM;
    if (left <= 0) return;
    const int64_t row0 = head * call.padded_rows + padded_row0(call.sequences, seq, batch) + m * BlockM;
    const int warp = rt::thread() / 32, lane = rt::thread() % 32, c = lane % 4;
    FA_UNROLL_FOR (int part = warp; part < Traits::kDqParts; part += 8) {
        const int dim = (Traits::kPanels > 1 ? part : part % 4) * 16 + lane / 4;
        const int row = 2 * c + (Traits::kPanels > 1 ? 0 : part / 4 * Traits::kDqRows);
        const float* const from = call.dq_acc + row0 * HeadDim + part * (Traits::kDqRows * 16) + lane * 4;
        FA_UNROLL_FOR (int i = 0; i < Traits::kDqRows / 8; i++) {
            float sum[4];
            rt::load4(from + i * 128, sum);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) tile[(row + 8 * i + e % 2) * kStride + dim + e / 2 * 8] = sum[e];
        }
    }
    constexpr int kRowsAtOnce = 256 / (HeadDim / 8);  // rows
    const int own = rt::thread() / (HeadDim / 8), column = rt::thread() % (HeadDim / 8) * 8;
    bool seeing[BlockM / kRowsAtOnce];
    FA_UNROLL_FOR (int i = 0; i < BlockM / kRowsAtOnce; i++) seeing[i] = call.lse_log2[row0 + own + i * kRowsAtOnce] != kPosInf;
    const float factor = dk_factor<T>(params, acc_unit<T>(params, batch, head / int(call.group)));
    rt::barrier();
    FA_UNROLL_FOR (int i = 0; i < BlockM / kRowsAtOnce; i++) {
        const int r = own + i * kRowsAtOnce;
        if (r >= left || column >= call.dim_qk) continue;
        const int64_t to = query_index(call.dq_strides, seq, batch, m * BlockM + r, head) + column;
        float sum[8];
        rt::load4(tile + r * kStride + column, sum);
        rt::load4(tile + r * kStride + column + 4, sum + 4);
        FA_UNROLL_FOR (int e = 0; e < 8; e++) sum[e] = seeing[i] ? sum[e] * factor : 0.f;
        if (call.accumulate) {
            FA_UNROLL_FOR (int e = 0; e < 8; e++) static_cast<float*>(call.dq)[to + e] += sum[e];
            continue;
        }
        uint32_t word[4];
        FA_UNROLL_FOR (int e = 0; e < 4; e++) word[e] = pack<T>(sum[2 * e], sum[2 * e + 1]);
        *reinterpret_cast<uint4*>(static_cast<T*>(call.dq) + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace gpu
}  // namespace fa
