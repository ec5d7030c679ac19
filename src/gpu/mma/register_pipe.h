// Tiles of k and v come to shared memory by way of a thread's registers, where v is transposed: a KvPipe of mma/forward.h, for GPUs without
// asynchronous copies. With two stages: what a load has fetched stays in registers until it is waited for, so that one load is under
// way at a time. Rows that are not aligned vectors, and those in pages, are read by the general kernel, whose loads of them are not
// deferred. k and v of 8 bits are widened to q's type when they are stored: shared memory has the same tiles of them as of 16 bits.
// Where a policy kLoadsToShared, whole tiles go there directly.
#pragma once
#include "gpu/mma/forward.h"

namespace fa {
namespace gpu {

template <class M, Kind kind, class Type>
struct KvPipe<M, kind, Type, Copies::registers> {
    static constexpr bool general = kind == Kind::general;
    using Mma = typename M::Policy;
    using Element = typename M::Element;
    // Bytes of an element in shared memory, and in memory; and elements of a vector in shared memory.
    static constexpr int kBytes = int(sizeof(Element)), kStored = Mma::kKv8bit ? 1 : kBytes, kVec = 16 / kBytes,
                         kVecWords = kVec * kStored / 4;
    // Of k a thread fetches vectors; of v four columns of four keys, which are transposed.
    static constexpr int kVecs = M::keys / M::kRowsAtOnce, kAcross = M::columns / 4, kAllUnits = M::keys / 4 * kAcross,
                         kUnits = (kAllUnits + M::threads - 1) / M::threads;
    static constexpr bool kRowsOfV = Mma::kTransposedLoads;  // v lies like k, and is transposed as it is read
    static_assert(M::stages == 2 && M::keys % M::kRowsAtOnce == 0, "");
    // After so many of a thread's rows their swizzle is the same again.
    static constexpr int kSwizzles = M::kRowsAtOnce < 8 ? 8 / M::kRowsAtOnce : 1;
    static_assert(!Mma::kLoadsToShared || (kRowsOfV && kSwizzles * M::kRowsAtOnce % 8 == 0), "");

    const MmaForwardParams& x;
    const int begin, end;
    const Type type;
    union {
        uint32_t k[kVecs][kVecWords], v[kUnits][4][kStored];
    };
    bool pending = false, is_v = false;

    FA_MEMBER KvPipe(const MmaForwardParams& params, Type stored, int first, int last) : x(params), begin(first), end(last), type(stored) {
        k_rows = rows_of(M::shared().tile.k, params.k.bytes), v_rows = rows_of(M::shared().tile.v, params.v.bytes);
        if constexpr (Mma::kQInShared) {  // its copies
            rt::cp_async_commit();
            rt::cp_async_wait<0>();
        }
    }
    // What is the same for the wave: where keys begin, and the bytes between them; −1: their tiles are more than 2^31 bytes long, or not
    // all of their rows' bytes are there.
    struct Rows {
        const char* base;
        int step;
    };
    Rows k_rows, v_rows;
    FA_MEMBER static Rows rows_of(const typename M::Source& from, const ByteStrides& strides) {
        const bool whole = strides.row_bytes == M::kRowBytes / kBytes * kStored && uint64_t(strides.row) < (uint64_t(1) << 31) / M::keys;
        return {reinterpret_cast<const char*>(rt::warp_uniform64(reinterpret_cast<int64_t>(from.base))), whole ? int(strides.row) : -1};
    }

    // Opaque in general kernels: what a thread loads and where it goes then takes no registers while scores are modified.
    FA_MEMBER static int thread() { return general || Mma::kQInShared ? rt::opaque(rt::thread()) : rt::thread(); }

    FA_MEMBER void load(bool value, int j, int) {
        const typename M::Tile& tile = M::shared().tile;
        const int key = begin + j * M::keys;
        is_v = value;
        pending = key < end;
        if (!pending) return;
        if (general && tile.features & kUnalignedRows) {
            pending = false;
            if (!value || kRowsOfV) copy_rows(value ? tile.v : tile.k, value, j, key);
            else copy_v(j, key);
        } else if (!value) {
            load_rows(tile.k, k_rows, key);
        } else if constexpr (kRowsOfV) {
            load_rows(tile.v, v_rows, key);
        } else {
            fetch_v(tile.v, key);
        }
    }
    FA_MEMBER static const char* tile(bool, int i) { return M::stage_tile(i); }
    template <int>
    FA_MEMBER void wait() {
        if constexpr (Mma::kLoadsToShared) return rt::finish_loads_to_shared();  // registers hold none
        if (!pending) return;
        if (!is_v || kRowsOfV) store_rows();
        else store_v();
        pending = false;
    }

