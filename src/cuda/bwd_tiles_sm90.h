// How the tiles of Hopper's backward lie in a block's shared memory, what a block has to do, and the threads that bring what it needs.
// bwd_sm90.h tells the whole.
#pragma once
#include "cuda/ring.h"
#include "cuda/sm90.h"
#include "gpu/bwd.h"
#include "gpu/mma_sync.h"

namespace fa {
namespace gpu {

struct HopperBackwardParams {
    CUtensorMap q, dout, k, v;
    BackwardParams x;
    int key_blocks;    // of a kv head, for pairs those of two
    int section;       // kv heads whose blocks are taken longest first, before those of the next ones; 0: head after head
    bool last_first;   // within a head
    uint32_t* turns;   // [heads_q][padded_rows / Rows][8 warps] sums added so far: they are taken in a fixed order; NULL: as they come
};

// The keys of a block, and the rows that meet them. Blocks of rows: [first, past), of which [full, full_past) need no mask. Those with rows
// outside of [clean, clean_past) hold rows that take no part, with anything in them.
struct alignas(16) KeyBlock {
    int first, past, full, full_past;
    int clean, clean_past, keys, off;       // keys: how many there are, 0 and less: none
    int batch, kv_head, key0, q_begin;
    int k_row, q_len, k_len, unused;        // k_row: of key0
    int64_t row0;                           // in arrays of padded rows
};

constexpr int kMostShared = 232448;  // bytes that a block may have

// row_band, within [0, rows), of `count` keys; none: {0, 0}. Chunks, which need a division, are counted in 32 bits: one of 64 is a call.
FA_DEVICE int2 rows_seeing(MaskRule rule, int key, int count, int rows) {
    if (count <= 0) return make_int2(0, 0);
    const int chunk = int(min_of(rule.chunk, int64_t(1) << 30));
    rule.chunk = 0;
    RowBand band = row_band(rule, key, count, rows);
    if (chunk > 0) {
        band.begin = max_of(band.begin, int64_t(key / chunk * chunk) - rule.off);
        band.end = min_of(band.end, (int64_t((key + count - 1) / chunk) + 1) * chunk - rule.off);
    }
    return make_int2(int(clamp(band.begin, 0, rows)), int(clamp(band.end, 0, rows)));
}

template <class T, int Dims, int Rows, bool pair, int Keys = 128>
struct HopperBackward {
    static constexpr bool f16 = kIsF16<T>;
    static constexpr int keys = Keys, threads = 384, blocks = pair ? 2 : 1, kSlots = 2;
    static constexpr int kPanels = Dims / 64;
    static constexpr int kKeyBytes = keys * Dims * 2, kRowBytes = Rows * Dims * 2, kScoreBytes = Rows * keys * 2, kSumBytes = Rows * Dims * 4;
    // dQᵀ of a warpgroup: 64 dims of all rows, or, where there are no more dims, half of the rows.
    static constexpr int kSumRows = kPanels == 1 ? Rows / 2 : Rows;
    static constexpr int kSumParts = kPanels == 1 ? 8 : Dims / 16;  // one warp's registers each
    struct Barriers {
        uint64_t k_full, v_full, q_full[kSlots], q_free[kSlots], o_full[kSlots], o_free[kSlots], ds_full[kSlots];
    };
    struct Shared {
        float lse2[kSlots][Rows], delta[kSlots][Rows];
        uint32_t turn[kSlots];
        uint32_t* added[8];  // by each warp: the turn that it has taken last and not yet passed on
        int2 seen[keys];  // the rows that see each key
        KeyBlock block;
        Barriers barrier;
    };
    static constexpr int kMatrices = 2 * kKeyBytes + 2 * kSlots * kRowBytes + kSlots * kScoreBytes + kSumBytes;
    static constexpr int kSharedBytes = kMatrices + int(sizeof(Shared));
    // In pairs a block brings half of the rows, or every second panel, to both.
    static constexpr int row_box = pair && kPanels == 1 ? Rows / 2 : Rows;

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kMatrices); }
    FA_MEMBER static uint32_t at(const void* p) { return rt::shared_address(p); }
    FA_MEMBER static uint32_t k_tile() { return at(rt::shared_memory()); }
    FA_MEMBER static uint32_t v_tile() { return k_tile() + kKeyBytes; }
    FA_MEMBER static uint32_t q_tile(int i) { return v_tile() + kKeyBytes + i * kRowBytes; }
    FA_MEMBER static uint32_t o_tile(int i) { return q_tile(kSlots) + i * kRowBytes; }
    FA_MEMBER static uint32_t ds_tile(int i) { return o_tile(kSlots) + i * kScoreBytes; }
    FA_MEMBER static uint32_t sums() { return ds_tile(kSlots); }

