// Lays out a worker's buffers in the workspace, and makes the Call of a forward: the score mod's flags and scale factors when it is
// planned, dropout and pointers when it runs.
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {
namespace {

PartialState lay_out_state(const Problem& problem, const Method& method, Arena& arena) {
    const int64_t width = method.panel_of_heads ? method.rows : kMaxRows;
    PartialState s;
    s.acc = arena.allocate<float>(problem.d.dim_v * width);
    s.m = arena.allocate<float>(width);
    s.l = arena.allocate<float>(width);
    return s;
}

Scratch lay_out_scratch(const Problem& problem, const Method& method, const Method& decode, Arena& arena) {
    Scratch w;
    const int64_t panel =
        method.panel_of_heads
            ? method.panel
            : max_of(min_of(method.panel, tile_count(row_tiles(problem, method.rows), problem.d.seqlen_q * problem.group)), 1);
    w.q = method.panel_of_heads ? nullptr : arena.allocate<float>(problem.d.dim_qk * kMaxRows * panel);
    w.s = arena.allocate<float>(kTileKeys * kMaxRows);
    w.addend = arena.allocate<float>(kTileKeys * kMaxRows);
    w.k = arena.allocate<float>(kTileKeys * problem.d.dim_qk);
    w.v = arena.allocate<float>(kTileKeys * problem.d.dim_v);
    w.line = arena.allocate<float>(max_of(max_of(problem.d.dim_qk, problem.d.dim_v), kTileKeys));
    w.rescale = arena.allocate<float>(kMaxRows);
    for (int i = 0; i < panel; i++) {
        w.partial[i] = lay_out_state(problem, method, arena);
        w.total[i] = lay_out_state(problem, method, arena);
    }
    w.method_memory = arena.allocate<char>(method.method_bytes);
    w.decode_memory = method.panel_of_heads ? w.method_memory : arena.allocate<char>(decode.method_bytes);
    w.band_begin = arena.allocate<int32_t>(kMaxRows);
    w.band_end = arena.allocate<int32_t>(kMaxRows);
    w.slots = arena.allocate<int32_t>(problem.slots() ? problem.d.list_max : 0);
    w.counters = {0, 0, 0};
    return w;
}

}  // namespace

int64_t scratch_bytes(const Problem& problem, const Method& method, const Method& decode) {
    Arena arena{nullptr, 0};
    lay_out_scratch(problem, method, decode, arena);
    return arena.used;
}

int64_t state_bytes(const Problem& problem, const Method& method) {
    Arena arena{nullptr, 0};
    lay_out_state(problem, method, arena);
    return arena.used;
}

Scratch locate_scratch(const Problem& problem, const Method& method, const Method& decode, char* memory) {
    Arena arena{memory, 0};
    return lay_out_scratch(problem, method, decode, arena);
}

PartialState locate_state(const Problem& problem, const Method& method, char* memory) {
    Arena arena{memory, 0};
    return lay_out_state(problem, method, arena);
}

Call plan_call(const Problem& problem, const Kernels& kernels, const Method& method, const Method& decode, bool count) {
    Call c{};
    c.rule = mask_rule(problem);
    c.k = &kernels;
    c.method = method;
    c.decode = decode;
    c.has_addend = problem.has_addend();
    c.has_score_mod = problem.has_score_mod() || problem.has(FA_OPERAND_SCORES) || !plain_scale(problem.d.scale);
    c.factor = score_factor(c.has_score_mod ? problem.d.scale : problem.d.scale * kLog2e);
    c.has_dropout = problem.d.dropout_p > 0;
    c.dropout_rescale = c.o_scale = 1.f;
    c.tiles = row_tiles(problem, method.rows);
    c.blocks = tile_count(c.tiles, problem.d.seqlen_q * problem.group);
    c.count = count;
    return c;
}

Call make_call(const Call& planned, const Problem& problem, const fa_forward_args_t& args) {
    Call c = planned;
    c.p = &problem;
    c.a = &args;
    c.sequences = sequence_table(problem, args);
    c.sets.ranges = key_ranges(problem, args);
    c.slots = slot_lists(problem, args);
    if (c.has_dropout) {
        const bool state = problem.has(FA_OPERAND_RNG_STATE);
        c.dropout = make_dropout(problem.d.dropout_p, state ? args.rng_state[0] : args.dropout_seed,
                                 state ? args.rng_state[1] : args.dropout_offset);
        c.dropout_at = dropout_place(problem, args);
        c.dropout_rescale = c.dropout.rescale;
    }
    if (problem.has(FA_OPERAND_O_SCALE)) c.o_scale = args.o_scale[0];
    return c;
}

}  // namespace cpu
}  // namespace fa
