// The forward kernel on matrix cores (mma.sync): f16, bf16 and f32, k and v of 8 bits or in blocks beside f16 and bf16 queries, all of 8
// bits, head dimensions up to 512, every option. This file has the mainloop; mma/block.h what surrounds it, mma/scores.h masks and score
// mods, mma_sync.h the products.
//
// A block takes `rows` group-major query rows (the heads that share a kv head share a tile) and iterates over the keys, `Keys` at a
// time. Its warps form a grid: a row warp owns RowTiles tiles of rows, a key warp its share of each tile of keys, with a partial state
// (acc, m, l) of its own that is merged at the end. Prefill has row warps only, decode key warps only. k and v tiles alternate in
// one ring of `Stages` stages, filled by cp.async copies that run Stages − 1 tiles ahead: with two stages, v arrives during q·k and
// the next k during p·v. Rows whose 16-byte vectors are not aligned are copied in smaller units; what lies beyond a head dimension
// or a length is 0.
//
// Splits of the keys leave partial states for a kernel that merges them (merge.h); or, on Hopper, the blocks of a tile's short
// splits form a cluster and merge through each other's shared memory, without a second launch and without a way through memory.
#pragma once
#include "gpu/mma/gather.h"
#include "gpu/mma/products.h"
#include "gpu/mma/row_max.h"
#include "gpu/mma/warp_part.h"

namespace fa {
namespace gpu {

template <class Mma, int D, int RowWarps, int RowTiles, int KeyWarps, int Keys, int Stages, int Resident>
struct MmaForward : MmaRowMax<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident> {
    using Block = MmaRowMax<Mma, D, RowWarps, RowTiles, KeyWarps, Keys, Stages, Resident>;
    using Acc = typename Block::Acc;
    using PerRow = typename Block::PerRow;
    using Products = typename Mma::template Products<Block>;
    using Score = typename Products::Score;
    using Block::apply_exp2, Block::apply_exp2_to_row, Block::kAccs, Block::kKeyTiles, Block::remove_scores, Block::update_row_max;

    // `type`: that of k and v, as Products::by_type() has it.
    template <Kind kind, class Type>
    FA_MEMBER static void compute_qk(const MmaForwardParams& params, Type type, const typename Products::Held& held, const char* k,
                                     int row0, int key0, Score& score) {
        FA_UNROLL_FOR (int m = 0; m < RowTiles; m++)
            FA_UNROLL_FOR (int n = 0; n < kKeyTiles; n++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) score[m][n].x[e] = 0.f;
        Products::template add_scores<kind>(params, type, held, k, row0, key0, score);
    }

