// The forward's mma kernels of one policy and width, as kernels.def lists them: their shapes and their list. For the translation
// units that compile them (src/emu, src/cuda), which define mma_instances by it.
#pragma once
#include "gpu/fwd_mma.h"
#include "gpu/instance.h"

namespace fa {
namespace gpu {

// The general kernel of an instance whose registers are all taken has fewer keys in a tile: what is done to scores needs some.
template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct Instantiate {
    using Usual = MmaForward<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    static constexpr bool shrinks = KeyWarps == 1 && (!Mma::kAsyncCopies || Mma::kWidens || Mma::kSplitTf32 || RowTiles > 1 || D > 128);
    static constexpr int keys = !shrinks ? Keys : Keys > 32 ? 32 : 16;
    using General = MmaForward<typename Mma::General, D, RowWarps, RowTiles * kRowsOfTile<Mma> / kRowsOfTile<typename Mma::General>, KeyWarps, keys,
                               (keys < Keys && !Mma::kSplitTf32 && Mma::kAsyncCopies ? 2 * Stages : Stages), Resident>;
};
template <class I>
constexpr Instance make_instance() {
    using M = typename I::Usual;
    using General = typename I::General;
    static_assert(General::kSharedBytes <= M::kSharedBytes, "one figure for all three");
    constexpr auto make = [](auto general, auto plain, auto paged) -> Instance {
        Instance one{};
        one.family = M::Policy::kFamily;
        one.rows = M::rows;
        one.columns = M::columns;
        one.dims = M::dims;
        one.keys = M::Policy::kScaled ? General::keys : M::keys;
        one.threads = M::threads;
        one.key_warps = M::key_warps;
        one.scaled = M::Policy::kScaled;
        one.resident = M::resident;
        one.general = general;
        one.plain = plain;
        one.paged = paged;
        one.shared_bytes = [](int64_t) -> int64_t { return M::kSharedBytes; };
        return one;
    };
    constexpr auto general = forward_mma<General, Kind::general>;
    // Prefill from k and v that are widened has the one loop: most of it reads pages, and three cost much code.
    if constexpr (M::Policy::kScaled || (M::Policy::kWidens && M::key_warps == 1)) return make(general, general, general);
    else if constexpr (sizeof(typename M::Policy::Element) == 4 || !M::Policy::kAsyncCopies)
        return make(general, forward_mma<M, Kind::plain>, general);  // caches of f32 are rare, and see kv_pipe.h
    else return make(general, forward_mma<M, Kind::plain>, forward_mma<M, Kind::paged>);
}

// The policy of instances for few rows; most policies have no other.
template <class Mma>
struct DecodeOf {
    using Policy = Mma;
};
template <class T>
struct DecodeOf<MmaQuantised<T>> {
    using Policy = MmaQuantisedDecode<T>;
};

// Entries of other policies and widths are empty.
template <bool wanted, class Mma, int... shape>
constexpr Instance entry() {
    if constexpr (wanted) return make_instance<Instantiate<Mma, shape...>>();
    else return Instance{};
}
template <class Mma, int width>
struct List {
    static constexpr bool k32 = sizeof(typename Mma::Element) == 4, k16 = !k32 && !Mma::kWidens;
    static constexpr bool worth = width <= 128 || !kIsF16<typename Mma::Element>;  // wide heads under f16 are not worth their code
    static constexpr bool k8 = Mma::kKv8bit && worth, kQuantised = Mma::kQuantised && !Mma::kScaled && worth,
                          kScaled = Mma::kScaled && worth;
    static constexpr Instance list[] = {
#define FA_MMA_16BIT(D, ...) entry<k16 && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_8BIT(D, ...) entry<k8 && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_BLOCKS(D, ...) entry<kQuantised && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_BLOCKS_DECODE(D, ...) entry<kQuantised && D == width, typename DecodeOf<Mma>::Policy, D, __VA_ARGS__>(),
#define FA_MMA_SCALED(D, ...) entry<kScaled && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_32BIT(D, ...) entry<k32 && D == width, Mma, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MMA_16BIT
#undef FA_MMA_8BIT
#undef FA_MMA_BLOCKS
#undef FA_MMA_BLOCKS_DECODE
#undef FA_MMA_SCALED
#undef FA_MMA_32BIT
    };
};

template <class Mma, int width>
Instances instances() {
    return {List<Mma, width>::list, int(sizeof List<Mma, width>::list / sizeof *List<Mma, width>::list)};
}

}  // namespace gpu
}  // namespace fa
