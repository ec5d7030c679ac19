// The forward by products of bf16 of ARM's instruction sets: what matrix_table.h asks of a mainloop, with operands packed in a way of its
// own. Of each 16 bytes an instruction multiplies two rows of four values with two others (BFMMLA):
//     q   [row pairs][quads of dims][2][4]
//     k   [quads of dims][key pairs][2][4]
//     P   [row pairs][quads of keys][2][4]
//     v   [quads of keys][column pairs][2][4]
//     o   [row pairs][column pairs][2][2]
// so that the left operand is one 16 bytes in all of a vector, and the right one neighbours in memory. It is written over the primitives of
// decode_dots.h, and
//     repeat_quads(at)               16 bytes, again and again
//     multiply_quads(sum, a, b)      of each 16 bytes: sum[2 r + c] += a's row r · b's row c
#pragma once
#include "cpu/kernels/decode_dots.h"
#include "cpu/kernels/matrix_rows.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kRowPairs = kRowBlock / 2, kKeyPairs = kKeyBlock / 2, kKeyQuads = kKeyBlock / 4;
constexpr int kPairs = kLanes / 4;  // of keys or columns in a vector
constexpr int kMostDims = 1024;     // of a head: core takes no more
// P, row sums and accumulators are kept times it: sums of 2^16 values at their type's limit are finite, and P of 2^-110 is a normal bf16.
constexpr float kQuadPScale = 0x1p-16f, kAccScale = kHeadroomUnit / kQuadPScale;
constexpr float kMostShare = 16;  // that a lane may have of a row's sum before row_ref moves
constexpr float kMostLog2P = 64;  // what is above is computed again, from another row_ref

int column_pairs(const MatrixShape& shape) { return shape.columns * 8; }
int dim_quads(const MatrixShape& shape) { return shape.depth * 8; }

// ---- packing: rows of NULL are zeros, as are dims behind the last

// A quad of a row's dims.
inline void copy_quad(const uint16_t* row, int x, int dim, uint16_t* to) {
    const int count = row ? dim - x : 0;
    if (count >= 4) return void(memcpy(to, row + x, 4 * sizeof *to));
    for (int i = 0; i < 4; i++) to[i] = i < count ? row[x + i] : 0;
}
void pack_q(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    for (int row = 0; row < kRowBlock; row += 2)
        for (int quad = 0; quad < dim_quads(shape); quad++, to += 8)
            for (int r = 0; r < 2; r++) copy_quad(rows[row + r], 4 * quad, shape.dim_qk, to + 4 * r);
}
void pack_k(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    for (int key = 0; key < kKeyBlock; key++)
        for (int quad = 0; quad < dim_quads(shape); quad++) copy_quad(rows[key], 4 * quad, shape.dim_qk, to + (quad * kKeyBlock + key) * 4);
}
void pack_v(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    static const uint16_t zeros[kMostDims] = {};
    const int columns = 2 * column_pairs(shape);
    for (int key = 0; key < kKeyBlock; key += 4, to += 4 * columns) {
        const uint16_t* row[4];
        for (int i = 0; i < 4; i++) row[i] = rows[key + i] ? rows[key + i] : zeros;
        for (int x = 0; x < shape.dim_v; x++)
            for (int i = 0; i < 4; i++) to[4 * x + i] = row[i][x];
        memset(to + 4 * shape.dim_v, 0, size_t(columns - shape.dim_v) * 4 * sizeof *to);
    }
}
// ---- products