    // Online softmax of one tile's scores, and its product with `v`: updates (m, l, o); `drop`: are there bits of kept_scores? The
    // products of one tile of keys overlap the exponentials of the next.
    template <class Type>
    FA_MEMBER static void softmax_and_pv(Type type, float lag, float unit, Score& score, bool drop, const uint32_t (&kept)[RowTiles],
                                         const char* v, int key0, int column_warp, PerRow& m, PerRow& l, typename Products::Output& o) {
        PerRow factor, exp2_offset;
        if (update_row_max(lag, unit, score, m, factor, exp2_offset)) Products::rescale(factor, l, o);
        // Where few lanes share a row, each has many of its probabilities: a tile's are added up before they meet the sum so far.
        constexpr bool by_tiles = Acc::kRows == 1;
        TileSum<Acc> tile_sum[RowTiles] = {};
        const auto compute_probs = [&](int n) {
            if constexpr (by_tiles) apply_exp2_to_row(n, unit, exp2_offset, score, tile_sum);
            else apply_exp2(n, unit, exp2_offset, score, l);
            if (drop)
                FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) remove_scores(kept[i], n, 0.f, score[i][n]);
        };
        Products::add_outputs(type, score, compute_probs, v, key0, column_warp, o);
        if constexpr (by_tiles) {
            FA_UNROLL_FOR (int i = 0; i < RowTiles; i++) l[i][0] += tile_sum[i].total();
        }
    }
};

// How tiles of k and v come to the stages of shared memory while a block computes: load(value, j, i) begins to load tile j of k, or of
// v, into stage i, and tile(value, i) is where it then lies; wait<n>() returns when all but the n latest loads of this thread have arrived,
// and those of others have behind a barrier. See async_pipe.h, mma/cache/blocks_pipe.h, scaled_pipe.h and register_pipe.h.
template <class M, Kind kind, class Type, Copies copies = M::Policy::kCopies>
struct KvPipe;
// What merges the splits of a cluster: see mma/cluster.h.
template <class M>
struct ClusterMerge;

// The mainloop over the keys [begin, end). `unit` takes products of q and k to log2 units, but for k's factor; returned is what takes m
// there.
template <class M, Kind kind, class Type>
FA_DEVICE float forward_mainloop(const MmaForwardParams& params, Type type, const WarpPart<M>& warp, int begin, int end, float unit,
                                 float k_factor, typename M::PerRow& m, typename M::PerRow& l,
                                 typename M::Acc (&o)[M::row_tiles][M::kAccs]) {
    using Mma = typename M::Policy;
    constexpr bool general = kind == Kind::general;
    const typename M::Shared& shared = M::shared();
    KvPipe<M, kind, Type> pipe(params, type, begin, end);
    constexpr bool either = general || M::Products::kReadsPages;  // with pages and without
    const auto find = [&](int key) { return either ? M::find_location(params, key, end) : M::find_vec_offsets(params, key, end); };
    int64_t location = 0;  // of tile j + stages / 2, loaded one tile before it is needed
    const auto listed = [&] { return general && M::kGathers && shared.tile.features & kListed; };
    // The first key of tile j, which is `key` but for lists of blocks: those where masks do not act are less than 0.
    const auto first_key = [&](int j, int key) { return listed() ? shared.listed[j % M::kLocationTiles] : key; };
    if (kind == Kind::paged || (either && shared.tile.features & kPaged)) {
        int64_t first[M::stages / 2];
        FA_UNROLL_FOR (int j = 0; j < M::stages / 2; j++) first[j] = find(begin + j * M::keys);
        FA_UNROLL_FOR (int j = 0; j < M::stages / 2; j++) M::store_location(first[j], j, begin + j * M::keys, end);
        location = find(begin + M::stages / 2 * M::keys);
        if (listed())
            for (int j = 0; j < M::stages / 2; j++) GatheredKeys<M>::store_first(params, begin + j * M::keys, j);
        rt::barrier();
    }
    FA_UNROLL_FOR (int i = 0; i < M::stages - !M::kFillAllStages; i++) pipe.load(i % 2, i / 2, i);
    // k's descale factor, and q's where a tile has one, is multiplied into the unit, unless products must have their value first: for score
    // mods, or where the factor, which only device memory has, is not positive or leaves f32's range.
    float before = 1.f;
    if constexpr (Mma::kKv8bit) {
        const bool base_e = general && shared.tile.features & kBaseE, mergeable = unit * k_factor > 0 && unit * k_factor < kPosInf;
        if (mergeable && !base_e) unit *= k_factor;
        else before = k_factor;
    }
    const float lag = end - begin < 1 << 20 ? Mma::kLag : 0.f;  // more might overflow
    typename M::Products::Held q;
    int stage = 0;  // of tile j of k; v's is the next
    for (int key = begin, j = 0; key < end; key += M::keys, j++) {
        if (M::kFillAllStages && j == 0) pipe.template wait<M::stages - 1>();
        else pipe.template wait<M::stages - 2>();
        rt::barrier();
        if (!M::kFillAllStages || j > 0) pipe.load(true, j + M::stages / 2 - 1, stage ? stage - 1 : M::stages - 1);
        const char* const k = pipe.tile(false, stage);
        M::Products::prepare_keys(type, M::stage_tile(stage));
        const int next_key = key + M::stages / 2 * M::keys;
        const bool paged = kind == Kind::paged || (either && shared.tile.features & kPaged);
        if constexpr (M::kHoldQ)
            if (key == begin) M::Products::hold_q(params, warp.row0, q);
        const int first = first_key(j, key);
        const bool unmasked = listed() && first < 0;
        const auto is_active = [&](int at) {
            return unmasked ? warp.row0 < shared.tile.valid : at >= warp.some_begin && at < warp.some_end;
        };
        const bool active = is_active(first), full = unmasked || (first >= warp.full_begin && first < warp.full_end);
        typename M::Acc score[M::row_tiles][M::kKeyTiles];
        if (active) {
            typename M::MaskRows mask[M::row_tiles];
            const bool masked = general && shared.tile.features & kMask, by_vecs = masked && M::mask_in_vecs(params, key + warp.key0);
            if constexpr (general)
                if (by_vecs)
                    FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++)
                        M::load_mask(params, warp.row0 + M::kTileRows * i, key + warp.key0, mask[i]);
            M::template compute_qk<kind>(params, type, q, k, warp.row0, warp.key0, score);
            M::apply_factors(params, warp.row0, before, score);
            if constexpr (general)
                if (shared.tile.features & kScoreMod)
                    FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) {
                        M::apply_score_mods(params, warp.row0 + M::kTileRows * i, key + warp.key0, unit, score[i]);
                        if (!masked) continue;
                        const uint32_t kept = by_vecs ? M::unmasked_scores(mask[i])
                                                      : M::unmasked_scores(params, warp.row0 + M::kTileRows * i, key + warp.key0);
                        FA_UNROLL_FOR (int n = 0; n < M::kKeyTiles; n++) M::remove_scores(kept, n, kNegInf, score[i][n]);
                    }
            const bool has_missing = paged && shared.missing[j % M::kLocationTiles] == j;
            if (!full || has_missing) {
                const int at = first_key(j, key);
                M::mask_scores(warp.row0, at + warp.key0, has_missing ? shared.location[j % M::kLocationTiles] + warp.key0 : nullptr, score,
                               !listed() || at >= 0);
            }
        }
        if (paged) {
            M::store_location(location, j + M::stages / 2, next_key, end);
            location = find(next_key + M::keys);
            if (listed()) GatheredKeys<M>::store_first(params, next_key, j + M::stages / 2);
        }
        pipe.template wait<M::stages - 2>();
        rt::barrier();
        pipe.load(false, j + M::stages / 2, stage);
        const char* const v = pipe.tile(true, stage + 1);
        if (rt::kScarceRegisters ? active : is_active(rt::opaque_uniform(first))) {
            uint32_t kept[M::row_tiles] = {};
            const bool drop =
                general && sizeof(typename M::Element) < 4 && shared.tile.features & kDropout;  // in f32 other kernels have it
            if (drop)
                FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) kept[i] = M::kept_scores(warp.row0 + M::kTileRows * i, key + warp.key0);
            M::softmax_and_pv(type, lag, unit, score, drop, kept, v, warp.key0, warp.column_warp, m, l, o);
        }
        stage = stage + 2 == M::stages ? 0 : stage + 2;
    }
    pipe.template wait<0>();
    return unit;
}

