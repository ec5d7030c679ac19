// The warpgroups that multiply values in the latent kernel of tokens: O = vᵀ P, columns × Rows, each those of four blocks of 64 columns. A
// warp has 16 columns of a block: bytes of 32 keys come transposed, pairs of keys are put together, and become f16 in registers, from where
// wgmma multiplies them with P.
#pragma once
#include "cuda/sm90/latent/tokens/params.h"
#include "cuda/sm90/split_o/epilogue.h"

namespace fa {
namespace gpu {

template <class Traits, int group>
class TokenColumns {
    using Wgmma = TokenWgmma<Traits::kRows>;
    using Form = typename Traits::Form;
    static constexpr int kRows = Traits::kRows, kScores = Traits::kScores, kValues = Traits::kValues, kBlocks = Traits::kBlocks,
                         kPitch = Form::kPitch;
    static constexpr int kTailBlock = Form::kTailInV ? 7 : 8;  // of all
    static constexpr int kTogether = kRows == 16 ? 2 : 1;      // blocks whose products are issued together

    const LatentParams& a;
    typename Traits::Shared& s;
    const int warp;
    const uint32_t start;  // of shared memory, in units of 16 bytes
    float o[kBlocks]
           [kScores];  // column 2 g + h, of the tail g + 8 h, of the warp's 16 of a block, and row 8 j + 2 t + e: number 4 j + 2 h + e

    FA_MEMBER static int t() { return rt::read_laneid() % 4; }
    FA_MEMBER static int g() { return rt::read_laneid() / 4; }
    FA_MEMBER static int row_of(int value) { return value / 2 * 8 + 2 * t() + value % 2; }

    // Which P a block meets.
    FA_MEMBER static constexpr int prob_of(int block) { return block == kTailBlock ? Traits::kParts : 64 * block / Traits::kPartDims; }
    // A byte's exponent and fraction at their places in bf16, where it is 2^120 times smaller; what is no number becomes 480: P is none
    // then either, but of rows that do not see the key.
    FA_MEMBER static uint32_t place(uint32_t bytes, uint32_t selector) { return rt::prmt_signed(bytes, selector) << 4 & 0x87f087f0u; }
    // A warp's columns of a block, as left sides for four times 16 keys.
    template <bool f16, int block>
    FA_MEMBER void load_block(uint32_t tile, uint32_t* x) const {
        const int lane = rt::read_laneid();
        if constexpr (block == kTailBlock) {
            const uint32_t from = tile + Form::kTail + 32 * warp + lane % 16 * kPitch + lane / 16 * 16;
            FA_UNROLL_FOR (int n = 0; n < 4; n++) {
                uint32_t r[4];
                rt::ldmatrix_x4_trans(from + n * 16 * kPitch, r);
                FA_UNROLL_FOR (int i = 0; i < 4; i++) x[4 * n + i] = r[i % 2 * 2 + i / 2];
            }
        } else {
            const uint32_t from = tile + 64 * block + 16 * warp + lane * kPitch;
            FA_UNROLL_FOR (int n = 0; n < 2; n++) {
                uint32_t r[4];
                rt::ldmatrix_x4_trans(from + n * 32 * kPitch, r);
                FA_UNROLL_FOR (int i = 0; i < 4; i++) {
                    uint32_t* const pair = x + 8 * n + 2 * i;
                    if constexpr (f16) rt::e4m3_to_f16(rt::prmt(r[i], 0, 0x3120), pair[0], pair[1]);
                    else pair[0] = place(r[i], 0xa280), pair[1] = place(r[i], 0xb391);
                }
            }
        }
    }
    template <bool f16, int block>
    FA_MEMBER void issue_block(const uint32_t* x, uint32_t probs) {
        for_constants<0, 4>([&](auto n) {
            constexpr int at = (prob_of(block) * Traits::kPanelBytes + n * 32) / 16;
            if constexpr (f16 && block != kTailBlock) Wgmma::template f16<at>(o[block % kBlocks], x + 4 * n, probs, 1);
            else Wgmma::template bf16<at>(o[block % kBlocks], x + 4 * n, probs, 1);
        });
    }
    FA_MEMBER void keep_o() {
        FA_UNROLL_FOR (int i = 0; i < kBlocks; i++) rt::keep_in_registers(o[i]);
    }
    FA_MEMBER void rescale(int buffer) {
        FA_UNROLL_FOR (int v = 0; v < kValues; v++) {
            const float of_row = s.row_factor[buffer][row_of(v)];
            FA_UNROLL_FOR (int i = 0; i < kBlocks; i++) {
                const float factor = of_row * s.part_factor[buffer][prob_of(group * kBlocks + i)];
                FA_UNROLL_FOR (int h = 0; h < 2; h++) o[i][v / 2 * 4 + 2 * h + v % 2] *= factor;
            }
        }
    }
    using Left = uint32_t[16 * kTogether];
    template <bool f16, int i>
    FA_MEMBER void load_blocks(uint32_t tile, Left& x) const {
        for_constants<0, kTogether>([&](auto j) { load_block<f16, group * kBlocks + i * kTogether + j>(tile, x + 16 * j); });
    }
    // x[0]: the first blocks, as f16.
    template <bool f16>
    FA_MEMBER void multiply(uint32_t tile, int stage, int buffer, Left (&x)[2]) {
        const uint32_t probs = start + ((Traits::probs(buffer) - Traits::q_tile()) >> 4);
        constexpr int steps = kBlocks / kTogether;
        if constexpr (!f16) load_blocks<false, 0>(tile, x[0]);
        for_constants<0, steps>([&](auto i) {
            rt::wgmma_fence();
            for_constants<0, kTogether>([&](auto j) { issue_block<f16, group * kBlocks + i * kTogether + j>(x[i % 2] + 16 * j, probs); });
            rt::wgmma_commit();
            if constexpr (i > 0) {
                rt::wgmma_wait<1>();
                rt::keep_in_registers(x[1 - i % 2]);
            }
            if constexpr (i + 1 < steps) load_blocks<f16, i + 1>(tile, x[1 - i % 2]);
        });
        Traits::release(s.empty[stage]);
        rt::wgmma_wait<0>();
        rt::keep_in_registers(x[1]);
        keep_o();
    }

