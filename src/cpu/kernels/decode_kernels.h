// Decoding kernels: few query rows against many keys, written once over the vector primitives of vectors.h. Lanes are
// elements of a head, and rows of k and v are read as they are stored and converted in registers: a byte from memory is read once
// for all rows that share it. Besides what vector_math.h asks of it, the instruction set's vectors.h has:
//     F32 … I8                   the storage types, see storage_formats.h
//     kMaskedReads               whether they can read a part of a VecPair
//     blend_lanes<H>(a, b)       lanes whose index has bit H clear: those of a; the others: those of b
//     has_nan(x)                 whether some lane is NaN
//     keep_in_register(a)        keeps a in its register, where a compiler would load it again for each use
//     exchange_lanes<H>(a, b)    lanes whose index has bit H clear: a[lane + H]; the others: b[lane − H]
// A row's arithmetic is the same however many rows and keys share a register block, so that its bits are its own.
#pragma once
#include "cpu/kernels/gemm.h"
#include "cpu/kernels/block_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kVecPair = 2 * kLanes;
constexpr int kChainVecPairs = kChain / 2;  // vector pairs of a row that one chain of additions takes

// A number as an argument whose type tells it.
template <int N>
struct Constant {
    constexpr operator int() const { return N; }
};

static inline int padded(int dim) { return (dim + kVecPair - 1) / kVecPair * kVecPair; }

// What is prefetched, and where to. Usually the rows that are read next, into the first-level cache, since a line that waits in the second
// takes one of the few line fill buffers once more. On Zen, whose first level has too few ways for rows a power of two apart, and whose
// second level is near, the far ones into that.
#ifdef FA_ISA_PREFETCH_FAR
constexpr bool kPrefetchFar = true;
#else
constexpr bool kPrefetchFar = false;
#endif
struct PrefetchRows {
    const char* const* row;
    int64_t offset;
    uintptr_t at(int64_t j) const { return uintptr_t(row[j]) + uintptr_t(offset); }
};
static inline PrefetchRows prefetched(const KvRows& rows) {
    return kPrefetchFar ? PrefetchRows{rows.far_row, rows.far_offset} : PrefetchRows{rows.next_row, rows.next_offset};
}

// Prefetches the lines of a unit. A core may drop a prefetch where too many are pending. Where a line has several VecPairs, each of them
// asks for it; where it has one, the next line's asks again.
template <class T>
static inline void prefetch(uintptr_t row, int64_t at) {
    constexpr int bytes = T::kUnitBytes;
    const auto start = [&](int64_t x) { __builtin_prefetch(reinterpret_cast<const char*>(row + uintptr_t(x)), 0, kPrefetchFar ? 2 : 3); };
#pragma GCC unroll 2
    for (int n = 0; n < bytes; n += 64) start(at + n);
    if (kLanes == 8 && bytes == 64) start(at - 64);
}

// The last elements of a row: fewer than a VecPair.
template <class T>
static inline VecPair read_tail(const char* at, int count) {
    if constexpr (kMaskedReads) {
        return T::read(at, count);
    } else {
        char buffer[kVecPair * T::kBytes] = {};
        int done = 0;
#pragma GCC unroll 8
        for (int size = kVecPair * T::kBytes / 2; size > 0; size /= 2)
            if (count * T::kBytes & size) {
                __builtin_memcpy(buffer + done, at + done, size_t(size));
                done += size;
            }
        return T::read(buffer);
    }
}

// A VecPair of the unit at `at`: its part of that number, or its first `count` elements. Unscaled: without the block's d.
template <class T, bool Tail, bool Unscaled = false>
static inline VecPair read_pair(const char* at, int part, int count) {
    if constexpr (Unscaled) return T::read_unscaled(at, part);
    else if constexpr (T::kBlock) return T::read_part(at, part);
    else if constexpr (Tail) return read_tail<T>(at, count);
    else return T::read(at);
}

// x[0] = the horizontal sums of every vector of x: lane i has that of x[i].
template <int H = kLanes / 2>
static inline void transpose_add_lanes(V* x) {
#pragma GCC unroll 16
    for (int i = 0; i < H; i++) x[i] = blend_lanes<H>(x[i], x[i + H]) + exchange_lanes<H>(x[i], x[i + H]);
    if constexpr (H > 1) transpose_add_lanes<H / 2>(x);
}

