// The forward's mma kernels of one policy and width, as the rows of policies list them: their shapes and their list. For the translation
// units that compile them (src/emu, src/cuda), which define mma_instances by it.
#pragma once
#include "gpu/mma/forward.h"
#include "gpu/common/instance.h"

namespace fa {
namespace gpu {

// The general kernel of an instance whose registers are all taken has fewer keys in a tile: what is done to scores needs some.
template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct Instantiate {
    using Usual = MmaForward<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    static constexpr bool shrinks = KeyWarps == 1 && (Mma::kSmallGeneral || RowTiles > 1 || D > 128);
    static constexpr int keys = !shrinks ? Keys : Keys > 32 ? 32 : 16;
    using General = MmaForward<typename Mma::General, D, RowWarps, RowTiles * kRowsOfTile<Mma> / kRowsOfTile<typename Mma::General>,
                               KeyWarps, keys, (keys < Keys && !Mma::kSplitTf32 && Mma::kAsyncCopies ? 2 * Stages : Stages), Resident>;
};
template <class I>
constexpr Instance make_instance() {
    using M = typename I::Usual;
    using General = typename I::General;
    constexpr Loops loops = M::Policy::loops(M::key_warps);
    constexpr bool plain = loops == Loops::each || loops == Loops::all_but_paged || loops == Loops::plain;
    constexpr bool paged = loops == Loops::each || loops == Loops::paged;
    constexpr bool general = loops != Loops::plain && loops != Loops::paged;
    Instance one{};
    one.family = M::Policy::kFamily;
    one.rows = M::rows;
    one.columns = M::columns;
    one.dims = M::dims;
    one.keys = M::keys;
    one.threads = M::threads;
    one.key_warps = M::key_warps;
    one.gathers = M::kGathers;
    one.resident = M::resident;
    one.shared_bytes = [](int64_t) -> int64_t { return M::kSharedBytes; };
    if constexpr (general) {
        static_assert(General::kSharedBytes <= M::kSharedBytes, "one figure for all three");
        one.general = one.plain = one.paged = forward_mma<General, Kind::general>;
    }
    if constexpr (plain) one.plain = forward_mma<M, Kind::plain>;
    if constexpr (paged) one.paged = forward_mma<M, Kind::paged>;
    if constexpr (!general) one.general = one.plain = one.paged = plain ? one.plain : one.paged;
    M::Policy::describe(one, General::keys);
    return one;
}

// Kernels of a policy and those beside it, of one width.
template <class Mma, int width>
struct MmaList {
    static constexpr auto& kRows = Mma::kRows;
    static constexpr bool has(const MmaRow& row) { return row.dims == width && Mma::takes(row); }
    template <int i>
    static constexpr Instance kernel() {
        constexpr MmaRow row = kRows[i];
        return make_instance<Instantiate<Mma, width, row.row_warps, row.row_tiles, row.key_warps, row.keys, row.stages, row.resident>>();
    }
};
template <class Mma, int width, class... Beside>
constexpr auto make_list(PolicyList<Beside...>) {
    return list_kernels<Instance, MmaList<Mma, width>, MmaList<Beside, width>...>();
}
template <class Mma, int width>
constexpr auto kList = make_list<Mma, width>(typename Mma::Beside{});

template <class Mma, int width>
Instances instances() {
    return {kList<Mma, width>.at, kList<Mma, width>.used};
}

}  // namespace gpu
}  // namespace fa
