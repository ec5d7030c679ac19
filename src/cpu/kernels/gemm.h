// GEMM of the f32 tiles: a register block of rows and vectors, chains of additions that bound rounding errors, and the products
// made of them: qk (S = Q Kᵀ), pv (O = O · rescale + P V), and the backward's gemm_nn, gemm_tn and dot.
#pragma once
#include "cpu/kernels/vector_math.h"

namespace fa {
namespace cpu {
namespace {

// Hides the pointers' values from the compiler, so that it does not compute one address for every operand ahead of a loop; and
// keeps it from moving stores across this point.
static inline void opaque(const float*& a, const float*& b) { asm("" : "+r"(a), "+r"(b)); }
static inline void order_stores() { asm volatile("" ::: "memory"); }

// The register block of all products: c[r][N vectors] = Σ_k a(r, k) · b[k][N vectors], r < M, a(r, k) broadcast from rows of k (nn:
// a[r · stride + k]) or from columns of v (tn: a[k · stride + r]). `accumulate`: c is added to. pv is tn with online softmax's
// rescaling: c is multiplied by `rescale`, and what is added is in other units. Rows of b and c are W vectors wide.
//
// The last step stores each row right after its own accumulators are complete. All stores at the end, waiting for the last
// accumulators, fill the core's store queue; the next block's first products then wait behind them, and a block of 32 steps takes a
// fifth longer.
enum class Gemm { nn, tn, pv };

// One step of a block: the outer product of M values of a and N vectors of b.
template <int M, int N>
[[gnu::always_inline]] static inline void outer_product(V (&acc)[M][N], const float* a, int64_t row, const float* b) {
    V x[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) x[n] = load(b + n * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) {
        const V y = splat(a[r * row]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) acc[r][n] = fma_v(y, x[n], acc[r][n]);
    }
}

template <Gemm F, int M, int N, int W>
static inline void gemm_block(const float* a, int64_t stride, const float* b, int depth, bool accumulate, const float* rescale, float* c) {
    constexpr int width = W * kLanes, kAtOnce = 4;  // of rows; columns, whose addresses are a stride apart, are faster one by one
    const int64_t row = F == Gemm::nn ? stride : 1, step = F == Gemm::nn ? 1 : stride;
    V acc[M][N], x[N];
#pragma GCC unroll 16
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) acc[r][n] = V{};
    const float* const last = b + (depth - 1) * width;
    for (; F == Gemm::nn && last - b >= kAtOnce * width; a += kAtOnce, b += kAtOnce * width)
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; i++) {
            opaque(a, b);
            outer_product(acc, a + i, row, b + i * width);
        }
    for (; b != last; a += step, b += width) {
        opaque(a, b);
        outer_product(acc, a, row, b);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) x[n] = load(b + n * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) {
        const V y = splat(a[r * row]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            float* to = c + r * width + n * kLanes;
            V sum = fma_v(y, x[n], acc[r][n]);
            if (F == Gemm::pv) sum = fma_v(sum, splat(kHeadroomUnit / kPScale), load(to) * load(rescale + n * kLanes));
            else if (accumulate) sum += load(to);
            store(to, sum);
        }
        order_stores();
    }
}

// A chain of additions over data of one sign loses a unit in the last place for every other term: q·k is summed in chains of this
// many dims, as o is in chains of one tile.
constexpr int kChain = 32;

template <Gemm F, int M, int N, int W>
static inline void gemm_chains(const float* a, int64_t stride, const float* b, int depth, int chain, bool accumulate, const float* rescale,
                               float* c) {
    if (F != Gemm::nn) return gemm_block<F, M, N, W>(a, stride, b, depth, true, rescale, c);
    for (int k = 0; k < depth; k += chain) {
        const int chunk = depth - k < chain ? depth - k : chain;
        gemm_block<F, M, N, W>(a + k, stride, b + k * W * kLanes, chunk, accumulate || k > 0, rescale, c);
    }
}

template <Gemm F, int N, int W = N>
static void gemm(const float* a, int64_t stride, int rows, const float* b, int depth, int chain, bool accumulate, const float* rescale,
                 float* c) {
    constexpr int width = W * kLanes, M = kGemmRows[N];
    const int64_t step = F == Gemm::nn ? stride : 1;
    int r = 0;
    for (; r + M <= rows; r += M) gemm_chains<F, M, N, W>(a + r * step, stride, b, depth, chain, accumulate, rescale, c + r * width);
    for (; r + 4 <= rows; r += 4) gemm_chains<F, 4, N, W>(a + r * step, stride, b, depth, chain, accumulate, rescale, c + r * width);
    for (; r + 2 <= rows; r += 2) gemm_chains<F, 2, N, W>(a + r * step, stride, b, depth, chain, accumulate, rescale, c + r * width);
    for (; r < rows; r++) gemm_chains<F, 1, N, W>(a + r * step, stride, b, depth, chain, accumulate, rescale, c + r * width);
}

template <Gemm F>
static void gemm(int vectors, const float* a, int64_t stride, int rows, const float* b, int depth, int chain, bool accumulate,
                 const float* rescale, float* c) {
    if (vectors == 1) gemm<F, 1>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else if (vectors == 2) gemm<F, 2>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else if (vectors == 3) gemm<F, 3>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else gemm<F, kTileVectors>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
}

// The same for some vectors of rows that are `width` vectors wide: all of them, or of a full tile.
template <Gemm F>
static void gemm_part(int vectors, int width, const float* a, int64_t stride, int rows, const float* b, int depth, int chain,
                      const float* rescale, bool accumulate, float* c) {
    if (vectors == width) gemm<F>(vectors, a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else if (vectors == 1) gemm<F, 1, kTileVectors>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else if (vectors == 2) gemm<F, 2, kTileVectors>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
    else gemm<F, 3, kTileVectors>(a, stride, rows, b, depth, chain, accumulate, rescale, c);
}

// So many dims of q stay in the first-level cache while all keys are multiplied.
constexpr int kQkDims = 128;

static void qk(const float* q, int vectors, int width, const float* k, int64_t stride, int keys, int dim, float* s) {
    for (int x = 0; x < dim; x += kQkDims) {
        const int dims = dim - x < kQkDims ? dim - x : kQkDims;
        gemm_part<Gemm::nn>(vectors, width, k + x, stride, keys, q + x * width * kLanes, dims, kChain, nullptr, x > 0, s);
    }
}

static void pv(const float* p, int vectors, int width, const float* v, int64_t stride, int keys, int dim, const float* rescale, float* o) {
    gemm_part<Gemm::pv>(vectors, width, v, stride, dim, p, keys, keys, rescale, true, o);
}

static void gemm_nn(const float* a, int64_t stride, int rows, const float* b, int vectors, int depth, float* c) {
    gemm<Gemm::nn>(vectors, a, stride, rows, b, depth, depth, true, nullptr, c);
}

static void gemm_tn(const float* a, int64_t stride, int rows, const float* b, int vectors, int depth, float* c) {
    gemm<Gemm::tn>(vectors, a, stride, rows, b, depth, depth, true, nullptr, c);
}

static double dot(const float* a, const float* b, int64_t count) {
    typedef double Doubles __attribute__((vector_size(8 * kLanes)));
    Doubles acc{};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        acc += __builtin_convertvector(load(a + i), Doubles) * __builtin_convertvector(load(b + i), Doubles);
    double sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += acc[lane];
    for (; i < count; i++) sum += double(a[i]) * double(b[i]);
    return sum;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