// acc[r · M + g] += the products of a VecPair of key g with row r's, for G keys of a block of M. Beside the accumulators, 16
// registers hold either all rows' VecPairs or all keys': whichever are fewer.
template <class T, int R, int M, int G, bool Tail>
__attribute__((always_inline)) static inline void fma_vec_pair(const float* q, const char* const* at, int64_t offset, int part, int count,
                                                               V* acc) {
    if constexpr (kLanes == 8 && R < G) {
        V a[R], b[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            a[r] = load(q + r * kVecPair), b[r] = load(q + r * kVecPair + kLanes);
            keep_in_register(a[r]), keep_in_register(b[r]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            const VecPair k = read_pair<T, Tail>(at[g] + offset, part, count);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) acc[r * M + g] = fma_v(k.b, b[r], fma_v(k.a, a[r], acc[r * M + g]));
        }
    } else {
        VecPair k[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) k[g] = read_pair<T, Tail>(at[g] + offset, part, count);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            V a = load(q + r * kVecPair), b = load(q + r * kVecPair + kLanes);
            if (G > 1) keep_in_register(a), keep_in_register(b);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) acc[r * M + g] = fma_v(k[g].b, b, fma_v(k[g].a, a, acc[r * M + g]));
        }
    }
}

// The same of a block of each of G keys: d multiplies the sum over its dims, which is one product for each row, in place of its values.
template <class T, int R, int M, int G>
__attribute__((always_inline)) static inline void fma_block(const float* q, const char* const* at, int64_t offset, V* acc) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
        const char* const block = at[g] + offset;
        V sum[R];
#pragma GCC unroll 4
        for (int part = 0; part < T::kParts; part++) {
            const VecPair x = T::read_unscaled(block, part);
#pragma GCC unroll 2
            for (int r = 0; r < R; r++) {
                const float* const y = q + (part * R + r) * kVecPair;
                sum[r] = part == 0 ? x.a * load(y) : fma_v(x.a, load(y), sum[r]);
                sum[r] = fma_v(x.b, load(y + kLanes), sum[r]);
            }
        }
        const V d = splat_half(block);
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) acc[r * M + g] = fma_v(sum[r], d, acc[r * M + g]);
    }
}

// Scores of M = kLanes / R keys and R rows over pairs [first, end) of dims, and the elements behind the last whole pair where
// `last` counts some: M · R accumulators, and so one vector of scores. Meanwhile it prefetches rows from number `first_ahead` on.
template <class T, int R>
__attribute__((always_inline)) static inline V qk_block(const float* q, const char* const* k, int64_t offset, const PrefetchRows& ahead,
                                                        int first_ahead, int first, int end, int last) {
    // Bytes take longer to convert than to load, so more keys share a load of q; of wider types memory delivers two rows sooner
    // than four.
    constexpr bool many = kLanes == 16 || ((T::kBlock || T::kUnitBytes == kVecPair) && R <= 2);
    constexpr int M = kLanes / R, most = many ? 4 : 2, G = M < most ? M : most;
    constexpr int64_t bytes = T::kUnitBytes;
    V acc[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) acc[i] = V{};
#pragma GCC unroll 8
    for (int m = 0; m < M; m += G) {
        const char* row[G];
        uintptr_t then[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) row[g] = k[m + g] + offset, then[g] = ahead.at(first_ahead + m + g);
        const float* a = q + first * R * kVecPair;
        int64_t at = first / T::kParts * bytes;
        for (; at < end / T::kParts * bytes; at += bytes) {
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) prefetch<T>(then[g], at);
            if constexpr (T::kScaledDots && R <= 2) {
                fma_block<T, R, M, G>(a, row, at, acc + m);
                a += T::kParts * R * kVecPair;
                continue;
            }
#pragma GCC unroll 4
            for (int part = 0; part < T::kParts; part++, a += R * kVecPair)
                fma_vec_pair<T, R, M, G, false>(a, row, at, part, kVecPair, acc + m);
        }
        if constexpr (!T::kBlock)
            if (last > 0) {
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) prefetch<T>(then[g], at);
                fma_vec_pair<T, R, M, G, true>(a, row, at, 0, last, acc + m);
            }
    }
    transpose_add_lanes(acc);
    return acc[0];
}

// Scores of R rows and keys whose blocks have factors that are not finite become NaN (see nan_if_infinite()): they are infinite already.
template <class T, int R>
[[gnu::noinline, gnu::cold]] static void mark_infinite_factors(const KvRows& k, int keys, int dim, float* s) {
    for (int j = 0; j < keys; j++) {
        bool finite = true;
        const uint8_t* block = reinterpret_cast<const uint8_t*>(k.row[j] + k.offset);
        for (int x = 0; x < dim; x += kBlockDims, block += T::kUnitBytes) finite &= has_finite_factors(block, T::kFormat);
        for (int r = 0; r < R && !finite; r++) s[r * kTileKeys + j] = __builtin_nanf("");
    }
}

