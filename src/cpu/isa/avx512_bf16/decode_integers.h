// Decoding over block formats that have no m by products of bytes (VPDPBUSD), where a call permits native precision: a block of q is
// rounded to 8 bits with a factor of its own, as q8_0 would hold it, so that a block's share of a score is a sum of integers times both
// factors; and so is P times d of a chunk's keys.
//
// The first operand of a product has no sign: it is x of k or v plus 2^(bits − 1), and sums begin at less by what that adds.
#pragma once
#include "cpu/isa/avx512_bf16/block_rows.h"
#include "cpu/kernels/decode_kernels.h"

namespace fa {
namespace cpu {
namespace {

// Adds to each lane the products of its four bytes with those of a word in memory. (Compilers take a register and an instruction for the
// word.)
typedef int32_t __attribute__((may_alias)) FourBytes;
inline __attribute__((always_inline)) void add_dot(__m512i& sum, __m512i unsigned_bytes, const int8_t* word) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "m"(*reinterpret_cast<const FourBytes*>(word)));
}
// (Compilers would add both up first, an instruction more for each line.)
inline __attribute__((always_inline)) void prefetch(const char* row, int64_t at) {
    __asm__ volatile("prefetcht0 (%0, %1)" ::"r"(row), "r"(at));
}

// Word i of x[n]'s quarter q: word n of x[i]'s.
inline __attribute__((always_inline)) void transpose_within_quarters(__m512i* x) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]), c = _mm512_unpacklo_epi32(x[2], x[3]),
                  d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}

// What a sum of products with x begins at.
template <int Offset>
inline int32_t first_sum_of(const int8_t* x) {
    int32_t sum = 0;
    for (int i = 0; i < kBlockDims; i++) sum -= Offset * x[i];
    return sum;
}

// A format has
//     kParts, kDots           of 16 keys: vectors of sums, and dots that each takes
//     kOffset                 what read() and read_values() add, to leave no sign
//     kQBytes, pack(x, to)    a row's block of q as first_sum() and add_product() read it
//     read(row, at, part, x)  kDots vectors of k
//     factors(d, part)        the keys' d, in the order of the part's sums
//     in_order(x)             kParts vectors of sums as one of 16 keys
//     read_values(row, at, x) blocks of four keys as two vectors: a lane has a column
//     value(block, dim)       x itself
struct Q8Integers {
    static constexpr int kBytes = 34, kOffset = 128, kParts = 2, kDots = 4, kQBytes = 160, kMaxRows = 4;

    // Quarters of a part's sums are dims 0 … 15 and 16 … 31 of four keys, and of the next four.
    static void pack(const int8_t* x, char* to) {
        const int32_t first = first_sum_of<kOffset>(x);
        for (int n = 0; n < kDots; n++)
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 4; i++, to += 4) memcpy(to, x + half * 16 + n * 4, 4);
        for (int i = 0; i < 4; i++) memcpy(to + 4 * i, &first, 4), memset(to + 16 + 4 * i, 0, 4);
    }
    static inline __m512i twice(const char* at) { return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))); }
    static inline __m512i first_sum(const char* q) { return twice(q + 32 * kDots); }
    static inline void add_product(__m512i& sum, __m512i x, const char* q, int n) { sum = _mm512_dpbusd_epi32(sum, x, twice(q + 32 * n)); }
    inline __attribute__((always_inline)) void read(const char* const* row, int64_t at, int part, __m512i* x) const {
        const auto block = [&](int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[8 * part + i] + at + 2)); };
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            x[i] = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(block(i)), block(i + 4), 1), _mm512_set1_epi8(char(0x80)));
        transpose_within_quarters(x);
    }
    static inline V factors(const float* d, int part) {
        const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7);
        return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(d + 8 * part)));
    }
    static inline V in_order(const V* x) { return V(_mm512_shuffle_f32x4(x[0], x[1], 0x88)) + V(_mm512_shuffle_f32x4(x[0], x[1], 0xdd)); }

    const __m512i pairs = kPairsOfColumns.get();
    static int value(const char* block, int dim) { return static_cast<int8_t>(block[2 + dim]); }
    inline __attribute__((always_inline)) void read_values(const char* const* row, int64_t at, __m512i* x) const {
        const auto two = [&](int i) {
            const auto block = [&](int n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[n] + at + 2)); };
            const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(block(i)), block(i + 1), 1);
            return _mm512_permutexvar_epi8(pairs, _mm512_xor_si512(bytes, _mm512_set1_epi8(char(0x80))));
        };
        const __m512i first = two(0), second = two(2);
        x[0] = _mm512_unpacklo_epi16(first, second);
        x[1] = _mm512_unpackhi_epi16(first, second);
    }
};

