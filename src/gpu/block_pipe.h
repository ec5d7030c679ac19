// Tiles of k and v in blocks of 32 dims come to shared memory by asynchronous copies of their rows as they are: a KvPipe of fwd_mma.h. A row of
// as many dims as the kernel has columns is 9, 11 or 17 pieces of columns / 16 bytes, and where these are aligned each is a copy; other rows
// are copied in words, or in halves of words.
#pragma once
#include "gpu/fwd_mma.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::blocks> {
    static constexpr bool general = kind == Kind::general;

    const MmaForwardParams& x;
    const Type type;
    const int begin, end;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type known, int first, int last) : x(params), type(known), begin(first), end(last) {}
    FA_MEMBER void load(bool value, int j, int i) const {
        if constexpr (general) load_cold(x, type, value, j, i, begin + j * M::keys, end);
        else load_tile(x, type, value, j, i, begin + j * M::keys, end);
        rt::cp_async_commit();
    }
    template <int n>
    FA_MEMBER void wait() {
        rt::cp_async_wait<n>();
    }

    FA_COLD_MEMBER static void load_cold(const MmaForwardParams& x, Type type, bool value, int j, int i, int key, int end) {
        load_tile(x, type, value, j, i, key, end);
    }
    FA_MEMBER static void load_tile(const MmaForwardParams& x, Type type, bool value, int j, int i, int key, int end) {
        if (key >= end) return;
        const typename M::Source& from = value ? M::shared().tile.v : M::shared().tile.k;
        M::Policy::in_loop(type, [&](auto known) {
            if (general && from.width != 16) copy_narrow<decltype(known)>(x, from, value, j, i, key, end);
            else copy_rows<decltype(known)>(x, from, value, j, i, key, end);
        });
    }

    // Rows of a tile from the first on: where one begins, and whether it is there.
    struct Place {
        const char* row;
        bool there;
    };
    struct Rows {
        const char* base;  // of the first one, or of the tensor
        const int64_t* location;
        int64_t outer, row;
        int left;
        bool paged, value;
        FA_MEMBER Rows(const MmaForwardParams& x, const typename M::Source& from, bool is_value, int j, int key, int end, int first)
            : outer(from.outer), row(from.row), left(end - key - first), paged(kind == Kind::paged || (general && x.pages.table)), value(is_value) {
            base = paged ? from.base : from.base + int64_t(key + first) * from.row;
            location = M::shared().location[j % M::kLocationTiles] + first;
        }
        FA_MEMBER Place operator[](int r) const {
            if constexpr (kind == Kind::plain) return {base + int64_t(r) * int(row), r < left};
            if constexpr (kind == Kind::paged) {
                const uint32_t piece = reinterpret_cast<const uint32_t*>(location + r)[value];
                return {base + int64_t(piece) * M::kVecBytes, piece != ~0u};
            }
            if (!paged) return {base + r * row, r < left};
            return {base + (location[r] >> 32) * outer + uint32_t(location[r]) * row, location[r] >= 0};
        }
    };
    // Pieces across a row are those that a power of two of threads copy, and what is left, of which a thread has a row.
    template <class Known>
    FA_MEMBER static void copy_rows(const MmaForwardParams& x, const typename M::Source& from, bool value, int j, int i, int key, int end) {
        constexpr int pieces = Known::kBytes / 2, across = pieces < 16 ? 8 : 16, down = M::threads / across, size = M::kVecBytes;
        static_assert(M::keys % down == 0 && M::keys <= M::threads, "a row for each thread that has one");
        const uint32_t tile = rt::smem_addr(M::stage_tile(i));
        const auto copy = [&](const Place& at, uint32_t to, int c) { rt::cp_async<size>(to + uint32_t(c * size), at.row + c * size, at.there); };
        const int thread = rt::thread(), first = thread / across, column = thread % across;
        const Rows rows(x, from, value, j, key, end, first), rest(x, from, value, j, key, end, thread);
        const uint32_t to = tile + uint32_t(first * M::kRowBytes);
        FA_UNROLL for (int r = 0; r < M::keys; r += down) copy(rows[r], to + uint32_t(r * M::kRowBytes), column);
        if (M::keys < M::threads && thread >= M::keys) return;
        FA_UNROLL for (int c = across; c < pieces; c++) copy(rest[0], tile + uint32_t(thread * M::kRowBytes), c);
    }
    // The same by `size` bytes at a time: copy(to, from, there). What lies beyond a row is 0.
    template <class Known, int size, class Copy>
    FA_MEMBER static void copy_units(const Rows& rows, int row_bytes, char* tile, Copy copy) {
        constexpr int across = (M::columns / kBlockDims * Known::kBytes + size - 1) / size;
        FA_UNROLL_BY(2)
        for (int n = rt::thread(); n < M::keys * across; n += M::threads) {
            const int r = n / across, at = n % across * size;
            const Place row = rows[r];
            copy(tile + r * M::kRowBytes + at, row.row + at, row.there && at < row_bytes);
        }
    }
    template <class Known>
    FA_MEMBER static void copy_narrow(const MmaForwardParams& x, const typename M::Source& from, bool value, int j, int i, int key, int end) {
        const Rows rows(x, from, value, j, key, end, 0);
        const int width = from.width, row_bytes = from.bytes;
        if (width == 4) {
            copy_units<Known, 4>(rows, row_bytes, M::stage_tile(i),
                                 [](char* to, const char* at, bool there) { rt::cp_async<4>(rt::smem_addr(to), at, there); });
        } else {
            copy_units<Known, 2>(rows, row_bytes, M::stage_tile(i), [](char* to, const char* at, bool there) {
                *reinterpret_cast<uint16_t*>(to) = there ? *reinterpret_cast<const uint16_t*>(at) : uint16_t(0);
            });
        }
    }
};

}  // namespace gpu
}  // namespace fa
