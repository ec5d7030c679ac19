// The parameters of the mma kernels: what they all read of a call, and those of the forward.
#pragma once
#include "backend/row_keys.h"
#include "gpu/common/score.h"
#include "spec/mask.h"

namespace fa {
namespace gpu {

// What a call needs of an mma kernel besides products and bands, as bits. The general kernel reads them from shared memory for each
// tile and so has one loop; from the parameters, the compiler would make a loop for each combination, and run out of registers.
// kBaseE: scores are modified in natural units, not as the products come: ALiBi's distances are added to these only where
// neither they nor the slopes, divided by the scale, can overflow. kInfiniteFactors: see BlockProducts of mma/cache/blocks.h.
constexpr uint32_t kPaged = 1, kDropout = 2, kScoreMod = 4, kBaseE = 8, kSoftcap = 16, kBias = 32, kAlibi = 64, kMask = 128,
                   kUnalignedRows = 256, kKeyOffsets = 512, kValueOffsets = 1024, kKeyHalves = 2048, kValueHalves = 4096, kListed = 8192,
                   kInfiniteFactors = 16384;
constexpr float kSteepSlope = 0x1p+60f;

constexpr int kMaxClusterSplits = 16;  // splits that a cluster merges

// One chain of bases to what a family's kernels read most: what lies in a second base, ptxas reaches with a register more.
template <class Base>
struct MmaCallParams : Base, ScoreModParams, DropoutParams {
    MaskRule rule;  // with uniform_lengths as it is, else but for the diagonal
    int64_t dim_qk;
    float scale;
    uint32_t features;     // see features_of
    bool uniform_lengths;  // do all sequences have the same lengths? Then these are the first one's.
    Sequence uniform_seq;
};

// How stored_pipe.h copies the factors of a row: so many bytes, in pieces of `width`; each factor has `size`.
struct FactorPieces {
    int32_t bytes, width, size;
};

struct MmaForwardParams : MmaCallParams<RowParams>, SplitParams {
    const void* q;
    RowStrides q_strides;
    RowSource k, v;
    Descale q_descale, k_descale, v_descale;
    Pages pages;
    const float* o_scale;
    int64_t blocks;              // row tiles of a sequence and kv head
    int64_t section;             // kv heads of the batch whose tiles are taken longest first; 0: in any order
    int64_t uniform_split_keys;  // keys of a split, with uniform_lengths
    int32_t k_dtype;
    int32_t q_width;        // as RowSource.width; 0: q is rounded, or widened, to the kernel's type
    bool mask_vec16;        // rows of the mask consist of aligned 16-byte vectors
    bool cluster_merge;     // the blocks of a tile's splits are a cluster, and merge among themselves
    bool o_plain;           // o has the kernel's type, and rows may be written four elements at a time as they come
    int32_t q_dtype;        // of a q that is rounded or widened
    bool q_factors_differ;  // among a tile's rows, those of several heads
    // Of k and v that scaled_pipe.h reads, and of k that latent/forward.h does.
    Factors k_factors, v_factors;
    int32_t v_dtype;
    float v_unit;    // what v's factors are multiplied by
    int32_t k_dims;  // with a tail, whose place is v's: those before it
    FactorPieces k_pieces, v_pieces;
    bool by_location;  // keys lie in pages, or are gathered
    GatheredLists gathered;
    RowTiles tiles;  // of rows that gather
};

// Does no length, offset or start of a sequence lie in device memory?
FA_FN bool has_uniform_lengths(const Problem& problem) {
    return problem.d.alignment != FA_ALIGN_EXPLICIT &&
           !problem.has(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K |
                        FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX);
}

FA_FN uint32_t features_of(const Problem& problem, bool score_mod, bool unaligned) {
    uint32_t features = (problem.paged() ? kPaged : 0) | (problem.d.dropout_p > 0 ? kDropout : 0) | (problem.d.softcap > 0 ? kSoftcap : 0) |
                        (score_mod ? kScoreMod : 0) | (problem.has(FA_OPERAND_BIAS) ? kBias : 0) |
                        (problem.has(FA_OPERAND_ALIBI) ? kAlibi : 0) | (problem.has(FA_OPERAND_MASK) ? kMask : 0);
    if (features & (kBias | kSoftcap) ||
        (score_mod && (problem.has(FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE) || !(problem.d.scale > kSmallScale))))
        features |= kBaseE;
    return features | (unaligned ? kUnalignedRows : 0);
}

}  // namespace gpu
}  // namespace fa