template <class T, int R>
static void qk_rows(const float* q, const KvRows& rows, int keys, int dim, float* s) {
    constexpr int M = kLanes / R;
    const char* const* const k = rows.row;
    const int64_t offset = rows.offset;
    const PrefetchRows ahead = prefetched(rows);
    const int pairs = dim / kVecPair, last = dim % kVecPair;
    float scores[kTileKeys * R];  // [keys / M][R][M]
    V probe = V{};                // 0 times all scores
    for (int j = 0; j < keys; j += M) {
        V total = V{};
        int first = 0;
        for (; pairs - first > kChainVecPairs; first += kChainVecPairs)
            total += qk_block<T, R>(q, k + j, offset, ahead, j, first, first + kChainVecPairs, 0);
        total += qk_block<T, R>(q, k + j, offset, ahead, j, first, pairs, last);
        store(scores + j * R, total * T::kDescale);
        if constexpr (T::kBlock) probe = fma_v(total, V{}, probe);
    }
    for (int j = 0; j < keys; j += M)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) __builtin_memcpy(s + r * kTileKeys + j, scores + j * R + r * M, M * sizeof(float));
    if constexpr (T::kBlock)
        if (__builtin_expect(has_nan(probe), 0)) mark_infinite_factors<T, R>(rows, keys, dim, s);
}

template <class T>
static void decode_qk(const float* q, int rows, const KvRows& k, int keys, int dim, float* s) {
    const int64_t stride = padded(dim);
    int r = 0;
    const auto step = [&](int n, auto block) {
        for (; r + n <= rows; r += n) block(q + r * stride, k, keys, dim, s + r * kTileKeys);
    };
    if constexpr (kLanes >= 8) step(8, qk_rows<T, 8>);
    step(4, qk_rows<T, 4>);
    step(2, qk_rows<T, 2>);
    step(1, qk_rows<T, 1>);
}

// Hides the address from the compiler, which would compute one for each column ahead of a loop: they would not fit its registers.
static inline void opaque(const char*& a) { __asm__("" : "+r"(a)); }

