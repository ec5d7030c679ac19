// A block of the forward's mma kernel, but for its arithmetic: its shape, what it keeps in shared memory, and how q, k and v come
// there. mma/output.h has how its rows' outputs leave, mma/forward.h describes the algorithm.
#pragma once
#include "gpu/mma/common.h"
#include "gpu/common/mma_params.h"

namespace fa {
namespace gpu {

// Rows of a tile: as many as keys, but for policies that say otherwise.
template <class Mma>
constexpr int kRowsOfTile = Mma::kTile;
template <class Mma>
constexpr int kLatentParts = 1;  // see latent/forward.h
template <class M>
struct GatheredKeys;  // see mma/gather.h

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaBlock {
    using Policy = Mma;
    using Element = typename Mma::Element;
    using Key = typename Mma::Key;
    using Acc = typename Mma::Acc;
    static constexpr int row_warps = RowWarps, row_tiles = RowTiles, key_warps = KeyWarps, keys = Keys, stages = Stages;
    // The outputs of wide heads are more than a warp's registers hold: two warps compute the same scores, and have half of the columns
    // each.
    static constexpr bool kLatent = Mma::kVInK;
    static constexpr int column_warps = kLatent ? 4 : D > 256 ? 2 : 1;
    // Beside those, warps that compute nothing but probabilities (latent/forward_bytes.h).
    static constexpr int score_warps = kLatent && sizeof(Key) == 1 && Keys == 64 ? 4 : 0;
    // Of q and k; v has 512 at most.
    static constexpr int dims = D, columns = D > 512 ? 512 : D;
    static constexpr int kTile = Mma::kTile, kTileRows = kRowsOfTile<Mma>,
                         threads = Mma::kLanes * (RowWarps * KeyWarps * column_warps + score_warps), rows = kTileRows * RowTiles * RowWarps;
    static constexpr int resident = Resident;  // blocks that a multiprocessor should hold at once
    // Of k and v: bytes between rows in shared memory, and a piece of a row that a thread copies at once, of which so many threads have a
    // row.
    static constexpr TileLayout kLayout = Mma::layout(D);
    static constexpr int kRowBytes = kLayout.row_bytes, kVecBytes = kLayout.vec_bytes, kRowVecs = kLayout.row_vecs,
                         kRowsAtOnce = threads / kRowVecs;
    static constexpr int kTailVecs =
        (D - columns) * int(sizeof(Key)) / 16;  // behind kRowVecs: each a row's eighth, of threads of their own
    static constexpr int kQRowBytes = D * int(sizeof(Element)), kQRowVecs = kQRowBytes / 16;
    static constexpr int kKeyTiles = Keys / kTile / KeyWarps, kSteps = D / kTile, kColumnSteps = columns / kTile / column_warps;
    static constexpr int kAccs = kColumnSteps + Mma::offset_accs(kSteps);
    static constexpr int kLocationTiles =
        kLatent ? Stages + 1 : Stages / 2 + 1;  // key tiles whose locations are kept: from the lookup to the mask
    // All stages before the first tile: others have no registers for it.
    static constexpr bool kFillAllStages = Mma::kAsyncCopies && (KeyWarps > 1 || RowTiles * D <= 64);
    // Fragments that are read before their use; the products with one of f32 take as long as reads do.
    static constexpr int kPrefetch = Mma::kAsyncCopies || (KeyWarps == 1 && sizeof(Element) < 4) ? 2 : 1;
    // Do its rows gather lists of keys? Those of k and v have 16 bits then; with two tiles a warp has no registers for it.
    static constexpr bool kGathers = Mma::kGathers && RowTiles == 1;  // with two tiles a warp has no registers for it
    static constexpr bool kHoldQ = !Mma::kQInShared || (Mma::kMayHoldQ && RowTiles * kTileRows * D <= 128 * kTile);  // q stays in registers
    static_assert((kLatent || Stages % 2 == 0) && Keys % (kTile * KeyWarps) == 0 && threads % kRowVecs == 0 && Keys % kRowsAtOnce == 0 &&
                      threads >= Keys,
                  "");

    using PerRow = float[RowTiles][Acc::kRows];

    struct Row {
        int32_t position, head, begin, end;  // its band of keys
        float slope;                         // of ALiBi, for scores in log2 units
    };
    struct Source {
        const char* base;    // of the sequence's first key, or, with pages, of the tensor
        int64_t outer, row;  // bytes between pages, and between rows
        int32_t bytes;       // of a row
        int32_t width;       // 16: rows are whole, aligned 16-byte vectors; 4: of words; else those of an element
    };
    struct Tile {
        Sequence seq;  // of rows that gather keys, with as many of these as their list has entries
        MaskRule rule;
        ListSource list, full;
        int64_t keys, entries;  // of the sequence, and of both lists; of blocks, their keys
        int64_t full_blocks;
        SequenceDropout dropout;
        Source k, v;
        int64_t batch, kv_head;
        int32_t first, valid;  // first group-major row; how many exist
        uint32_t features;     // see features_of
        int32_t infinite;      // was a watched score? See BlockProducts
    };
    struct Shared {
        Tile tile;
        Row row[rows];
        alignas(8) RowState state[KeyWarps][rows];
        float factor[KeyWarps][KeyWarps > 1 || column_warps == 1 ? rows : 1];
        int64_t output[rows];                    // where a row's output begins
        int64_t location[kLocationTiles][Keys];  // page · 2^32 + row in it, or see find_vec_offsets; −1: not there
        int32_t missing[kLocationTiles];         // the tile in which a key is not there
        int32_t listed[kLocationTiles];          // the tile's first key, as listed_key() says
        float q_factor[Mma::kWidensQ ? rows : 1];
    };
    static constexpr int kHeader = (int(sizeof(Shared)) + kTileAlign - 1) / kTileAlign * kTileAlign;
    static constexpr int kQBytes = Mma::kQInShared ? rows * kQRowBytes : 0;
    static constexpr int kStageBytes = Keys * kLayout.key_bytes;
    static constexpr int kExchangeBytes =
        score_warps ? kLatentParts<Mma> * Keys * 4 * (64 + 12) + kLocationTiles * Keys * 16 + 1024
        : kLatent   ? RowWarps * column_warps * (RowTiles * kKeyTiles * 2048 + 12 * kLatentParts<Mma> * Keys) + kLocationTiles * Keys * 16
                    : 0;
    static constexpr int kTileBytes = kQBytes + Stages * kStageBytes + kExchangeBytes + Keys * kLayout.behind;
    // Outputs leave by way of the tiles' memory: all columns at once, or, where that is small, some at a time.
    static constexpr int output_columns(int columns) {
        const bool fits = !(Mma::kOutputInPasses || column_warps > 1) || columns <= 32 || KeyWarps * rows * columns * 4 <= kTileBytes;
        return fits ? columns : output_columns(columns / 2);
    }
    static constexpr int kOutputColumns = output_columns(columns), kOutputPasses = columns / kOutputColumns,
                         kOutputBytes = KeyWarps * rows * kOutputColumns * 4;
    static constexpr int kSharedBytes = kHeader + (kTileBytes > kOutputBytes ? kTileBytes : kOutputBytes);

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory()); }
    FA_MEMBER static char* q_tile() { return rt::shared_memory() + kHeader; }
    FA_MEMBER static char* stage_tile(int i) { return q_tile() + kQBytes + i * kStageBytes; }