    FA_MEMBER static void init_barriers() {
        Barriers& b = shared().barrier;
        rt::barrier_init(at(&b.k_full), 2), rt::barrier_init(at(&b.v_full), 1);
        for (int i = 0; i < kSlots; i++) {
            rt::barrier_init(at(b.q_full + i), 1), rt::barrier_init(at(b.q_free + i), 8 * blocks);
            rt::barrier_init(at(b.o_full + i), 1), rt::barrier_init(at(b.o_free + i), 8 * blocks);
            rt::barrier_init(at(b.ds_full + i), 8);
        }
        rt::barrier_init_done();
    }

    FA_MEMBER static void describe_block(const HopperBackwardParams& a, int index, int rank, KeyBlock& t) {
        const BackwardParams& x = a.x;
        const Problem& p = x.p;
        const int heads_kv = int(p.d.heads_kv), heads = int(p.d.batch) * heads_kv;
        int block, head;
        if (a.section) {
            const int first = index / (a.section * a.key_blocks) * a.section, within = index - first * a.key_blocks;
            const int width = min(a.section, heads - first);
            block = within / width;
            head = first + within % width;
        } else {
            head = index / a.key_blocks;
            block = index - head * a.key_blocks;
        }
        if (a.last_first) block = a.key_blocks - 1 - block;
        t.batch = head / heads_kv;
        t.kv_head = head - t.batch * heads_kv;
        t.key0 = (pair ? 2 * block + rank : block) * keys;
        const Sequence seq = bounded_sequence(p, x.f, t.batch);
        const MaskRule rule = mask_rule(p, seq);
        const int k_len = t.k_len = int(seq.k_len);
        t.q_len = int(seq.q_len);
        t.off = int(clamp(seq.off, -(1 << 30), 1 << 30));
        t.q_begin = int(seq.q_begin);
        t.k_row = int(seq.k_begin) + t.key0;
        t.row0 = padded_row0(p, seq, t.batch);
        t.keys = min(k_len - t.key0, keys);
        const auto rows_of = [&](int key, int count) { return rows_seeing(rule, key, count, t.q_len); };
        // Pairs take the rows of both together.
        const int seen0 = pair ? block * 2 * keys : t.key0;
        const int2 seen = rows_of(seen0, min(k_len - seen0, keys * blocks)), any = rows_of(0, k_len);
        t.first = seen.x / Rows;
        t.past = seen.x < seen.y ? (seen.y + Rows - 1) / Rows : t.first;
        t.clean = any.x;
        t.clean_past = any.y == t.q_len && !p.packed_q() && !p.has(FA_OPERAND_SEQUSED_Q) ? INT32_MAX : any.y;  // behind it zeros are brought
        t.full = t.full_past = t.past;
        if (t.keys == keys) {
            const int begin = max(rows_of(t.key0 + keys - 1, 1).x, t.clean), end = min(rows_of(t.key0, 1).y, t.clean_past);
            t.full = max((begin + Rows - 1) / Rows, t.first);
            t.full_past = min(end == t.q_len && t.clean_past == INT32_MAX ? t.past : end / Rows, t.past);
        }
    }
};

