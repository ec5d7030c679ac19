// What an mma kernel does to a tile of scores before softmax (masks and score mods), and to P where there is dropout; and from the ones to
// the other. All but the band and that is for calls that ask for it, by the features of score.h.
#pragma once
#include "gpu/mma/output.h"

namespace fa {
namespace gpu {

// The sum of a lane's probabilities in a tile of keys, where they belong to one row.
template <class Acc, bool one_row = Acc::kRows == 1>
struct TileSum {};
template <class Acc>
struct TileSum<Acc, true> : Acc::Sum {};

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaScores : MmaOutput<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident> {
    using Block = MmaOutput<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    using Acc = typename Block::Acc;
    using Row = typename Block::Row;
    using Tile = typename Block::Tile;
    using Shared = typename Block::Shared;
    using PerRow = typename Block::PerRow;
    using Block::kKeyTiles, Block::kTileRows, Block::kTile, Block::shared;
    // −inf for keys outside their row's band, or that are not there.
    template <int tiles>
    FA_MEMBER static void mask_scores(int row0, int key, const int64_t* location, Acc (*score)[tiles], bool bands = true) {
        const Shared& shared = Block::shared();
        FA_UNROLL_FOR (int m = 0; m < RowTiles; m++)
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                const Row row = shared.row[row0 + kTileRows * m + Acc::row(r)];
                const int begin = bands ? row.begin - key : 0, end = bands ? row.end - key : INT32_MAX;
                FA_UNROLL_FOR (int n = 0; n < tiles; n++)
                    FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                        if (Acc::lane_row(e) != r) continue;
                        const int j = kTile * n + Acc::column(e);
                        if (j < begin || j >= end || (location && location[j] < 0)) score[m][n].x[e] = kNegInf;
                    }
            }
    }

