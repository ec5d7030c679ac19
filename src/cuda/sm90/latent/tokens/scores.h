// The warpgroup that computes scores of the latent kernel of tokens, transposed: S = k qᵀ, 64 keys × Rows, each warp those of 16 keys.
// Bytes of k become f16 in registers, from where wgmma multiplies them with q in shared memory; each part of the dims has a sum of its own,
// which its factors then multiply. P, times the factors of each part, goes to shared memory as the right side of O = vᵀ P.
//
// Scores of a row are measured from row_ref, which moves when one of them has outgrown it; so do the factors' powers of two. Which of both
// happens, or a key is not there, the four warps find out with one barrier, and such a tile is done once more by exact_tile.
#pragma once
#include "cuda/sm90/latent/tokens/params.h"

namespace fa {
namespace gpu {

template <class Traits>
class TokenScores {
    using Wgmma = TokenWgmma<Traits::kRows>;
    using Form = typename Traits::Form;
    static constexpr int kRows = Traits::kRows, kScores = Traits::kScores, kValues = Traits::kValues, kParts = Traits::kParts,
                         kPitch = Form::kPitch;
    static constexpr int kPartSteps = Traits::kPartDims / 16,
                         kSteps = kRows == 16 ? kPartSteps : 4;  // of 16 dims: of a part, and of those that are issued together
    static constexpr float kLimit = 4.f;                         // log₂ of what P may be
    static constexpr int kUnit = 1;         // O is Σ P f v 2^(kUnit − e), 2^e being the power of two of the largest factor so far
    static constexpr int kScaleLog2 = 60;   // factors are first multiplied by 2^(kScaleLog2 − e), and e is no less than −kScaleLog2
    static constexpr int kPlaceLog2 = 120;  // bytes at their places in bf16 are so much smaller
    static constexpr int kSpread = 12;      // log₂ of how much smaller than the largest a factor may be for f16 to have P f
    static constexpr int kBarrier = 1, kThreads = 128;
    static constexpr uint32_t kLeastExponent = 29;  // of q: else the power that takes it to f16 were none of f32's

    const LatentParams& a;
    typename Traits::Shared& s;
    const int warp;
    const uint32_t start;  // of q, in units of 16 bytes
    const float scale_log2;
    float row_ref[kValues], row_sum[kValues], q_unit = 1.f;  // q_unit: takes products with q to their value
    int exponent[kParts];
    bool q_is_f16 = true;

    // Row 8 j + 2 t + e has number 2 j + e of a thread, and its score of key g + 8 h of the warp's number 4 j + 2 h + e.
    FA_MEMBER static int t() { return rt::read_laneid() % 4; }
    FA_MEMBER static int g() { return rt::read_laneid() / 4; }
    FA_MEMBER static int row_of(int value) { return value / 2 * 8 + 2 * t() + value % 2; }
    FA_MEMBER static constexpr int value_of(int i) { return i / 4 * 2 + i % 2; }
    FA_MEMBER static constexpr int half_of(int i) { return i / 2 % 2; }
    FA_MEMBER static float power(int e) { return e < -126 ? 0.f : __uint_as_float(uint32_t(e + 127) << 23); }
    FA_MEMBER static void sync() { rt::named_barrier_sync(kBarrier, kThreads); }
    FA_MEMBER static bool any(bool x) {
        int r;
        asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}"
                     : "=r"(r)
                     : "r"(int(x)), "n"(kBarrier), "n"(kThreads)
                     : "memory");
        return rt::warp_uniform(r) != 0;
    }
    // Over the keys that a warp's lanes have of the same rows.
    template <class Reduce>
    FA_MEMBER static float over_keys(float x, Reduce reduce) {
        FA_UNROLL_FOR (int lanes = 4; lanes < 32; lanes *= 2) x = reduce(x, __shfl_xor_sync(~0u, x, lanes));
        return x;
    }
    FA_MEMBER static float larger(float x, float y) { return fmaxf(x, y); }

    // ---- q

