// What changes scores between q · kᵀ and softmax, as a policy of the mainloop for each ScoreMod: softcap, ALiBi, the mask
// operand or the bias. A policy is a template argument because the steady mainloop, where it asked at run time, would lose registers and
// speed to what a call does not want.
//
// prefetch() asks for what a block of keys needs from memory, before the block's wgmma. Of a score there are two forms. exponent()
// is what the steady mainloop computes, straight from the accumulators and without special functions; it may be wrong for a row, of
// which in_range() then says so. apply_exact() puts exact scores in the accumulators' place, in units that `scale_log2` takes to
// log2: for blocks that are masked or begin a tile, for which needs_exact() asks, or whose row was out of range or outgrew its
// row_ref.
#pragma once
#include "cuda/sm90/forward/params.h"

namespace fa {
namespace gpu {

// A thread's scores: s[i] is of row i / 2 % 2 of its two, and of key 8 · (i / 4) + i % 2 behind the thread's first.
// tile_scale: each tile has a scale of its own, by set_scale() before begin_tile(); else it is the call's.
template <ScoreMod score_mod, int BlockN, bool tile_scale, bool f16>
struct ScoreModOp;

template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::none, BlockN, tile_scale, f16> {
    float scale_log2;
    FA_MEMBER explicit ScoreModOp(const Sm90ForwardParams& params) : scale_log2(params.x.scale * kLog2e) {}
    FA_MEMBER void set_scale(float scale) { scale_log2 = scale * kLog2e; }
    FA_MEMBER void begin_tile(const Sm90Call&, const WorkTileInfo&, int) {}
    FA_MEMBER void prefetch(int) {}
    FA_MEMBER void begin_block(int, const float (&)[2]) {}
    FA_MEMBER float exponent(float s, int, int, float ref_log2) { return fmaf(s, scale_log2, -ref_log2); }
    FA_MEMBER bool in_range(int) const { return true; }
    FA_MEMBER bool needs_exact(int) const { return false; }
    FA_MEMBER void apply_exact(float (&)[BlockN / 2], int) const {}
};

// cap · tanh(s / cap): where |s| is at most 3/8 of the cap, s times a polynomial in w = s² − limit², whose sign says whether it is.
// That is within 2^-17.8 of the true value, and tanh through an exponential and a reciprocal would cost the loop three special
// functions in place of one. tanh.approx is within 2^-11: a score of 8 would be wrong by 4e-3, and P of f16 may be by 5e-4.
template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::softcap, BlockN, tile_scale, f16> {
    static constexpr float scale_log2 = 1.f;
    const Sm90Call& x;
    float limit2, coefficient[3];  // -limit²; of powers of w
    uint32_t signs[2];             // the bits that all w of a row have in common; the highest is the sign
    float own_scale;               // where tiles have one
    FA_MEMBER float scale_over_cap() const {
        if constexpr (tile_scale) return fminf(own_scale * rt::reciprocal_fast(x.softcap), 0x1p+100f);  // times a score of 0 it is 0
        else return x.scale * rt::reciprocal_fast(x.softcap);
    }
    FA_MEMBER explicit ScoreModOp(const Sm90ForwardParams& params) : x(params.x) {
        if (!tile_scale) set_scale(x.scale);
    }
    FA_MEMBER void set_scale(float unscaled) {
        own_scale = unscaled;
        const float inverse = 0x1.c71c72p+2f * scale_over_cap() * scale_over_cap(), scale = unscaled * kLog2e;
        limit2 = -rt::reciprocal_fast(inverse);
        coefficient[0] = 0x1.e94786p-1f * scale;
        coefficient[1] = -0x1.57a022p-5f * scale * inverse;
        coefficient[2] = 0x1.3de70ep-9f * scale * inverse * inverse;
        // Coefficients that are no normal floats: every score takes the quotient. Factors of the data may be anything; the call's scale has
        // been asked before (softcap_polynomial_fits).
        constexpr float least = 0x1p-16f, most = 0x1p+16f;
        if (tile_scale && !(scale_over_cap() > least && scale_over_cap() < most)) limit2 = 0.f;
    }
    FA_MEMBER void begin_tile(const Sm90Call&, const WorkTileInfo&, int) {}
    FA_MEMBER void prefetch(int) {}
    FA_MEMBER void begin_block(int, const float (&)[2]) { signs[0] = signs[1] = ~0u; }
    FA_MEMBER float polynomial(float w) const { return fmaf(fmaf(coefficient[2], w, coefficient[1]), w, coefficient[0]); }
    FA_MEMBER float exponent(float s, int, int r, float ref_log2) {
        const float w = fmaf(s, s, limit2);
        signs[r] &= bits_of(w);
        return fmaf(s, polynomial(w), -ref_log2);
    }
    FA_MEMBER bool in_range(int r) const { return int32_t(signs[r]) < 0; }
    FA_MEMBER bool needs_exact(int) const { return false; }
    FA_MEMBER void apply_exact(float (&s)[BlockN / 2], int) const {
        const float cap = x.softcap * kLog2e, doubled = 2.f * kLog2e * scale_over_cap();
        FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++) {
            const float w = s[i] * s[i] + limit2;  // with fmaf, the compiler would keep each w of exponent()
            const float quotient = fmaf(-2.f * cap, rt::reciprocal_fast(rt::exp2_fast(doubled * s[i]) + 1.f), cap);
            s[i] = w < 0.f ? s[i] * polynomial(w) : quotient;
        }
    }
};

// − slope · |row + off − key|: on either side of the diagonal it is linear in the key, one fused multiplication with a constant.
// Distances are taken from the key of a block that lies nearest the diagonal from its left, so that those with the largest P are
// small numbers.
template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::alibi, BlockN, tile_scale, f16> {
    static constexpr float scale_log2 = 1.f;
    static constexpr int kNearest = BlockN - 7;
    float scale;
    float slope;         // in log2 units
    float signed_slope;  // of a block: slope, or −slope to the right of the diagonal
    float row_bias[2];
    int diagonal;  // the key on which the thread's first row stands, its own first key being 0
    int n_block_diagonal,
        n_block_right;  // blocks that the diagonal of some row of the tile goes through: from the one up to before the other
    FA_MEMBER explicit ScoreModOp(const Sm90ForwardParams& params) : scale(params.x.scale * kLog2e) {}
    FA_MEMBER void set_scale(float unscaled) { scale = unscaled * kLog2e; }
    FA_MEMBER void begin_tile(const Sm90Call& call, const WorkTileInfo& tile, int tile_row) {
        slope = log2_slope(call.alibi_slopes[tile.batch * call.alibi_batch_stride + tile.head]);
        diagonal = tile.row0 + tile_row + tile.off - int(threadIdx.x) % 4 * 2;
        n_block_diagonal = max(tile.row0 + tile.off + 1, 0) / BlockN;
        n_block_right = tile.n_block_right;
    }
    FA_MEMBER void prefetch(int) {}
    FA_MEMBER void begin_block(int n_block, const float (&ref_log2)[2]) {
        signed_slope = n_block >= n_block_right ? -slope : slope;
        FA_UNROLL_FOR (int r = 0; r < 2; r++)
            row_bias[r] = fmaf(-signed_slope, float(diagonal + 8 * r - n_block * BlockN - kNearest), -ref_log2[r]);
    }
    FA_MEMBER float exponent(float s, int i, int r, float) const {
        return fmaf(s, scale, fmaf(float(8 * (i / 4) + i % 2 - kNearest), signed_slope, row_bias[r]));
    }
    FA_MEMBER bool in_range(int) const { return true; }
    FA_MEMBER bool needs_exact(int n_block) const { return n_block >= n_block_diagonal && n_block < n_block_right; }
    FA_MEMBER void apply_exact(float (&s)[BlockN / 2], int n_block) const {
        FA_UNROLL_FOR (int r = 0; r < 2; r++) {
            const float first = float(diagonal + 8 * r - n_block * BlockN);
            FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++)
                if (i / 2 % 2 == r) s[i] = fmaf(-slope, fabsf(first - float(8 * (i / 4) + i % 2)), s[i] * scale);
        }
    }
};