    // ---- loading

    // The rows of a tile whose 16-byte vectors are not aligned, or not whole, in copies of 4 bytes or element by element: `row(r)`
    // is the address of row r, NULL if it is not there; it has `bytes` bytes, of which byte i goes to byte permute(i).
    template <class E, int count, class RowAt, class Permute>
    FA_MEMBER static void load_narrow(char* to, int bytes, int width, RowAt row, Permute permute) {
        constexpr int row_bytes = D * int(sizeof(E));
        const auto offset = [&](int r, int at) { return swizzle_offset<row_bytes>(r, permute(at) / 16) + permute(at) % 16; };
        if (width == 4) {
            narrow_units<count, row_bytes, 4>([&](int r, int at) {
                const char* from = row(r);
                rt::cp_async4(rt::smem_addr(to) + uint32_t(offset(r, at)), from + at, from && at < bytes);
            });
        } else {
            narrow_units<count, row_bytes, int(sizeof(E))>([&](int r, int at) {
                const char* from = row(r);
                E e{};
                if (from && at < bytes) e = *reinterpret_cast<const E*>(from + at);
                *reinterpret_cast<E*>(to + offset(r, at)) = e;
            });
        }
    }
    // copy(row, byte) for all units of `size` bytes in `count` rows: a thread keeps its column while it can.
    template <int count, int row_bytes, int size, class Copy>
    FA_MEMBER static void narrow_units(Copy copy) {
        constexpr int units = row_bytes / size, across = units < threads ? units : threads, down = threads / across;
        const int column = rt::thread() % across, first = rt::thread() / across;
        for (int c = column; c < units; c += across) {
            FA_UNROLL_BY(2)
            for (int r = first; r < count; r += down) copy(r, c * size);
        }
    }

