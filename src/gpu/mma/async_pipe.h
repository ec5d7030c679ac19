// Tiles of k and v come to shared memory by asynchronous copies: a KvPipe of mma/forward.h.
#pragma once
#include "gpu/mma/forward.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::async> {
    static constexpr bool general = kind == Kind::general;
    // Others have no registers for them between tiles.
    static constexpr bool kept_readers = !general && (M::key_warps > 1 || M::kHoldQ);
    using Reader = typename M::KvReader;

    const MmaForwardParams& x;
    const int begin, end;
    const Reader k, v;

    FA_MEMBER static const typename M::Source& source(bool value) { return value ? M::shared().tile.v : M::shared().tile.k; }
    FA_MEMBER static Reader reader(bool value) { return Reader(source(value), kind == Kind::paged); }
    FA_MEMBER KvPipe(const MmaForwardParams& params, Type, int first, int last)
        : x(params), begin(first), end(last), k(reader(false)), v(reader(true)) {}
    FA_MEMBER void load(bool value, int j, int i) {
        if (general && M::shared().tile.features & kUnalignedRows) return M::load_stage(x, source(value), j, i, begin, end);
        const Reader from = !kept_readers ? reader(value) : value ? v : k;
        if constexpr (kind == Kind::paged) M::load_stage_paged(from, source(value), value, j, i, begin + j * M::keys, end);
        else M::load_stage_plain(from, source(value), i, begin + j * M::keys, end);
    }
    FA_MEMBER static const char* tile(bool, int i) { return M::stage_tile(i); }
    template <int n>
    FA_MEMBER void wait() {
        rt::cp_async_wait<n>();
    }
};

}  // namespace gpu
}  // namespace fa