    // pass(type), as a C++ type, once for all that is stored; and words of such elements as those of q's type.
    template <class Pass>
    FA_MEMBER void by_type(Pass pass) const {
        if constexpr (kStored == kBytes) pass(Element{});
        else if (type == FA_E4M3) pass(E4m3{});
        else if (type == FA_E5M2) pass(E5m2{});
        else pass(I8{});
    }
    template <int n>
    FA_MEMBER static void widen(Element, const uint32_t (&from)[n], uint32_t (&to)[n]) {
        FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = from[i];
    }
    template <class Stored, int n>
    FA_MEMBER static void widen(Stored, const uint32_t (&from)[n], uint32_t (&to)[2 * n]) {
        FA_UNROLL_FOR (int i = 0; i < n; i++) Mma::widen(Stored{}, from[i], to + 2 * i);
    }

    // A tile all of whose rows are there, and less than 2^31 bytes long: one address for the wave, and each thread's offset, opaque: where
    // that is computed, loads are known to need no more than its 32 bits.
    struct WholeTile {
        const char* base;
        int row;
        bool is;
        // What is the same for all blocks is read as a parameter, which takes no vector instruction.
        FA_MEMBER WholeTile(const Rows& from, int key, int end)
            : base(from.base + uint64_t(uint32_t(key)) * uint32_t(from.step)), row(from.step) {
            is = row >= 0 && end - key >= M::keys;
        }
        template <int n>
        FA_MEMBER void load(int down, int offset, uint32_t (&to)[n]) const {
            rt::load_global<n>(rt::uniform_pointer(base + int64_t(down) * row) + uint32_t(offset), to);
        }
    };