    // Rows of q, of which eight lanes have one, in the order in which k's bytes widen: as f16, times a power of two, or as they are.
    // Returns whether none of their dims is 2^28 times smaller than the largest, so that f16 has each exactly. In loops: what runs once
    // costs the fetch of its instructions.
    FA_MEMBER bool load_q(const LatentItem& item, bool as_f16) {
        constexpr int kOwnPanels = Traits::kPanels - 1;
        const int unit = rt::read_laneid() % 8, first = 4 * warp + rt::read_laneid() / 8;
        FA_UNROLL_BY(1)
        for (int r = first; r < kRows; r += 16) {
            const int row = item.row + r;
            const bool there = row < item.row_end;
            const char* const from =
                a.rows.q + (item.batch * a.rows.q_step[0] + (there ? row : item.row) * a.rows.q_step[1]) * 16 + 16 * unit;
            FA_UNROLL_BY(1)
            for (int i = 0; i < Traits::kPanels; i++) rt::cp_async16(at_vec(r, i, unit), from + 128 * i, there);
        }
        rt::cp_async_commit();
        rt::cp_async_wait<0>();
        uint32_t largest = kLeastExponent;
        const auto each_vec = [&](auto change) {
            FA_UNROLL_BY(1)
            for (int r = first; r < kRows; r += 16) {
                FA_UNROLL_BY(2)
                for (int i = 0; i < kOwnPanels; i++) {
                    const uint4 four = rt::ld_shared_v4(at_vec(r, i, unit));
                    uint32_t word[4] = {four.x, four.y, four.z, four.w};
                    change(r, i, word);
                }
            }
        };
        each_vec([&](int, int, const uint32_t (&word)[4]) {
            FA_UNROLL_FOR (int j = 0; j < 4; j++) largest = max(largest, max(word[j] >> 7 & 0xff, word[j] >> 23 & 0xff));
        });
        largest = __reduce_max_sync(~0u, largest);
        if (rt::read_laneid() == 0) s.q_exponent[warp] = largest;
        sync();
        FA_UNROLL_FOR (int i = 0; i < 4; i++) largest = max(largest, s.q_exponent[i]);
        const float to_f16 = as_f16 ? __uint_as_float((268 - largest) << 23) : 1.f;
        q_unit = as_f16 ? __uint_as_float((largest - 14) << 23) : 1.f;
        bool exact = true;
        each_vec([&](int r, int i, uint32_t (&word)[4]) {
            FA_UNROLL_FOR (int j = 0; j < 4; j++) {
                FA_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const uint32_t bits = word[j] >> 16 * e & 0x7fff;
                    exact &= bits == 0 || bits >> 7 >= largest - 28;
                }
                if (as_f16)
                    word[j] = rt::pack_f16(__uint_as_float(word[j] << 16) * to_f16, __uint_as_float(word[j] & 0xffff0000u) * to_f16);
            }
            __syncwarp();
            // Words 2 t and 2 t + 1 of each eight take the places t and t + 4.
            FA_UNROLL_FOR (int j = 0; j < 4; j++) rt::st_shared(at_vec(r, i, unit / 2 * 2 + j % 2) + (unit % 2 * 2 + j / 2) * 4, word[j]);
        });
        return exact;
    }
    FA_MEMBER static uint32_t at_vec(int row, int panel, int vec) {
        return Traits::q_tile() + panel * Traits::kPanelBytes + row * 128 + ((vec ^ row % 8) << 4);
    }
    FA_MEMBER void begin_item(const LatentItem& item) {
        q_is_f16 = !any(!load_q(item, true));
        FA_UNROLL_FOR (int v = 0; v < kValues; v++) row_ref[v] = kNegInf, row_sum[v] = 0.f;
        FA_UNROLL_FOR (int i = 0; i < kParts; i++) exponent[i] = -kScaleLog2;
        if (!q_is_f16) load_q(item, false);
        rt::fence_proxy_async_shared();
        sync();
    }

    // ---- scores

    FA_MEMBER static void load_factors(uint32_t from, int h, float (&factor)[kParts][2]) {
        if constexpr (Form::kFactorBytes == 16) {
            float four[4];
            rt::ld_shared_v4(from, four);
            FA_UNROLL_FOR (int i = 0; i < kParts; i++) factor[i][h] = four[i];
        } else {
            const float2 pair = rt::ld_shared_v2(from);
            FA_UNROLL_FOR (int i = 0; i < kParts; i++)
                factor[i][h] = e8m0_to_f32(uint8_t(__float_as_uint(i < 4 ? pair.x : pair.y) >> i % 4 * 8));
        }
    }
    // Where a lane reads the warp's rows of a stage: 16 rows × 32 bytes.
    FA_MEMBER uint32_t own_rows(uint32_t stage) const {
        return stage + (16 * warp + rt::read_laneid() % 16) * kPitch + rt::read_laneid() / 16 * 16;
    }
    // kSteps steps of 16 dims, as bytes and as left sides.
    FA_MEMBER static void load_bytes(uint32_t from, uint32_t (&r)[2 * kSteps]) {
        FA_UNROLL_FOR (int i = 0; i < kSteps / 2; i++) rt::ldmatrix_x4(from + 32 * i, r + 4 * i);
    }
    template <bool f16>
    FA_MEMBER static void widen(const uint32_t (&r)[2 * kSteps], uint32_t (&x)[4 * kSteps]) {
        FA_UNROLL_FOR (int i = 0; i < 2 * kSteps; i++) {
            uint32_t &low = x[i / 2 * 4 + i % 2], &high = x[i / 2 * 4 + i % 2 + 2];
            rt::e4m3_to_f16(r[i], low, high);
            if constexpr (!f16) low = rt::f16_to_bf16(low), high = rt::f16_to_bf16(high);
        }
    }
    template <bool f16, int first>
    FA_MEMBER void issue_steps(uint32_t (&x)[4 * kSteps], float (&sum)[kScores]) const {
        rt::wgmma_fence();
        for_constants<0, kSteps>([&](auto i) {
            constexpr int step = first + i, at = (step / 4 * Traits::kPanelBytes + step % 4 * 32) / 16;
            if constexpr (f16) Wgmma::template f16<at>(sum, x + 4 * i, start, step % kPartSteps > 0);
            else Wgmma::template bf16<at>(sum, x + 4 * i, start, step % kPartSteps > 0);
        });
        rt::wgmma_commit();
    }
    FA_MEMBER void add_part(const float (&sum)[kScores], const float (&factor)[2], float (&score)[kScores]) const {
        const float unit[2] = {factor[0] * q_unit, factor[1] * q_unit};
        FA_UNROLL_FOR (int i = 0; i < kScores; i++) score[i] = fmaf(sum[i], unit[half_of(i)], score[i]);
    }
    template <bool f16>
    FA_MEMBER void multiply_q(uint32_t stage, const float (&factor)[kParts][2], float (&score)[kScores]) const {
        const uint32_t from = own_rows(stage);
        uint32_t x[2][4 * kSteps], bytes[2 * kSteps];
        float sum[2][kScores];
        FA_UNROLL_FOR (int i = 0; i < 4; i++) rt::ldmatrix_x4(from + Form::kTail + 32 * i, x[1] + 4 * i);
        load_bytes(from, bytes);
        rt::wgmma_fence();
        for_constants<0, 4>([&](auto i) {
            Wgmma::template bf16<((Traits::kPanels - 1) * Traits::kPanelBytes + i * 32) / 16>(score, x[1] + 4 * i, start, i > 0);
        });
        rt::wgmma_commit();
        constexpr int groups = kParts * kPartSteps / kSteps;
        for_constants<0, groups>([&](auto n) {
            constexpr int first = n * kSteps, part = first / kPartSteps;
            widen<f16>(bytes, x[n % 2]);
            if constexpr (n + 1 < groups) load_bytes(from + 16 * (first + kSteps), bytes);
            issue_steps<f16, first>(x[n % 2], sum[part % 2]);
            rt::wgmma_wait<1>();
            rt::keep_in_registers(x[1 - n % 2]);
            if constexpr (first == 0) {
                rt::keep_in_registers(score);
            } else if constexpr (first % kPartSteps == 0) {
                rt::keep_in_registers(sum[1 - part % 2]);
                add_part(sum[1 - part % 2], factor[part - 1], score);
            }
        });
        rt::wgmma_wait<0>();
        rt::keep_in_registers(x[(groups - 1) % 2]);
        rt::keep_in_registers(sum[(kParts - 1) % 2]);
        add_part(sum[(kParts - 1) % 2], factor[kParts - 1], score);
    }

    // ---- P

    FA_MEMBER float from_ref(int v) const { return row_ref[v] == kNegInf ? 0.f : row_ref[v]; }
    FA_MEMBER bool is_tame(float factor, int e) const {
        return (__float_as_uint(factor) & 0x7fffffffu) - (uint32_t(e - kSpread + 127) << 23) < uint32_t(kSpread + 1) << 23;
    }
    // Times each part's factors, to shared memory, rows by keys.
    template <bool f16>
    FA_MEMBER void store_probs(int buffer, const float (&p)[kScores], const float (&factor)[kParts][2]) const {
        FA_UNROLL_FOR (int part = 0; part < kParts; part++) {
            float f[2];
            FA_UNROLL_FOR (int h = 0; h < 2; h++)
                f[h] = factor[part][h] * power(kScaleLog2 - exponent[part]) *
                       power(f16 ? kUnit - kScaleLog2 : kUnit - kScaleLog2 + kPlaceLog2);
            store_prob<f16>(buffer, part, p, f);
        }
        const float one[2] = {power(kUnit), power(kUnit)};
        if constexpr (Form::kTailInV) store_prob<false>(buffer, kParts, p, one);
    }
    template <bool f16>
    FA_MEMBER void store_prob(int buffer, int part, const float (&p)[kScores], const float (&f)[2]) const {
        const int lane = rt::read_laneid();
        const uint32_t to = Traits::probs(buffer) + part * Traits::kPanelBytes + (lane / 16 * 8 + lane % 8) * 128 +
                            ((2 * warp + lane / 8 % 2 ^ lane % 8) << 4);
        FA_UNROLL_FOR (int j = 0; j < kScores / 8; j++) {  // 16 rows
            uint32_t pair[4];
            FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                const float first = p[8 * j + 2 * i] * f[i % 2], second = p[8 * j + 2 * i + 1] * f[i % 2];
                pair[i] = f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
            }
            rt::stmatrix_trans(to + j * 2048, pair);
        }
    }
    // x[0] becomes the last: loops that run once take less to fetch than what is unrolled.
    template <class T, int n>
    FA_MEMBER static void rotate(T (&x)[n]) {
        const T first = x[0];
        FA_UNROLL_FOR (int i = 0; i + 1 < n; i++) x[i] = x[i + 1];
        x[n - 1] = first;
    }
    struct Two {
        float x[2];
    };
    // A tile with masks, or whose scores or factors have outgrown what they are measured from: returns whether f16 has its P f.
    FA_MEMBER bool exact_tile(const LatentItem& item, int first_key, uint64_t present, int buffer, const float (&factor)[kParts][2],
                              float (&score)[kScores]) {
        bool nan = false, there[2];
        FA_UNROLL_FOR (int h = 0; h < 2; h++) there[h] = present >> (16 * warp + g() + 8 * h) & 1;
        Two of_row[kValues], of_part[kParts];
        float infinite[2] = {};  // NaN where a factor is, which makes a score NaN: see nan_if_infinite()
        FA_UNROLL_FOR (int i = 0; i < 2 * kParts; i++) infinite[i % 2] = fmaf(0.f, factor[i / 2][i % 2], infinite[i % 2]);
        FA_UNROLL_FOR (int i = 0; i < kScores; i++) of_row[value_of(i)].x[half_of(i)] = score[i] + infinite[half_of(i)];
        FA_UNROLL_FOR (int i = 0; i < 2 * kParts; i++) of_part[i / 2].x[i % 2] = factor[i / 2][i % 2];
        FA_UNROLL_BY(1)
        for (int v = 0; v < kValues; v++, rotate(of_row)) {
            const int last = a.x.causal ? item.off + (item.row + row_of(v)) / int(a.x.group) - first_key : kTokenKeys;
            FA_UNROLL_FOR (int h = 0; h < 2; h++) {
                float& x = of_row[0].x[h];
                nan |= isnan(x);  // such a v is none, even for rows that do not see it
                if (!there[h] || 16 * warp + g() + 8 * h > last) x = kNegInf;
            }
            const float most = over_keys(fmaxf(of_row[0].x[0], of_row[0].x[1]), larger);
            if (g() == 0) s.row_max[warp][row_of(v)] = most;
        }
        FA_UNROLL_FOR (int i = 0; i < kScores; i++) score[i] = of_row[value_of(i)].x[half_of(i)];
        FA_UNROLL_BY(1)
        for (int part = 0; part < kParts; part++, rotate(of_part)) {
            float most = 0.f, least = kPosInf;
            FA_UNROLL_FOR (int h = 0; h < 2; h++) {
                const float size = fabsf(of_part[0].x[h]);
                if (!there[h]) continue;
                least = size <= kMaxFloat ? fminf(least, size) : 0.f;
                if (size <= kMaxFloat) most = fmaxf(most, size);
            }
            most = over_keys(most, larger), least = over_keys(least, [](float x, float y) { return fminf(x, y); });
            if (rt::read_laneid() == 0) s.largest[warp][part] = most, s.smallest[warp][part] = least;
        }
        nan = any(nan);
        bool tame = !nan;
        FA_UNROLL_BY(1)
        for (int v = 0; v < kValues; v++, rotate(row_ref), rotate(row_sum)) {
            const int row = row_of(v);
            float most = s.row_max[0][row];
            FA_UNROLL_FOR (int i = 1; i < 4; i++) most = fmaxf(most, s.row_max[i][row]);
            most *= scale_log2;
            float alpha = 1.f;
            if (most > row_ref[0] + kLimit || row_ref[0] == kNegInf) {
                if (most != kNegInf) alpha = rt::exp2_fast(row_ref[0] - most);
                row_ref[0] = most, row_sum[0] *= alpha;
            }
            if (warp == 0 && g() == 0) s.row_factor[buffer][row] = alpha;
        }
        FA_UNROLL_BY(1)
        for (int part = 0; part < kParts; part++, rotate(exponent)) {
            float most = s.largest[0][part], least = s.smallest[0][part];
            FA_UNROLL_FOR (int i = 1; i < 4; i++) most = fmaxf(most, s.largest[i][part]), least = fminf(least, s.smallest[i][part]);
            const int before = exponent[0];
            exponent[0] = max(before, int(__float_as_uint(most) >> 23) - 127);
            tame &= least >= power(exponent[0] - kSpread);
            if (warp == 0 && rt::read_laneid() == 0) s.part_factor[buffer][part] = power(before - exponent[0]);
        }
        if (Form::kTailInV && warp == 0 && rt::read_laneid() == 0) s.part_factor[buffer][kParts] = 1.f;
        return tame;
    }
    // What the end of an item's rows needs.
    FA_MEMBER void publish_rows(int buffer) {
        FA_UNROLL_BY(1)
        for (int v = 0; v < kValues; v++, rotate(row_sum), rotate(row_ref)) {
            const float sum = over_keys(row_sum[0], [](float x, float y) { return x + y; });
            if (g() != 0) continue;
            s.row_sum[buffer][warp][row_of(v)] = sum;
            if (warp == 0) s.row_ref[buffer][row_of(v)] = row_ref[0];
        }
        if (warp == 0 && rt::read_laneid() == 0)
            FA_UNROLL_FOR (int part = 0; part < Traits::kProbs; part++)
                s.output_unit[buffer][part] = part < kParts ? power(exponent[part % kParts]) : 1.f;
    }

  public:
    FA_MEMBER explicit TokenScores(const LatentParams& params)
        : a(params),
          s(Traits::shared()),
          warp(rt::warp_uniform(int(threadIdx.x) / 32 % 4)),
          start(uint32_t(rt::warp_uniform(int((Traits::q_tile() & 0x3FFFF) >> 4)))),
          scale_log2(params.x.scale * kLog2e) {}

    FA_MEMBER void run() {
        PipelineState<Traits::kStages> stage;
        PipelineState<2> buffer;
        FA_UNROLL_BY(1)
        for (PipelineState<Traits::kItemSlots> slot;; slot.advance()) {
            LatentItemSlot& now = s.item[slot.index];
            rt::mbarrier_wait(rt::smem_addr(&now.ready), slot.phase);
            const LatentItem& item = now.item;
            const int tiles = rt::warp_uniform(Traits::tiles_of(item));
            if (rt::warp_uniform(item.pairs) == kNoItem) return;
            if (tiles > 0) begin_item(item);
            FA_UNROLL_BY(1)
            for (int j = 0; j < tiles; j++, stage.advance(), buffer.advance()) {
                const uint32_t tile = Traits::stage(stage.index);
                rt::mbarrier_wait(rt::smem_addr(&s.full[stage.index]), stage.phase);
                float factor[kParts][2], score[kScores];
                FA_UNROLL_FOR (int h = 0; h < 2; h++) load_factors(tile + (16 * warp + g() + 8 * h) * kPitch + Form::kFactors, h, factor);
                const uint64_t present = s.present[stage.index];
                if (q_is_f16) multiply_q<true>(tile, factor, score);
                else multiply_q<false>(tile, factor, score);
                Traits::release(s.empty[stage.index]);
                const int first_key = item.begin + j * kTokenKeys;
                const bool masked = j == 0 || ~present != 0 || (a.x.causal && first_key + kTokenKeys - 1 > item.diagonal);
                float p[kScores];
                bool grown = masked;
                FA_UNROLL_FOR (int i = 0; i < kScores; i++) {
                    p[i] = fmaf(score[i], scale_log2, -from_ref(value_of(i)));
                    grown |= !(p[i] <= kLimit);
                }
                FA_UNROLL_FOR (int part = 0; part < kParts; part++)
                    FA_UNROLL_FOR (int h = 0; h < 2; h++) grown |= !is_tame(factor[part][h], exponent[part]);
                const bool exact = any(grown);
                bool f16 = true;
                rt::mbarrier_wait(rt::smem_addr(&s.p_empty[buffer.index]), buffer.phase ^ 1);
                if (exact) {
                    f16 = exact_tile(item, first_key, present, buffer.index, factor, score);
                    // Rounded as row_ref is: of scores beyond 2^24 the largest would otherwise have any weight but 1.
                    FA_UNROLL_FOR (int i = 0; i < kScores; i++) p[i] = score[i] * scale_log2 - from_ref(value_of(i));
                }
                FA_UNROLL_FOR (int i = 0; i < kScores; i++) p[i] = rt::exp2_fast(p[i]), row_sum[value_of(i)] += p[i];
                if (f16) store_probs<true>(buffer.index, p, factor);
                else store_probs<false>(buffer.index, p, factor);
                if (threadIdx.x == 0) s.moved[buffer.index] = exact, s.is_bf16[buffer.index] = !f16;
                if (j + 1 == tiles) publish_rows(buffer.index);
                rt::fence_proxy_async_shared();
                rt::mbarrier_arrive(rt::smem_addr(&s.p_full[buffer.index]));
            }
            Traits::release(now.consumed);
        }
    }
};

}  // namespace gpu
}  // namespace fa
