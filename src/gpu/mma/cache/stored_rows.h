// Rows of k and v of any storage type on their way to shared memory as they are: where a tile's lie, and copies of them in pieces of any
// size. For scaled_pipe.h and stored_pipe.h.
#pragma once
#include "gpu/mma/forward.h"

namespace fa {
namespace gpu {

// Those of a tile, `kPitch` bytes behind each other in its stage.
template <class M, int kPitch>
struct StoredRows {
    const typename M::Source from;
    const int64_t* location;  // NULL: keys lie one behind the other
    int64_t outer, first;
    int left;
    const char* base;
    FA_MEMBER StoredRows(const MmaForwardParams& params, bool value, int j, int key, int end)
        : from(value ? M::shared().tile.v : M::shared().tile.k),
          location(params.by_location ? M::shared().location[j % M::kLocationTiles] : nullptr),
          outer(M::shared().tile.seq.kv_index),
          first(M::shared().tile.seq.k_begin + key),
          left(end - key) {
        base = location ? from.base : from.base + key * from.row;
    }
    // Row r: its page or sequence, and its row there; is it there?
    FA_MEMBER KeyLocation locate(int r) const {
        if (!location) return {outer, first + r, r < left};
        return {location[r] >> 32, int64_t(uint32_t(location[r])), location[r] >= 0};
    }
    FA_MEMBER const char* row(int r) const {
        if (!location) return base + r * from.row;
        return base + (location[r] >> 32) * from.outer + uint32_t(location[r]) * from.row;
    }
    FA_MEMBER bool there(int r) const { return location ? location[r] >= 0 : r < left; }
    // Its first factor, but for the head's.
    FA_MEMBER int64_t factor_row(const Factors& factors, int r) const {
        const KeyLocation at = locate(r);
        const int64_t row = factors.block[0] == 1 ? at.row : int64_t(uint32_t(at.row) / uint32_t(factors.block[0]));
        return at.outer * factors.stride[0] + row * factors.stride[1];
    }

    // `size` bytes; what is not there becomes 0.
    template <int size>
    FA_MEMBER static void copy_piece(char* to, const char* from, bool there) {
        if constexpr (size == 16) {
            rt::cp_async16(rt::smem_addr(to), from, there);
        } else if constexpr (size >= 4) {
            rt::cp_async<size>(rt::smem_addr(to), from, there);
        } else if constexpr (size == 2) {
            *reinterpret_cast<uint16_t*>(to) = there ? *reinterpret_cast<const uint16_t*>(from) : uint16_t(0);
        } else {
            *to = there ? *from : char(0);
        }
    }
    template <int size>
    FA_MEMBER void copy_pieces(char* stage) const {
        const int across = int(uint32_t(from.bytes) / size), down = M::threads / across, over = M::threads % across;
        int r = rt::thread() / across, column = rt::thread() % across;
        const char* at = base + r * from.row + column * size;  // without pages
        const int64_t step = down * from.row + over * size, wrap = from.row - across * size;
        while (r < M::keys) {
            copy_piece<size>(stage + r * kPitch + column * size, location ? row(r) + column * size : at, there(r));
            r += down;
            column += over;
            at += step;
            if (column >= across) column -= across, at += wrap, r++;
        }
    }
    FA_MEMBER void copy(char* stage) const {
        switch (from.width) {
            case 16: copy_pieces<16>(stage); break;
            case 8: copy_pieces<8>(stage); break;
            case 4: copy_pieces<4>(stage); break;
            case 2: copy_pieces<2>(stage); break;
            default: copy_pieces<1>(stage); break;
        }
    }
    // Rows of `across` whole vectors.
    template <int across>
    FA_MEMBER void copy_vectors(char* stage) const {
        constexpr int down = M::threads / across;
        const int first_row = rt::thread() / across, column = rt::thread() % across;
        if (M::threads % across != 0 && first_row >= down) return;
        const uint32_t to = rt::smem_addr(stage) + uint32_t(first_row * kPitch + column * 16);
        FA_UNROLL_FOR (int n = 0; n < M::keys; n += down) {
            const int r = n + first_row;
            if (n + down <= M::keys || r < M::keys) rt::cp_async16(to + uint32_t(n * kPitch), row(r) + column * 16, there(r));
        }
    }
};

}  // namespace gpu
}  // namespace fa
