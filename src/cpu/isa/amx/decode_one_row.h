// Decoding one row over int8, which would leave tiles almost empty. Scores are products of integers by vectors (VPDPBUSD), with q split
// into limbs as for tiles; P v, of which there is no such form, is what vectors do in f32.
#pragma once
#include "cpu/isa/amx/decode_int8.h"
#include "cpu/isa/avx512_bf16/block_rows.h"
#include "cpu/isa/avx512_bf16/shared_kernels.h"

namespace fa {
namespace cpu {
namespace {

// [dim / 64][limb][64 dims], and behind them 16 sums for each limb, from which those of its products begin: the instruction wants k
// unsigned, and gets k + 128.
bool pack_limbs_of_row(const uint16_t* const* rows, int count, int dim, char* to) {
    if (!pack_limbs(rows, count, dim, to)) return false;
    int32_t begin[kLimbs][16] = {};
    for (int x = 0; x < dim; x += 64) {
        int8_t fours[16][kLimbs][4];
        char* const line = to + x * kLimbs;
        memcpy(fours, line, sizeof fours);
        for (int limb = 0; limb < kLimbs; limb++)
            for (int i = 0; i < 16; i++) {
                const int8_t* const four = fours[i][limb];
                memcpy(line + limb * 64 + i * 4, four, 4);
                begin[limb][i] -= 128 * (four[0] + four[1] + four[2] + four[3]);
            }
    }
    memcpy(to + dim * kLimbs, begin, sizeof begin);
    return true;
}

// Scores of 16 keys, in units of the highest limb.
inline V limb_block(const char* q, const KvRows& k, int first, int dim) {
    constexpr int G = 4;  // keys that share a load of q
    V acc[kLanes];
#pragma GCC unroll 4
    for (int m = 0; m < kLanes; m += G) {
        __m512i sum[G][kLimbs];
#pragma GCC unroll 4
        for (int limb = 0; limb < kLimbs; limb++)
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) sum[g][limb] = _mm512_loadu_si512(q + dim * kLimbs + limb * 64);
        for (int x = 0; x < dim; x += 64) {
            __m512i biased[G];
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) {
                const int j = first + m + g;
                __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(k.far_row[j]) + uintptr_t(k.far_offset + x)), 0, 2);
                biased[g] = _mm512_xor_si512(_mm512_loadu_si512(k.row[j] + k.offset + x), _mm512_set1_epi8(char(0x80)));
            }
#pragma GCC unroll 4
            for (int limb = 0; limb < kLimbs; limb++) {
                const __m512i y = _mm512_loadu_si512(q + x * kLimbs + limb * 64);
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) sum[g][limb] = _mm512_dpbusd_epi32(sum[g][limb], biased[g], y);
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            V x = V(_mm512_cvtepi32_ps(sum[g][kLimbs - 1]));
#pragma GCC unroll 4
            for (int limb = kLimbs - 2; limb >= 0; limb--) x = fma_v(x, splat(0x1p-8f), V(_mm512_cvtepi32_ps(sum[g][limb])));
            acc[m + g] = x;
        }
    }
    return add_lanes(acc);
}

void one_row_qk(const uint16_t* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, const DecodeMatrixScratch& memory,
                float* s) {
    if (!chunk.limbs) return kDecodeDotsOfBytes.qk(q, rows, factor, chunk, dim, memory, s);
    const char* const limbs = reinterpret_cast<const char*>(q);
    float unit;
    memcpy(&unit, limbs + int64_t(16) * dim, sizeof unit);
    const V factors = splat(*factor * unit * kLimbUnits[0]);
    for (int j = 0; j < chunk.keys; j += kLanes) store(s + j, limb_block(limbs, chunk.rows, j, dim) * factors);
}

float* one_row_pv(const float* p, int rows, const DecodeChunk& chunk, int dim, const float* rescale, const DecodeMatrixScratch&, float* o,
                  float*) {
    const float one = 1.f;
    KvRows v = chunk.rows;
    v.next_row = v.far_row;  // a chunk takes less than memory's latency
    v.next_offset = v.far_offset;
    decode_pv<I8>(p, rows, v, chunk.keys, dim, rescale ? rescale : &one, o);
    return o;
}

void one_row_finish(const float* from, int32_t, int dim, float factor, float* to) {
    for (int x = 0; x < dim; x++) to[x] = from[x] * factor;
}

void one_row_pack_q(const uint16_t* const* rows, int count, int32_t type, int dim, uint16_t* to) {
    kDecodeDotsOfBytes.pack_q(rows, count, type, dim, to);
}

constexpr DecodeMatrixKernels kDecodeOneRow = {.byte_dims = 64,
                                               .short_chunk_rows = 1,
                                               .min_rows_int8 = 1,
                                               .max_rows = 1,
                                               .pack_q = one_row_pack_q,
                                               .pack_limbs = pack_limbs_of_row,
                                               .qk = one_row_qk,
                                               .pv = one_row_pv,
                                               .finish = one_row_finish};

}  // namespace
}  // namespace cpu
}  // namespace fa
