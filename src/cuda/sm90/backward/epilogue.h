// The end of a block of keys in the backward kernels: dk and dv from the accumulators to memory, or, where several CTAs share a
// block's rows, their partial sums, which add_split_sm90 (backward/postprocess.h) adds up.
#pragma once
#include "cuda/sm90/backward/range.h"
#include "cuda/sm90/backward/tile_scheduler.h"

namespace fa {
namespace gpu {

// This thread's accumulators, of two keys and HeadDim dims from `column` on, to dk or dv; or, where gradients accumulate, added to
// the f32 there.
template <class T, int HeadDim>
FA_DEVICE void store_dkv(const Sm90BackwardParams& params, const KeyBlockInfo& key_block, int own_key, void* out, const RowStrides& strides,
                         int column, int64_t dim, float factor, const float (&sum)[HeadDim / 2]) {
    if (!out) return;
    const BackwardRowParams& call = params.x;
    const int c = int(threadIdx.x) % 4;
    const int64_t base = strides.index(key_block.batch, 0, key_block.kv_head) + column;
    FA_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int key = own_key + 8 * r;
        const bool exists = key < key_block.valid_keys;
        const int64_t at = base + int64_t(key_block.k_row + key) * strides.row;
        if (call.accumulate) {
            float* const to = static_cast<float*>(out) + at;
            FA_UNROLL_FOR (int i = 0; i < HeadDim / 4; i++)
                if (exists && column + 8 * (i / 2) + 2 * c + i % 2 < dim)
                    to[8 * (i / 2) + 2 * c + i % 2] += sum[4 * (i / 2) + 2 * r + i % 2] * factor;
            continue;
        }
        FA_UNROLL_FOR (int i = 0; i < HeadDim / 32; i++) {
            uint32_t word[4];
            FA_UNROLL_FOR (int j = 0; j < 4; j++) {
                const float first = sum[16 * i + 4 * j + 2 * r] * factor, second = sum[16 * i + 4 * j + 2 * r + 1] * factor;
                word[j] = pack<T>(first, second);
            }
            rt::transpose_4x4(word, c);
            if (exists && column + 32 * i + 8 * c < dim)
                *reinterpret_cast<uint4*>(static_cast<T*>(out) + at + 32 * i + 8 * c) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// Where a piece of a split block of keys leaves its accumulators.
template <int HeadDim>
FA_DEVICE float* partial_of_split(const Sm90BackwardParams& params, int block) {
    return params.split.partial + int64_t(block) * (2 * 128 * HeadDim);
}

}  // namespace gpu
}  // namespace fa