// The mask operand: the bits of a block (packed_mask.h) are asked for before its wgmma, and become predicates, seven or eight at a
// time.
template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::mask, BlockN, tile_scale, f16> {
    static_assert(BlockN == PackedMask::kBlockN, "two words have the bits of a thread's scores");
    const PackedMask& mask;
    float scale_log2;
    const uint2* first;  // the thread's of block 0
    uint2 bits;
    FA_MEMBER explicit ScoreModOp(const Sm90ForwardParams& params) : mask(params.mask), scale_log2(params.x.scale * kLog2e) {}
    FA_MEMBER void set_scale(float scale) { scale_log2 = scale * kLog2e; }
    FA_MEMBER void begin_tile(const Sm90Call&, const WorkTileInfo& tile, int tile_row) {
        first = mask.bits + mask.word_index(mask.tile_of(tile.batch, tile.head, tile.row0), tile_row, 0) + threadIdx.x % 32;
    }
    FA_MEMBER void prefetch(int n_block) { bits = first[n_block * 32]; }
    FA_MEMBER void begin_block(int, const float (&)[2]) {}
    FA_MEMBER float attended(float s, int i) const { return (i < 32 ? bits.x : bits.y) >> i % 32 & 1 ? s : kNegInf; }
    FA_MEMBER float exponent(float s, int i, int, float ref_log2) { return attended(fmaf(s, scale_log2, -ref_log2), i); }
    FA_MEMBER bool in_range(int) const { return true; }
    FA_MEMBER bool needs_exact(int) const { return false; }
    FA_MEMBER void apply_exact(float (&s)[BlockN / 2], int) {
        // Or the steady mainloop would keep its 64 predicates for this, by three instructions each.
        bits.x ^= rt::hidden_zero(), bits.y ^= rt::hidden_zero();
        FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++) s[i] = attended(s[i], i);
    }
};

