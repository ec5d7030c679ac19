// The kernel table of an instruction set, put together from the headers beside this one. An isa/*/kernels.cc defines FA_ISA_VECTORS
// and FA_ISA_FORMATS, the names of its vectors.h and formats.h, before it includes this.
#pragma once
#include "cpu/kernels/gemm.h"
#include "cpu/kernels/softmax.h"
#include "cpu/kernels/layout.h"
#include "cpu/kernels/dropout.h"
#include "cpu/kernels/convert.h"
#include "cpu/kernels/decode_kernels.h"

namespace fa {
namespace cpu {
namespace {

constexpr Kernels tile_kernels(const char* name, int32_t isa, const MatrixKernels* matrix = nullptr) {
    Kernels k{};
    k.name = name;
    k.isa = isa;
    k.lanes = kLanes;
    k.rows = kTileVectors * kLanes;
    k.qk = qk;
    k.scale_scores = scale_scores;
    k.score_mod = score_mod;
    k.mask_bands = mask_bands;
    k.online_softmax = online_softmax;
    k.pv = pv;
    k.gemm_nn = gemm_nn;
    k.gemm_tn = gemm_tn;
    k.dot = dot;
    k.softcap = softcap;
    k.softmax_backward = softmax_backward;
    k.transpose = transpose;
    k.finish_o = finish_o;
    k.finish_o_row = finish_o_row;
    k.add_alibi = add_alibi;
    k.apply_mask = apply_mask;
    k.expand_masks = expand_masks;
    k.count_masks = count_masks;
    k.count_kept = count_kept;
    k.other_bytes = other_elements<uint8_t>;
    k.other_halves = other_elements<uint16_t>;
    k.other_words = other_elements<uint32_t>;
    k.mask_word = mask_word;
    k.apply_dropout = apply_dropout;
    for (int type = 0; type < kTypes; type++) {
        const bool is_block = type >= kSingleTypes && type < kDecodeTypes;
        k.widen[type] = type < kSingleTypes   ? kWiden[type]
                        : type < kDecodeTypes ? kWidenBlocks[type - kSingleTypes]
                                              : kWidenNibbles[type - kDecodeTypes];
        k.widen_k[type] = is_block ? kWidenBlocksOfK[type - kSingleTypes] : k.widen[type];
        k.narrow[type] = type < kSingleTypes   ? kNarrow[type]
                         : type < kDecodeTypes ? kNarrowBlocks[type - kSingleTypes]
                                               : kNarrowNibbles[type - kDecodeTypes];
        if (type < kDecodeTypes) k.decode[type] = kDecode[type];
    }
    k.decode_online_softmax = decode_online_softmax;
    k.matrix = matrix;
    return k;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