// x of two dims that lie 16 apart share a byte; a block's bits 4 are a word of their own.
template <int Bits>
struct NibbleIntegers {
    static constexpr int kNibbles = Bits == 5 ? 6 : 2, kBytes = kNibbles + 16, kOffset = 1 << (Bits - 1);
    static constexpr int kParts = 1, kDots = 8, kQBytes = 36, kMaxRows = 8;
    // For each byte where its bit 4 begins, less 4, of the 64 bits that two keys have.
    static constexpr VectorOf<uint8_t> kKeyBits = {[](int i) { return uint8_t((i / 4 % 2 * 32 + i % 4 - 4) & 63); }};
    static constexpr VectorOf<uint8_t> kByKeys = {[](int i) { return uint8_t(i % 4 * 16 + i / 4); }};
    // Of values of four keys: which byte of their bits 4 has a byte's, and which bit of that it is.
    static constexpr VectorOf<uint8_t> kFifthByte = {[](int i) { return uint8_t(i % 4 * 4 + i / 32); }};
    static constexpr VectorOf<uint8_t> kFifthBit = {[](int i) { return uint8_t(1 << i / 4 % 8); }};
    const __m512i by_keys = kByKeys.get();

    static void pack(const int8_t* x, char* to) {
        const int32_t first = first_sum_of<kOffset>(x);
        memcpy(to, x, kBlockDims), memcpy(to + kBlockDims, &first, sizeof first);
    }
    static inline __m512i first_sum(const char* q) {
        int32_t x;
        memcpy(&x, q + kBlockDims, sizeof x);
        return _mm512_set1_epi32(x);
    }
    static inline void add_product(__m512i& sum, __m512i x, const char* q, int n) {
        add_dot(sum, x, reinterpret_cast<const int8_t*>(q) + 4 * n);
    }
    static inline V factors(const float* d, int) { return load(d); }
    static inline V in_order(const V* x) { return x[0]; }
    inline __attribute__((always_inline)) void read(const char* const* row, int64_t at, int, __m512i* x) const {
        const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = quarters<4>(row + i, at + kNibbles);
        transpose_within_quarters(x);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            x[4 + i] = _mm512_and_si512(_mm512_srli_epi16(x[i], 4), nibble);
            x[i] = _mm512_and_si512(x[i], nibble);
        }
        if (Bits == 4) return;
        __m512i fifths[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) fifths[i] = quarters<4>(row + i, at + 2);
        transpose_within_quarters(fifths);
#pragma GCC unroll 8
        for (int n = 0; n < 8; n++) {
            const __m512i from = _mm512_add_epi8(kKeyBits.get(), _mm512_set1_epi8(char(4 * n)));
            x[n] = _mm512_ternarylogic_epi64(x[n], _mm512_multishift_epi64_epi8(from, fifths[0]), _mm512_set1_epi8(16), 0xf8);
        }
    }
    static int value(const char* block, int dim) {
        const int byte = static_cast<unsigned char>(block[kNibbles + dim % 16]), fifth = Bits == 5 ? fifth_bits(block) >> dim & 1 : 0;
        return (dim < 16 ? byte & 15 : byte >> 4) + 16 * fifth - kOffset;
    }
    inline __attribute__((always_inline)) void read_values(const char* const* row, int64_t at, __m512i* x) const {
        const __m512i nibble = _mm512_set1_epi8(15);
        const __m512i bytes = _mm512_permutexvar_epi8(by_keys, quarters<1>(row, at + kNibbles));
        x[0] = _mm512_and_si512(bytes, nibble);
        x[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
        if (Bits == 4) return;
        const __m512i words = _mm512_castsi128_si512(
            _mm_setr_epi32(fifth_bits(row[0] + at), fifth_bits(row[1] + at), fifth_bits(row[2] + at), fifth_bits(row[3] + at)));
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            const __m512i from = _mm512_add_epi8(kFifthByte.get(), _mm512_set1_epi8(char(2 * n)));
            const __mmask64 has = _mm512_test_epi8_mask(_mm512_permutexvar_epi8(from, words), kFifthBit.get());
            x[n] = _mm512_mask_add_epi8(x[n], has, x[n], _mm512_set1_epi8(16));
        }
    }
};