    // Replaces by change(score, row, j) the scores of a row tile with the warp's j-th key of the tile.
    template <class Change>
    FA_MEMBER static void for_each_score(int row0, Acc score[kKeyTiles], Change change) {
        FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
            const Row row = shared().row[row0 + Acc::row(r)];
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                    if (Acc::lane_row(e) == r) score[n].x[e] = change(score[n].x[e], row, kTile * n + Acc::column(e));
        }
    }
    FA_MEMBER static float load_bias(const char* p, int32_t dtype) {
        if (dtype == FA_F32) return *reinterpret_cast<const float*>(p);
        const uint16_t bits = *reinterpret_cast<const uint16_t*>(p);
        return dtype == FA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    FA_MEMBER static void add_bias_by_branches(const MmaForwardParams& params, int row0, int64_t key, Acc score[kKeyTiles]) {
        const Tile& tile = shared().tile;
        const int64_t bytes = type_bytes(params.bias_dtype), left = tile.seq.k_len - key;
        const int64_t batch = tile.batch * params.bias_stride[0] * bytes, head = params.bias_stride[1] * bytes,
                      row = params.bias_stride[2] * bytes;
        const int64_t step = params.bias_stride[3] * bytes;
        FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
            const Row& at = shared().row[row0 + Acc::row(r)];
            const char* bias = static_cast<const char*>(params.bias) + batch + at.head * head + at.position * row + key * step;
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                    const int j = kTile * n + Acc::column(e);
                    if (Acc::lane_row(e) != r || j >= left) continue;
                    const float b = load_bias(bias + j * step, params.bias_dtype);
                    score[n].x[e] = b == kNegInf ? kNegInf : score[n].x[e] + b;
                }
                rt::compiler_fence();
            }
        }
    }
    // Stored: float, or what holds 16 bits of either type. Scores of keys behind the last one are removed later: without a branch for each
    // score, several loads are under way at once.
    template <class Stored>
    FA_MEMBER static void add_bias_of(const MmaForwardParams& params, int row0, int64_t key, Acc score[kKeyTiles]) {
        const Tile& tile = shared().tile;
        const int64_t* const stride = params.bias_stride;
        const bool f16 = params.bias_dtype == FA_F16;
        const int last = int(min_of(tile.seq.k_len - 1 - key, kTile * kKeyTiles));
        FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
            const Row& at = shared().row[row0 + Acc::row(r)];
            const Stored* const bias = static_cast<const Stored*>(params.bias) + tile.batch * stride[0] + at.head * stride[1] +
                                       at.position * stride[2] + key * stride[3];
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++) {
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                    const int j = kTile * n + Acc::column(e);
                    if (Acc::lane_row(e) != r) continue;
                    const Stored stored = bias[(j < last ? j : last) * stride[3]];
                    float b;
                    if constexpr (sizeof(Stored) == 4) b = stored;
                    else b = f16 ? rt::widen_f16(stored) : bf16_to_f32(stored);
                    score[n].x[e] = b == kNegInf ? kNegInf : score[n].x[e] + b;
                }
                rt::compiler_fence();
            }
        }
    }
    // With two row tiles there are no registers for the addresses of several loads.
    static constexpr bool kModsAtOnce = Mma::kModsAtOnce && RowTiles == 1;
    FA_MEMBER static void add_bias(const MmaForwardParams& params, int row0, int64_t key, Acc score[kKeyTiles]) {
        if constexpr (!kModsAtOnce) add_bias_by_branches(params, row0, key, score);
        else if (params.bias_dtype == FA_F32) add_bias_of<float>(params, row0, key, score);
        else add_bias_of<uint16_t>(params, row0, key, score);
    }
    template <int tiles>
    FA_MEMBER static void scale_scores(Acc (*score)[tiles], float factor) {
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
            FA_UNROLL_FOR (int n = 0; n < tiles; n++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) score[i][n].x[e] *= factor;
    }
    // By what is not in the unit: `before`, and each row's factor of q where they differ.
    FA_MEMBER static void apply_factors(const MmaForwardParams& params, int row0, float before, Acc score[RowTiles][kKeyTiles]) {
        if (Mma::kKv8bit && before != 1.f) scale_scores(score, before);
        if constexpr (Mma::kWidensQ)
            if (params.q_factors_differ)
                FA_UNROLL_FOR (int i = 0; i < RowTiles; i++)
                    FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                        const float factor = shared().q_factor[row0 + kTileRows * i + Acc::row(r)];
                        FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
                            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                                if (Acc::lane_row(e) == r) score[i][n].x[e] *= factor;
                    }
    }
    // From products to scores in units that `unit` takes to log2: those of the products, or, for options that need them in natural
    // units on the way, log2 itself.
    FA_MEMBER static void apply_score_mods(const MmaForwardParams& params, int row0, int64_t key, float unit, Acc score[kKeyTiles]) {
        const Tile& tile = shared().tile;
        if (tile.features & kBaseE) {
            for_each_score(row0, score, [&](float s, const Row&, int) { return s * (params.scale * Mma::kScoreUnit); });
            if (tile.features & kSoftcap) {
                const float inverse = kModsAtOnce ? reciprocal_of_softcap(params) : 0.f;
                for_each_score(row0, score, [&](float s, const Row&, int) {
                    return params.softcap * Mma::tanh(kModsAtOnce ? s * inverse : s / params.softcap);
                });
            }
            if (tile.features & kBias) add_bias(params, row0, key, score);
            for_each_score(row0, score, [&](float s, const Row&, int) { return s * kLog2e; });
        }
        if (tile.features & kAlibi) {
            const float inverse = 1.f / unit;
            const int first = Mma::kSplitTf32 ? 0 : Acc::column(0);  // other columns are a constant away; with f32 this would spill
            for_each_score(row0, score, [&](float s, const Row& row, int j) {
                const float start = float(row.position + tile.rule.off - key - first);
                return fmaf(-row.slope * inverse, fabsf(start - float(j - first)), s);
            });
        }
    }

    // The mask operand's rows for a row tile, where they are whole aligned 16-byte vectors: the lanes that share a row hold a part
    // each. They are loaded before the scores are computed.
    struct MaskRows {
        uint32_t word[Acc::kRows][kKeyTiles];
    };
    FA_MEMBER static const uint8_t* mask_row(const MmaForwardParams& params, int row0, int lane_row, int64_t key) {
        const int64_t* stride = params.mask_stride;
        const Row& row = shared().row[row0 + Acc::row(lane_row)];
        return params.mask + shared().tile.batch * stride[0] + row.head * stride[1] + row.position * stride[2] + key * stride[3];
    }
    FA_MEMBER static bool mask_in_vecs(const MmaForwardParams& params, int64_t key) {
        return Acc::kMaskVecs && kKeyTiles > 1 && params.mask_vec16 && key + kTile * kKeyTiles <= params.sequences.seqlen_k;
    }
    FA_MEMBER static void load_mask(const MmaForwardParams& params, int row0, int64_t key, MaskRows& rows) {
        FA_UNROLL_FOR (int lane_row = 0; lane_row < Acc::kRows; lane_row++)
            Acc::template load_mask<kKeyTiles>(mask_row(params, row0, lane_row, key), rows.word[lane_row]);
    }
    // A bit for each score of the row tile, in their order: set where the mask keeps it. Without the scores, which leave few
    // registers.
    FA_MEMBER static uint32_t unmasked_scores(const MaskRows& rows) {
        uint32_t kept = 0;
        FA_UNROLL_FOR (int lane_row = 0; lane_row < Acc::kRows; lane_row++) Acc::set_mask_bits(rows.word[lane_row], lane_row, kept);
        return kept;
    }
    // The same for any mask, byte by byte.
    FA_MEMBER static uint32_t unmasked_scores(const MmaForwardParams& params, int row0, int64_t key) {
        uint32_t kept = 0;
        FA_UNROLL_BY(4)
        for (int i = 0; i < kKeyTiles * Acc::kElements; i++) {
            const int e = i % Acc::kElements, j = i / Acc::kElements * kTile + Acc::column(e);
            const bool there = key + j < params.sequences.seqlen_k;
            kept |= uint32_t(there && mask_row(params, row0, Acc::lane_row(e), key)[there ? j * params.mask_stride[3] : 0] != 0) << i;
        }
        return kept;
    }

    // Key tile n: scores without a bit in `kept` become `removed`.
    FA_MEMBER static void remove_scores(uint32_t kept, int n, float removed, Acc& score) {
        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
            if (!(kept >> (n * Acc::kElements + e) & 1)) score.x[e] = removed;
    }
    // One bit for each score of a row tile, in their order: set where dropout keeps it. A loop that is not unrolled, without the
    // scores: they leave it few registers.
    FA_MEMBER static uint32_t kept_scores(int row0, int64_t key) {
        static_assert(kKeyTiles * Acc::kElements <= 32, "a bit for each");
        const Tile& tile = shared().tile;
        uint32_t kept = 0;
        FA_UNROLL_BY(1)
        for (int i = 0; i < kKeyTiles * Acc::kElements; i++) {
            const int n = i / Acc::kElements, e = i % Acc::kElements;
            const Row& row = shared().row[row0 + Acc::row(Acc::lane_row(e))];
            kept |= uint32_t(keeps(tile.dropout, row.head, row.position, key + kTile * n + Acc::column(e))) << i;
        }
        return kept;
    }

    // Scores of key tile n to probabilities, whose sums go to `sum`: each lane has its own part of a row's.
    template <int tiles>
    FA_MEMBER static void apply_exp2(int n, float unit, const PerRow& exp2_offset, Acc (*score)[tiles], PerRow& sum) {
        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
            FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) {
                const float p = rt::exp2_fast(fmaf(score[i][n].x[e], unit, exp2_offset[i][Acc::lane_row(e)]));
                score[i][n].x[e] = p;
                sum[i][Acc::lane_row(e)] += p;
            }
    }
    // The same where a lane's elements belong to one row.
    FA_MEMBER static void apply_exp2_to_row(int n, float unit, const PerRow& exp2_offset, Acc score[RowTiles][kKeyTiles],
                                            TileSum<Acc> (&sum)[RowTiles]) {
        FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) {
            score[i][n].multiply_add(unit, exp2_offset[i][0]);
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                const float p = rt::exp2_fast(score[i][n].x[e]);
                score[i][n].x[e] = p;
            }
            score[i][n].add_to(sum[i], n == 0);
        }
    }
};

}  // namespace gpu
}  // namespace fa