    FA_MEMBER static int64_t q_index(const MmaForwardParams& params, int r) {
        const Tile& tile = shared().tile;
        const Row row = shared().row[r];
        return query_index(params.q_strides, tile.seq, tile.batch, row.position, row.head);
    }
    FA_MEMBER static const char* q_row(const MmaForwardParams& params, int r) {
        return static_cast<const char*>(params.q) + q_index(params, r) * int64_t(sizeof(Element));
    }
    FA_COLD_MEMBER static void load_q_narrow(const MmaForwardParams& params) {
        const auto permute = [](int at) { return Mma::permuted_q_byte(at); };
        if constexpr (Mma::kRoundsQ)
            if (params.q_width == 0) {
                narrow_units<rows, kQRowBytes, int(sizeof(Element))>([&](int r, int at) {
                    const int c = at / int(sizeof(Element)), to = permute(at);
                    const bool there = r < shared().tile.valid && c < params.dim_qk;
                    const float value = there ? load_element(params.q, q_index(params, r) + c, params.q_dtype) : 0.f;
                    const Element bits = {f32_to_bf16(clamp_to_bf16(value))};
                    reinterpret_cast<Element*>(q_tile() + swizzle_offset<kQRowBytes>(r, to / 16))[to % 16 / int(sizeof(Element))] = bits;
                });
                return;
            }
        load_narrow<Element, rows>(
            q_tile(), int(params.dim_qk) * int(sizeof(Element)), params.q_width == 16 ? 4 : params.q_width,
            [&](int r) { return r < shared().tile.valid ? q_row(params, r) : nullptr; }, permute);
    }
    // Where a lane reads q's tiles of rows from `row0` on, and tile m, step i of the dims: from shared memory, or from q itself.
    FA_MEMBER static auto q_ptr(const MmaForwardParams& params, int row0, int lane) {
        if constexpr (Mma::kQInShared) {
            return Mma::template q_ptr<kQRowBytes>(q_tile(), row0, lane);
        } else {
            struct Rows {
                typename Mma::QRow tile[RowTiles];
            } rows;
            FA_UNROLL_FOR (int m = 0; m < RowTiles; m++) {
                const int r = row0 + kTileRows * m + Acc::row(0);
                rows.tile[m] = {q_row(params, r), r < shared().tile.valid ? int(params.dim_qk) * int(sizeof(Element)) : 0, params.q_width};
            }
            return rows;
        }
    }
    template <class Fragment, class Ptr>
    FA_MEMBER static void load_q_tile(Fragment& a, const Ptr& ptr, int m, int i) {
        if constexpr (Mma::kQInShared) Mma::load_q(a, ptr, kTileRows * m * kQRowBytes, i);
        else Mma::load_q(a, ptr.tile[m], i);
    }
    // Rows of q of whole, aligned vectors.
    FA_MEMBER static void load_q_vectors(const MmaForwardParams& params) {
        const int vec = rt::thread() % kQRowVecs;
        const bool in_row = 16 * vec < params.dim_qk * int64_t(sizeof(Element));
        if (threads % kQRowVecs != 0 && rt::thread() >= threads / kQRowVecs * kQRowVecs) return;
        for (int r = rt::thread() / kQRowVecs; r < rows; r += threads / kQRowVecs)
            rt::cp_async16(rt::smem_addr(q_tile()) + uint32_t(swizzle_offset<kQRowBytes>(r, vec)), q_row(params, r) + 16 * vec,
                           in_row && r < shared().tile.valid);
    }