// ---- scores

// 32 dims of q as q8_0 has them. Returns their factor.
inline float round_block(const uint16_t* q, int8_t* to) {
    const auto widen = [&](int i) {
        return V(__m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(q + i))), 16)));
    };
    const V low = widen(0), high = widen(kLanes);
    const __m512i bits = _mm512_max_epu32((__m512i)_mm512_abs_ps(low), (__m512i)_mm512_abs_ps(high));
    const float most = float_of(uint32_t(_mm512_reduce_max_epi32(bits)));
    if (!(most <= kMaxFloat)) return __builtin_nanf("");
    if (most < 0x1p-100f) return 0;  // whose inverse might not be finite
    const V inverse = splat(127 / most);
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(low * inverse)));
    _mm_storeu_si128((__m128i*)(to + kLanes), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(high * inverse)));
    return most / 127;
}

// q as operands [block of rows][block of dims][row], and behind each block of rows a factor for each operand.
template <class Format>
void pack_integers_q(const uint16_t* const* rows, int count, int dim, uint16_t* memory) {
    const int blocks = dim / kBlockDims;
    char* to = reinterpret_cast<char*>(memory);
    for_row_blocks<Format::kMaxRows>(count, [&](int first, int left, auto block) {
        float* factor = reinterpret_cast<float*>(to + int64_t(block) * blocks * Format::kQBytes);
        for (int n = 0; n < blocks; n++)
            for (int r = 0; r < block; r++, to += Format::kQBytes, factor++) {
                int8_t x[kBlockDims] = {};
                *factor = r < left ? round_block(rows[first + r] + n * kBlockDims, x) : 0.f;
                Format::pack(x, to);
            }
        to = reinterpret_cast<char*>(factor);
    });
}

// A block of dims of all keys before the next, so that q's part stays in registers.
template <class Format, int R>
[[gnu::noinline]] void integers_qk(const char* q, int rows, const float* factor, const DecodeChunk& chunk, const float* d, int dim,
                                   float* s) {
    constexpr int P = Format::kParts;
    const Format format;
    const KvRows& k = chunk.rows;
    const float* q_factor = reinterpret_cast<const float*>(q + int64_t(R) * (dim / kBlockDims) * Format::kQBytes);
    V acc[kDecodeChunkKeys / kLanes][R][P];
    const float* const first_d = d;
    int64_t at = 0;
    const auto add_block = [&](auto is_first) __attribute__((always_inline)) {
        const int64_t line = (at + 63) / 64 * 64;
        const bool begins_line = line < at + Format::kBytes;
        for (int64_t j = 0; j < chunk.keys; j += kLanes)
#pragma GCC unroll 2
            for (int part = 0; part < P; part++) {
                if (begins_line)
#pragma GCC unroll 16
                    for (int i = 0; i < kLanes / P; i++) prefetch(k.far_row[j + part * (kLanes / P) + i], k.far_offset + line);
                __m512i x[Format::kDots], sum[R];
                format.read(k.row + j, k.offset + at, part, x);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) sum[r] = Format::first_sum(q + r * Format::kQBytes);
#pragma GCC unroll 8
                for (int n = 0; n < Format::kDots; n++)
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) Format::add_product(sum[r], x[n], q + r * Format::kQBytes, n);
                const V scale = Format::factors(d + j, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    V& to = acc[j / kLanes][r][part];
                    const V scaled = scale * splat(q_factor[r]), product = _mm512_cvtepi32_ps(sum[r]);
                    to = is_first ? product * scaled : fma_v(product, scaled, to);
                }
            }
        at += Format::kBytes, q += R * Format::kQBytes, q_factor += R, d += kDecodeChunkKeys;
    };
    add_block(Constant<true>());
    for (int x = kBlockDims; x < dim; x += kBlockDims) add_block(Constant<false>());
    V probe = V{};  // 0 times all scores
    for (int j = 0; j < chunk.keys; j += kLanes)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const V product = Format::in_order(acc[j / kLanes][r]);
            if (r < rows) store(s + r * kTileKeys + j, product * splat(factor[r]));
            probe = fma_v(product, V{}, probe);
        }
    if (__builtin_expect(has_nan(probe), 0)) mark_infinite_factors(first_d, dim / kBlockDims, chunk.keys, rows < R ? rows : R, s);
}

