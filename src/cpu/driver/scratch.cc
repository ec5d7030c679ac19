// Where a worker's buffers lie in the workspace, and what a call fixes once.
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {
namespace {

RowSums take_sums(const Problem& p, const Method& m, Carver& c) {
    const int64_t width = m.heads ? m.rows : kMaxRows;
    RowSums s;
    s.o = c.take<float>(p.d.dim_v * width);
    s.m = c.take<float>(width);
    s.l = c.take<float>(width);
    return s;
}

Scratch take_scratch(const Problem& p, const Method& m, const Method& decode, Carver& c) {
    Scratch w;
    const int64_t panel = m.heads ? m.panel : max_of(min_of(m.panel, ceil_div(p.d.seqlen_q * p.group, m.rows)), 1);
    w.q = m.heads ? nullptr : c.take<float>(p.d.dim_qk * kMaxRows * panel);
    w.s = c.take<float>(kTileKeys * kMaxRows);
    w.addend = c.take<float>(kTileKeys * kMaxRows);
    w.k = c.take<float>(kTileKeys * p.d.dim_qk);
    w.v = c.take<float>(kTileKeys * p.d.dim_v);
    w.line = c.take<float>(max_of(max_of(p.d.dim_qk, p.d.dim_v), kTileKeys));
    w.rescale = c.take<float>(kMaxRows);
    for (int i = 0; i < panel; i++) {
        w.run[i] = take_sums(p, m, c);
        w.total[i] = take_sums(p, m, c);
    }
    w.own = c.take<char>(m.own_bytes);
    w.decode_memory = m.heads ? w.own : c.take<char>(decode.own_bytes);
    w.band_begin = c.take<int32_t>(kMaxRows);
    w.band_end = c.take<int32_t>(kMaxRows);
    w.counters = {0, 0, 0};
    return w;
}

}  // namespace

int64_t scratch_bytes(const Problem& p, const Method& m, const Method& decode) {
    Carver c{nullptr, 0};
    take_scratch(p, m, decode, c);
    return c.used;
}

int64_t sums_bytes(const Problem& p, const Method& m) {
    Carver c{nullptr, 0};
    take_sums(p, m, c);
    return c.used;
}

Scratch carve_scratch(const Problem& p, const Method& m, const Method& decode, char* memory) {
    Carver c{memory, 0};
    return take_scratch(p, m, decode, c);
}

RowSums carve_sums(const Problem& p, const Method& m, char* memory) {
    Carver c{memory, 0};
    return take_sums(p, m, c);
}

Call make_call(const Problem& p, const fa_forward_args_t& a, const Kernels& k, const Method& m, const Method& decode, bool count) {
    Call c;
    c.p = &p;
    c.a = &a;
    c.k = &k;
    c.method = m;
    c.decode = decode;
    c.shared = nullptr;
    c.first_head = 0;
    c.addend = p.has(FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI);
    c.natural = c.addend || p.d.softcap > 0 || p.has(FA_OPERAND_SCORES) || !plain_scale(p.d.scale);
    c.factor = score_factor(c.natural ? p.d.scale : p.d.scale * kLog2e);
    c.drop = p.d.dropout_p > 0;
    const bool state = p.has(FA_OPERAND_RNG_STATE);
    c.dropout = make_dropout(p.d.dropout_p, state ? a.rng_state[0] : a.dropout_seed, state ? a.rng_state[1] : a.dropout_offset);
    c.drop_rescale = c.drop ? c.dropout.rescale : 1.f;
    c.o_scale = p.has(FA_OPERAND_O_SCALE) ? a.o_scale[0] : 1.f;
    c.blocks = ceil_div(p.d.seqlen_q * p.group, m.rows);
    c.count = count;
    return c;
}

}  // namespace cpu
}  // namespace fa
