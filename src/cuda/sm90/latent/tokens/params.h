// Latent attention over tokens of 8 bits for few rows: how a CTA's shared memory is laid out. latent/tokens/kernel.h begins the tour.
#pragma once
#include "cuda/sm90/latent/params.h"
#include "cuda/sm90/common/pipeline.h"

namespace fa {
namespace gpu {

constexpr int kTokenKeys = 64;  // of a tile

// A token as it lies in shared memory. From row to row it is an odd multiple of 16 bytes more than a multiple of 128, so that ldmatrix
// meets no bank twice. kOwn dims of e4m3, in parts with a factor each, and 64 of bf16, the tail; v has 512 dims.
struct Tokens656 {
    static constexpr int kOwn = 512, kParts = 4, kFactorBytes = 16;  // f32
    static constexpr int kFactors = kOwn, kTail = kFactors + kFactorBytes, kPitch = kTail + 128;
    static constexpr bool kTailInV = false;
};
struct Tokens584 {
    static constexpr int kOwn = 448, kParts = 7, kFactorBytes = 8;  // E8M0, and one byte of no meaning
    static constexpr int kTail = kOwn, kFactors = kTail + 128, kPitch = kFactors + 16;
    static constexpr bool kTailInV = true;
};

template <class TokenForm, int Rows>
struct TokenTraits {
    using Form = TokenForm;
    static constexpr int kRows = Rows, kScores = Rows / 2, kValues = Rows / 4;  // kScores: of a thread; kValues: rows that these belong to
    static constexpr int kParts = Form::kParts, kPartDims = Form::kOwn / kParts,
                         kProbs = kParts + Form::kTailInV;                // kProbs: P times each part's factors
    static constexpr int kColumnGroups = 2, kBlocks = 8 / kColumnGroups;  // kBlocks: of 64 columns, of a group
    static constexpr int kThreads = 128 * (2 + kColumnGroups), kItemSlots = 4, kConsumerWarps = 4 * (1 + kColumnGroups);
    static constexpr int kLoadRows = 16, kLoadWarps = kTokenKeys / kLoadRows;
    static constexpr int kProducerRegisters = 48, kScoreRegisters = 160, kColumnRegisters = 152;
    static constexpr int kPanelBytes = Rows * 128, kPanels = Form::kOwn / 64 + 1, kQBytes = kPanels * kPanelBytes,
                         kProbBytes = kProbs * kPanelBytes;
    static constexpr int kStageBytes = kTokenKeys * Form::kPitch, kStages = Rows == 16 ? 4 : 3;

    struct Shared {
        uint64_t full[kStages], empty[kStages], p_full[2], p_empty[2];
        LatentItemSlot item[kItemSlots];
        LatentSchedulerState schedule;
        uint64_t present[kStages];  // a bit for each key of a stage
        // Beside P, in turn as P: what O so far is to be multiplied by, if anything, and at the end of an item its rows' states and the
        // units of O.
        int moved[2], is_bf16[2];
        float row_factor[2][Rows], part_factor[2][kProbs];
        float row_ref[2][Rows], row_sum[2][4][Rows], output_unit[2][kProbs];
        // Of the four warps that compute scores.
        float row_max[4][Rows], largest[4][kParts], smallest[4][kParts];
        uint32_t q_exponent[4];
    };
    static constexpr int kSharedBytes = kQBytes + 2 * kProbBytes + kStages * kStageBytes + int(sizeof(Shared));
    static_assert(kSharedBytes <= 232448, "what a CTA may have");
    FA_MEMBER static Shared& shared() {
        return *reinterpret_cast<Shared*>(rt::shared_memory() + kQBytes + 2 * kProbBytes + kStages * kStageBytes);
    }
    FA_MEMBER static uint32_t q_tile() { return rt::smem_addr(rt::shared_memory()); }
    FA_MEMBER static uint32_t probs(int i) { return q_tile() + kQBytes + i * kProbBytes; }
    FA_MEMBER static uint32_t stage(int i) { return q_tile() + kQBytes + 2 * kProbBytes + i * kStageBytes; }
    // For a warp that has read what the barrier guards.
    FA_MEMBER static void release(const uint64_t& barrier) {
        __syncwarp();
        if (rt::read_laneid() == 0) rt::mbarrier_arrive(rt::smem_addr(&barrier));
    }
    FA_MEMBER static void init_barriers() {
        Shared& shared = TokenTraits::shared();
        for (const LatentItemSlot& slot : shared.item)
            rt::mbarrier_init(rt::smem_addr(&slot.ready), 1), rt::mbarrier_init(rt::smem_addr(&slot.consumed), kConsumerWarps + kLoadWarps);
        for (int i = 0; i < kStages; i++)
            rt::mbarrier_init(rt::smem_addr(&shared.full[i]), 33 * kLoadWarps),
                rt::mbarrier_init(rt::smem_addr(&shared.empty[i]), kConsumerWarps);
        for (int i = 0; i < 2; i++)
            rt::mbarrier_init(rt::smem_addr(&shared.p_full[i]), 128),
                rt::mbarrier_init(rt::smem_addr(&shared.p_empty[i]), 4 * kColumnGroups);
        rt::fence_mbarrier_init();
    }
    // Tiles of 64 keys of an item.
    FA_MEMBER static int tiles_of(const LatentItem& item) {
        return item.pairs <= 0 ? 0 : max(min(2 * item.pairs, (item.end - item.begin + kTokenKeys - 1) / kTokenKeys), 1);
    }
};

// wgmma of 64 × Rows, d = x · yᵀ, or d += where scale_d: x in registers, y K-major in panels of 64 columns. `start` and b: where y lies, in
// units of 16 bytes; as in split_o/wgmma.h.
template <int Rows>
struct TokenWgmma;
#define FA_TOKEN_WGMMA(n, name, type, regs, acc, a0, a1, a2, a3, at, offset, high, add)                                                    \
    template <int b>                                                                                                                       \
    FA_MEMBER static void name(float (&d)[n / 2], const uint32_t* x, uint32_t start, int scale_d) {                                        \
        asm volatile("{\n.reg .pred p;\n.reg .b32 y;\n.reg .b64 b;\nsetp.ne.b32 p, " add ", 0;\nadd.u32 y, " at ", " offset                \
                     ";\n"                                                                                                                 \
                     "mov.b64 b, {y, " high "};\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" regs "}, {" a0 "," a1 \
                     "," a2 "," a3 "}, b, p, 1, 1, 0;\n}"                                                                                  \
                     : acc                                                                                                                 \
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(start), "n"(b), "n"(1 << 30 | 1024 >> 4), "r"(scale_d));            \
    }
template <>
struct TokenWgmma<16> {
    FA_TOKEN_WGMMA(16, f16, "f16", FA_N0, FA_D8(0), "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15")
    FA_TOKEN_WGMMA(16, bf16, "bf16", FA_N0, FA_D8(0), "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15")
};
template <>
struct TokenWgmma<32> {
    FA_TOKEN_WGMMA(32, f16, "f16", FA_N8, FA_COMMA(FA_D8(0), FA_D8(8)), "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23")
    FA_TOKEN_WGMMA(32, bf16, "bf16", FA_N8, FA_COMMA(FA_D8(0), FA_D8(8)), "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23")
};
#undef FA_TOKEN_WGMMA

}  // namespace gpu
}  // namespace fa
