// How the tiles of Hopper's backward lie in a block's shared memory, what a block has to do, and the threads that bring what it needs.
// bwd_sm90.h tells the whole.
#pragma once
#include "cuda/ring.h"
#include "cuda/sm90.h"
#include "gpu/bwd.h"
#include "gpu/mma_sync.h"

namespace fa {
namespace gpu {

// Key j is seen by rows [j + begin, j + end) of a sequence, of those whose chunk it lies in; clamped so that no sum leaves 32 bits.
struct RowRule {
    int begin, end, chunk, off;
};
FA_FN RowRule row_rule(const MaskRule& r) {
    constexpr int64_t most = int64_t(1) << 30, wide = int64_t(1) << 40;  // rows and keys are fewer; windows may be wider than wide
    const int64_t begin = r.right < 0 ? -most : -(r.off + min_of(r.right, wide));
    const int64_t end = r.left < 0 ? most : min_of(r.left, wide) - r.off + 1;
    return {int(clamp(begin, -most, most)), int(clamp(end, -most, most)), int(min_of(r.chunk, most)), int(clamp(r.off, -most, most))};
}
// The rows that see any of `count` keys, within [0, rows); none: {0, 0}.
FA_DEVICE int2 rows_seeing(const RowRule& rule, int key, int count, int rows) {
    if (count <= 0) return make_int2(0, 0);
    int64_t begin = key + rule.begin, end = key + count - 1 + rule.end;
    if (rule.chunk > 0) {
        begin = max_of(begin, int64_t(key / rule.chunk * rule.chunk) - rule.off);
        end = min_of(end, (int64_t((key + count - 1) / rule.chunk) + 1) * rule.chunk - rule.off);
    }
    return make_int2(int(clamp(begin, 0, rows)), int(clamp(end, 0, rows)));
}

// Division by a number that the host knows, of numbers below 2^31.
struct Divisor {
    uint32_t by, factor, shift;
};
static inline Divisor divisor(int64_t by) {
    uint32_t shift = 0;
    while ((int64_t(1) << shift) < by) shift++;
    return {uint32_t(by), uint32_t((((uint64_t(1) << shift) - uint64_t(by)) << 32) / uint64_t(by) + 1), shift};
}
struct Quotient {
    int number, rest;
};
FA_DEVICE Quotient divide(int n, const Divisor& d) {
    const uint32_t number = (__umulhi(uint32_t(n), d.factor) + uint32_t(n)) >> d.shift;
    return {int(number), n - int(number * d.by)};
}

// Of the rows' delta, LSE and zeros (bwd_rows_sm90.h) prepare_sm90 makes those of the first part of a call, and the main kernel's blocks of each
// part, with warps that have nothing else to do, those of the next one.
struct Ahead {
    static constexpr int rows = 32;  // that a warp takes at once
    uint32_t* ready;                 // [parts] how often that many rows have been prepared there; counted from the second part on
    int parts;                       // 1: prepare_sm90 does all
    Divisor blocks;                  // of a part; the last one may have more
    int takes, all;                  // rows / 32 of a part, and of the call
    Divisor takes_of_head, heads_q;
    int padded_rows_of_one;          // of a sequence
    int helping;                     // blocks of a part
    int64_t o_step, dout_step;       // bytes, between the rows that a lane reads
    FA_MEMBER int part_of(int block) const { return min(divide(block, blocks).number, parts - 1); }
    FA_MEMBER int takes_end(int part) const { return part + 1 < parts ? (part + 1) * takes : all; }
};

// The blocks that would be the last ones at work, with most multiprocessors idle, are split by rows. add_split_sm90 adds up what they leave.
struct Split {
    int from;      // the first block that is split
    Divisor by;
    float* sums;   // [blocks][by][dv, dk][keys x dims], in the order of accumulate's registers
};
struct HopperBackwardParams {
    CUtensorMap q, dout, k, v;
    BackwardParams x;
    // Blocks go through `section` kv heads at a time, and in those through the same keys of all before the next keys.
    Divisor section_blocks, section, last_section, heads_k;
    int sections, key_blocks;  // key blocks of a kv head, for pairs those of two
    int blocks;                // or pairs, pieces of split ones among them
    int at_work;               // of those at once: each takes the next one when it has brought all that it needs
    int* begun;                // how many were taken so
    bool last_first;           // within a head
    Ahead ahead;
    Split split;
    RowRule rule;              // of all sequences, where those are alike
    uint32_t* turns;           // [heads_q][padded_rows / Rows] sums added so far: they are taken in a fixed order; NULL: as they come
};

// The keys of a block, and the rows that meet them. Blocks of rows: [first, past), of which [full, full_past) need no mask. Those with rows
// outside of [clean, clean_past) hold rows that take no part, with anything in them.
struct alignas(16) KeyBlock {
    int first, past, full, full_past;
    int clean, clean_past, keys, key0;      // keys: how many there are, 0 and less: none
    int batch, kv_head, q_begin, k_row;     // k_row: of key0
    RowRule rule;
    int row0, q_len, k_len, index;          // row0: in arrays of padded rows; index: of the block in the call, or -1: there is none
};

// The work of a block or pair: its place in the order, and the part of its rows.
FA_DEVICE Quotient work_of(const HopperBackwardParams& a, int index) {
    if (index < a.split.from) return {index, 0};
    const Quotient q = divide(index - a.split.from, a.split.by);
    return {a.split.from + q.number, q.rest};
}

template <int n>
struct Count { static constexpr int value = n; };

// What a kernel is for. any: all that hopper_backward.cu takes. plain: calls whose rows all exist and see a key, whose blocks of keys are all
// seen, and whose sums of dq are added as they come: no row has to be cleared, no turn taken. wide: all but those in turns, by pairs of blocks
// that share what they read (bwd_wide_sm90.h).
enum class Way { any, plain, wide };

constexpr int kMostShared = 232448;  // bytes that a block may have

template <int Dims, int Rows, Way way, int Keys = 128>
struct HopperBackward {
    static constexpr bool any = way != Way::plain, pair = way == Way::wide, persistent = way == Way::plain;
    static constexpr int keys = Keys, threads = 384, blocks = pair ? 2 : 1, kSlots = 2;
    static constexpr int kBlocks = persistent ? 2 : 1;  // of keys, whose K is there
    static constexpr int kPanels = Dims / 64;
    static constexpr int kKeyBytes = keys * Dims * 2, kRowBytes = Rows * Dims * 2, kScoreBytes = Rows * keys * 2, kSumBytes = Rows * Dims * 4;
    // dQᵀ of a warpgroup: 64 dims of all rows, or, where there are no more dims, half of the rows.
    static constexpr int kSumRows = kPanels == 1 ? Rows / 2 : Rows;
    static constexpr int kSumParts = kPanels == 1 ? 8 : Dims / 16;  // one warp's registers each
    struct Barriers {
        uint64_t k_full[kBlocks], k_free[kBlocks], v_full, q_full[kSlots], q_free[kSlots], o_full[kSlots], o_free[kSlots], ds_full[kSlots], ds_free[kSlots];
        uint64_t sums_full, sums_free;  // where sums are added in turns
    };
    struct Shared {
        float lse2[kSlots][Rows], delta[kSlots][Rows];
        int2 seen[keys];  // the rows that see each key
        KeyBlock block[kBlocks];
        int turn[4];  // blocks of keys that a warp of the loading thread's has done with
        Barriers barrier;
    };
    static constexpr int kMatrices = (kBlocks + 1) * kKeyBytes + 2 * kSlots * kRowBytes + kSlots * kScoreBytes + kSumBytes;
    static constexpr int kSharedBytes = kMatrices + int(sizeof(Shared));

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kMatrices); }
    FA_MEMBER static uint32_t at(const void* p) { return rt::shared_address(p); }
    FA_MEMBER static uint32_t k_tile(int i = 0) { return at(rt::shared_memory()) + i * kKeyBytes; }
    FA_MEMBER static uint32_t v_tile() { return k_tile(kBlocks); }
    FA_MEMBER static uint32_t q_tile(int i) { return v_tile() + kKeyBytes + i * kRowBytes; }
    FA_MEMBER static uint32_t o_tile(int i) { return q_tile(kSlots) + i * kRowBytes; }
    FA_MEMBER static uint32_t ds_tile(int i) { return o_tile(kSlots) + i * kScoreBytes; }
    FA_MEMBER static uint32_t sums() { return ds_tile(kSlots); }