// A block of rows of q or dout to one slot.
template <class H>
FA_DEVICE void load_rows(uint32_t to, const CUtensorMap* map, uint32_t barrier, int rank, int row, int head, int sequence) {
    constexpr int bytes = H::kRowBytes / H::kPanels;
    if constexpr (H::blocks == 2 && H::kPanels == 1) {
        rt::copy_box_to_pair(to + rank * bytes / 2, map, barrier, 0, row + rank * H::row_box, head, sequence, rt::kEvictLast);
    } else {
        FA_UNROLL for (int i = 0; i < H::kPanels; i++) {
            if (H::blocks == 1) rt::copy_box(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
            else if (i % 2 == rank) rt::copy_box_to_pair(to + i * bytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
        }
    }
}

// When it is this block's turn to add to the sums of dq of a block of rows: blocks of keys do so from left to right, or from right to left.
template <class H, int rows>
FA_DEVICE uint32_t turn_of(const HopperBackwardParams& a, const KeyBlock& t, int m) {
    const MaskRule rule = mask_rule(a.x.p, Sequence{0, 0, 0, 0, 0, t.off});
    const int64_t first = max(m * rows, t.clean), last = min(min((m + 1) * rows, t.q_len), t.clean_past) - 1;
    const int64_t block = t.key0 / H::keys;
    return uint32_t(a.last_first ? (min_of(key_band(rule, last, t.k_len).end, int64_t(t.k_len)) - 1) / H::keys - block
                                 : block - max_of(key_band(rule, first, t.k_len).begin, int64_t(0)) / H::keys);
}

template <class H, int rows>
FA_DEVICE void load_all(const HopperBackwardParams& a, int rank) {
    typename H::Shared& s = H::shared();
    typename H::Barriers& b = s.barrier;
    const KeyBlock& t = s.block;
    const auto load_keys = [&](uint32_t to, const CUtensorMap* map, uint64_t& barrier) {
        rt::barrier_expect(H::at(&barrier), H::kKeyBytes);
        FA_UNROLL for (int i = 0; i < H::kPanels; i++)
            rt::copy_box(to + i * H::keys * 128, map, H::at(&barrier), 64 * i, t.k_row, t.kv_head, a.x.p.packed_k() ? 0 : t.batch, rt::kEvictFirst);
    };
    if (t.first == t.past) return;
    load_keys(H::k_tile(), &a.k, b.k_full);
    const int group = int(a.x.p.group), sequence = a.x.p.packed_q() ? 0 : t.batch;
    Ring<H::kSlots> slot;
    bool first = true;
    for (int g = 0; g < group; g++) {
        const int head = t.kv_head * group + g;
        const int64_t row0 = head * a.x.padded_rows + t.row0;
        for (int m = t.first; m < t.past; m++) {
            const uint32_t turn = a.turns ? turn_of<H, rows>(a, t, m) : 0;
            const auto load = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, uint64_t& free, float* values, const float* from) {
                rt::barrier_wait(H::at(&free), slot.parity ^ 1);
                s.turn[slot.i] = turn;
                rt::barrier_expect(H::at(&full), H::kRowBytes + rows * 4);
                load_rows<H>(to, map, H::at(&full), rank, t.q_begin + m * rows, head, sequence);
                rt::copy_bytes(H::at(values), from + row0 + m * rows, rows * 4, H::at(&full));
            };
            load(H::q_tile(slot.i), &a.q, b.q_full[slot.i], b.q_free[slot.i], s.lse2[slot.i], a.x.lse2);
            if (first) load_keys(H::v_tile(), &a.v, b.v_full);
            first = false;
            load(H::o_tile(slot.i), &a.dout, b.o_full[slot.i], b.o_free[slot.i], s.delta[slot.i], a.x.delta);
            slot.next();
        }
    }
}

}  // namespace gpu
}  // namespace fa
