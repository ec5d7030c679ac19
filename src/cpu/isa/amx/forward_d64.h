// The AMX mainloop for heads of 33 to 64 dims: a row tile's accumulators stay in four of the eight tile registers over all keys,
// and its q in two, which saves their way to memory and back in each step. k and v are then loaded for one row tile at a time, not
// for two, which the second-level cache can deliver.
#pragma once
#include "cpu/isa/amx/forward.h"

namespace fa {
namespace cpu {
namespace {

inline bool is_head_dim_64(const MatrixShape& shape) { return shape.depth == 2 && shape.columns == 4; }

// Iterates over row tiles and steps: steps of one RowBlock that follow each other are a run, which its upper row tile goes through
// first.
struct TileStep {
    const MainloopStep* run;
    int64_t count, left_after;  // steps of the run, and behind it
    int tile;
    int64_t at;

    static int64_t length(const MainloopStep* step, int64_t most) {
        int64_t n = 1;
        while (n < most && step[n].block == step->block) n++;
        return n;
    }
    static TileStep first_of(const MainloopStep* steps, int64_t count) {
        const int64_t n = length(steps, count);
        return {steps, n, count - n, 0, 0};
    }
    const MainloopStep& step() const { return run[at]; }
    const uint16_t* q() const { return run->block->q + tile * 2 * kTileValues; }
    float* o() const { return run->block->o + tile * 4 * 256; }
    // The next one; false behind the last.
    bool advance() {
        if (++at < count) return true;
        at = 0;
        if (tile++ == 0) return true;
        if (left_after == 0) return false;
        *this = first_of(run + count, left_after);
        return true;
    }
};

// The accumulators in tile registers 0 … 3; NULL: none.
struct ResidentAcc {
    float* acc;
    void store() const {
        FA_TILE_STORE(0, acc, 64);
        FA_TILE_STORE(1, acc + 256, 64);
        FA_TILE_STORE(2, acc + 512, 64);
        FA_TILE_STORE(3, acc + 768, 64);
    }
    void load() const {
        FA_TILE_LOAD(0, acc, 64);
        FA_TILE_LOAD(1, acc + 256, 64);
        FA_TILE_LOAD(2, acc + 512, 64);
        FA_TILE_LOAD(3, acc + 768, 64);
    }
    // Stores them and loads those of the tile whose products come next, if it is another.
    void switch_to(const TileStep& unit) {
        float* const next = unit.o();
        if (acc == next) return;
        if (acc) store();
        acc = next;
        RowBlock& block = *unit.run->block;
        if (!block.acc_empty) return load();
        FA_TILE_ZERO(0);
        FA_TILE_ZERO(1);
        FA_TILE_ZERO(2);
        FA_TILE_ZERO(3);
        if (unit.tile == 1) block.acc_empty = false;
    }
};

// Scores of 16 keys, from q in tiles 5 and 6.
template <int32_t T, int Rows, int First, class Interleaved>
inline __attribute__((always_inline)) void qk_16_keys(const uint16_t* k, float* s, Interleaved& interleaved) {
    interleaved.template interleave<Rows, First>();
    FA_TILE_ZERO(4);
    FA_TILE_STREAM(7, k);
    FA_TILE_DOT(4, 5, 7);
    interleaved.template interleave<Rows, First + 1>();
    FA_TILE_STREAM(7, k + 2 * kTileValues);
    FA_TILE_DOT(4, 6, 7);
    FA_TILE_STORE(4, s, kRowBytes);
}

// Accumulators += P of 32 keys times v.
template <int32_t T, int Rows, class Interleaved>
inline __attribute__((always_inline)) void pv_32_keys(const uint16_t* p, const uint16_t* v, Interleaved& interleaved) {
    FA_TILE_LOAD(7, p, kKeyBlock * 2);
    interleaved.template interleave<Rows, 0>();
    FA_TILE_STREAM(4, v);
    FA_TILE_DOT(0, 7, 4);
    interleaved.template interleave<Rows, 1>();
    FA_TILE_STREAM(4, v + kTileValues);
    FA_TILE_DOT(1, 7, 4);
    interleaved.template interleave<Rows, 2>();
    FA_TILE_STREAM(4, v + 4 * kTileValues);
    FA_TILE_DOT(2, 7, 4);
    interleaved.template interleave<Rows, 3>();
    FA_TILE_STREAM(4, v + 5 * kTileValues);
    FA_TILE_DOT(3, 7, 4);
}

// Half of the products that are interleaved with a tile's softmax: Q Kᵀ of the next tile step, and P V of the last one. Either may
// be missing.
template <int32_t T, int Half, class Interleaved>
inline __attribute__((always_inline)) void half_step(const TileStep* last, const uint16_t* p, const TileStep* next, float* s,
                                                     Interleaved& interleaved) {
    if (next) {
        const uint16_t* const k = next->step().k + Half * 4 * kTileValues;
        if (Half == 0 && next->at == 0) {
            FA_TILE_LOAD(5, next->q(), 64);
            FA_TILE_LOAD(6, next->q() + kTileValues, 64);
        }
        qk_16_keys<T, 4, 0>(k, s + Half * 32, interleaved);
        qk_16_keys<T, 4, 2>(k + kTileValues, s + Half * 32 + 16, interleaved);
    }
    if (last) pv_32_keys<T, 4>(p + Half * 32, last->step().v + Half * 2 * kTileValues, interleaved);
}

template <int32_t T>
__attribute__((noinline)) void edge_step(const TileStep* last, const uint16_t* p, const TileStep* next, float* s) {
    NoInterleave none;
    half_step<T, 0>(last, p, next, s, none);
    half_step<T, 1>(last, p, next, s, none);
}

template <int32_t T, Exp2Accuracy E>
__attribute__((noinline, cold)) void lazy_rescale_tile(const MatrixTask& task, const TileStep& unit, const ScoreTile& part, int l_index,
                                                       const ResidentAcc& acc) {
    RowBlock& block = *unit.run->block;
    bool rescale = false;
    lazy_rescale<T, E, kKeyBlock>(task, block, part, unit.tile, l_index, rescale);
    float* const o = unit.o();
    if (acc.acc != o && block.acc_empty) return;
    if (acc.acc == o) acc.store();
    for (int i = 0; i < 4 * 16; i++) store(o + i * 16, load(o + i * 16) * block.rescale[unit.tile * 16 + i % 16]);
    if (acc.acc == o) acc.load();
}

template <int32_t T, Exp2Accuracy E>
void mainloop_resident(MatrixTask task, const MainloopStep* steps, int64_t count) {
    float* const scores = reinterpret_cast<float*>(task.stages);
    uint16_t* const p = reinterpret_cast<uint16_t*>(scores + 2 * kTileScores);
    const ScoreTile tiles[2] = {{scores, p}, {scores + kTileScores, p + kTileScores}};
    if (task.has_score_mod) task.factor = 1.f;  // apply_score_mod() has multiplied
    ResidentAcc acc{nullptr};
    const Tiles registers;
    TileStep now = TileStep::first_of(steps, count), last = now;
    edge_step<T>(nullptr, tiles[1].p, &now, tiles[0].s);
    maybe_score_mod(task, now.step(), tiles[0].s, 0, 16);
    int i = 0, first_l_index = 0;
    bool fresh = false;
    for (bool begun = false, more = true; more; begun = true, i ^= 1) {
        const ScoreTile &part = tiles[i], &other = tiles[i ^ 1];
        TileStep next = now;
        more = next.advance();
        RowBlock& block = *now.run->block;
        if (now.tile == 0 && now.at == 0) {
            first_l_index = block.l_index;
            fresh = block.ref_unset;
            if (fresh) reset_refs(task, block);
        }
        const int l_index = (first_l_index + int(now.at)) & 1, row = now.tile * 16;
        if (fresh && now.at == 0) update_refs(task, block, row, part.s);
        else if (__builtin_expect(block.prescaled, 0)) prescale_rows(task, block, row, 16, part.s);
        SoftmaxRows<T, E, kKeyBlock> w = softmax_rows<T, E, kKeyBlock>(block, part, now.tile, l_index);
        if (begun) acc.switch_to(last);
        if (__builtin_expect(begun && more, 1)) {
            half_step<T, 0>(&last, other.p, &next, other.s, w);
            half_step<T, 1>(&last, other.p, &next, other.s, w);
        } else {
            edge_step<T>(begun ? &last : nullptr, other.p, more ? &next : nullptr, other.s);
        }
        w.finish();
        if (__builtin_expect(exceeds_threshold(T, w.largest), 0)) lazy_rescale_tile<T, E>(task, now, part, l_index, acc);
        if (now.tile == 1 && now.at == now.count - 1) block.l_index = (first_l_index + int(now.count)) & 1;
        last = now;
        now = next;
        if (more) maybe_score_mod(task, now.step(), other.s, now.tile * 16, now.tile * 16 + 16);
    }
    acc.switch_to(last);
    edge_step<T>(&last, tiles[i ^ 1].p, nullptr, tiles[i].s);
    acc.store();
}

}  // namespace
}  // namespace cpu
}  // namespace fa