template <class Format>
void integers_qk(const uint16_t* memory, int rows, const float* factor, const DecodeChunk& chunk, int dim, float* d, float* s) {
    read_factors(chunk.rows, Format::kBytes, chunk.keys, dim / kBlockDims, d);
    const char* q = reinterpret_cast<const char*>(memory);
    for_row_blocks<Format::kMaxRows>(rows, [&](int first, int left, auto block) {
        integers_qk<Format, block>(q, left, factor + first, chunk, d, dim, s + first * kTileKeys);
        q += int64_t(block) * (dim / kBlockDims) * (Format::kQBytes + sizeof(float));
    });
}

// ---- values

constexpr int kPLimit = 127;

// P times d of sixteen rows as bytes in `unit`, a 127th of a row's largest, which is in some lane of `most`. Returns which rows are not
// finite.
[[gnu::noinline]] uint16_t scale_and_round(const float* products, const V* most, int8_t* to, float* unit) {
    const auto larger = [](V a, V b) { return V(_mm512_max_epu32((__m512i)a, (__m512i)b)); };
    V of_four[4];  // rows, in quarters
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) of_four[i] = reduce_within_quarters(most + 4 * i, larger);
    const V of_rows = transpose_quarters(of_four, larger);
    const __mmask16 some = _mm512_cmp_ps_mask(of_rows, splat(0x1p-100f), _CMP_NLT_UQ);  // whose inverse is finite
    alignas(64) float inverse[kLanes];
    store(inverse, _mm512_maskz_div_ps(some, splat(kPLimit), of_rows));
    const __mmask16 finite = _mm512_cmp_ps_mask(of_rows, splat(kMaxFloat), _CMP_LE_OQ);
    store(unit, _mm512_maskz_mul_ps(finite, of_rows, splat(1.f / kPLimit)));
    static constexpr VectorOf<uint8_t> kLowBytes = {[](int i) { return uint8_t(i % 32 * 4); }};
    const __m512i low_bytes = kLowBytes.get();
    const V round = splat(0x1.8p23f);  // leaves an integer in the low bits
#pragma GCC unroll 4
    for (int r = 0; r < kLanes; r++, products += kDecodeChunkKeys, to += kDecodeChunkKeys) {
        const V a = fma_v(load(products), splat(inverse[r]), round), b = fma_v(load(products + kLanes), splat(inverse[r]), round);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                           _mm512_castsi512_si256(_mm512_permutex2var_epi8((__m512i)a, low_bytes, (__m512i)b)));
    }
    return uint16_t(~finite);
}

// −factor times the sums of eight rows.
[[gnu::noinline]] void add_up(const int8_t* from, int factor, int32_t* to) {
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)  // of eight bytes, each 128 more
        x[i] = _mm512_sad_epu8(_mm512_xor_si512(_mm512_load_si512(from + 64 * i), _mm512_set1_epi8(char(0x80))), __m512i{});
    const auto add = [](__m512i a, __m512i b) { return _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); };
    const __m512i a = add(x[0], x[1]), b = add(x[2], x[3]);
    const __m512i of_rows = _mm512_add_epi64(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
    const __m512i in_order = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 1, 3, 4, 6, 5, 7), of_rows);
    const __m256i less = _mm256_sub_epi32(_mm256_set1_epi32(128 * kDecodeChunkKeys), _mm512_cvtepi64_epi32(in_order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_mullo_epi32(less, _mm256_set1_epi32(factor)));
}

