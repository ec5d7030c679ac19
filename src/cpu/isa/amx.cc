// AMX: products of tiles of bf16 (Sapphire Rapids and later) and of f16 (Granite Rapids), beside AVX-512 with its bf16 conversions.
//
// Products and exponents take about the same time at 64 dims, so they run at once: while step i's weights are computed, the products
// o += p v of step i − 1 and q kᵀ of step i + 1 are issued, with a row of exponents before each (the reorder buffer is too short to
// overlap longer runs of either). Tile loads and stores do not overlap with exponents: measured on Emerald and Granite Rapids, a load
// keeps both vector ports busy for 8 cycles and a store for 16, and the sum of that and of the exponents is what a step takes, as long as
// it exceeds the products. So a tile that is loaded meets two others: one load to a product.
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_amx, kKernels_amx_fp16;

namespace {

#include "cpu/isa/avx512.inc"
#include "cpu/kernels/tile_kernels.inc"
#include "cpu/kernels/matrix_softmax.inc"
#include "cpu/kernels/matrix_score_mod.inc"
#include "cpu/kernels/matrix_pack.inc"
#include "cpu/kernels/matrix_backward.inc"

// gcc 12's intrinsics for these have no memory clobber, and its ldtilecfg reads 8 of the 64 bytes. Products need none: what is volatile
// keeps its order.
#define FA_TILE_LOAD(t, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(stride)) : "memory")
// For what is read once a step: it then leaves room in the first-level cache for scores, weights and sums, whose way back to the second
// level would take longer than the products.
#define FA_TILE_STREAM(t, p) __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(64)) : "memory")
#define FA_TILE_STORE(t, p, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(int64_t(stride)) : "memory")
#define FA_TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
// Assemblers of today do not know tdpfp16ps.
#define FA_TILE_PRODUCT(c, a, b)                                                                                              \
    if (T == FA_BF16) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c);                                        \
    else __asm__ volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~(b)&15) << 3 | 3), "i"(0xc0 | (c) << 3 | (a)))

constexpr int kRowBytes = kStepKeys * 4;  // of scores

void configure_tiles() {
    struct alignas(64) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {};
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
}

// Scores and weights of one step. The first-level cache is short of room, so a row's weights lie in the first half of its scores' place.
constexpr int kWeightRow = 2 * kStepKeys;
struct Slot {
    float* s;  // [2 row tiles][16][kStepKeys]
    bool rescale;
    uint16_t* p() const { return reinterpret_cast<uint16_t*>(s); }
    Part part(int tile) const { return {s + tile * kTileScores, p() + tile * 16 * kWeightRow}; }
};
static_assert(3 * 2 * kTileScores * sizeof(float) == kMatrixSlots, "matrix.h says how much there is");

struct Nothing {
    template <int, int>
    void before() {}
};

// Sums lie in tiles 0 … 3: upper rows left and right, lower rows left and right. A sum is stored only when its tile is wanted for the next
// one, four products after its own last: a store that waits for its product would fill the scheduler.
struct Sums {
    float *upper, *lower;   // NULL: none to store
    int64_t right, stride;  // floats to the right tile; bytes between rows
    inline __attribute__((always_inline)) void flush(int n) const {
        if (n == 0) FA_TILE_STORE(0, upper, stride);
        else if (n == 1) FA_TILE_STORE(1, upper + right, stride);
        else if (n == 2) FA_TILE_STORE(2, lower, stride);
        else FA_TILE_STORE(3, lower + right, stride);
    }
    inline __attribute__((always_inline)) void flush() const {
        for (int n = 0; n < 4; n++) flush(n);
    }
};

// Four sums += two left tiles times two right ones that follow each other. begin(n) comes before the product of sum n. Tile loads and
// stores are many micro-operations each, and stand apart: with all four loads in a row before the products, a step of 64 dims took a
// tenth longer.
template <int32_t T, int Rows, class Between, class Begin>
inline __attribute__((always_inline)) void product(const uint16_t* a0, const uint16_t* a1, int64_t a_stride, const uint16_t* b, Between& between,
                                                   const Begin& begin) {
    FA_TILE_LOAD(4, a0, a_stride);
    between.template before<Rows, 0>();
    FA_TILE_STREAM(6, b);
    begin(0);
    FA_TILE_PRODUCT(0, 4, 6);
    between.template before<Rows, 1>();
    FA_TILE_STREAM(7, b + kTile);
    begin(1);
    FA_TILE_PRODUCT(1, 4, 7);
    between.template before<Rows, 2>();
    FA_TILE_LOAD(5, a1, a_stride);
    begin(2);
    FA_TILE_PRODUCT(2, 5, 6);
    between.template before<Rows, 3>();
    begin(3);
    FA_TILE_PRODUCT(3, 5, 7);
}