// o[R rows][C vector pairs of columns] = o · rescale + Σ_key p · v. The columns begin with a part of the unit at byte `column` of a row.
// Inlined, blocks of several shapes would compete for registers.
template <class T, int R, int C, bool Tail, int Part = 0>
[[gnu::noinline]] static void pv_block(const float* p, const KvRows& rows, int keys, int64_t column, int count, const float* rescale,
                                       float* o, int64_t stride) {
    const char* const* const v = rows.row;
    const int64_t offset = rows.offset;
    const PrefetchRows ahead = prefetched(rows);
    constexpr int N = kLanes == 8 ? 1 : C;  // read at once: beside the accumulators, 16 registers hold no more
    constexpr bool kScaled = T::kScaledDots && R <= 2;
    V acc[R][2 * C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < 2 * C; c++) acc[r][c] = V{};
    for (int64_t j = 0; j < keys; j++) {
        const uintptr_t then = ahead.at(j) + uintptr_t(column);
        const char* row = v[j] + offset + column;
        if (kLanes == 8) opaque(row);
        V y[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) y[r] = splat(p[r * kTileKeys + j]);
        V scaled[N][R];  // y, times the unit's d where that is one product in place of several
#pragma GCC unroll 4
        for (int first = 0; first < C; first += N) {
            VecPair x[N];
#pragma GCC unroll 4
            for (int c = 0; c < N; c++) {
                const int pair = Part + first + c, at = pair / T::kParts * T::kUnitBytes;
                const bool begins = first + c == 0 || pair % T::kParts == 0;
                if (pair % T::kParts == 0) prefetch<T>(then, at);
                x[c] = read_pair<T, Tail, kScaled>(row + at, pair % T::kParts, count);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    if constexpr (!kScaled) scaled[c][r] = y[r];
                    else if (begins) scaled[c][r] = y[r] * splat_half(row + at);
                    else scaled[c][r] = scaled[c > 0 ? c - 1 : N - 1][r];
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int c = 0; c < N; c++) {
                    V* const sum = acc[r] + 2 * (first + c);
                    sum[0] = fma_v(scaled[c][r], x[c].a, sum[0]);
                    sum[1] = fma_v(scaled[c][r], x[c].b, sum[1]);
                }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < 2 * C; c++) {
            float* to = o + r * stride + c * kLanes;
            store(to, fma_v(load(to), splat(rescale[r]), acc[r][c] * (T::kDescale * kHeadroomUnit / kPScale)));
        }
}

// The parts of one unit, C at a time.
template <class T, int R, int C, int Part = 0>
static void pv_unit(const float* p, const KvRows& v, int keys, int64_t column, const float* rescale, float* o, int64_t stride) {
    pv_block<T, R, C, false, Part>(p, v, keys, column, kVecPair, rescale, o + Part * kVecPair, stride);
    if constexpr (Part + C < T::kParts) pv_unit<T, R, C, Part + C>(p, v, keys, column, rescale, o, stride);
}

template <class T, int R>
static void pv_rows(const float* p, const KvRows& v, int keys, int dim, const float* rescale, float* o) {
    constexpr int C = kLanes == 16 ? (R <= 2 ? 4 : 8 / R) : (R == 1 ? 4 : 4 / R), kAtOnce = C < T::kParts ? C : T::kParts;
    const int64_t stride = padded(dim);
    const int pairs = dim / kVecPair, last = dim % kVecPair;
    const auto column = [](int pair) { return int64_t(pair / T::kParts) * T::kUnitBytes; };
    int c = 0;
    if constexpr (C > T::kParts)
        for (; c + C <= pairs; c += C) pv_block<T, R, C, false>(p, v, keys, column(c), kVecPair, rescale, o + c * kVecPair, stride);
    for (; c < pairs; c += T::kParts) pv_unit<T, R, kAtOnce>(p, v, keys, column(c), rescale, o + c * kVecPair, stride);
    if constexpr (!T::kBlock)
        if (last > 0) pv_block<T, R, 1, true>(p, v, keys, column(c), last, rescale, o + c * kVecPair, stride);
}

template <class T>
static void decode_pv(const float* p, int rows, const KvRows& v, int keys, int dim, const float* rescale, float* o) {
    const int64_t stride = padded(dim);
    int r = 0;
    const auto step = [&](int n, auto block) {
        for (; r + n <= rows; r += n) block(p + r * kTileKeys, v, keys, dim, rescale + r, o + r * stride);
    };
    if constexpr (kLanes == 16) step(8, pv_rows<T, 8>);
    step(4, pv_rows<T, 4>);
    step(2, pv_rows<T, 2>);
    step(1, pv_rows<T, 1>);
}

typedef uint8_t Bytes __attribute__((vector_size(4 * kLanes)));

// The largest of `most` and of N vectors of each row, as unsigned bytes with their top bits set.
template <int N>
static inline Bytes max_magnitude(const char* const* rows, int64_t at, int keys, Bytes most) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < keys; j++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            Bytes x;
            memcpy(&x, rows[j] + at + n * int(sizeof x), sizeof x);
            x |= 0x80;
            most = x > most ? x : most;
        }
    return most;
}

// An e4m3 NaN has seven bits set: with its top bit set, too, nothing is larger. A line of all rows is checked before the next one:
// a row is short, and a loop over each would end too soon. The remainder of a row is checked together with what lies before it.
static bool e4m3_without_nan(const char* const* rows, int64_t offset, int keys, int dim) {
    constexpr int kBytes = sizeof(Bytes), kLine = 64;
    Bytes most{};
    int x = 0;
    for (; x + kLine <= dim; x += kLine) most = max_magnitude<kLine / kBytes>(rows, offset + x, keys, most);
    for (; x + kBytes <= dim; x += kBytes) most = max_magnitude<1>(rows, offset + x, keys, most);
    if (x < dim && x > 0) most = max_magnitude<1>(rows, offset + dim - kBytes, keys, most);
    uint32_t last = 0;
    for (int j = 0; j < keys && x == 0; j++)
        for (int i = 0; i < dim; i++) last |= (uint32_t(rows[j][offset + i]) & 0x7fu) + 1u;
    uint64_t found[kBytes / 8], any = last & 0x80u;
    most = Bytes(most == 0xff);
    memcpy(found, &most, sizeof found);
    for (const uint64_t part : found) any |= part;
    return any == 0;
}

// The maximum and the sum of all lanes, or of each 2 · H neighbours alone, in every lane of theirs.
template <int H = kLanes / 2>
static inline V max_of_lanes(V x) {
    if constexpr (H == 0) return x;
    else return max_of_lanes<H / 2>(max_v(x, exchange_lanes<H>(x, x)));
}
template <int H = kLanes / 2>
static inline V sum_of_lanes(V x) {
    if constexpr (H == 0) return x;
    else return sum_of_lanes<H / 2>(x + exchange_lanes<H>(x, x));
}