// c[row pairs][pairs][2][2] = or += a · b: R row pairs by N vectors of pairs; a's row pairs are `quads` quads apart, b's quads `across`
// pairs, and c's row pairs `down` floats.
template <int R, int N>
[[gnu::noinline]] void multiply_block(const uint16_t* a, int quads, const uint16_t* b, int64_t across, bool accumulate, float* c,
                                      int64_t down) {
    V sum[R][N];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sum[r][n] = accumulate ? load(c + r * down + n * kLanes) : V{};
    for (int quad = 0; quad < quads; quad++) {
        Halves x[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) memcpy(x + n, b + quad * across * 8 + n * kHalves, sizeof *x);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const Halves y = repeat_quads(a + (r * quads + quad) * 8);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sum[r][n] = multiply_quads(sum[r][n], y, x[n]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) store(c + r * down + n * kLanes, sum[r][n]);
}
void multiply_rows(const uint16_t* a, int quads, const uint16_t* b, int pairs, bool accumulate, float* c) {
    constexpr int R = 4, N = 4;
    static_assert(kRowPairs % R == 0 && kKeyPairs % (N * kPairs) == 0 && 16 % (N * kPairs) == 0, "v has a multiple of 16 column pairs");
    for (int pair = 0; pair < pairs; pair += N * kPairs)
        for (int r = 0; r < kRowPairs; r += R)
            multiply_block<R, N>(a + r * quads * 8, quads, b + pair * 8, pairs, accumulate, c + (int64_t(r) * pairs + pair) * 4,
                                 int64_t(pairs) * 4);
}

// S and P of a step.
struct QuadStage {
    float* s;  // [kRowBlock][kKeyBlock]
    uint16_t* p;
    explicit QuadStage(char* memory) : s(reinterpret_cast<float*>(memory)), p(reinterpret_cast<uint16_t*>(s + 2 * kRowBlock * kKeyBlock)) {}
};
void multiply_qk(const MatrixShape& shape, const MainloopStep& step, float* s) {
    float* const pairs = s + kRowBlock * kKeyBlock;
    multiply_rows(step.block->q, dim_quads(shape), step.k, kKeyPairs, false, pairs);
    for (int row = 0; row < kRowBlock; row++)
        for (int pair = 0; pair < kKeyPairs; pair++)
            memcpy(s + row * kKeyBlock + 2 * pair, pairs + (row / 2 * kKeyPairs + pair) * 4 + row % 2 * 2, 2 * sizeof *s);
}
void multiply_pv(const MatrixShape& shape, const MainloopStep& step, const uint16_t* p) {
    multiply_rows(p, kKeyQuads, step.v, column_pairs(shape), !step.block->acc_empty, step.block->o);
    step.block->acc_empty = false;
}

// ---- score mods and masks

uint64_t kept_keys(const MatrixTask& t, const MatrixRow& row, int64_t key, uint64_t visible) {
    return t.mask ? keys_of_mask(t, row, key, visible) : visible;
}

KeptKeys classify_keys(const MatrixTask& t, const MatrixRow* rows, int64_t key, const uint64_t* given) {
    bool some = false, all = t.mask != nullptr;
    for (int r = 0; r < kRowBlock && (all || !some); r++) {
        const uint64_t kept = kept_keys(t, rows[r], key, visible_keys(rows, r, key, given));
        all &= kept == ~uint64_t(0);
        some |= kept != 0 && !t.bias;
        for (int j = 0; j < kKeyBlock && t.bias && !some; j++)
            some = kept >> j & 1 && bias_element(t, rows[r].bias + (key + j) * t.bias_step) != kNegInf;
    }
    return !some ? KeptKeys::none : all ? KeptKeys::all : KeptKeys::some;
}

V magnitude(V x) {
    VI bits;
    memcpy(&bits, &x, sizeof x);
    bits &= 0x7fffffff;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// From products to log2 scores.
void score_mod_row(const MatrixTask& t, const MatrixRow& row, int64_t key, uint64_t kept, float* s) {
    const bool capped = t.cap > 0, invertible = t.cap > kMinInvertible && t.cap < kMaxInvertible;
    const float to_units = capped ? t.scale : t.scale * kLog2e, factor = capped && invertible ? to_units / t.cap : to_units;
    float bias[kKeyBlock], distance[kKeyBlock];
    for (int j = 0; j < kKeyBlock; j++) {
        bias[j] = t.bias && kept >> j & 1 ? bias_element(t, row.bias + (key + j) * t.bias_step) : 0.f;
        distance[j] = float(key + j - row.diagonal);
    }
    for (int j = 0; j < kKeyBlock; j += kLanes) {
        V x = load(s + j) * factor;
        if (capped) x = t.cap * tanh_v(invertible ? x : x / t.cap) * kLog2e;
        if (t.bias) {
            const V b = load(bias + j), biased = fma_v(b * row.bias_scale, splat(kLog2e), x);
            x = b == kNegInf ? splat(kNegInf) : biased;
        }
        if (t.alibi) x = fma_v(splat(-row.slope), magnitude(load(distance + j)), x);
        store(s + j, x);
    }
}
void apply_score_mod(const MatrixTask& t, const MainloopStep& step, float* s, int first, int end) {
    for (int r = first; r < end; r++, s += kKeyBlock) {
        const MatrixRow& row = step.block->rows[r];
        const uint64_t kept =
            step.masked ? kept_keys(t, row, step.key, visible_keys(step.block->rows, r, step.key, step.visible)) : ~uint64_t(0);
        if (t.has_score_mod) score_mod_row(t, row, step.key, kept, s);
        for (uint64_t hidden = ~kept; hidden; hidden &= hidden - 1) s[__builtin_ctzll(hidden)] = kNegInf;
    }
}

// ---- softmax

float find_neg_ref(const MatrixTask&, const RowBlock& block, int row, const float* s) {
    V most = load(s);
    for (int j = kLanes; j < kKeyBlock; j += kLanes) most = max_v(load(s + j), most);
    float lane[kLanes], largest = kNegInf;
    store(lane, most);
    for (const float x : lane) largest = max_fn(largest, x);
    return -(largest * block.factor[row]);
}

// P of a row, and what it adds to the row's sum.
V exp2_row(const RowBlock& block, int row, const float* s, uint16_t* to) {
    const V factor = splat(block.factor[row]), from = splat(block.neg_ref[row]);
    uint16_t narrowed[kKeyBlock];
    float p[kKeyBlock];
    V sum = V{};
    for (int j = 0; j < kKeyBlock; j += kLanes) {
        V x = fma_v(load(s + j), factor, from);
        x = x > kMostLog2P ? splat(kMostLog2P) : x;
        x = exp2_v(x, kQuadPScale);
        sum = sum + x;
        store(p + j, x);
    }
    narrow_bf16(p, kKeyBlock, narrowed);
    to += (row / 2 * kKeyQuads * 2 + row % 2) * 4;
    for (int quad = 0; quad < kKeyQuads; quad++) memcpy(to + quad * 8, narrowed + quad * 4, 4 * sizeof *to);
    return sum;
}
bool lags(V sum) {
    float lane[kLanes];
    store(lane, sum);
    bool within = true;
    for (const float x : lane) within &= x <= kQuadPScale * kMostShare;
    return !within;
}
// Lazy rescale: row_ref may lag behind its row's maximum. Rows where it lags by more get a new row_ref and their P again; others keep their
// bits.
void softmax_step(const MatrixTask& t, RowBlock& block, const QuadStage& stage) {
    const int pairs = column_pairs(t.shape);
    if (block.ref_unset) {
        reset_refs(t, block);
        for (int row = 0; row < kRowBlock; row++) update_ref(t, block, row, stage.s + row * kKeyBlock);
    } else if (block.prescaled) {
        prescale_rows(t, block, 0, kRowBlock, stage.s);
    }
    for (int row = 0; row < kRowBlock; row++) {
        float *const s = stage.s + row * kKeyBlock, *const l = block.l[0] + row * 16;
        V sum = exp2_row(block, row, s, stage.p);
        const float before = block.neg_ref[row];
        if (__builtin_expect(lags(sum), 0) && update_ref(t, block, row, s)) {
            const V rescale = exp2_v(splat(block.neg_ref[row] - before), 1.f);
            sum = exp2_row(block, row, s, stage.p);
            store(l, load(l) * rescale);
            float lane[kLanes];
            store(lane, rescale);
            float* const o = block.o + int64_t(row / 2) * pairs * 4 + row % 2 * 2;
            for (int pair = 0; pair < pairs && !block.acc_empty; pair++) o[4 * pair] *= lane[0], o[4 * pair + 1] *= lane[0];
        }
        store(l, load(l) + sum);
    }
}

void mainloop(const MatrixTask& given, const MainloopStep* steps, int64_t count) {
    MatrixTask t = given;
    const QuadStage stage(t.stages);
    if (t.has_score_mod) t.factor = 1.f;  // score_mod_row() has multiplied
    for (const MainloopStep* step = steps; step < steps + count; step++) {
        multiply_qk(t.shape, *step, stage.s);
        if (t.has_score_mod || step->masked) apply_score_mod(t, *step, stage.s, 0, kRowBlock);
        softmax_step(t, *step->block, stage);
        multiply_pv(t.shape, *step, stage.p);
    }
}

void init_refs_at_diagonal(const MatrixTask& t, const MainloopStep& step) {
    const QuadStage stage(t.stages);
    multiply_qk(t.shape, step, stage.s);
    update_refs_at_diagonal(t, step, stage.s);
}

void finish_state(const MatrixShape& shape, const RowBlock& block, int rows, float scale, float* o, float* m, float* l) {
    for (int row = 0; row < rows; row++) {
        float sum = 0;
        for (int lane = 0; lane < kLanes; lane++) sum += block.l[0][row * 16 + lane];
        l[row] = sum * kAccScale;
        m[row] = -block.neg_ref[row];
        if (!o) continue;
        const float factor = l[row] == 0 ? 0.f : scale * kAccScale;  // an empty row is 0, whatever the scale
        const float* const from = block.o + int64_t(row / 2) * column_pairs(shape) * 4 + row % 2 * 2;
        for (int x = 0; x < shape.dim_v; x++) o[int64_t(row) * shape.dim_v + x] = from[x / 2 * 4 + x % 2] * factor;
    }
}

constexpr MatrixKernels quad_kernels() {
    MatrixKernels k = dot_kernels();
    k.speed = 2;
    k.convert = convert_bytes;
    k.pack_q = pack_q;
    k.pack_k = pack_k;
    k.pack_v = pack_v;
    k.classify_keys = classify_keys;
    k.init_refs_at_diagonal = init_refs_at_diagonal;
    k.mainloop = mainloop;
    k.finish_state = finish_state;
    return k;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