    // ---- the end of an item

    // Two columns of a row of o.
    FA_MEMBER static uint32_t narrow(float first, float second, float factor) {
        return rt::pack_bf16(finite_average<false>(first, factor), finite_average<false>(second, factor));
    }
    // The item's rows, in a loop: what runs once costs the fetch of its instructions.
    FA_MEMBER void store(const LatentItem& item, int buffer) const {
        const LatentCall& call = a.x;
        float next[kValues][kBlocks][2];
        FA_UNROLL_FOR (int v = 0; v < kValues; v++)
            FA_UNROLL_FOR (int i = 0; i < kBlocks; i++)
                FA_UNROLL_FOR (int h = 0; h < 2; h++) next[v][i][h] = o[i][v / 2 * 4 + 2 * h + v % 2];
        FA_UNROLL_BY(1)
        for (int v = 0; v < kValues; v++) {
            const int place = row_of(v), row = item.row + place;
            if (row < item.row_end) {
                float sum = 0.f;
                FA_UNROLL_FOR (int i = 0; i < 4; i++) sum += s.row_sum[buffer][i][place];
                const RowState state{s.row_ref[buffer][place], sum * kHeadroomUnit};
                const bool first = group == 0 && warp == 0 && g() == 0;
                const int64_t i = row / int(call.group), head = row % int(call.group), batch = item.batch;
                const Sequence seq{0, call.sequences.q.seqlen, 0, 0, 0, 0};
                float factor = 1.f;
                float* wide = nullptr;
                int64_t at = query_index(call.o_strides, seq, batch, i, head);
                if (call.partial_o) {
                    const int64_t partial = (item.split * call.batch + batch) * call.rows + row;
                    if (first) call.state[partial] = state;
                    wide = call.partial_o, at = partial * 512;
                } else {
                    factor = finalize_row(call, seq, batch, head, i, state, first).factor;
                    if (call.o_dtype == FA_F32) wide = static_cast<float*>(call.o);
                }
                at += 64 * kBlocks * group + 16 * warp;
                FA_UNROLL_FOR (int i = 0; i < kBlocks; i++) {
                    const int block = group * kBlocks + i;
                    const bool tail = block == kTailBlock;
                    const float unit = s.output_unit[buffer][prob_of(block)];
                    float value[2];
                    FA_UNROLL_FOR (int h = 0; h < 2; h++) value[h] = state.l == 0.f ? 0.f : next[0][i][h] * (kHeadroomUnit / 2) * unit;
                    const int64_t to = at + 64 * i + (tail ? 1 : 2) * g();
                    if (wide) {
                        FA_UNROLL_FOR (int h = 0; h < 2; h++) wide[to + (tail ? 8 : 1) * h] = fmaf(value[h], factor, 0.f);
                    } else if (tail) {
                        FA_UNROLL_FOR (int h = 0; h < 2; h++)
                            static_cast<uint16_t*>(call.o)[to + 8 * h] = uint16_t(narrow(value[h], value[h], factor));
                    } else {
                        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(call.o) + to) = narrow(value[0], value[1], factor);
                    }
                }
            }
            FA_UNROLL_FOR (int n = 0; n + 1 < kValues; n++)
                FA_UNROLL_FOR (int i = 0; i < kBlocks; i++)
                    FA_UNROLL_FOR (int h = 0; h < 2; h++) next[n][i][h] = next[n + 1][i][h];
        }
    }

  public:
    FA_MEMBER explicit TokenColumns(const LatentParams& params)
        : a(params),
          s(Traits::shared()),
          warp(rt::warp_uniform(int(threadIdx.x) / 32 % 4)),
          start(uint32_t(rt::warp_uniform(int((Traits::q_tile() & 0x3FFFF) >> 4)))) {}

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
            FA_UNROLL_FOR (int i = 0; i < kBlocks * kScores; i++) o[i / kScores][i % kScores] = 0.f;
            FA_UNROLL_BY(1)
            for (int j = 0; j < tiles; j++, stage.advance(), buffer.advance()) {
                const uint32_t tile = Traits::stage(stage.index);
                rt::mbarrier_wait(rt::smem_addr(&s.full[stage.index]), stage.phase);
                Left x[2];
                load_blocks<true, 0>(tile, x[0]);  // before P has come
                rt::mbarrier_wait(rt::smem_addr(&s.p_full[buffer.index]), buffer.phase);
                if (j > 0 && rt::warp_uniform(s.moved[buffer.index])) rescale(buffer.index);
                if (rt::warp_uniform(s.is_bf16[buffer.index])) multiply<false>(tile, stage.index, buffer.index, x);
                else multiply<true>(tile, stage.index, buffer.index, x);
                if (j + 1 == tiles) store(item, buffer.index);
                Traits::release(s.p_empty[buffer.index]);
            }
            Traits::release(now.consumed);
        }
    }
};

}  // namespace gpu
}  // namespace fa
