// What the backward kernels for sm_90a are called with, how a block of keys is described to their threads, and how the tiles lie in
// shared memory. A CTA owns kBlockN keys of one kv head and goes through the blocks of kBlockM query rows that see any of them,
// numbered m_block, for every query head of the group. backward/kernel.h begins the tour of the kernel for up to 128 dims,
// backward_wide/kernel.h of the one for up to 256.
#pragma once
#include "cuda/sm90/common/bias_params.h"
#include "cuda/sm90/common/divisor.h"
#include "cuda/sm90/common/pipeline.h"
#include "cuda/sm90/common/ptx.h"
#include "gpu/common/backward_params.h"
#include "gpu/mma/mma_sync.h"

namespace fa {
namespace gpu {

// The mask from the keys' side: key j is seen by rows [j + begin, j + end) of a sequence, of those whose chunk it lies in. Clamped
// so that no sum leaves 32 bits.
struct RowRule {
    int begin, end, chunk, off;
};
FA_FN RowRule row_rule(const MaskRule& rule) {
    constexpr int64_t most = int64_t(1) << 30, wide = int64_t(1) << 40;  // rows and keys are fewer; windows may be wider than wide
    const int64_t begin = rule.right < 0 ? -most : -(rule.off + min_of(rule.right, wide));
    const int64_t end = rule.left < 0 ? most : min_of(rule.left, wide) - rule.off + 1;
    return {int(clamp(begin, -most, most)), int(clamp(end, -most, most)), int(min_of(rule.chunk, most)), int(clamp(rule.off, -most, most))};
}
// The rows that see any of `count` keys, within [0, rows); none: {0, 0}.
FA_DEVICE int2 rows_seeing(const RowRule& rule, int key, int count, int rows) {
    if (count <= 0) return make_int2(0, 0);
    int64_t begin = key + rule.begin, end = key + count - 1 + rule.end;
    if (rule.chunk > 0) {
        begin = max_of(begin, int64_t(key / rule.chunk * rule.chunk) - rule.off);
        end = min_of(end, (int64_t((key + count - 1) / rule.chunk) + 1) * rule.chunk - rule.off);
    }
    return make_int2(int(clamp(begin, 0, rows)), int(clamp(end, 0, rows)));
}

// The preprocessing of rows (delta, LSE, and zeros for the sums of dq: backward/preprocess.h) runs ahead of the blocks of keys that need
// them. A call's blocks are divided into parts; prepare_sm90 preprocesses the rows of the first part, and idle producer warps of
// the main kernel those of the next one, in chunks of 32 rows.
struct PreprocessAhead {
    static constexpr int kChunkRows = 32;
    uint32_t* rows_ready;  // [parts] chunks that have been preprocessed; counted from the second part on
    int parts;             // 1: prepare_sm90 preprocesses all rows
    Divisor part_blocks;   // of a part; the last one may have more
    int part_chunks, all_chunks;
    Divisor chunks_of_head, heads_q;
    int padded_rows_of_sequence;
    int helper_blocks;          // blocks of a part whose warps preprocess
    int64_t o_step, dout_step;  // bytes, between the rows that a lane reads
    FA_MEMBER int part_of(int block) const { return min(divide(block, part_blocks).number, parts - 1); }
    FA_MEMBER int chunks_end(int part) const { return part + 1 < parts ? (part + 1) * part_chunks : all_chunks; }
};

// The blocks of keys of the last wave, which would leave most multiprocessors idle, are split by rows into pieces of one CTA each.
// add_split_sm90 adds up their partial sums.
struct Split {
    int first_block;  // that is split
    Divisor pieces;
    float* partial;  // [blocks][pieces][dv, dk][keys x dims], in the order of the mainloop's accumulators
};

// f16: what decides the units of dS (backward/range.h), one for each kv head of a sequence.
struct DsRange {
    static constexpr int kPieces = 16;
    float* max_v;     // [batch · kv heads][kPieces] the largest |v|
    uint32_t* bound;  // [batch · kv heads] of |dS|, the bits of a float
    const void* v;
    RowStrides v_strides;
};
struct Sm90BackwardParams {
    CUtensorMap q, dout, k, v;
    BackwardRowParams x;
    // Blocks go through `section` kv heads at a time (whose rows fit in L2), and in those through the same keys of all before the
    // next keys.
    Divisor section_blocks, section, last_section, heads_k;
    int sections, key_blocks;  // key_blocks: of a kv head; for pairs those of two
    int blocks;                // or pairs, pieces of split ones among them
    int resident_blocks;       // the grid: with a persistent kernel each CTA takes its next block from block_counter
    int* block_counter;
    bool reverse_order;  // within a head
    PreprocessAhead preprocess;
    Split split;
    DsRange ds_range;
    RowRule rule;    // of all sequences, where those have the same lengths
    MaskRule bands;  // else, but for the diagonal
    // Deterministic: [heads_q][padded_rows / kBlockM][kDqSemaphores] blocks of keys, or pairs, whose dq has been added; NULL: in any order.
    uint32_t* dq_semaphore;
};
struct Sm90BackwardBiasParams : Sm90BackwardParams {
    CUtensorMap bias_map;
    Sm90Bias bias;
    float inverse_scale;
};

// A block of keys, as producer and consumers know it. Its blocks of rows are [m_block_min, m_block_max), of which
// [m_block_full_min, m_block_full_max) need no mask. Rows outside of [valid_row_min, valid_row_max) take no part in attention, and
// may hold anything.
struct alignas(16) KeyBlockInfo {
    int m_block_min, m_block_max, m_block_full_min, m_block_full_max;
    int valid_row_min, valid_row_max, valid_keys, key0;  // valid_keys: that exist, 0 and less: none
    int batch, kv_head, q_begin, k_row;                  // k_row: of key0
    RowRule rule;
    int row0, q_len, k_len, index;  // row0: in arrays of padded rows; index: of the block in the call, or -1: there are no more
    float ds_unit;                  // f16: what dS is multiplied by
};

// Which calls a kernel is compiled for. general: all that backward/dispatch.cu takes. plain: calls whose rows all exist and see a key,
// whose blocks of keys are all seen, and whose dq is added in any order: no row has to be zeroed, no semaphore awaited. wide: heads
// of up to 256 dims, by pairs of CTAs that share what they load (backward_wide/kernel.h). bias: as general, with a bias, and only those.
enum class BwdVariant { general, plain, wide, bias };

constexpr int kMaxSharedBytes = 232448;  // that a CTA may have

template <class T, int HeadDim, int BlockM, BwdVariant variant, int BlockN = 128>
struct Sm90BackwardTraits {
    using Type = T;
    static constexpr bool f16 = kIsF16<T>;
    using Wgmma = rt::Wgmma<kIsF16<T>>;
    using Params = Select<variant == BwdVariant::bias, Sm90BackwardBiasParams, Sm90BackwardParams>;
    static constexpr bool kGeneral = variant != BwdVariant::plain, kPair = variant == BwdVariant::wide,
                          kPersistent = variant == BwdVariant::plain, kBias = variant == BwdVariant::bias;
    static constexpr int kBlockM = BlockM, kBlockN = BlockN, kThreads = 384, kClusterSize = kPair ? 2 : 1, kStages = 2;
    static constexpr int kKStages = kPersistent ? 2 : 1;
    static constexpr int kPanels = HeadDim / 64;
    static constexpr int kKvBytes = BlockN * HeadDim * 2, kQBytes = BlockM * HeadDim * 2, kDsBytes = BlockM * BlockN * 2,
                         kDqBytes = BlockM * HeadDim * 4;
    static constexpr int kBiasBytes = kBias ? kDsBytes : 0;
    // dQᵀ of a warpgroup: 64 dims of all rows, or, where there are no more dims, half of the rows.
    static constexpr int kDqRows = kPanels == 1 ? BlockM / 2 : BlockM;
    static constexpr int kDqParts = kPanels == 1 ? 8 : HeadDim / 16;  // one warp's accumulators each
    static constexpr int kDqSemaphores = kPair ? 4 : 1;               // deterministic: each warpgroup of a pair adds its own dims
    struct BiasStage {
        uint64_t bias_full, bias_empty;
        float bias_factor;  // of the step's head
    };
    struct NoBias {};
    struct Barriers : Select<kBias, BiasStage, NoBias> {
        uint64_t k_full[kKStages], k_empty[kKStages], v_full, q_full[kStages], q_empty[kStages], do_full[kStages], do_empty[kStages],
            ds_full[kStages], ds_empty[kStages];
        uint64_t dq_full, dq_empty;  // deterministic: of the staging buffer of dq
    };
    struct RowRanges {
        int2 row_range[BlockN];  // the rows that see each key
    };
    struct NoRanges {};  // with a bias there is no room for them: see row_range_of
    struct Shared {
        float lse_log2[kStages][BlockM], delta[kStages][BlockM];
        Select<kBias, NoRanges, RowRanges> of_keys;
        KeyBlockInfo block[kKStages];
        int blocks_done[4];  // of keys, by each warp of the producer warpgroup
        Barriers barrier;
    };
    static constexpr int kTensorBytes = (kKStages + 1) * kKvBytes + 2 * kStages * kQBytes + kStages * kDsBytes + kDqBytes + kBiasBytes;
    static constexpr int kSharedBytes = kTensorBytes + int(sizeof(Shared));

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kTensorBytes); }
    FA_MEMBER static uint32_t smem_addr(const void* p) { return rt::smem_addr(p); }
    FA_MEMBER static uint32_t k_tile(int i = 0) { return smem_addr(rt::shared_memory()) + i * kKvBytes; }
    FA_MEMBER static uint32_t v_tile() { return k_tile(kKStages); }
    FA_MEMBER static uint32_t q_tile(int i) { return v_tile() + kKvBytes + i * kQBytes; }
    FA_MEMBER static uint32_t do_tile(int i) { return q_tile(kStages) + i * kQBytes; }
    FA_MEMBER static uint32_t ds_tile(int i) { return do_tile(kStages) + i * kDsBytes; }
    FA_MEMBER static uint32_t dq_tile() { return ds_tile(kStages); }
    FA_MEMBER static uint32_t bias_tile() { return dq_tile() + kDqBytes; }