    FA_MEMBER static void init_barriers() {
        Barriers& b = shared().barrier;
        for (int i = 0; i < 4; i++) shared().turn[i] = 0;
        // K goes back with what describes the block, which all but the loading warp read.
        for (int i = 0; i < kBlocks; i++) rt::barrier_init(at(b.k_full + i), 1), rt::barrier_init(at(b.k_free + i), threads - 32);
        rt::barrier_init(at(&b.v_full), 1);
        for (int i = 0; i < kSlots; i++) {
            rt::barrier_init(at(b.q_full + i), 1), rt::barrier_init(at(b.q_free + i), 8);
            rt::barrier_init(at(b.o_full + i), 1), rt::barrier_init(at(b.o_free + i), 8 * 32);
            rt::barrier_init(at(b.ds_full + i), 8), rt::barrier_init(at(b.ds_free + i), 8);
        }
        rt::barrier_init(at(&b.sums_full), 8), rt::barrier_init(at(&b.sums_free), 1);
        rt::barrier_init_done();
    }

    FA_MEMBER static void describe(const HopperBackwardParams& a, int index, KeyBlock& t) {
        const Quotient work = any ? Quotient{index, 0} : work_of(a, index);
        t.index = index;
        describe_block(a, work.number, work.rest, 0, t);
    }
    FA_MEMBER static void describe_block(const HopperBackwardParams& a, int index, int part, int rank, KeyBlock& t) {
        const Problem& p = a.x.p;
        const int section = min(divide(index, a.section_blocks).number, a.sections - 1);
        const Quotient within = divide(index - section * int(a.section_blocks.by), section + 1 == a.sections ? a.last_section : a.section);
        const Quotient head = divide(section * int(a.section.by) + within.rest, a.heads_k);
        const int block = a.last_first ? a.key_blocks - 1 - within.number : within.number;
        t.batch = head.number;
        t.kv_head = head.rest;
        t.key0 = (pair ? 2 * block + rank : block) * keys;
        if constexpr (any) {
            const Sequence seq = bounded_sequence(p, a.x.a, t.batch);
            t.rule = row_rule(mask_rule(p, seq));
            t.k_len = int(seq.k_len);
            t.q_len = int(seq.q_len);
            t.q_begin = int(seq.q_begin);
            t.k_row = int(seq.k_begin) + t.key0;
            t.row0 = int(padded_row0(p, seq, t.batch));
        } else {
            t.rule = a.rule;
            t.k_len = int(p.d.seqlen_k);
            t.q_len = int(p.d.seqlen_q);
            t.q_begin = 0;
            t.k_row = t.key0;
            t.row0 = t.batch * int(round_up(p.d.seqlen_q, kPaddedRows));
        }
        const int k_len = t.k_len;
        t.keys = min(k_len - t.key0, keys);
        const auto rows_of = [&](int key, int count) { return rows_seeing(t.rule, key, count, t.q_len); };
        // Pairs take the rows of both together.
        const int seen0 = pair ? block * 2 * keys : t.key0;
        const int2 seen = rows_of(seen0, min(k_len - seen0, keys * blocks)), all = any ? rows_of(0, k_len) : make_int2(0, t.q_len);
        t.first = seen.x / Rows;
        t.past = seen.x < seen.y ? (seen.y + Rows - 1) / Rows : t.first;
        if (!any && index >= a.split.from) {
            const int count = t.past - t.first, begin = t.first;
            t.first = begin + count * part / int(a.split.by.by);
            t.past = begin + count * (part + 1) / int(a.split.by.by);
        }
        t.clean = all.x;
        const bool zeros_behind = all.y == t.q_len && !p.packed_q() && !p.has(FA_OPERAND_SEQUSED_Q);  // as the copy brings them
        t.clean_past = !any || zeros_behind ? INT32_MAX : all.y;
        t.full = t.full_past = t.past;
        if (t.keys == keys) {
            const int begin = max(rows_of(t.key0 + keys - 1, 1).x, t.clean), end = min(rows_of(t.key0, 1).y, t.clean_past);
            t.full = max((begin + Rows - 1) / Rows, t.first);
            t.full_past = min(end == t.q_len && t.clean_past == INT32_MAX ? t.past : end / Rows, t.past);
        }
    }
};