inline __attribute__((always_inline)) void zero_sum(int n) {
    if (n == 0) FA_TILE_ZERO(0);
    else if (n == 1) FA_TILE_ZERO(1);
    else if (n == 2) FA_TILE_ZERO(2);
    else FA_TILE_ZERO(3);
}

// s = q kᵀ. Stores `before` on the way.
template <int32_t T, int Rows, class Between>
inline __attribute__((always_inline)) void multiply_k(const MatrixShape& shape, const Step& step, Slot& slot, Between& between, Sums before) {
    const uint16_t *q = step.pair->q, *k = step.k;
    const int depth = shape.depth;
    const int64_t q_tile = int64_t(depth) * kTile;
    for (int half = 0; half < 2; half++) {
        product<T, Rows>(q, q + q_tile, 64, k, between, [&](int n) __attribute__((always_inline)) {
            if (before.upper) before.flush(n);
            zero_sum(n);
        });
        k += 2 * kTile;
        for (int c = 1; c < depth; c++, k += 2 * kTile) {
            const uint16_t* a = q + c * kTile;
            product<T, Rows>(a, a + q_tile, 64, k, between, [](int) {});
        }
        before = {slot.s + half * 32, slot.s + half * 32 + 16 * kStepKeys, 16, kRowBytes};
    }
    before.flush();
}

// o += p v, but for the last sums, which are left to be stored.
template <int32_t T, int Rows, class Between>
inline __attribute__((always_inline)) Sums multiply_v(const MatrixShape& shape, const Step& step, const Slot& slot, Between& between) {
    const int columns = shape.columns;
    float *o0 = step.pair->o, *o1 = o0 + int64_t(columns) * 256;
    const uint16_t *p0 = slot.p(), *p1 = p0 + 16 * kWeightRow, *v = step.v;
    const bool empty = step.pair->empty;
    step.pair->empty = false;
    if (__builtin_expect(slot.rescale && !empty, 0)) rescale_o(shape, *step.pair);
    Sums before{};
    for (int column = 0; column < columns; column += 2, o0 += 512, o1 += 512) {
        product<T, Rows>(p0, p1, kWeightRow * 2, v, between, [&](int n) __attribute__((always_inline)) {
            if (before.upper) before.flush(n);
            if (empty) zero_sum(n);
            else if (n == 0) FA_TILE_LOAD(0, o0, 64);
            else if (n == 1) FA_TILE_LOAD(1, o0 + 256, 64);
            else if (n == 2) FA_TILE_LOAD(2, o1, 64);
            else FA_TILE_LOAD(3, o1 + 256, 64);
        });
        product<T, Rows>(p0 + 32, p1 + 32, kWeightRow * 2, v + 2 * kTile, between, [](int) {});
        v += 4 * kTile;
        before = {o0, o1, 256, 64};
    }
    return before;
}

// Weights have replaced the scores, which are computed again into `spare`.
template <int32_t T, Exponent E>
__attribute__((noinline, cold)) void renew_step(const MatrixTask& t, const Step& step, Slot& slot, Slot& spare, int tile,
                                                const Sums& pending) {
    Nothing nothing;
    Pair& pair = *step.pair;
    if (pending.upper) pending.flush();
    multiply_k<T, 0>(t.shape, step, spare, nothing, Sums{});
    edit(t, step, spare.s, 0, kPairRows);
    if (pair.huge) multiply_huge_rows(t, pair, 0, kPairRows, spare.s);
    renew<T, E, kWeightRow>(t, pair, {spare.part(tile).s, slot.part(tile).p}, tile, pair.now, slot.rescale);
}