    FA_MEMBER static void init_barriers() {
        Barriers& barrier = shared().barrier;
        for (int i = 0; i < 4; i++) shared().blocks_done[i] = 0;
        // The stage of K is released together with the description of the block, which all threads but the loading warp read.
        for (int i = 0; i < kKStages; i++)
            rt::mbarrier_init(smem_addr(barrier.k_full + i), 1), rt::mbarrier_init(smem_addr(barrier.k_empty + i), kThreads - 32);
        rt::mbarrier_init(smem_addr(&barrier.v_full), 1);
        for (int i = 0; i < kStages; i++) {
            rt::mbarrier_init(smem_addr(barrier.q_full + i), 1), rt::mbarrier_init(smem_addr(barrier.q_empty + i), 8);
            rt::mbarrier_init(smem_addr(barrier.do_full + i), 1), rt::mbarrier_init(smem_addr(barrier.do_empty + i), 8 * 32);
            rt::mbarrier_init(smem_addr(barrier.ds_full + i), 8), rt::mbarrier_init(smem_addr(barrier.ds_empty + i), 8);
        }
        rt::mbarrier_init(smem_addr(&barrier.dq_full), 8), rt::mbarrier_init(smem_addr(&barrier.dq_empty), 1);
        if constexpr (kBias) rt::mbarrier_init(smem_addr(&barrier.bias_full), 1), rt::mbarrier_init(smem_addr(&barrier.bias_empty), 8 * 32);
        rt::fence_mbarrier_init();
    }
};

}  // namespace gpu
}  // namespace fa
