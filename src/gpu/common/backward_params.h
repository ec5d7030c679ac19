// What all backward kernels share: the parameters of launches, how rows of all sequences are padded and numbered, and reading and
// writing gradients. Kernels read no LSE and Δ as the caller lays them out, but lse_log2 and delta of padded rows, which
// backward_preprocess writes.
//
// A call runs backward_preprocess, then a kernel by blocks of keys that sums dk and dv over rows, then one by tiles of rows for dq;
// or the first adds dq up as well, in f32 (dq_acc), and finish_dq rounds it. dbias has a kernel of its own, which computes its
// tiles once more.
#pragma once
#include "gpu/common/mma_params.h"
#include "gpu/common/simt_params.h"

namespace fa {
namespace gpu {

// Sequences' rows are padded to whole tiles of this many: a kernel whose tiles divide it need not check which rows exist.
constexpr int64_t kPaddedRows = 128;

// What all backward kernels read: rows' numbers in their padded places, and gradients, of which those that are not wanted are NULL.
struct GradientParams : ShapeParams {
    int64_t padded_rows;  // of q of all sequences, each padded to kPaddedRows
    // [heads_q][padded_rows]: Δ − dlse; 0 where lse_log2 is +inf.
    float* delta;
    // [heads_q][padded_rows]: LSE · log2 e; +inf in rows without keys and beyond a sequence's: their P is 0.
    float* lse_log2;
    // [heads_q][padded_rows][dq_acc_columns], see dq_acc_index, 0 at first: f32 sums of dq without the scale, for a kernel that adds
    // them up; else NULL.
    float* dq_acc;
    void *dq, *dk, *dv;
    RowStrides dq_strides, dk_strides, dv_strides;
    bool causal, accumulate;
};

// Of kernels over rows (backward/rows.h), and of an architecture's own, which read whole rows too.
struct BackwardRowParams : GradientParams {
    const void *o, *dout;
    const float *lse, *dlse, *sinks;
    float* dsinks;
    RowStrides o_strides, dout_strides, lse_strides, dlse_strides;
    int64_t dim_qk;
    int64_t row_blocks;      // of backward_preprocess: for rows; those behind them for keys
    int64_t dq_acc_columns;  // 0: dq is not added up
    float scale;
    int32_t q_dtype, k_dtype, o_dtype;
    bool o_aligned, dout_aligned;  // rows may be read four elements at a time
};

struct SimtBackwardParams : GradientParams, SimtProductParams, DropoutParams {
    const void *v, *dout;
    RowStrides v_strides, dout_strides;
    float* dbias;
    int64_t dbias_stride[4];
    int64_t parts;  // blocks that share the columns of a tile's gradients
    float scale;
    bool q_aligned, k_aligned, v_aligned, dout_aligned;
};

struct MmaBackwardParams : MmaCallParams<GradientParams> {
    RowSource source[4];  // q, dout, k and v
    int32_t q_dtype;
};

FA_FN int64_t padded_rows_of(const Problem& problem) {
    if (problem.d.seqlen_q == 0) return 0;
    return problem.packed_q() ? round_up(problem.d.total_q, kPaddedRows) + kPaddedRows * problem.d.batch
                              : problem.d.batch * round_up(problem.d.seqlen_q, kPaddedRows);
}
// Where the rows of sequence b begin. Packed ones lie apart whatever their lengths: q_begin + 128 · b leaves each the room to be
// rounded up.
FA_FN int64_t padded_row0(const SequenceTable& table, const Sequence& seq, int64_t b) {
    return table.q.packed() ? (seq.q_begin + kPaddedRows * b) / kPaddedRows * kPaddedRows : b * round_up(table.q.seqlen, kPaddedRows);
}

// Where dq_acc keeps an element: eight rows and 16 columns lie together, as the lanes of an mma kernel have them, and of a row what
// one lane has, two columns of either eight.
FA_FN int64_t dq_acc_index(int64_t row, int64_t column, int64_t columns) {
    const int64_t panel = row / 8 * (columns / 16) + column / 16, lane = row % 8 * 4 + column % 8 / 2;
    return panel * 128 + lane * 4 + column % 16 / 8 * 2 + column % 2;
}

// Rows, of so many, whose bands reach from a key on the left of their end to one on the right of their begin: key_band the other
// way round.
struct RowBand {
    int64_t begin, end;
};
FA_FN RowBand reaching_rows(const MaskRule& rule, int64_t left, int64_t right, int64_t rows) {
    RowBand band{0, rows};
    if (rule.right >= 0 && rule.right < left - rule.off) band.begin = left - rule.off - rule.right;
    if (rule.left >= 0 && rule.left < rows + rule.off - right - 1) band.end = right - rule.off + rule.left + 1;
    if (rule.chunk > 0) {
        band.begin = max_of(band.begin, floor_div(left, rule.chunk) * rule.chunk - rule.off);
        band.end = min_of(band.end, (floor_div(right, rule.chunk) + 1) * rule.chunk - rule.off);
    }
    return band;
}
// Those that may see any of keys [key, key + keys), and those that see all of them, as far as they exist.
FA_FN RowBand row_band(const MaskRule& rule, int64_t key, int64_t keys, int64_t rows) {
    return reaching_rows(rule, key, key + keys - 1, rows);
}
FA_FN RowBand full_row_band(const MaskRule& rule, int64_t key, int64_t keys, int64_t rows) {
    return reaching_rows(rule, key + keys - 1, key, rows);
}

// One element of dq, dk or dv, rounded to its input's type or added to what is there.
FA_DEVICE void store_gradient(const GradientParams& params, void* base, int64_t i, int32_t dtype, float value) {
    if (params.accumulate) static_cast<float*>(base)[i] += value;
    else store_element(base, i, dtype, value);
}

// Four elements from `at` on, of which `left` exist.
FA_DEVICE void load_vec4(const void* base, int64_t at, int64_t left, bool aligned, int32_t dtype, float to[4]) {
    if (aligned && left >= 4) {
        if (dtype == FA_F32) return rt::load4(static_cast<const float*>(base) + at, to);
        const Vec4<F16> quad = *reinterpret_cast<const Vec4<F16>*>(static_cast<const F16*>(base) + at);
        FA_UNROLL_FOR (int e = 0; e < 4; e++) to[e] = dtype == FA_F16 ? f16_to_f32(quad.element[e].x) : bf16_to_f32(quad.element[e].x);
        return;
    }
    FA_UNROLL_FOR (int e = 0; e < 4; e++) to[e] = e < left ? load_element(base, at + e, dtype) : 0.f;
}

// Eight elements to an address that is a multiple of 16 bytes.
FA_DEVICE void store_vec8_at(void* base, int64_t at, int32_t dtype, const float from[8]) {
    if (dtype == FA_F32) {
        rt::store4(static_cast<float*>(base) + at, from);
        return rt::store4(static_cast<float*>(base) + at + 4, from + 4);
    }
    float words[4];
    FA_UNROLL_FOR (int i = 0; i < 4; i++)
        words[i] = float_of(dtype == FA_F16 ? rt::pack_f16(from[2 * i], from[2 * i + 1]) : rt::pack_bf16(from[2 * i], from[2 * i + 1]));
    rt::store4(reinterpret_cast<float*>(static_cast<uint16_t*>(base) + at), words);
}

// What kernels read of a row: the probabilities of one that sees no key, or is none, are 0.
FA_DEVICE void store_row(const GradientParams& params, int64_t to, float lse, float delta) {
    const float lse_log2 = lse * kLog2e;
    const bool none = fabsf(lse_log2) == kPosInf;
    params.lse_log2[to] = none ? kPosInf : lse_log2;
    params.delta[to] = none ? 0.f : delta;
}

}  // namespace gpu
}  // namespace fa