    FA_MEMBER void load_rows(const typename M::Source& from, const Rows& rows, int key) {
        if constexpr (Mma::kLoadsToShared) {
            if (load_directly(rows, key)) return;
            fetch_rows(from, rows, key);
            return store_rows();  // a last tile's
        }
        fetch_rows(from, rows, key);
    }
    // Neighbouring threads fill neighbouring places: each reads the vector that the swizzle has there.
    FA_MEMBER bool load_directly(const Rows& rows, int key) const {
        const WholeTile whole(rows, key, end);
        if (!whole.is) return false;
        const int first = thread() / M::kRowVecs;
        int offset[kSwizzles];
        FA_UNROLL_FOR (int n = 0; n < kSwizzles; n++) {
            const int row = first + n * M::kRowsAtOnce, vec = thread() % M::kRowVecs ^ (row_offset(is_v, row, 0) - M::kRowBytes * row) / 16;
            offset[n] = first * whole.row + 16 * vec;
        }
        const uint32_t to = rt::smem_addr(M::stage_tile(is_v)) + uint32_t(rt::warp_uniform(rt::thread() / Mma::kLanes) * Mma::kLanes * 16);
        FA_UNROLL_FOR (int n = 0; n < kVecs; n++)
            rt::load_to_shared(to + uint32_t(n * M::threads * 16),
                               rt::uniform_pointer(whole.base + int64_t(n * M::kRowsAtOnce) * whole.row), uint32_t(offset[n % kSwizzles]));
        return true;
    }
    FA_MEMBER static int row_offset(bool of_v, int row, int vec) {
        if constexpr (kRowsOfV)
            if (of_v) return Mma::template v_row_offset<M::kRowBytes>(row, vec);
        return swizzle_offset<M::kRowBytes>(row, vec);
    }
    FA_MEMBER void fetch_rows(const typename M::Source& from, const Rows& rows, int key) {
        const int first = thread() / M::kRowVecs, vec = thread() % M::kRowVecs, left = end - key;
        const WholeTile whole(rows, key, end);
        if (whole.is) {
            const int offset = rt::opaque(first * whole.row + 4 * kVecWords * vec);
            FA_UNROLL_FOR (int n = 0; n < kVecs; n++) whole.load(n * M::kRowsAtOnce, offset, k[n]);
            return rt::compiler_fence();  // or the compiler would join the last load with that below, whose registers are cleared first
        }
        const char* const at = from.base + int64_t(key) * from.row + first * from.row + 4 * kVecWords * vec;
        FA_UNROLL_FOR (int n = 0; n < kVecs; n++) {
            const int r = n * M::kRowsAtOnce;
            FA_UNROLL_FOR (int w = 0; w < kVecWords; w++) k[n][w] = 0;
            if (4 * kVecWords * vec < from.bytes && first + r < left) rt::load_global<kVecWords>(at + int64_t(r) * from.row, k[n]);
        }
    }
    FA_MEMBER void store_rows() const {
        const int first = thread() / M::kRowVecs, vec = thread() % M::kRowVecs;
        by_type([&](auto stored) {
            FA_UNROLL_FOR (int n = 0; n < kVecs; n++) store_vec(stored, is_v, first + n * M::kRowsAtOnce, vec, k[n]);
        });
    }
    template <class Stored>
    FA_MEMBER static void store_vec(Stored stored, bool of_v, int row, int vec, const uint32_t (&from)[kVecWords]) {
        uint32_t words[4];
        widen(stored, from, words);
        rt::store_shared<4>(M::stage_tile(of_v) + row_offset(of_v, row, vec), words);
    }
    // Not all threads have one where there are more of them than units.
    FA_MEMBER static bool has_unit(int unit) { return kAllUnits % M::threads == 0 || unit < kAllUnits; }
    FA_MEMBER void fetch_v(const typename M::Source& from, int key) {
        const int left = end - key;
        const WholeTile whole(v_rows, key, end);
        if (whole.is) {
            FA_UNROLL_FOR (int u = 0; u < kUnits; u++) {
                const int unit = thread() + u * M::threads;
                const int offset = rt::opaque(unit / kAcross * 4 * whole.row + kStored * (unit % kAcross * 4));
                if (has_unit(unit))
                    FA_UNROLL_FOR (int r = 0; r < 4; r++) whole.load(r, offset, v[u][r]);
            }
            return rt::compiler_fence();
        }
        FA_UNROLL_FOR (int u = 0; u < kUnits; u++) {
            const int unit = thread() + u * M::threads, first = unit / kAcross * 4, column = unit % kAcross * 4;
            const char* const at = from.base + int64_t(key) * from.row + first * from.row + kStored * column;
            FA_UNROLL_FOR (int r = 0; r < 4; r++) {
                FA_UNROLL_FOR (int w = 0; w < kStored; w++) v[u][r][w] = 0;
                if (has_unit(unit) && kStored * column < from.bytes && first + r < left)
                    rt::load_global<kStored>(at + r * from.row, v[u][r]);
            }
        }
    }
    FA_MEMBER void store_v() const {
        by_type([&](auto stored) {
            FA_UNROLL_FOR (int u = 0; u < kUnits; u++)
                if (has_unit(thread() + u * M::threads)) store_unit(stored, thread() + u * M::threads, v[u]);
        });
    }
    // Four columns of four keys, each column's keys together.
    template <class Stored>
    FA_MEMBER static void store_unit(Stored stored, int unit, const uint32_t (&from)[4][kStored]) {
        const int key = unit / kAcross * 4, column = unit % kAcross * 4;
        if constexpr (kBytes == 4) {
            FA_UNROLL_FOR (int c = 0; c < 4; c++) {
                const uint32_t words[] = {from[0][c], from[1][c], from[2][c], from[3][c]};
                rt::store_shared<4>(M::stage_tile(1) + Mma::template v_offset<M::keys>(column + c, key), words);
            }
        } else {
            uint32_t row[4][2];
            FA_UNROLL_FOR (int r = 0; r < 4; r++) widen(stored, from[r], row[r]);
            FA_UNROLL_FOR (int c = 0; c < 4; c++) {
                const uint32_t selector = c % 2 ? 0x7632 : 0x5410;
                const uint32_t words[] = {rt::prmt(row[0][c / 2], row[1][c / 2], selector),
                                          rt::prmt(row[2][c / 2], row[3][c / 2], selector)};
                rt::store_shared<2>(M::stage_tile(1) + Mma::template v_offset<M::keys>(column + c, key), words);
            }
        }
    }
    // Rows of any width, in pages or not: n words of one from byte `at` on. What lies beyond it is 0.
    template <int n>
    FA_MEMBER static void read_row(const typename M::Source& from, const char* row, int at, uint32_t (&to)[n]) {
        FA_UNROLL_FOR (int i = 0; i < n; i++) to[i] = 0;
        if (!row || at >= from.bytes) return;
        if (from.width == 16) return rt::load_global<n>(row + at, to);
        using Bits = typename Mma::StoredBits;
        constexpr int size = int(sizeof(Bits));
        FA_UNROLL_FOR (int i = 0; i < 4 * n; i += size)
            if (at + i < from.bytes) to[i / 4] |= uint32_t(*reinterpret_cast<const Bits*>(row + at + i)) << i % 4 * 8;
    }
    // The r-th key from `key` on; NULL: it is not there.
    FA_MEMBER const char* row_of(const typename M::Source& from, int j, int key, int r) const {
        if (key + r >= end) return nullptr;
        if (!x.pages.table) return from.base + int64_t(key + r) * from.row;
        const int64_t location = M::shared().location[j % M::kLocationTiles][r];
        return location < 0 ? nullptr : M::row_address(from, location);
    }
    FA_MEMBER void copy_rows(const typename M::Source from, bool of_v, int j, int key) const {
        FA_UNROLL_BY(1)
        for (int i = rt::opaque(rt::thread()); i < M::keys * M::kRowVecs; i += M::threads) {
            uint32_t words[kVecWords];
            read_row(from, row_of(from, j, key, i / M::kRowVecs), i % M::kRowVecs * 4 * kVecWords, words);
            by_type([&](auto stored) { store_vec(stored, of_v, i / M::kRowVecs, i % M::kRowVecs, words); });
        }
    }
    FA_MEMBER void copy_v(int j, int key) const {
        const typename M::Source from = M::shared().tile.v;
        FA_UNROLL_BY(1)
        for (int unit = rt::opaque(rt::thread()); unit < kAllUnits; unit += M::threads) {
            uint32_t words[4][kStored];
            FA_UNROLL_FOR (int r = 0; r < 4; r++)
                read_row(from, row_of(from, j, key, unit / kAcross * 4 + r), unit % kAcross * 4 * kStored, words[r]);
            by_type([&](auto stored) { store_unit(stored, unit, words); });
        }
    }
};

}  // namespace gpu
}  // namespace fa