// The bias, from its tile in shared memory (bias.h): in log2 units one fused multiplication more a score, by the factor of the head, and of
// 16 bits half an instruction to load and convert it.
template <ScoreMod score_mod, int BlockN, bool f16>
struct BiasOp {
    static constexpr float scale_log2 = 1.f;
    const Sm90ForwardParams& a;
    float scale, factor, factor_log2;
    bool plain;  // are bias · factor_log2 what the formula says? Not where −∞ would be multiplied by 0 or less, nor with extreme factors
    uint32_t place, lane_place;  // the thread's in the tile
    uint32_t word[4];
    FA_MEMBER explicit BiasOp(const Sm90ForwardParams& params) : a(params), scale(params.x.scale * kLog2e), lane_place(place_of_lane()) {}
    FA_MEMBER static uint32_t place_of_lane() {
        const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16;
        // As TMA swizzles 16 bytes of 128; a step of 32 bytes is an exclusive or.
        if (score_mod == ScoreMod::bias) return (row + lane % 16) * 128 + (lane / 16 ^ lane % 8) * 16;
        const uint32_t in_eight = lane / 4 % 4 * 2 + lane / 16;
        return (row + in_eight) * 128 + (lane % 4 / 2 ^ in_eight) * 16 + lane % 2 * 8;
    }
    FA_MEMBER void set_scale(float) {}
    FA_MEMBER void begin_tile(const Sm90Call&, const WorkTileInfo& tile, int) {
        constexpr float least = 0x1p-100f, most = 0x1p+100f;
        factor = a.bias.scale ? a.bias.scale[tile.head] : 1.f;
        factor_log2 = factor * kLog2e;
        plain = factor > least && factor < most;
    }
    FA_MEMBER void prefetch(int) {}
    FA_MEMBER void set_tile(uint32_t tile) { place = tile + lane_place; }
    FA_MEMBER void begin_block(int, const float (&)[2]) {}
    // Of the two rows' 16 keys from the g-th on.
    FA_MEMBER void load(int g) {
        if constexpr (score_mod == ScoreMod::bias) rt::ldmatrix_x4((place ^ g % 4 * 32) + g / 4 * 8192, word);
    }
    FA_MEMBER float value(int i) const {
        const uint32_t pair = word[i / 2 % 4];
        if (f16) {
            float first, second;
            rt::f16x2_to_f32(pair, first, second);
            return i % 2 ? second : first;
        }
        return __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
    }
    FA_MEMBER float2 values_f32(int i) const {  // of the keys of score i and the one after it
        return rt::ld_shared_v2((place ^ i / 4 % 4 * 32) + i / 16 * 8192 + i / 2 % 2 * 1024);
    }
    float2 both;  // of the two that were loaded last
    FA_MEMBER float bias_of(int i) {
        if constexpr (score_mod == ScoreMod::bias) {
            if (i % 8 == 0) load(i / 8);
            return value(i);
        } else {
            if (i % 2 == 0) both = values_f32(i);
            return i % 2 ? both.y : both.x;
        }
    }
    FA_MEMBER float exponent(float s, int i, int, float ref_log2) { return fmaf(s, scale, fmaf(bias_of(i), factor_log2, -ref_log2)); }
    FA_MEMBER bool in_range(int) const { return plain; }
    FA_MEMBER bool needs_exact(int) const { return false; }
    // −∞ removes a key, whatever its k and the factor are.
    FA_MEMBER void apply_exact(float (&s)[BlockN / 2], int) {
        FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++) {
            const float bias = bias_of(i);
            s[i] = bias == kNegInf ? kNegInf : fmaf(factor * bias, kLog2e, s[i] * scale);
        }
    }
};
// Factors of q's rows and of k's and v's groups of 16 keys: one multiplication more a score for v's, which act on P behind its sum.
template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::factors, BlockN, tile_scale, f16> {
    static constexpr float scale_log2 = 1.f;
    static constexpr int kGroups = BlockN / BlockFactors::kKeys;
    const BlockFactors& factors;
    float scale, of_v;
    const float4* first;  // of key 0: the factors of 32 keys
    float of_row[2];      // with the scale
    float2 of_keys[kGroups];
    FA_MEMBER explicit ScoreModOp(const Sm90ForwardParams& params) : factors(params.factors), scale(params.x.scale * kLog2e) {}
    FA_MEMBER void set_scale(float) {}
    FA_MEMBER void begin_tile(const Sm90Call& call, const WorkTileInfo& tile, int tile_row) {
        first = reinterpret_cast<const float4*>(factors.kv + (int64_t(tile.kv_batch) * factors.heads_k + tile.kv_head) * factors.groups);
        const int64_t line = (int64_t(call.sequences.q.packed() ? 0 : tile.batch) * factors.heads_q + tile.head) * factors.rows;
        FA_UNROLL_FOR (int r = 0; r < 2; r++)
            of_row[r] = scale * factors.q[line + min(tile.q_begin + tile.row0 + tile_row + 8 * r, factors.rows - 1)];
        of_v = tile.v_descale > 0.f ? __fdividef(1.f, tile.v_descale) : 0.f;
    }
    FA_MEMBER void prefetch(int n_block) {
        FA_UNROLL_FOR (int i = 0; i < kGroups; i += 2) {
            const float4 two = first[(n_block * kGroups + i) / 2];
            of_keys[i] = make_float2(two.x, two.y), of_keys[i + 1] = make_float2(two.z, two.w);
        }
    }
    FA_MEMBER void begin_block(int, const float (&)[2]) {}
    FA_MEMBER float of_score(int i) const { return of_keys[i / 8].x * of_row[i / 2 % 2]; }
    FA_MEMBER float of_value(int i) const { return of_keys[i / 8].y * of_v; }
    FA_MEMBER float exponent(float s, int i, int, float ref_log2) { return fmaf(s, of_score(i), -ref_log2); }
    FA_MEMBER bool in_range(int) const { return true; }
    FA_MEMBER bool needs_exact(int) const { return false; }
    FA_MEMBER void apply_exact(float (&s)[BlockN / 2], int) const {
        FA_UNROLL_FOR (int i = 0; i < BlockN / 2; i++) s[i] *= of_score(i);
    }
};

template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::bias, BlockN, tile_scale, f16> : BiasOp<ScoreMod::bias, BlockN, f16> {
    using BiasOp<ScoreMod::bias, BlockN, f16>::BiasOp;
};
template <int BlockN, bool tile_scale, bool f16>
struct ScoreModOp<ScoreMod::bias_f32, BlockN, tile_scale, f16> : BiasOp<ScoreMod::bias_f32, BlockN, f16> {
    using BiasOp<ScoreMod::bias_f32, BlockN, f16>::BiasOp;
};

}  // namespace gpu
}  // namespace fa