// Reductions of four rows at once, each in a quarter of the lanes: what crosses lanes is done for all of them.
constexpr int kHalf = kLanes / 2, kQuarter = kLanes / 4;
template <class Op>
static inline V transpose_quarters(const V* x, const Op& op) {
    const V low = op(blend_lanes<kHalf>(x[0], x[2]), exchange_lanes<kHalf>(x[0], x[2])),
            high = op(blend_lanes<kHalf>(x[1], x[3]), exchange_lanes<kHalf>(x[1], x[3]));
    return op(blend_lanes<kQuarter>(low, high), exchange_lanes<kQuarter>(low, high));
}
static inline V broadcast_quarters(const float* x) {
    return blend_lanes<kQuarter>(blend_lanes<kHalf>(splat(x[0]), splat(x[2])), blend_lanes<kHalf>(splat(x[1]), splat(x[3])));
}

// States of rows, one in all lanes or four in their quarters, updated by their largest score and their row sum of P.
struct DecodeRowState {
    V m, l, factor, row_ref;
    DecodeRowState(V before, V so_far, V row_max) : m(max_v(row_max, before)) {
        const V none = splat(kNegInf), zero = V{};
        const V from = before == none ? zero : before;
        row_ref = m == none ? zero : m;  // row_ref() of the specification
        factor = so_far == zero ? zero : exp2_v(from - row_ref, 1.f);
        l = so_far * factor;
    }
    void add(V sum) { l = fma_v(sum, splat(kHeadroomUnit / kPScale), l); }
};

static inline V max_score(const float* s) {
    V row_max = splat(kNegInf);
    for (int i = 0; i < kTileKeys; i += kLanes) row_max = max_v(load(s + i), row_max);
    return row_max;
}
// Scores become P; returns their sum in each lane.
static inline V exp2_row(float* s, V row_ref) {
    V sum = V{};
    for (int i = 0; i < kTileKeys; i += kLanes) {
        const V p = exp2_v(load(s + i) - row_ref, kPScale);
        store(s + i, p);
        sum += p;
    }
    return sum;
}

static inline void online_softmax_4_rows(float* s, float* m, float* l, float* rescale) {
    V x[4];
    for (int r = 0; r < 4; r++) x[r] = max_score(s + r * kTileKeys);
    DecodeRowState state(broadcast_quarters(m), broadcast_quarters(l),
                         max_of_lanes<kQuarter / 2>(transpose_quarters(x, [](V a, V b) { return max_v(a, b); })));
    for (int r = 0; r < 4; r++) x[r] = exp2_row(s + r * kTileKeys, splat(state.row_ref[r * kQuarter]));
    state.add(sum_of_lanes<kQuarter / 2>(transpose_quarters(x, [](V a, V b) { return a + b; })));
    for (int r = 0; r < 4; r++) {
        m[r] = state.m[r * kQuarter];
        l[r] = state.l[r * kQuarter];
        rescale[r] = state.factor[r * kQuarter];
    }
}

// Online softmax: updates each row's state by its scores, which are replaced by P. A row's bits do not depend on whether it is one
// of four.
static void decode_online_softmax(float* s, int rows, float* m, float* l, float* rescale) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) online_softmax_4_rows(s + r * kTileKeys, m + r, l + r, rescale + r);
    for (; r < rows; r++) {
        DecodeRowState state(splat(m[r]), splat(l[r]), max_of_lanes(max_score(s + r * kTileKeys)));
        state.add(sum_of_lanes(exp2_row(s + r * kTileKeys, state.row_ref)));
        m[r] = state.m[0];
        l[r] = state.l[0];
        rescale[r] = state.factor[0];
    }
}

template <class T>
constexpr DecodeKernels decode_kernels() {
    return {decode_qk<T>, decode_pv<T>, T::kNoNan ? e4m3_without_nan : nullptr, T::kDeinterleaved};
}
constexpr DecodeKernels kDecode[kDecodeTypes] = {{},
                                                 decode_kernels<F32>(),
                                                 decode_kernels<F16>(),
                                                 decode_kernels<Bf16>(),
                                                 decode_kernels<E4m3>(),
                                                 decode_kernels<E5m2>(),
                                                 decode_kernels<I8>(),
                                                 decode_kernels<Q4_0>(),
                                                 decode_kernels<Q4_1>(),
                                                 decode_kernels<Q5_0>(),
                                                 decode_kernels<Q5_1>(),
                                                 decode_kernels<Q8_0>()};

}  // namespace
}  // namespace cpu
}  // namespace fa