    // Where the keys of tile j lie. Thread i has key i: find_location reads the page table, store_location stores the result in
    // shared memory, later.
    FA_MEMBER static int64_t find_location(const MmaForwardParams& params, int key, int end) {
        if (rt::thread() >= Keys || key + rt::thread() >= end) return -1;
        if (kGathers && params.gathered.any()) return GatheredKeys<MmaBlock>::location(params, key);
        const KeyLocation found = locate_key(params.pages, shared().tile.seq, key + rt::thread());
        return found.valid ? found.outer << 32 | found.row : -1;
    }
    FA_MEMBER static void store_location(int64_t location, int j, int key, int end) {
        Shared& shared = MmaBlock::shared();
        if (rt::thread() < Keys) shared.location[j % kLocationTiles][rt::thread()] = location;
        if (rt::thread() < Keys && location < 0 && key + rt::thread() < end) shared.missing[j % kLocationTiles] = j;
    }

    // For paged calls: how many vectors a key's rows of v, times 2^32, and of k lie behind the bases.
    FA_MEMBER static int64_t find_vec_offsets(const MmaForwardParams& params, int key, int end) {
        const Tile& tile = shared().tile;
        if (rt::thread() >= Keys || key + rt::thread() >= end) return -1;
        if (kGathers && params.gathered.any()) return GatheredKeys<MmaBlock>::vec_offsets(params, key);
        const uint32_t row = uint32_t(tile.seq.k_begin) + uint32_t(key + rt::thread()), size = uint32_t(params.pages.size);
        const int64_t page = params.pages.table[tile.seq.kv_index * params.pages.row_stride + row / size];
        if (page < 0 || page >= params.pages.count) return -1;
        const auto vecs = [&](const Source& from) { return (page * from.outer + row % size * from.row) / kVecBytes; };
        return vecs(tile.v) << 32 | vecs(tile.k);
    }

    // Tile j of k or v, `count` keys from `key` on, into its stage.
    FA_MEMBER static const char* row_address(const Source& from, int64_t location) {
        return from.base + (location >> 32) * from.outer + uint32_t(location) * from.row;
    }
    // Rows of whole words, `count` of them from `base` on. In a full tile no row is checked: what each copy takes besides its own
    // instruction is what these rows cost.
    FA_MEMBER static void load_words(const Source& from, const char* base, int count, char* to) {
        constexpr int units = kRowBytes / 4, across = units < threads ? units : threads, down = threads / across;
        const int first = rt::thread() / across;
        const int64_t step = down * from.row;
        for (int c = rt::thread() % across; c < units; c += across) {
            const bool in_row = 4 * c < from.bytes;
            const char* at = base + first * from.row + 4 * c;
            const uint32_t begin = rt::smem_addr(to) + uint32_t(swizzle_offset<kRowBytes>(first, c / 4) + c % 4 * 4);
            const auto copy = [&](int r, bool there) {
                rt::cp_async4((begin ^ uint32_t(r % 8 * 16)) + uint32_t(r * kRowBytes), at, there);
                at += step;
            };
            if (count >= Keys) {
                FA_UNROLL_FOR (int r = 0; r < Keys; r += down) copy(r, in_row);
            } else {
                FA_UNROLL_BY(4)
                for (int r = 0; r < Keys; r += down) copy(r, in_row && first + r < count);
            }
        }
    }
    FA_MEMBER static void load_keys_narrow(const MmaForwardParams& params, const Source& from, int j, int key, int count, char* to) {
        if (from.width == 4 && !params.by_location) return load_words(from, from.base + int64_t(key) * from.row, count, to);
        const auto row = [&](int r) -> const char* {
            if (r >= count) return nullptr;
            if (!params.by_location) return from.base + int64_t(key + r) * from.row;
            const int64_t location = shared().location[j % kLocationTiles][r];
            return location < 0 ? nullptr : row_address(from, location);
        };
        load_narrow<Key, Keys>(to, from.bytes, from.width, row, [](int at) { return at; });
    }
    FA_MEMBER static void load_keys(const MmaForwardParams& params, const Source& source, int j, int key, int count, char* to) {
        const Source from = source;
        if (from.width != 16) return load_keys_narrow(params, source, j, key, count, to);
        const int vec = rt::thread() % kRowVecs, first = rt::thread() / kRowVecs;
        const bool in_row = 16 * vec < from.bytes;
        const uint32_t at = rt::smem_addr(to);
        const int64_t* location = shared().location[j % kLocationTiles] + first;
        FA_UNROLL_FOR (int n = 0; n < Keys / kRowsAtOnce; n++) {
            const int64_t p = params.by_location                ? location[n * kRowsAtOnce]
                              : first + n * kRowsAtOnce < count ? key + first + n * kRowsAtOnce
                                                                : -1;
            rt::cp_async16(at + uint32_t(swizzle_offset<kRowBytes>(first + n * kRowsAtOnce, vec)), row_address(from, p) + 16 * vec,
                           in_row && p >= 0);
        }
        load_tail(source, to, [&](int r) {
            const int64_t p = params.by_location ? shared().location[j % kLocationTiles][r] : r < count ? key + r : -1;
            return p < 0 ? nullptr : row_address(from, p);
        });
    }