// P of R rows times d, as bytes in units of a 127th of the largest of the chunk's keys: [block][row][key]; 0 behind those keys.
template <class Format, int R>
struct IntegerP {
    static constexpr int kRows = kMaxBlocks * R < kLanes ? kLanes : kMaxBlocks * R;  // of all blocks
    alignas(64) int8_t bytes[kRows][kDecodeChunkKeys];
    int32_t first_sum[kRows];  // −kOffset times its sum
    alignas(64) float unit[kRows];

    bool finite = true;                 // but for rows of which some product is infinite or no number: these are 0
    uint16_t infinite[kRows / kLanes];  // a bit each

    void round(const float* p, int keys, const float* d, int blocks) {
        const int rows = blocks * R;
        alignas(64) float products[kRows][kDecodeChunkKeys];
        V most[kRows + kLanes];  // in each lane
        __mmask16 first[R], second[R];
        V low[R], high[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            low[r] = _mm512_maskz_loadu_ps(__mmask16(first_bits(keys)), p + r * kTileKeys);
            high[r] = _mm512_maskz_loadu_ps(__mmask16(first_bits(keys) >> 16), p + r * kTileKeys + kLanes);
            first[r] = _mm512_cmp_ps_mask(low[r], V{}, _CMP_NEQ_UQ), second[r] = _mm512_cmp_ps_mask(high[r], V{}, _CMP_NEQ_UQ);
        }
        for (int n = 0; n < rows; n += R, d += kDecodeChunkKeys) {
            const V d_low = load(d), d_high = load(d + kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {  // what no row attends to may be no number
                const V a = _mm512_maskz_mul_ps(first[r], low[r], d_low), b = _mm512_maskz_mul_ps(second[r], high[r], d_high);
                store(products[n + r], a), store(products[n + r] + kLanes, b);
                // By their bits, beside which what is no number is larger than all others.
                most[n + r] = V(_mm512_max_epu32((__m512i)_mm512_abs_ps(a), (__m512i)_mm512_abs_ps(b)));
            }
        }
        for (int n = 0; n < rows; n += kLanes) {
            infinite[n / kLanes] = scale_and_round(products[n], most + n, bytes[n], unit + n);
            finite &= (infinite[n / kLanes] & first_bits(rows - n)) == 0;
        }
        for (int n = 0; n < rows; n += 8) add_up(bytes[n], Format::kOffset, first_sum + n);
    }
};

// o[R rows][C blocks of columns] = o · rescale + P v.
template <class Format, int R, int C>
[[gnu::noinline]] void integers_pv_blocks(const IntegerP<Format, R>& p, int block, const DecodeChunk& chunk, int dim, const float* rescale,
                                          float* o) {
    constexpr int K = 4;  // keys of a dot
    const Format format;
    const int row0 = block * R;
    __m512i acc[C * R][2];
#pragma GCC unroll 8
    for (int n = 0; n < C * R; n++) acc[n][0] = acc[n][1] = _mm512_set1_epi32(p.first_sum[row0 + n]);
    const KvRows& v = chunk.rows;
    const int8_t* bytes = p.bytes[row0];
    const int64_t at = v.offset + int64_t(block) * Format::kBytes, far = v.far_offset + int64_t(block) * Format::kBytes;
    for (int64_t j = 0; j < chunk.keys; j += K, bytes += K) {
#pragma GCC unroll 4
        for (int i = 0; i < K; i++)
#pragma GCC unroll 2
            for (int x = 0; x < C * Format::kBytes; x += 64) prefetch(v.far_row[j + i] + x, far);
#pragma GCC unroll 2
        for (int c = 0; c < C; c++) {
            __m512i x[2];
            format.read_values(v.row + j, at + c * Format::kBytes, x);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) add_dot(acc[c * R + r][half], x[half], bytes + (c * R + r) * kDecodeChunkKeys);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const V factor = splat(rescale ? rescale[r] : 1.f);
#pragma GCC unroll 2
        for (int c = 0; c < C; c++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                float* const to = o + r * dim + c * kBlockDims + half * kLanes;
                store(to, fma_v(load(to), factor, _mm512_cvtepi32_ps(acc[c * R + r][half]) * splat(p.unit[row0 + c * R + r])));
            }
    }
}

// A row's products of P · d with a block of columns, where one is infinite or no number, added to o.
template <class Format>
[[gnu::noinline]] void add_infinite(const float* p, const DecodeChunk& chunk, const float* d, int64_t at, float* o) {
    for (int x = 0; x < kBlockDims; x++)
        for (int j = 0; j < chunk.keys; j++)
            if (p[j] != 0) o[x] += p[j] * d[j] * float(Format::value(chunk.rows.row[j] + chunk.rows.offset + at, x));
}

template <class Format, int R>
void integers_pv_rows(const float* p, const DecodeChunk& chunk, const float* d, int dim, const float* rescale, float* o) {
    constexpr int C = R == 8 ? 1 : 2;
    const int blocks = dim / kBlockDims;
    IntegerP<Format, R> rounded;
    rounded.round(p, chunk.keys, d, blocks);
    int n = 0;
    for (; n + C <= blocks; n += C) integers_pv_blocks<Format, R, C>(rounded, n, chunk, dim, rescale, o + n * kBlockDims);
    if (n < blocks) integers_pv_blocks<Format, R, 1>(rounded, n, chunk, dim, rescale, o + n * kBlockDims);
    if (__builtin_expect(rounded.finite, 1)) return;
    for (int i = 0; i < blocks * R; i++)
        if (rounded.infinite[i / kLanes] >> i % kLanes & 1)
            add_infinite<Format>(p + i % R * kTileKeys, chunk, d + i / R * kDecodeChunkKeys, i / R * Format::kBytes,
                                 o + i % R * dim + i / R * kBlockDims);
}

template <class Format>
void integers_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale, const DecodeMatrixScratch& memory,
                 float* o) {
    float* const d = memory.products;
    read_factors(chunk.rows, Format::kBytes, chunk.keys, dim / kBlockDims, d);
    int r = 0;
    const auto step = [&](int n, auto block) {
        for (; r + n <= rows; r += n) block(p + r * kTileKeys, chunk, d, dim, rescale ? rescale + r : nullptr, o + r * dim);
    };
    step(8, integers_pv_rows<Format, 8>);
    step(4, integers_pv_rows<Format, 4>);
    step(2, integers_pv_rows<Format, 2>);
    step(1, integers_pv_rows<Format, 1>);
}

