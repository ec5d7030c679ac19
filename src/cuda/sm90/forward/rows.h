// What follows from the rows of kernels.def, whichever there are.
#pragma once
#include "cuda/sm90/forward/params.h"

namespace fa {
namespace gpu {

enum class RowTypes { both, both_descale, bf16, e4m3, e4m3_p8, e4m3_p8_lse, e4m3_p8_short };  // the TYPES of kernels.def
struct KernelRow {
    int dims, columns;
    MaskKind mask;
    bool pair;
    ScoreMod score_mod;
    RowTypes types;
    constexpr bool of(int32_t dtype) const {
        if (dtype == FA_F16) return types == RowTypes::both || types == RowTypes::both_descale;
        return dtype == FA_BF16 ? types <= RowTypes::bf16 : types >= RowTypes::e4m3;
    }
    constexpr bool packs() const { return packs_heads(mask, score_mod, pair, types == RowTypes::both_descale); }
};
constexpr KernelRow kRows[] = {
#define FA_SM90(D, DV, N, WG, mask, pair, score_mod, STAGES, Q_STAGES, MIN_K, COST, types) \
    {D, DV, MaskKind::mask, pair, ScoreMod::score_mod, RowTypes::types},
#include "cuda/sm90/forward/kernels.def"
#undef FA_SM90
};

// The widths of q and k, each once, in ascending order; 0: there are no more.
struct Widths {
    int at[8];
};
constexpr Widths widths() {
    Widths all{};
    int count = 0;
    for (int least = 0; count < int(sizeof all.at / sizeof *all.at); count++) {
        int next = 0;
        for (const KernelRow& row : kRows)
            if (row.dims > least && (next == 0 || row.dims < next)) next = row.dims;
        if (next == 0) break;
        least = all.at[count] = next;
    }
    return all;
}
constexpr Widths kWidths = widths();
static_assert(kWidths.at[sizeof kWidths.at / sizeof *kWidths.at - 1] == 0, "kernels.def may have more widths than these");

// The widest heads that kernels of a score mod have.
constexpr int widest(ScoreMod score_mod, int32_t dtype) {
    int most = 0;
    for (const KernelRow& row : kRows)
        if (row.score_mod == score_mod && row.of(dtype) && row.dims > most && row.columns == row.dims) most = row.dims;
    return most;
}
constexpr int kMaskDimsF16 = widest(ScoreMod::mask, FA_F16), kMaskDimsBf16 = widest(ScoreMod::mask, FA_BF16);

// Of plain kernels: is the narrowest that packs heads wider than the narrowest of all? For each type, and each eight dims of q.
constexpr int kWidest = 256;
struct PackedWidths {
    bool wider[2][kWidest / 8 + 1];
};
constexpr PackedWidths packed_widths() {
    PackedWidths found{};
    for (int type = 0; type < 2; type++)
        for (int eights = 0; eights <= kWidest / 8; eights++) {
            int any = kWidest, packing = kWidest;
            for (const KernelRow& row : kRows) {
                const bool plain = row.mask != MaskKind::list && row.score_mod == ScoreMod::none && row.types != RowTypes::both_descale;
                if (!plain || !row.of(type ? FA_BF16 : FA_F16) || row.dims < 8 * eights) continue;
                if (row.dims < any) any = row.dims;
                if (row.packs() && row.dims < packing) packing = row.dims;
            }
            found.wider[type][eights] = packing > any;
        }
    return found;
}
constexpr PackedWidths kPackedWidths = packed_widths();
inline bool packs_in_wider_heads(int32_t dtype, int64_t dims) { return kPackedWidths.wider[dtype == FA_BF16][ceil_div(dims, 8)]; }

}  // namespace gpu
}  // namespace fa