// A block of rows of q or dout to one slot; in pairs each block brings every second panel to both.
template <class H>
FA_DEVICE void load_rows(uint32_t to, const CUtensorMap* map, uint32_t barrier, int rank, int row, int head, int sequence) {
    constexpr int bytes = H::kRowBytes / H::kPanels;
    FA_UNROLL for (int i = 0; i < H::kPanels; i++) {
        if (!H::pair) rt::copy_box(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
        else if (i % 2 == rank) rt::copy_box_to_pair(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
    }
}

// Until blocks of the part before have prepared the rows.
FA_DEVICE void wait_for_rows(const HopperBackwardParams& a, int index) {
    const int part = a.ahead.part_of(work_of(a, index).number);
    if (part == 0) return;
    while (rt::acquire_load(a.ahead.ready + part) != uint32_t(a.ahead.takes_end(part) - part * a.ahead.takes)) {}
    rt::fence_for_copies();
}

// Threads with few registers count the blocks of keys in shared memory, each warp for itself, and the steps in one register.
template <class H>
struct KeysTurn {
    FA_MEMBER static volatile int& count() { return H::shared().turn[rt::unknown(threadIdx.x) / 32]; }
    FA_MEMBER static int i() { return count() % H::kBlocks; }
    FA_MEMBER static uint32_t parity() { return uint32_t(count()) / H::kBlocks % 2; }
};
template <int slots>
struct StepTurn {
    uint32_t n = 0;
    FA_MEMBER int i() const { return int(n % slots); }
    FA_MEMBER uint32_t parity() const { return n / slots % 2; }
};

// One thread brings all, of one block of keys after the other. When the last rows of one are under way it takes the next: blocks of different
// lengths then end together, and two steps are left for K to come.
template <class H, int rows>
FA_DEVICE void load_all(const HopperBackwardParams& a) {
    typename H::Shared& s = H::shared();
    typename H::Barriers& b = s.barrier;
    StepTurn<H::kSlots> slot;
    KeysTurn<H> own;
    if (s.block[0].first == s.block[0].past) return;
    while (true) {
        const KeyBlock& t = s.block[own.i()];
        const auto load_keys = [&](uint32_t to, const CUtensorMap* map, uint64_t& barrier) {
            rt::barrier_expect(H::at(&barrier), H::kKeyBytes);
            FA_UNROLL for (int i = 0; i < H::kPanels; i++)
                rt::copy_box(to + i * H::keys * 128, map, H::at(&barrier), 64 * i, t.k_row, t.kv_head, a.x.p.packed_k() ? 0 : t.batch, rt::kEvictFirst);
        };
        load_keys(H::k_tile(own.i()), &a.k, b.k_full[own.i()]);
        if constexpr (!H::any) wait_for_rows(a, t.index);
        for (int g = 0; g < int(a.x.p.group); g++) {
            const int head = t.kv_head * int(a.x.p.group) + g, row0 = head * int(a.x.padded_rows) + t.row0;
            for (int m = t.first; m < t.past; m++) {
                const auto load = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, uint64_t& free, int more) {
                    rt::barrier_wait(H::at(&free), slot.parity() ^ 1);
                    rt::barrier_expect(H::at(&full), H::kRowBytes + more);
                    load_rows<H>(to, map, H::at(&full), 0, t.q_begin + m * rows, head, a.x.p.packed_q() ? 0 : t.batch);
                };
                load(H::q_tile(slot.i()), &a.q, b.q_full[slot.i()], b.q_free[slot.i()], 0);
                load(H::o_tile(slot.i()), &a.dout, b.o_full[slot.i()], b.o_free[slot.i()], 2 * rows * 4);
                rt::copy_bytes(H::at(s.delta[slot.i()]), a.x.delta + row0 + m * rows, rows * 4, H::at(&b.o_full[slot.i()]));
                rt::copy_bytes(H::at(s.lse2[slot.i()]), a.x.lse2 + row0 + m * rows, rows * 4, H::at(&b.o_full[slot.i()]));
                slot.n++;
                if (g > 0 || m > t.first) continue;
                // V goes where that of the block before lay, which its last step has read when it gives dout back.
                rt::barrier_wait(H::at(&b.o_free[slot.i()]), slot.parity() ^ 1);
                load_keys(H::v_tile(), &a.v, b.v_full);
            }
        }
        if (!H::persistent) return;
        const int index = a.at_work + atomicAdd(a.begun, 1);
        own.count() = own.count() + 1;
        rt::barrier_wait(H::at(&b.k_free[own.i()]), own.parity() ^ 1);
        KeyBlock& next = s.block[own.i()];
        if (index >= a.blocks) {
            next.index = -1;
            return rt::barrier_arrive(H::at(&b.k_full[own.i()]));
        }
        H::describe(a, index, next);
    }
}

// When it is this block's turn to add to the sums of dq of a block of rows, so that bits repeat: blocks of keys do so from right to left, or
// else from left to right. The row that decides sees keys.
template <class H, int rows>
FA_DEVICE uint32_t turn_of(bool last_first, const KeyBlock& t, int m) {
    const int row = last_first ? min(min((m + 1) * rows, t.q_len), t.clean_past) - 1 : max(m * rows, t.clean);
    int begin = row - t.rule.end + 1, end = row - t.rule.begin + 1;
    if (t.rule.chunk > 0) {
        const int chunk = (row + t.rule.off) / t.rule.chunk * t.rule.chunk;
        begin = max(begin, chunk), end = min(end, chunk + t.rule.chunk);
    }
    return uint32_t(last_first ? (min(end, t.k_len) - 1) / H::keys - t.key0 / H::keys : t.key0 / H::keys - max(begin, 0) / H::keys);
}

// The sums of dq of all steps, each when it is its turn. One thread does nothing else: neither the look at the turn, nor the wait until sums
// have arrived, which must be before the turn is passed on, keeps a product waiting.
template <class H, int rows>
FA_DEVICE void add_in_turns(const HopperBackwardParams& a) {
    typename H::Barriers& b = H::shared().barrier;
    const KeyBlock& t = H::shared().block[0];
    const int blocks_of_head = int(a.x.padded_rows / rows);
    int place = t.kv_head * int(a.x.p.group) * blocks_of_head + t.row0 / rows + t.first, m = t.first;
    for (int left = (t.past - t.first) * int(a.x.p.group), parity = 0; left > 0; left--, parity ^= 1) {
        const uint32_t own = turn_of<H, rows>(a.last_first, t, m);
        while (rt::acquire_load(a.turns + place) != own) {}
        rt::barrier_wait(H::at(&b.sums_full), parity);
        rt::add_floats(a.x.dq_sum + int64_t(place) * (H::kSumBytes / 4), H::sums(), H::kSumBytes);
        rt::sums_read();
        rt::barrier_arrive(H::at(&b.sums_free));
        rt::sums_added();
        rt::release_add(a.turns + place, 1);
        m++, place++;
        if (m == t.past) {
            m = t.first;
            place += blocks_of_head - (t.past - t.first);
        }
    }
}

}  // namespace gpu
}  // namespace fa