template <class F>
void for_integers(int32_t type, const F& f) {
    if (type == FA_Q8_0) f(Q8Integers());
    else if (type == FA_Q5_0) f(NibbleIntegers<5>());
    else f(NibbleIntegers<4>());
}
void decode_integers_pack_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    for_integers(type, [&](auto format) { pack_integers_q<decltype(format)>(rows, count, dim, to); });
}
void decode_integers_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim,
                        const DecodeMatrixScratch& memory, float* s) {
    for_integers(chunk.type, [&](auto format) { integers_qk<decltype(format)>(q, rows, factor, chunk, dim, memory.products, s); });
}
float* decode_integers_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale,
                          const DecodeMatrixScratch& memory, float* o, float*) {
    for_integers(chunk.type, [&](auto format) { integers_pv<decltype(format)>(p, rows, chunk, dim, rescale, memory, o); });
    return o;
}
void decode_integers_finish(const float* from, int32_t, int dim, float factor, float* to) {
    for (int x = 0; x < dim; x++) to[x] = from[x] * (factor * (kHeadroomUnit / kPScale));
}

constexpr DecodeMatrixKernels kIntegers = {.byte_dims = 64,
                                           .far_bytes = kFarBytes / 2,
                                           .rounds_to_8_bits = true,
                                           .short_chunk_rows = 0,
                                           .min_rows_q8 = 1,
                                           .min_rows_q4 = 1,
                                           .max_rows = kDecodeRows,
                                           .pack_q = decode_integers_pack_q,
                                           .qk = decode_integers_qk,
                                           .pv = decode_integers_pv,
                                           .finish = decode_integers_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