    // What lies behind the first `columns` dims of a tile's rows, with rows of whole vectors. row(r): as in load_narrow.
    template <class RowAt>
    FA_MEMBER static void load_tail(const Source& from, char* to, RowAt row) {
        if constexpr (kTailVecs > 0) {
            static_assert(threads % kTailVecs == 0, "");
            const int vec = kRowVecs + rt::thread() % kTailVecs;
            if (16 * kRowVecs >= from.bytes) return;  // v has none
            FA_UNROLL_BY(1)
            for (int r = rt::thread() / kTailVecs; r < Keys; r += threads / kTailVecs) {
                const char* const at = row(r);
                rt::cp_async16(rt::smem_addr(to) + uint32_t(swizzle_offset<kRowBytes>(r, vec)), at + 16 * vec, at && 16 * vec < from.bytes);
            }
        }
    }

    // Tile j of k or v into stage i of the ring: always a group of copies, were it empty.
    FA_COLD_MEMBER static void load_stage(const MmaForwardParams& params, const Source& from, int j, int i, int begin, int end) {
        const int key = begin + j * Keys;
        if (key < end) load_keys(params, from, j, key, end - key, stage_tile(i));
        rt::cp_async_commit();
    }

    // The same for plain and paged calls. `base` is the thread's vector of its first row, with pages of any row, and `to` where it
    // goes in the first stage; `row` bytes lie between keys.
    struct KvReader {
        const char* base;
        int row;
        uint32_t to;
        bool in_row;  // does the row reach so far?
        FA_MEMBER KvReader(const Source& from, bool paged) {
            const int first = rt::thread() / kRowVecs, vec = rt::thread() % kRowVecs;
            row = rt::warp_uniform(int(from.row));
            base = from.base + (paged ? 0 : first * from.row) + 16 * vec;
            to = rt::smem_addr(stage_tile(0)) + uint32_t(swizzle_offset<kRowBytes>(first, vec));
            in_row = 16 * vec < from.bytes;
        }
    };
    // copy(r, to) for the thread's rows r of a tile, counted from its first.
    template <class Copy>
    FA_MEMBER static void each_row(const KvReader& reader, int i, Copy copy) {
        const uint32_t to = reader.to + uint32_t(i * kStageBytes);
        FA_UNROLL_FOR (int n = 0; n < Keys / kRowsAtOnce; n++) {
            const int r = n * kRowsAtOnce;
            copy(r, (to ^ uint32_t(r % 8 * 16)) + uint32_t(r * kRowBytes));  // the swizzle of these rows
        }
    }
    FA_MEMBER static void load_stage_plain(const KvReader& reader, const Source& source, int i, int key, int end) {
        if (key < end) {
            const char* from = reader.base + int64_t(key) * reader.row;
            const int left = reader.in_row ? end - key - rt::thread() / kRowVecs : 0;
            each_row(reader, i, [&](int r, uint32_t to) { rt::cp_async16(to, from + int64_t(r) * reader.row, r < left); });
            load_tail(source, stage_tile(i), [&](int r) { return r < end - key ? source.base + int64_t(key + r) * reader.row : nullptr; });
        }
        rt::cp_async_commit();
    }
    // value: v's half of a location.
    FA_MEMBER static void load_stage_paged(const KvReader& reader, const Source& source, int value, int j, int i, int key, int end) {
        if (key < end) {
            const uint32_t* location =
                reinterpret_cast<const uint32_t*>(shared().location[j % kLocationTiles] + rt::thread() / kRowVecs) + value;
            each_row(reader, i, [&](int r, uint32_t to) {
                rt::cp_async16(to, reader.base + int64_t(location[2 * r]) * 16, reader.in_row && location[2 * r] != ~0u);
            });
            load_tail(source, stage_tile(i), [&](int r) {
                const uint32_t at = reinterpret_cast<const uint32_t*>(shared().location[j % kLocationTiles] + r)[value];
                return at == ~0u ? nullptr : source.base + int64_t(at) * 16;
            });
        }
        rt::cp_async_commit();
    }

