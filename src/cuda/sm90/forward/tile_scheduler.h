// Which tiles a CTA of the forward kernel computes, and which blocks of keys each tile goes through. One thread schedules: it takes
// the next tile, writes its WorkTileInfo to shared memory and loads its q by TMA, so that divisions and lengths from memory keep no
// other copy waiting. The schedule is static (every CTA strides over the tiles) where all tiles cost the same, else dynamic, from a
// counter, longest tile first.
#pragma once
#include "cuda/sm90/forward/params.h"

namespace fa {
namespace gpu {

// The keys that a row sees, within the sequence: key_band (spec/mask.h) in 32 bits.
struct KeyRange {
    int begin, end;
};
template <MaskKind mask>
FA_DEVICE KeyRange key_range_of(const Window& window, int row, int off, int k_len) {
    if (mask == MaskKind::none) return {0, k_len};
    const int diagonal = row + off;
    if (mask == MaskKind::causal) return {0, max(min(diagonal + 1, k_len), 0)};
    KeyRange range{0, k_len};
    if (window.left >= 0 && diagonal > window.left) range.begin = min(diagonal - window.left, k_len);
    if (window.right >= 0 && window.right < k_len - diagonal - 1) range.end = max(diagonal + window.right + 1, 0);
    if (window.chunk > 0) {
        const int first = (diagonal / window.chunk - (diagonal % window.chunk < 0)) * window.chunk;
        range.begin = max(range.begin, min(first, k_len));
        range.end = int(clamp(int64_t(first) + window.chunk, 0, range.end));
    }
    return range;
}

// Of two ranges what is in both, which may end before it begins.
FA_DEVICE KeyRange intersection(const KeyRange& a, const KeyRange& b) { return {max(a.begin, b.begin), min(a.end, b.end)}; }
// The range operand's of a row, of which it has one.
FA_DEVICE KeyRange row_range(const KeyRanges& ranges, const Sequence& seq, int batch, int head, int row) {
    const int32_t* const pair = ranges.pairs + 2 * query_index(ranges.rows, seq, batch, row, head);
    return {max(pair[0], 0), max(pair[1], 0)};
}

// The last block of keys that some of `rows` rows sees. Rows that see none get block 0, all of which is masked.
template <class Traits, MaskKind mask>
FA_DEVICE int n_block_max_of(const Window& window, const WorkTileInfo& tile, int row0, int rows) {
    return max((key_range_of<mask>(window, tile.last_row(row0, rows), tile.off, tile.k_len).end + Traits::kBlockN - 1) / Traits::kBlockN,
               1) -
           1;
}

// The factors of q, k and v, of which a sequence and a head have one each. Below kMinScale all P of a row are equal, whatever
// q and k are; a scale of 0 would meet a row_ref of −∞. An infinite one makes NaN of a row's largest score, as it should.
FA_DEVICE void find_descale_factors(const Sm90Call& call, WorkTileInfo& tile) {
    constexpr float kMinScale = 0x1p-60f;
    const int kv_index = call.sequences.packed_k() ? tile.batch : tile.kv_batch;
    const auto factor_of = [&](const Descale& descale) {
        return descale.data ? key_descale(descale, KeyLocation{kv_index, 0, true}, tile.kv_head) : 1.f;
    };
    const float k = factor_of(call.k_descale);  // one after the other, as there are 32 registers
    rt::compiler_fence();
    tile.v_descale = factor_of(call.v_descale);
    rt::compiler_fence();
    const float scale = call.scale * (query_descale(call, Sequence{}, tile.batch, 0, tile.head) * k);
    tile.scale = fabsf(scale) < kMinScale ? kMinScale : scale;
}

template <class Traits, MaskKind mask, bool pair>
FA_DEVICE void fill_tile_info(const Sm90ForwardParams& params, int index, int rank, WorkTileInfo& tile) {
    const Sm90Call& call = params.x;
    const bool pair_by_heads = pair && params.pair_by_heads, pair_by_rows = pair && !params.pair_by_heads;
    constexpr bool packs = Traits::template kPacksHeads<mask>;
    const int heads_q = packs ? params.tile_heads : int(call.heads_q), heads = int(call.batch) * heads_q / (pair_by_heads ? 2 : 1);
    const int rows = packs ? 1 << params.head_rows_log2 : Traits::kBlockM;
    int m_block, head;
    if (params.section) {  // longest first, in sections of heads whose k and v fit in L2
        const int first = index / (params.section * params.m_blocks) * params.section, within = index - first * params.m_blocks;
        const int width = min(params.section, heads - first);
        m_block = params.m_blocks - 1 - within / width;
        head = first + within % width;
    } else {
        head = index / params.m_blocks;
        m_block = index - head * params.m_blocks;
    }
    if (pair_by_heads) head = 2 * head + rank;
    tile.batch = head / heads_q;
    tile.head = head - tile.batch * heads_q;
    if constexpr (Traits::kBiasSize > 0)
        if (params.bias.heads_first) tile.head = head / int(call.batch), tile.batch = head - tile.head * int(call.batch);
    if (packs) tile.head *= Traits::kBlockM >> params.head_rows_log2;
    tile.kv_head = tile.head / int(call.group);
    tile.row0 = (pair_by_rows ? 2 * m_block + rank : m_block) * rows;
    const Sequence seq = call.uniform_lengths ? call.uniform_seq : bounded_sequence(call.sequences, tile.batch);
    tile.q_begin = int(seq.q_begin);
    tile.q_len = int(seq.q_len);
    tile.o_rows = call.sequences.q.packed() ? tile.q_len : int(call.sequences.q.seqlen);
    tile.k_len = int(seq.k_len);
    tile.off = int(clamp(seq.off, -(1 << 30), 1 << 30));
    tile.k_begin = int(seq.k_begin);
    tile.kv_batch = call.sequences.packed_k() ? 0 : call.uniform_lengths ? tile.batch : int(seq.kv_index);
    if constexpr (Traits::kDescale) find_descale_factors(call, tile);
    if constexpr (mask == MaskKind::list) {
        rt::compiler_fence();  // not sooner, as there may be 32 registers
        tile.table_tile = params.units.tile_of(tile.batch, tile.head, tile.row0);
        tile.n_block_max = params.units.blocks[tile.table_tile] - 1;
        return;
    }
    const auto key_range = [&](int row) { return key_range_of<mask>(params.window, row, tile.off, tile.k_len); };
    const auto n_block_max = [&](int row0) { return n_block_max_of<Traits, mask>(params.window, tile, row0, rows); };
    tile.n_block_max = n_block_max(tile.row0);
    tile.peer_only_blocks =
        pair_by_rows && mask != MaskKind::none ? n_block_max((2 * m_block + 1) * Traits::kBlockM) - tile.n_block_max : 0;
    tile.n_block_min_causal_local_mask = mask == MaskKind::none ? tile.n_block_max + 1 : key_range(tile.row0).end / Traits::kBlockN;
    tile.n_block_min = mask == MaskKind::band ? min(key_range(tile.row0).begin / Traits::kBlockN, tile.n_block_max) : 0;
    if (mask == MaskKind::band && params.mask.spans) {  // without the blocks at either end in which the mask operand leaves no key
        const int2 span = params.mask.spans[params.mask.tile_of(tile.batch, tile.head, tile.row0)];
        tile.n_block_max = max(min(tile.n_block_max, span.x - 1), tile.n_block_min);
        tile.n_block_min = min(max(tile.n_block_min, params.mask.n_blocks - span.y), tile.n_block_max);
    }
    tile.n_block_min_before_local_mask =
        mask == MaskKind::band ? (key_range(tile.last_row(tile.row0, rows)).begin + Traits::kBlockN - 1) / Traits::kBlockN : 0;
    tile.n_block_right = tile.n_block_max + tile.peer_only_blocks + 1;
    // ALiBi's scores fall to both sides of the diagonal; taken from right to left, each block would move row_ref.
    if (mask == MaskKind::band && call.alibi_slopes)
        tile.n_block_right =
            min(max((max(tile.row0 + Traits::kBlockM - 1 + tile.off, 0) + Traits::kBlockN - 1) / Traits::kBlockN, tile.n_block_min),
                tile.n_block_right);
}

template <class Traits, int QStages>
FA_DEVICE void load_q(const Sm90ForwardParams& params, const WorkTileInfo& tile, const PipelineState<QStages>& q) {
    typename Traits::Barriers& barrier = Traits::shared().barrier;
    rt::mbarrier_wait(smem_addr(barrier.q_empty[q.index]), q.phase ^ 1);
    rt::mbarrier_expect_tx(smem_addr(barrier.q_full[q.index]), Traits::kQBytes);
    FA_UNROLL_FOR (int panel = 0; panel < Traits::kQPanels; panel++)
        rt::tma_load(Traits::q_tile(q.index) + panel * Traits::kBlockM * 128, &params.q, smem_addr(barrier.q_full[q.index]), 64 * panel,
                     tile.q_begin + tile.row0, tile.head, params.x.sequences.q.packed() ? 0 : tile.batch, rt::kEvictFirst);
}

// The scheduler thread. With the dynamic schedule the next tile is taken when the k producer has kPrefetchBlocks blocks left to
// load: taken earlier, CTAs with long tiles would hold tiles that others could begin (docs/lab/hopper_log.md has the numbers).
template <class Traits, MaskKind mask, bool pair, int QStages>
FA_DEVICE void schedule_tiles_and_load_q(const Sm90ForwardParams& params) {
    typename Traits::Shared& shared = Traits::shared();
    const int rank = pair ? rt::cluster_rank() : 0, stride = int(gridDim.x) * Traits::kTiles / Traits::kClusterSize;
    PipelineState<QStages> q;
    PipelineState<Traits::kTileStages> tile_stage;
    PipelineState<1> prefetch_next;
    for (int index = int(blockIdx.x) * Traits::kTiles / Traits::kClusterSize + Traits::kPlace; index < params.num_tiles;) {
        WorkTileInfo& tile = shared.tile[tile_stage.index];
        rt::mbarrier_wait(smem_addr(tile.tile_consumed), tile_stage.phase ^ 1);
        fill_tile_info<Traits, mask, pair>(params, index, rank, tile);
        if constexpr (mask == MaskKind::list) rt::compiler_fence();
        const bool exists = pair || tile.row0 < tile.o_rows;
        if (exists) {
            rt::mbarrier_arrive(smem_addr(tile.tile_ready));
            load_q<Traits>(params, tile, q);
            q.advance();
        }
        if (!params.tile_counter) {
            index += stride;
        } else {
            if (exists) {
                rt::mbarrier_wait(smem_addr(shared.barrier.prefetch_next), prefetch_next.phase);
                prefetch_next.advance();
            }
            if (rank == 0) {
                index = stride + atomicAdd(params.tile_counter, 1);
                if (pair)
                    rt::st_async(rt::smem_addr(shared.next_tile + tile_stage.index),
                                 smem_addr(shared.barrier.next_tile_full[tile_stage.index]), 1, index);
            } else {
                rt::mbarrier_expect_tx(smem_addr(shared.barrier.next_tile_full[tile_stage.index]), 4);
                rt::mbarrier_wait(smem_addr(shared.barrier.next_tile_full[tile_stage.index]), tile_stage.phase);
                index = *const_cast<volatile int*>(shared.next_tile + tile_stage.index);
            }
        }
        if (exists) tile_stage.advance();
    }
    rt::mbarrier_wait(smem_addr(shared.tile[tile_stage.index].tile_consumed), tile_stage.phase ^ 1);
    shared.tile[tile_stage.index].n_block_max = -1;
    rt::mbarrier_arrive(smem_addr(shared.tile[tile_stage.index].tile_ready));
    if (params.tile_counter && rank == 0 && atomicAdd(params.tile_counter + 1, 1) == stride - 1)
        params.tile_counter[0] = params.tile_counter[1] = 0;
}

}  // namespace gpu
}  // namespace fa