template <class M, Kind kind>
struct ForwardLoop {
    FA_MEMBER static float run(const MmaForwardParams& params, const WarpPart<M>& warp, int begin, int end, float unit, float k_factor,
                               typename M::PerRow& m, typename M::PerRow& l, typename M::Acc (&o)[M::row_tiles][M::kAccs]) {
        return M::Products::template by_type<kind>(
            params.k_dtype, [&](auto type) { return forward_mainloop<M, kind>(params, type, warp, begin, end, unit, k_factor, m, l, o); });
    }
};

// One tile of rows, one split. Blocks are numbered so that with a causal mask the longest tiles of as many heads as the cache holds
// come first.
template <class M, Kind kind>
FA_DEVICE void run_forward_mma(const MmaForwardParams& params) {
    using Acc = typename M::Acc;
    using Mma = typename M::Policy;
    rt::fetch_parameters(params);
    const uint32_t splits = uint32_t(params.splits), blocks = uint32_t(params.blocks), heads = uint32_t(params.batch * params.kv_heads);
    uint32_t item = uint32_t(rt::block());
    const uint32_t split = item % splits;
    item /= splits;
    uint32_t block = item % blocks, head = item / blocks;
    if (params.section) {
        const uint32_t section = uint32_t(params.section), first = item / (section * blocks) * section;
        const uint32_t within = item - first * blocks, width = heads - first < section ? heads - first : section;
        block = blocks - 1 - within / width;
        head = first + within % width;
    }
    typename M::Shared& shared = M::shared();
    // Until the kernel before this one in the stream has ended, only parameters may be read.
    const bool known = kind == Kind::plain && params.uniform_lengths;
    if (!known) rt::wait_for_predecessor();
    if (rt::thread() == 0) M::init_block(params, head % uint32_t(params.kv_heads), head / uint32_t(params.kv_heads), int(block));
    rt::barrier();
    const typename M::Tile& tile = shared.tile;
    // Of lists that are gathered all have the splits of the longest: what merges them does not know others.
    const bool gathered = M::kGathers && kind != Kind::plain && params.gathered.any();
    const bool listed = gathered && params.gathered.blocks();
    const int64_t size = params.uniform_lengths || gathered ? params.uniform_split_keys
                                                            : split_keys(tile.seq.k_len, params.num_splits, params.split_size),
                  split_begin = split * size,
                  split_end = max_of(min_of(split_begin + size, gathered ? tile.entries : tile.seq.k_len), gathered ? split_begin : 0),
                  first_key = listed ? 0 : split_begin, last_key = listed ? tile.keys : split_end;
    const bool idle = tile.valid <= 0 || (split > 0 && split_begin >= tile.seq.k_len && !gathered);
    if constexpr (M::key_warps > 1) {
        if (!idle) M::init_rows(params, first_key, last_key);
    } else {
        if (!idle) M::init_rows_cold(params, first_key, last_key);
    }
    rt::barrier();
    if (known) rt::release_successor();
    rt::wait_for_predecessor();
    if (!known) {
        rt::release_successor();  // not before: merge_splits reads lengths before it waits
        const int64_t rows = gathered ? tile_end(params.tiles, int64_t(block)) - tile.first : M::rows;
        if (tile.valid < rows && split == 0) write_padding(params, tile.seq, tile.batch, tile.kv_head, tile.first, rows, 0, params.dim_v);
    }
    constexpr bool merges_in_cluster = Mma::kClusters && M::key_warps > 1 && M::column_warps == 1 && kind != Kind::general;
    if (idle) {
        if constexpr (merges_in_cluster)
            if (__builtin_expect(params.cluster_merge, 0)) ClusterMerge<M>::stage_empty(), ClusterMerge<M>::merge(params, int(split));
        return;
    }
    // Tiles start at fixed distances from the split's begin, whatever the band: a row's bits do not depend on its neighbours.
    const int begin =
        listed ? int(split_begin) : rt::warp_uniform(int(split_begin) + (shared.row[0].begin - int(split_begin)) / M::keys * M::keys);
    const int end = rt::warp_uniform(listed ? int(split_end) : shared.row[tile.valid - 1].end);
    const WarpPart<M> warp;
    if constexpr (Mma::kQInShared) M::Products::load_q(params);

    typename M::PerRow m, l;
    Acc o[M::row_tiles][M::kAccs];
    const float k_factor = begin < end ? nan_if_infinite(M::descale(params.k_descale)) * M::common_q_factor(params) : 1.f;
    constexpr bool late = Mma::kWidensQ && M::key_warps == 1;  // prefill has no register for it through the loop
    float v_factor = late ? 1.f : M::Products::v_factor(params, begin < end);
    const float product = kind == Kind::general && tile.features & kBaseE ? 1.f : params.scale * kLog2e * Mma::kScoreUnit;
    float unit;
    for (bool again = false;; again = true) {
        FA_UNROLL_FOR (int i = 0; i < M::row_tiles; i++) {
            FA_UNROLL_FOR (int r = 0; r < Acc::kRows; r++) {
                m[i][r] = kNegInf;
                l[i][r] = 0.f;
            }
            FA_UNROLL_FOR (int c = 0; c < M::kAccs; c++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) o[i][c].x[e] = 0.f;
        }
        unit = Mma::template Mainloop<M, kind>::run(params, warp, begin, end, product, k_factor, m, l, o);
        if (again || !M::Products::begins_again()) break;
    }
    if constexpr (late) v_factor = M::Products::v_factor(params, begin < end);
    M::Products::finish_outputs(o);
    rt::barrier();
    FA_UNROLL_FOR (int pass = 0; pass < M::kOutputPasses; pass++) {
        M::stage_output(warp.row0, warp.key_warp, warp.column_warp, pass, unit, v_factor, m, l, o);
        rt::barrier();
        if constexpr (merges_in_cluster)
            if (__builtin_expect(params.cluster_merge, 0)) {  // unlikely: kept out of the other calls' instruction stream
                ClusterMerge<M>::stage_merged();
                return ClusterMerge<M>::merge(params, int(split));
            }
        if (pass == 0) {
            if constexpr (M::key_warps > 1) M::finalize_rows(params);
            else M::finalize_rows_cold(params);
            rt::barrier();
        }
        M::write_rows(params, pass * M::kOutputColumns);
        if (pass + 1 < M::kOutputPasses) rt::barrier();
    }
}

template <class M, Kind kind>
FA_KERNEL void FA_BOUNDS(M::threads, (M::Policy::blocks_held(kind, M::resident))) forward_mma(FA_PARAM MmaForwardParams params) {
    if constexpr (M::Policy::kAvailable) run_forward_mma<M, kind>(params);
}

}  // namespace gpu
}  // namespace fa