// Rows of weights that go with four products: enough to be done when the products are.
template <int32_t T, Exponent E, int Rows>
void run_steps(const MatrixTask& task, const Step* steps, int64_t count) {
    const MatrixShape shape = task.shape;
    Slot slots[3];
    for (int i = 0; i < 3; i++) slots[i].s = reinterpret_cast<float*>(task.slots) + i * 2 * kTileScores;
    MatrixTask t = task;
    if (t.has_score_mod) t.factor = 1.f;  // edit_scores() has multiplied
    Nothing nothing;
    configure_tiles();
    multiply_k<T, 0>(shape, steps[0], slots[0], nothing, Sums{});
    edit(t, steps[0], slots[0].s, 0, kPairRows);
    for (int64_t i = 0; i < count; i++) {
        Slot &now = slots[i & 1], &other = slots[(i + 1) & 1];
        Pair& pair = *steps[i].pair;
        now.rescale = false;
        if (pair.fresh) begin_pair(t, pair, now.s);
        else if (__builtin_expect(pair.huge, 0)) multiply_huge_rows(t, pair, 0, kPairRows, now.s);
        Weights<T, E, kWeightRow> upper = weights_of<T, E, kWeightRow>(pair, now.part(0), 0, pair.now);
        Sums o{};
        if (i > 0) o = multiply_v<T, Rows>(shape, steps[i - 1], other, upper);
        upper.rest();
        if (__builtin_expect(over_limit(T, upper.largest), 0)) {
            renew_step<T, E>(t, steps[i], now, slots[2], 0, o);
            o = {};
        }
        Weights<T, E, kWeightRow> lower = weights_of<T, E, kWeightRow>(pair, now.part(1), 1, pair.now);
        if (i + 1 < count) multiply_k<T, Rows>(shape, steps[i + 1], other, lower, o);
        else if (o.upper) o.flush();
        lower.rest();
        if (__builtin_expect(over_limit(T, lower.largest), 0)) renew_step<T, E>(t, steps[i], now, slots[2], 1, Sums{});
        pair.now = !pair.now;
        if (i + 1 < count) edit(t, steps[i + 1], other.s, 0, kPairRows);
    }
    multiply_v<T, 0>(shape, steps[count - 1], slots[(count - 1) & 1], nothing).flush();
    __asm__ volatile("tilerelease");  // or every switch of context carries 8 KB of tiles
}

#include "cpu/kernels/amx_forward_d64.inc"

template <int32_t T, Exponent E>
void run_rows(const MatrixTask& t, const Step* steps, int64_t count) {
    if (suits_resident(t.shape)) return run_resident<T, E>(t, steps, count);
    const int groups = t.shape.depth * 2 > t.shape.columns ? t.shape.columns : t.shape.depth * 2;  // of four products, at least, in a phase
    if (groups <= 2) run_steps<T, E, 8>(t, steps, count);
    else if (groups <= 4) run_steps<T, E, 4>(t, steps, count);
    else if (groups <= 8) run_steps<T, E, 2>(t, steps, count);
    else run_steps<T, E, 1>(t, steps, count);
}

void run(const MatrixTask& t, const Step* steps, int64_t count) {
    if (count == 0) return;
    const bool halves = t.shape.type == FA_F16;
    if (t.lse && halves) run_rows<FA_F16, Exponent::fine>(t, steps, count);
    else if (t.lse) run_rows<FA_BF16, Exponent::fine>(t, steps, count);
    else if (halves) run_rows<FA_F16, Exponent::close>(t, steps, count);
    else run_rows<FA_BF16, Exponent::rough>(t, steps, count);
}

template <int32_t T>
void settle_step(const MatrixTask& t, const Step& step) {
    Slot slot{reinterpret_cast<float*>(t.slots), false};
    Nothing nothing;
    configure_tiles();
    multiply_k<T, 0>(t.shape, step, slot, nothing, Sums{});
    __asm__ volatile("tilerelease");
    settle_rows(t, step, slot.s);
}

void settle_diagonal(const MatrixTask& t, const Step& step) {
    if (t.shape.type == FA_F16) settle_step<FA_F16>(t, step);
    else settle_step<FA_BF16>(t, step);
}

#include "cpu/kernels/amx_decode.inc"
#include "cpu/kernels/amx_backward.inc"

constexpr MatrixKernels matrix_kernels(bool halves) {
    constexpr double speed = 8, gradient_speed = 4;  // about 1 TFLOP/s a core
    return {halves,      speed,       gradient_speed, convert,    pack_q,   pack_k, pack_v,
            pack_rows,   kept,        settle_diagonal, run,       finish_rows, write_o, &kDecodeMatrix,
            multiply,    narrow,      differentiate_pairs, differentiate_squares, transpose_k};
}
constexpr MatrixKernels kMatrix = matrix_kernels(false), kMatrixHalves = matrix_kernels(true);

}  // namespace

const Kernels kKernels_amx = FA_KERNELS("amx", FA_ISA_AMX, &kMatrix);
const Kernels kKernels_amx_fp16 = FA_KERNELS("amx_fp16", FA_ISA_AMX_FP16, &kMatrixHalves);

}  // namespace cpu
}  // namespace fa
