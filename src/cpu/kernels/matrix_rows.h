// What rows of a matrix mainloop's step are by the rules that all instruction sets share: which keys a row sees, and the row_ref that its
// scores are measured from. Besides what vector_math.h asks of it, the including header defines
//     find_neg_ref(task, block, row, s)             the row's −row_ref by its scores in this step, in the unit that P is kept in
//     apply_score_mod(task, step, s, first, end)    turns the step's rows [first, end) from products into scores that P is computed of, and
//     masks keys
#pragma once
#include "cpu/kernels/matrix_table.h"
#include "cpu/kernels/vector_math.h"

namespace fa {
namespace cpu {
namespace {

constexpr float kUnsetNegRef = FLT_MAX;   // RowBlock.neg_ref of a row_ref below every score, of rows that have seen none
constexpr float kMaxFusedScore = 8192.f;  // of log2 scores

float find_neg_ref(const MatrixTask& task, const RowBlock& block, int row, const float* s);
void apply_score_mod(const MatrixTask& task, const MainloopStep& step, float* s, int first, int end);

// Keys of [key, key + kKeyBlock) that a row sees before masks, a bit each.
inline uint64_t visible_keys(const MatrixRow* rows, int row, int64_t key, const uint64_t* visible) {
    static_assert(kKeyBlock == 64, "a bit for each key");
    return visible ? visible[row] : key_bits(rows[row].begin, rows[row].end, key);
}
// Those of them that the mask keeps, one by one. Of others its elements are not read: a caller may not have them.
inline uint64_t keys_of_mask(const MatrixTask& task, const MatrixRow& row, int64_t key, uint64_t visible) {
    uint64_t kept = 0;
    for (int j = 0; j < kKeyBlock; j++)
        if (visible >> j & 1 && task.mask[row.mask + (key + j) * task.mask_step]) kept |= uint64_t(1) << j;
    return kept;
}
inline float bias_element(const MatrixTask& task, int64_t i) {
    if (task.bias_dtype == FA_F32) return static_cast<const float*>(task.bias)[i];
    const uint16_t bits = static_cast<const uint16_t*>(task.bias)[i];
    return task.bias_dtype == FA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void scale_row(float* s, float factor) {
    for (int j = 0; j < kKeyBlock; j += kLanes) store(s + j, load(s + j) * factor);
}

// exp2's argument is score · factor + neg_ref, rounded once. Where scores are so large that their product by itself, rounded, is
// far from that, a row's scores are multiplied by themselves, in this step and all later ones (prescaled). False: row_ref did not
// grow.
bool update_ref(const MatrixTask& task, RowBlock& block, int row, float* s) {
    float from = find_neg_ref(task, block, row, s);
    if (fabsf(from) > kMaxFusedScore && block.factor[row] == task.factor && task.factor != 1.f) {
        scale_row(s, task.factor);
        block.factor[row] = 1.f;
        block.prescaled = true;
        from = find_neg_ref(task, block, row, s);
    }
    if (!(from < block.neg_ref[row])) return false;
    block.neg_ref[row] = from;
    return true;
}

void reset_refs(const MatrixTask& task, RowBlock& block) {
    for (int row = 0; row < kRowBlock; row++) {
        block.neg_ref[row] = kUnsetNegRef;
        block.factor[row] = task.factor;
    }
    block.ref_unset = block.prescaled = false;
}

// Of the block's rows from `first` on.
void prescale_rows(const MatrixTask& task, const RowBlock& block, int first, int rows, float* s) {
    for (int row = 0; row < rows; row++)
        if (block.factor[first + row] != task.factor) scale_row(s + row * kKeyBlock, task.factor);
}

// Whether the row's own diagonal is a visible key of [key, key + kKeyBlock).
inline bool diagonal_in_block(const MatrixRow& row, int64_t key) {
    return row.diagonal >= key && row.diagonal < key + kKeyBlock && row.diagonal >= row.begin && row.diagonal < row.end;
}
// Sets row_ref of rows whose diagonal is one of the step's keys from their scores there; s holds products.
void update_refs_at_diagonal(MatrixTask task, const MainloopStep& step, float* s) {
    RowBlock& block = *step.block;
    if (task.has_score_mod) task.factor = 1.f;
    apply_score_mod(task, step, s, 0, kRowBlock);
    if (block.ref_unset) reset_refs(task, block);
    for (int row = 0; row < kRowBlock; row++)
        if (diagonal_in_block(block.rows[row], step.key)) update_ref(task, block, row, s + row * kKeyBlock);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
