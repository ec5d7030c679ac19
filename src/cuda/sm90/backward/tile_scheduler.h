// Which keys a CTA of the backward kernels works on. Blocks of keys are numbered section after section of kv heads (whose rows fit
// in L2); a persistent CTA takes the next block from a counter. Here a number becomes a KeyBlockInfo: the block's keys, and the
// rows that see them.
#pragma once
#include "cuda/sm90/backward/params.h"

namespace fa {
namespace gpu {

// The block or pair that the `index`-th unit of work is about, and, of a split one, which piece of its rows.
FA_DEVICE Quotient block_and_piece(const Sm90BackwardParams& params, int index) {
    if (index < params.split.first_block) return {index, 0};
    const Quotient quotient = divide(index - params.split.first_block, params.split.pieces);
    return {params.split.first_block + quotient.number, quotient.rest};
}

template <class Traits>
FA_DEVICE void fill_key_block_info(const Sm90BackwardParams& params, int index, int part, int rank, KeyBlockInfo& key_block) {
    const SequenceTable& sequences = params.x.sequences;
    const int section = min(divide(index, params.section_blocks).number, params.sections - 1);
    const Quotient within =
        divide(index - section * int(params.section_blocks.by), section + 1 == params.sections ? params.last_section : params.section);
    const Quotient head = divide(section * int(params.section.by) + within.rest, params.heads_k);
    const int block = params.reverse_order ? params.key_blocks - 1 - within.number : within.number;
    key_block.batch = head.number;
    key_block.ds_unit = 1.f;  // where no row sees the keys; else the producer sets it
    key_block.kv_head = head.rest;
    key_block.key0 = (Traits::kPair ? 2 * block + rank : block) * Traits::kBlockN;
    if constexpr (Traits::kGeneral) {
        const Sequence seq = bounded_sequence(sequences, key_block.batch);
        key_block.rule = row_rule(mask_rule(params.bands, seq));
        key_block.k_len = int(seq.k_len);
        key_block.q_len = int(seq.q_len);
        key_block.q_begin = int(seq.q_begin);
        key_block.k_row = int(seq.k_begin) + key_block.key0;
        key_block.row0 = int(padded_row0(sequences, seq, key_block.batch));
    } else {
        key_block.rule = params.rule;
        key_block.k_len = int(sequences.seqlen_k);
        key_block.q_len = int(sequences.q.seqlen);
        key_block.q_begin = 0;
        key_block.k_row = key_block.key0;
        key_block.row0 = key_block.batch * int(round_up(sequences.q.seqlen, kPaddedRows));
    }
    const int k_len = key_block.k_len;
    key_block.valid_keys = min(k_len - key_block.key0, Traits::kBlockN);
    const auto rows_of = [&](int key, int count) { return rows_seeing(key_block.rule, key, count, key_block.q_len); };
    // The CTAs of a pair go through the rows that see keys of either.
    const int seen0 = Traits::kPair ? block * 2 * Traits::kBlockN : key_block.key0;
    const int2 seen = rows_of(seen0, min(k_len - seen0, Traits::kBlockN * Traits::kClusterSize)),
               all = Traits::kGeneral ? rows_of(0, k_len) : make_int2(0, key_block.q_len);
    key_block.m_block_min = seen.x / Traits::kBlockM;
    key_block.m_block_max = seen.x < seen.y ? (seen.y + Traits::kBlockM - 1) / Traits::kBlockM : key_block.m_block_min;
    if (!Traits::kGeneral && index >= params.split.first_block) {
        const int count = key_block.m_block_max - key_block.m_block_min, begin = key_block.m_block_min;
        key_block.m_block_min = begin + count * part / int(params.split.pieces.by);
        key_block.m_block_max = begin + count * (part + 1) / int(params.split.pieces.by);
    }
    key_block.valid_row_min = all.x;
    const bool tma_zero_fills = all.y == key_block.q_len && !sequences.q.packed() && !sequences.q.seqused;
    key_block.valid_row_max = !Traits::kGeneral || tma_zero_fills ? INT32_MAX : all.y;
    key_block.m_block_full_min = key_block.m_block_full_max = key_block.m_block_max;
    if (key_block.valid_keys == Traits::kBlockN) {
        const int begin = max(rows_of(key_block.key0 + Traits::kBlockN - 1, 1).x, key_block.valid_row_min),
                  end = min(rows_of(key_block.key0, 1).y, key_block.valid_row_max);
        key_block.m_block_full_min = max((begin + Traits::kBlockM - 1) / Traits::kBlockM, key_block.m_block_min);
        key_block.m_block_full_max =
            min(end == key_block.q_len && key_block.valid_row_max == INT32_MAX ? key_block.m_block_max : end / Traits::kBlockM,
                key_block.m_block_max);
    }
}

template <class Traits>
FA_DEVICE void fill_key_block(const Sm90BackwardParams& params, int index, KeyBlockInfo& key_block) {
    const Quotient work = Traits::kGeneral ? Quotient{index, 0} : block_and_piece(params, index);
    key_block.index = index;
    fill_key_block_info<Traits>(params, work.number, work.rest, 0, key_block);
}

}  // namespace gpu
}  // namespace fa
