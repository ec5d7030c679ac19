// Tiles of k and v come to shared memory by way of a thread's registers, where v is transposed: a KvPipe of fwd_mma.h, for GPUs without
// asynchronous copies. With two stages: what a load has fetched stays in registers until it is waited for, so that one load is under
// way at a time. Rows that are not aligned vectors, and those in pages, are read by the general kernel, whose loads of them are not
// deferred.
#pragma once
#include "gpu/fwd_mma.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::registers> {
    static constexpr bool general = kind == Kind::general;
    using Mma = typename M::Policy;
    using Element = typename M::Element;
    // Of k a thread fetches 16-byte vectors; of v four columns of four keys, which are transposed.
    static constexpr int kVecs = M::keys / M::kRowsAtOnce, kAcross = M::columns / 4, kAllUnits = M::keys / 4 * kAcross,
                         kUnits = (kAllUnits + M::threads - 1) / M::threads;
    static_assert(M::stages == 2 && M::keys % M::kRowsAtOnce == 0 && sizeof(Element) == 2, "");

    const MmaForwardParams& x;
    const int begin, end;
    union {
        uint32_t k[kVecs][4], v[kUnits][4][2];
    };
    bool pending = false, is_v = false;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type, int first, int last) : x(params), begin(first), end(last) {}

    // Opaque in general kernels: what a thread loads and where it goes then takes no registers while scores are modified.
    FA_MEMBER static int thread() { return general ? rt::opaque(rt::thread()) : rt::thread(); }

    FA_MEMBER void load(bool value, int j, int) {
        const typename M::Tile& t = M::shared().tile;
        const int key = begin + j * M::keys;
        is_v = value;
        pending = key < end;
        if (!pending) return;
        if (general && t.features & kUnalignedRows) {
            pending = false;
            if (value) copy_v(j, key);
            else copy_k(j, key);
        } else if (value) {
            fetch_v(t.v, key);
        } else {
            fetch_k(t.k, key);
        }
    }
    FA_MEMBER static const char* tile(bool, int i) { return M::stage_tile(i); }
    template <int>
    FA_MEMBER void wait() {
        if (!pending) return;
        if (is_v) store_v();
        else store_k();
        pending = false;
    }

    // A tile all of whose rows are there, and less than 2^31 bytes long: one address for the wave, and each thread's offset.
    struct WholeTile {
        const char* base;
        int row;
        bool is;
        FA_MEMBER WholeTile(const typename M::Source& from, int key, int end) {
            const int64_t step = rt::warp_uniform64(from.row);
            base = reinterpret_cast<const char*>(rt::warp_uniform64(reinterpret_cast<int64_t>(from.base))) + key * step;
            row = int(step);
            is = end - key >= M::keys && rt::warp_uniform(from.bytes) == M::kRowBytes && uint64_t(step) < (uint64_t(1) << 31) / M::keys;
        }
        template <int n>
        FA_MEMBER void load(int down, int offset, uint32_t (&to)[n]) const {
            rt::load_global<n>(base + int64_t(down) * row + uint32_t(offset), to);
        }
    };

    FA_MEMBER void fetch_k(const typename M::Source& from, int key) {
        const int first = thread() / M::kRowVecs, vec = thread() % M::kRowVecs, left = end - key;
        const WholeTile whole(from, key, end);
        if (whole.is) {
            FA_UNROLL for (int n = 0; n < kVecs; n++) whole.load(n * M::kRowsAtOnce, first * whole.row + 16 * vec, k[n]);
            return;
        }
        const char* const at = from.base + int64_t(key) * from.row + first * from.row + 16 * vec;
        FA_UNROLL for (int n = 0; n < kVecs; n++) {
            const int r = n * M::kRowsAtOnce;
            FA_UNROLL for (int w = 0; w < 4; w++) k[n][w] = 0;
            if (16 * vec < from.bytes && first + r < left) rt::load_global<4>(at + int64_t(r) * from.row, k[n]);
        }
    }
    FA_MEMBER void store_k() const {
        const int first = thread() / M::kRowVecs, vec = thread() % M::kRowVecs;
        FA_UNROLL for (int n = 0; n < kVecs; n++)
            rt::store_words<4>(M::stage_tile(0) + swizzle_offset<M::kRowBytes>(first + n * M::kRowsAtOnce, vec), k[n]);
    }
    // Not all threads have one where there are more of them than units.
    FA_MEMBER static bool has_unit(int unit) { return kAllUnits % M::threads == 0 || unit < kAllUnits; }
    FA_MEMBER void fetch_v(const typename M::Source& from, int key) {
        const int left = end - key;
        const WholeTile whole(from, key, end);
        FA_UNROLL for (int u = 0; u < kUnits; u++) {
            const int unit = thread() + u * M::threads, first = unit / kAcross * 4, column = unit % kAcross * 4;
            if (whole.is) {
                if (has_unit(unit))
                    FA_UNROLL for (int r = 0; r < 4; r++) whole.load(r, first * whole.row + 2 * column, v[u][r]);
                continue;
            }
            const char* const at = from.base + int64_t(key) * from.row + first * from.row + 2 * column;
            FA_UNROLL for (int r = 0; r < 4; r++) {
                v[u][r][0] = v[u][r][1] = 0;
                if (has_unit(unit) && 2 * column < from.bytes && first + r < left)
                    rt::load_global<2>(at + r * from.row, v[u][r]);
            }
        }
    }
    FA_MEMBER void store_v() const {
        FA_UNROLL for (int u = 0; u < kUnits; u++)
            if (has_unit(thread() + u * M::threads)) store_unit(thread() + u * M::threads, v[u]);
    }
    // Four columns of four keys, each column's keys together.
    FA_MEMBER static void store_unit(int unit, const uint32_t (&from)[4][2]) {
        const int key = unit / kAcross * 4, column = unit % kAcross * 4;
        FA_UNROLL for (int c = 0; c < 4; c++) {
            const uint32_t selector = c % 2 ? 0x7632 : 0x5410;
            const uint32_t words[] = {rt::prmt(from[0][c / 2], from[1][c / 2], selector),
                                      rt::prmt(from[2][c / 2], from[3][c / 2], selector)};
            rt::store_words<2>(M::stage_tile(1) + Mma::template v_offset<M::keys>(column + c, key), words);
        }
    }
    // Rows of any width, in pages or not: n words of one from byte `at` on. What lies beyond it is 0.
    template <int n>
    FA_MEMBER static void read_row(const typename M::Source& from, const char* row, int at, uint32_t (&to)[n]) {
        FA_UNROLL for (int i = 0; i < n; i++) to[i] = 0;
        if (!row || at >= from.bytes) return;
        if (from.width == 16) return rt::load_global<n>(row + at, to);
        FA_UNROLL for (int e = 0; e < 2 * n; e++)
            if (at + 2 * e < from.bytes) to[e / 2] |= uint32_t(*reinterpret_cast<const uint16_t*>(row + at + 2 * e)) << e % 2 * 16;
    }
    // The r-th key from `key` on; NULL: it is not there.
    FA_MEMBER const char* row_of(const typename M::Source& from, int j, int key, int r) const {
        if (key + r >= end) return nullptr;
        if (!x.pages.table) return from.base + int64_t(key + r) * from.row;
        const int64_t location = M::shared().location[j % M::kLocationTiles][r];
        return location < 0 ? nullptr : M::row_address(from, location);
    }
    FA_MEMBER void copy_k(int j, int key) const {
        const typename M::Source from = M::shared().tile.k;
        FA_UNROLL_BY(1)
        for (int i = rt::opaque(rt::thread()); i < M::keys * M::kRowVecs; i += M::threads) {
            uint32_t words[4];
            read_row(from, row_of(from, j, key, i / M::kRowVecs), i % M::kRowVecs * 16, words);
            rt::store_words<4>(M::stage_tile(0) + swizzle_offset<M::kRowBytes>(i / M::kRowVecs, i % M::kRowVecs), words);
        }
    }
    FA_MEMBER void copy_v(int j, int key) const {
        const typename M::Source from = M::shared().tile.v;
        FA_UNROLL_BY(1)
        for (int unit = rt::opaque(rt::thread()); unit < kAllUnits; unit += M::threads) {
            uint32_t words[4][2];
            FA_UNROLL for (int r = 0; r < 4; r++)
                read_row(from, row_of(from, j, key, unit / kAcross * 4 + r), unit % kAcross * 8, words[r]);
            store_unit(unit, words);
        }
    }
};

}  // namespace gpu
}  // namespace fa