    // ---- a block's beginning and end

    // What all stored keys or values of the block's sequence and kv head are to be multiplied by.
    FA_MEMBER static float descale(const Descale& descale) {
        const Tile& tile = shared().tile;
        return Mma::kKv8bit && descale.data ? descale.data[descale.strides.index(tile.seq.kv_index, 0, tile.kv_head)] : 1.f;
    }

    // And all rows of q, where their factors are the same.
    FA_MEMBER static float common_q_factor(const MmaForwardParams& params) {
        return Mma::kWidensQ && !params.q_factors_differ ? shared().q_factor[0] : 1.f;
    }

    // Code that runs once costs the fetch of its instructions: the host has computed what it can.
    FA_MEMBER static void init_block(const MmaForwardParams& params, int64_t kv_head, int64_t batch, int block) {
        Tile& tile = shared().tile;
        tile.kv_head = kv_head;
        tile.batch = batch;
        tile.first = block * rows;
        if (params.uniform_lengths) {
            tile.seq = params.uniform_seq;
            tile.seq.kv_index = batch;
            tile.rule = params.rule;
            tile.valid = int(min_of(params.rows - tile.first, rows));
        } else if constexpr (KeyWarps > 1) {
            init_sequence(params, batch);
        } else {
            init_sequence_cold(params, batch);
        }
        tile.features = params.features;
        tile.infinite = 0;
        if constexpr (kGathers)
            if (params.gathered.any()) GatheredKeys<MmaBlock>::init_tile(params, block);
        const auto source = [&](const RowSource& from) {
            const ByteStrides& bytes = from.bytes;
            const int64_t at =
                (params.by_location ? 0 : tile.seq.kv_index * bytes.outer + tile.seq.k_begin * bytes.row) + kv_head * bytes.head;
            return Source{static_cast<const char*>(from.base) + at, params.by_location ? bytes.outer : 0, bytes.row, bytes.row_bytes,
                          from.width};
        };
        tile.k = source(params.k);
        tile.v = source(params.v);
        for (int i = 0; i < kLocationTiles; i++) shared().missing[i] = -1;
        if (params.dropout_p > 0) tile.dropout = dropout_of(params, batch);
    }
    FA_MEMBER static void init_sequence(const MmaForwardParams& params, int64_t batch) {
        Tile& tile = shared().tile;
        tile.seq = bounded_sequence(params.sequences, batch);
        tile.rule = mask_rule(params.rule, tile.seq);
        tile.valid = int(min_of(tile.seq.q_len * params.group - tile.first, rows));
    }
    FA_COLD_MEMBER static void init_sequence_cold(const MmaForwardParams& params, int64_t batch) { init_sequence(params, batch); }
    // Rows and their bands, within the keys [begin, end) of the split.
    FA_MEMBER static void init_rows(const MmaForwardParams& params, int64_t begin, int64_t end) {
        Shared& shared = MmaBlock::shared();
        const Tile& tile = shared.tile;
        const int group = int(params.group);
        for (int r = rt::thread(); r < rows; r += threads) {
            const int row = tile.first + int(min_of(r, tile.valid - 1)), position = row / group;
            const KeyBand band = key_band(tile.rule, position, tile.seq.k_len);
            const int head = int(tile.kv_head) * group + row % group;
            shared.row[r] = {position, head, int(clamp(band.begin, begin, end)), int(clamp(band.end, begin, end)), 0.f};
            if constexpr (Mma::kWidensQ)
                shared.q_factor[r] = params.q_descale.data
                                         ? nan_if_infinite(params.q_descale.data[params.q_descale.strides.index(tile.batch, 0, head)])
                                         : 1.f;
            if (!params.alibi_slopes) continue;
            const float slope = log2_slope(params.alibi_slopes[tile.batch * params.alibi_batch_stride + head]);
            shared.row[r].slope = slope;
            if (!(fabsf(slope) < kSteepSlope)) shared.tile.features = params.features | kBaseE;  // like other threads
        }
    }

    FA_COLD_MEMBER static void init_rows_cold(const MmaForwardParams& params, int64_t begin, int64_t end) { init_rows(params, begin, end); }
};

}  // namespace gpu
}  // namespace fa
