// Tiles of k and v in blocks of 32 dims come to shared memory by asynchronous copies of their rows as they are: a KvPipe of mma/forward.h.
// A row of as many dims as the kernel has columns is 9, 11 or 17 pieces of columns / 16 bytes, and where these are aligned each is a copy;
// other rows are copied in words, or in halves of words.
#pragma once
#include "gpu/mma/forward.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::blocks> {
    static constexpr bool general = kind == Kind::general;
    static constexpr bool kCursors = kind == Kind::plain && M::columns == 128;  // wider ones have no registers for them
    static constexpr bool kWide = M::rows == 8;  // with 16 rows, and blocks fewer by half on a multiprocessor, pieces of 16 are slower

    const MmaForwardParams& x;
    const Type type;
    const int begin, end;

    // Of plain calls, where the next tile's pieces of a thread lie. Where rows of 128 dims are 16 bytes' multiples apart, and the tensor
    // begins at one, so that all rows begin at one or 8 bytes behind it, they are copied in pieces of 16 from there: for half the
    // instructions, and past the first-level cache. Else in such of kVecBytes: a power of two of threads copies a row, and each thread what
    // is left of a row.
    struct Cursor {
        const char* at;
        int64_t rest;  // from there to the thread's piece of what is left
        int row;
        int shift;  // bytes before a row in its first piece of 16; -1: they are not
    };
    Cursor k, v;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type known, int first, int last) : x(params), type(known), begin(first), end(last) {
        if constexpr (kCursors) {
            k = cursor(M::shared().tile.k, params.k.base);
            v = cursor(M::shared().tile.v, params.v.base);
        }
    }
    // Rows may begin 8 bytes behind a tile's begin.
    FA_MEMBER const char* tile(bool value, int i) const {
        if constexpr (kCursors && kWide) return M::stage_tile(i) + ((value ? v.shift : k.shift) > 0 ? 8 : 0);
        return M::stage_tile(i);
    }
    FA_MEMBER void load(bool value, int j, int i) {
        const int key = begin + j * M::keys;
        if constexpr (general) load_cold(x, type, value, j, i, key, end);
        else if constexpr (kCursors) load_plain(value ? v : k, i, key);
        else load_tile(x, type, value, j, i, key, end);
        rt::cp_async_commit();
    }
    template <class Known>
    static constexpr int across() {
        return Known::kBytes / 2 < 16 ? 8 : 16;
    }
    template <class Known>
    static constexpr int wide() {
        return Known::kBytes / 4 + 1;
    }  // pieces of 16
    FA_MEMBER Cursor cursor(const typename M::Source& from, const void* base) const {
        const int row = rt::warp_uniform(int(from.row));
        const char* const first = from.base + int64_t(begin) * from.row;
        const uintptr_t tensor = reinterpret_cast<uintptr_t>(base);
        if (kWide && tensor % 16 == 0 && row % 16 == 0 && row > 0 && reinterpret_cast<uintptr_t>(from.base) >= tensor) {
            const int shift = rt::warp_uniform(int(reinterpret_cast<uintptr_t>(first) % 16));
            return {first - shift + int64_t(rt::thread() / wide<Type>()) * row + rt::thread() % wide<Type>() * 16, 0, row, shift};
        }
        const int down = rt::thread() / across<Type>(), column = rt::thread() % across<Type>();
        return {first + int64_t(down) * row + column * M::kVecBytes,
                int64_t(rt::thread() - down) * row + (across<Type>() - column) * M::kVecBytes, row, -1};
    }
    // Tiles of k, and of v, are loaded one behind the other.
    FA_MEMBER void load_plain(Cursor& from, int i, int key) const {
        const uint32_t tile = rt::smem_addr(M::stage_tile(i));
        const int left = end - key;
        if (kWide && from.shift >= 0) {
            if (left >= M::keys) copy_wide(from, tile, M::keys);
            else if (left > 0) copy_wide(from, tile, left);
        } else if (left > 0) {
            copy_narrow_pieces(from, tile, left);
        }
        from.at += int64_t(M::keys) * from.row;
    }
    // The last piece has 8 bytes of the row where the first begins with it: what is behind belongs to others.
    FA_MEMBER static void copy_wide(const Cursor& from, uint32_t tile, int left) {
        constexpr int across = wide<Type>(), down = M::threads / across;
        const int first = rt::thread() / across, column = rt::thread() % across, bytes = column == across - 1 && from.shift == 0 ? 8 : 16;
        const uint32_t to = tile + uint32_t(first * M::kRowBytes + column * 16);
        if (M::threads % across != 0 && first >= down) return;
        FA_UNROLL_FOR (int r = 0; r < M::keys; r += down)
            if (r + down <= M::keys || first + r < M::keys)
                rt::cp_async_part(to + uint32_t(r * M::kRowBytes), from.at + int64_t(r) * from.row, first + r < left ? bytes : 0);
    }
    FA_MEMBER static void copy_narrow_pieces(const Cursor& from, uint32_t tile, int left) {
        constexpr int down = M::threads / across<Type>();
        const int first = rt::thread() / across<Type>(), thread = rt::thread();
        const uint32_t to = tile + uint32_t(first * M::kRowBytes + thread % across<Type>() * M::kVecBytes);
        FA_UNROLL_FOR (int r = 0; r < M::keys; r += down)
            rt::cp_async<M::kVecBytes>(to + uint32_t(r * M::kRowBytes), from.at + int64_t(r) * from.row, first + r < left);
        if (M::keys < M::threads && thread >= M::keys) return;
        const uint32_t rest = tile + uint32_t(thread * M::kRowBytes);
        FA_UNROLL_FOR (int c = across<Type>(); c < Type::kBytes / 2; c++)
            rt::cp_async<M::kVecBytes>(rest + uint32_t(c * M::kVecBytes), from.at + from.rest + (c - across<Type>()) * M::kVecBytes,
                                       thread < left);
    }
    template <int n>
    FA_MEMBER void wait() {
        rt::cp_async_wait<n>();
    }

    FA_COLD_MEMBER static void load_cold(const MmaForwardParams& params, Type type, bool value, int j, int i, int key, int end) {
        load_tile(params, type, value, j, i, key, end);
    }
    FA_MEMBER static void load_tile(const MmaForwardParams& params, Type type, bool value, int j, int i, int key, int end) {
        if (key >= end) return;
        const typename M::Source& from = value ? M::shared().tile.v : M::shared().tile.k;
        M::Policy::in_loop(type, [&](auto known) {
            if (general && from.width != 16) copy_narrow<decltype(known)>(params, from, value, j, i, key, end);
            else copy_rows<decltype(known)>(params, from, value, j, i, key, end);
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
        FA_MEMBER Rows(const MmaForwardParams& params, const typename M::Source& from, bool is_value, int j, int key, int end, int first)
            : outer(from.outer),
              row(from.row),
              left(end - key - first),
              paged(kind == Kind::paged || (general && params.by_location)),
              value(is_value) {
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
    FA_MEMBER static void copy_rows(const MmaForwardParams& params, const typename M::Source& from, bool value, int j, int i, int key,
                                    int end) {
        constexpr int pieces = Known::kBytes / 2, across = KvPipe::across<Known>(), down = M::threads / across, size = M::kVecBytes;
        static_assert(M::keys % down == 0 && M::keys <= M::threads, "a row for each thread that has one");
        const uint32_t tile = rt::smem_addr(M::stage_tile(i));
        const auto copy = [&](const Place& at, uint32_t to, int c) {
            rt::cp_async<size>(to + uint32_t(c * size), at.row + c * size, at.there);
        };
        const int thread = rt::thread(), first = thread / across, column = thread % across;
        const Rows rows(params, from, value, j, key, end, first), rest(params, from, value, j, key, end, thread);
        const uint32_t to = tile + uint32_t(first * M::kRowBytes);
        FA_UNROLL_FOR (int r = 0; r < M::keys; r += down) copy(rows[r], to + uint32_t(r * M::kRowBytes), column);
        if (M::keys < M::threads && thread >= M::keys) return;
        FA_UNROLL_FOR (int c = across; c < pieces; c++) copy(rest[0], tile + uint32_t(thread * M::kRowBytes), c);
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
    FA_MEMBER static void copy_narrow(const MmaForwardParams& params, const typename M::Source& from, bool value, int j, int i, int key,
                                      int end) {
        const Rows rows(params, from, value, j, key, end, 0);
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
