// The forward's mma kernels of one policy and width, as kernels.def lists them: their shapes and their list. For the translation
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
    static constexpr bool shrinks = KeyWarps == 1 && (!Mma::kAsyncCopies || Mma::kWidens || Mma::kSplitTf32 || RowTiles > 1 || D > 128);
    static constexpr int keys = !shrinks ? Keys : Keys > 32 ? 32 : 16;
    using General = MmaForward<typename Mma::General, D, RowWarps, RowTiles * kRowsOfTile<Mma> / kRowsOfTile<typename Mma::General>,
                               KeyWarps, keys, (keys < Keys && !Mma::kSplitTf32 && Mma::kAsyncCopies ? 2 * Stages : Stages), Resident>;
};
template <class M>
constexpr Instance describe_instance(void (*general)(MmaForwardParams), void (*plain)(MmaForwardParams), void (*paged)(MmaForwardParams)) {
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
    one.general = general;
    one.plain = plain;
    one.paged = paged;
    one.shared_bytes = [](int64_t) -> int64_t { return M::kSharedBytes; };
    return one;
}
template <class M>
constexpr Instance describe_instance(void (*kernel)(MmaForwardParams)) {
    return describe_instance<M>(kernel, kernel, kernel);
}
template <class M, class General>
constexpr Instance make_usual_instance() {
    constexpr auto general = forward_mma<General, Kind::general>;
    // Prefill from k and v that are widened has the one loop: most of it reads pages, and three cost much code.
    if constexpr (M::Policy::kScaled) {
        Instance one = describe_instance<M>(general);
        one.keys = General::keys;
        one.scaled = true;
        return one;
    } else if constexpr (M::Policy::kWidens && !M::Policy::kWidensQ && M::key_warps == 1) return describe_instance<M>(general);
    else if constexpr (sizeof(typename M::Policy::Element) == 4 || !M::Policy::kAsyncCopies)
        return describe_instance<M>(general, forward_mma<M, Kind::plain>, general);  // caches of f32 are rare, and see kv_pipe.h
    else return describe_instance<M>(general, forward_mma<M, Kind::plain>, forward_mma<M, Kind::paged>);
}
template <class I>
constexpr Instance make_instance() {
    using M = typename I::Usual;
    using General = typename I::General;
    static_assert(General::kSharedBytes <= M::kSharedBytes, "one figure for all three");
    if constexpr (kStored<typename M::Policy>) {
        Instance one = describe_instance<M>(forward_mma<M, Kind::plain>);
        one.scaled = true;
        one.stored = M::Policy::Type::kStoredFormat;
        return one;
    } else return make_usual_instance<M, General>();
}

// Of latent attention, one kernel takes all that they take.
template <bool wanted, class Mma, int width, int... shape>
constexpr Instance latent_entry() {
    if constexpr (!wanted) return Instance{};
    else return describe_instance<MmaForward<Mma, width, shape...>>(forward_mma<MmaForward<Mma, width, shape...>, Kind::paged>);
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
// The same of a format's. Integers of 4 bits have no registers for two tiles.
template <bool wanted, class Mma, class Type, int D, int RowWarps, int RowTiles, int... shape>
constexpr Instance stored_entry() {
    if constexpr (!wanted) return Instance{};
    else if constexpr (RowTiles > 1 && Type::kStoredFormat == StoredFormat::int4) return Instance{};
    else return make_instance<Instantiate<MmaScaledDecode<typename Mma::Element, Type>, D, RowWarps, RowTiles, shape...>>();
}
template <class Mma, int width>
struct List {
    static constexpr bool k32 = sizeof(typename Mma::Element) == 4, kLatent = kLatentKeyBytes<Mma> > 0,
                          k16 = !k32 && !Mma::kWidens && !kLatent;
    static constexpr bool worth = width <= 128 || !kIsF16<typename Mma::Element>;  // wide heads under f16 are not worth their code
    static constexpr bool kFp8 = Mma::kWidensQ, k8 = Mma::kKv8bit && worth && !kLatent && !kFp8,
                          kQuantised = Mma::kQuantised && !Mma::kScaled && worth, kScaled = Mma::kScaled && worth;
    static constexpr Instance list[] = {
#define FA_MMA_16BIT(D, ...) entry<k16 && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_8BIT(D, ...) entry<k8 && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_FP8(D, ...) entry<kFp8 && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_BLOCKS(D, ...) entry<kQuantised && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_BLOCKS_DECODE(D, ...) entry<kQuantised && D == width, typename DecodeOf<Mma>::Policy, D, __VA_ARGS__>(),
#define FA_MMA_SCALED(D, ...) entry<kScaled && D == width, Mma, D, __VA_ARGS__>(),
#define FA_MMA_SCALED_DECODE(D, ...)                                                       \
    stored_entry<kScaled && D == width, Mma, StoredBlocks<FA_Q4_1>, D, __VA_ARGS__>(),     \
        stored_entry<kScaled && D == width, Mma, StoredBlocks<FA_Q5_0>, D, __VA_ARGS__>(), \
        stored_entry<kScaled && D == width, Mma, StoredBlocks<FA_Q5_1>, D, __VA_ARGS__>(), \
        stored_entry<kScaled && D == width, Mma, StoredBytes<I8>, D, __VA_ARGS__>(),       \
        stored_entry<kScaled && D == width, Mma, StoredBytes<E4m3>, D, __VA_ARGS__>(),     \
        stored_entry<kScaled && D == width, Mma, StoredE2m1<false>, D, __VA_ARGS__>(),     \
        stored_entry<kScaled && D == width, Mma, StoredE2m1<true>, D, __VA_ARGS__>(),      \
        stored_entry<kScaled && D == width, Mma, StoredInt4, D, __VA_ARGS__>(),
#define FA_MMA_LATENT(...) latent_entry<kLatent && !Mma::kKv8bit, Mma, width, __VA_ARGS__>(),
#define FA_MMA_LATENT_8BIT(...) latent_entry<kLatent && Mma::kKv8bit, Mma, width, __VA_ARGS__>(),
#define FA_MMA_32BIT(D, ...) entry<k32 && D == width, Mma, D, __VA_ARGS__>(),
#include "gpu/kernels.def"
#undef FA_MMA_16BIT
#undef FA_MMA_8BIT
#undef FA_MMA_FP8
#undef FA_MMA_BLOCKS
#undef FA_MMA_BLOCKS_DECODE
#undef FA_MMA_SCALED
#undef FA_MMA_SCALED_DECODE
#undef FA_MMA_LATENT
#undef FA_MMA_LATENT_8BIT
#undef FA_MMA_32BIT
    };
};

template <class Mma, int width>
Instances instances() {
    return {List<Mma, width>::list, int(sizeof List<Mma, width>::list / sizeof *List<Mma, width>::list)};
}

}  // namespace gpu
}  // namespace fa
