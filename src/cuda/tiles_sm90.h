// How the Hopper kernel's tiles lie in a block's shared memory, and the threads that take tiles and bring what they need. fwd_sm90.h tells
// the whole.
#pragma once
#include "cuda/packed_mask.h"
#include "cuda/ring.h"
#include "cuda/sm90.h"
#include "gpu/finish.h"
#include "gpu/mma_sync.h"

namespace fa {
namespace gpu {

// Which keys a row sees: all; those up to an end of its own; those of a band.
enum class Mask { none, causal, band };
// What is done to single scores.
enum class Work { plain, softcap, alibi, mask };

// Of a band: how many keys a row sees beside the diagonal, −1: all, and in chunks of how many, 0: none.
struct Reach { int left, right, chunk; };

struct HopperParams {
    CUtensorMap q, k, v;
    CUtensorMap holes;  // with pages: like k, but what lies outside comes as NaN
    ForwardParams x;
    Reach reach;
    int columns;  // of o that are stored as q's type is; 0: o is f32
    int piece;  // rows of k and v that a copy brings, a part of a page; 0: no pages
    PackedMask mask;
    int* counter;   // tiles taken so far, and blocks or pairs that have ended, 0 at the start and at the end. NULL: each takes its share
    bool by_heads;  // do the blocks of a pair take two query heads that share k and v, instead of rows of one?
    int row_tiles;  // of a head, or of a pair
    int tiles;
    int section;    // heads whose tiles are taken longest first, before those of the next ones; 0: head after head
};

// A tile as the others are told of it. Blocks of keys: [low, top], of which those from `edge` on lie beyond some row's end and
// those before `inner` before some row's begin. `skip`: further ones at the top, which only the other block of the pair needs. `turn`: the
// first to the right of where blocks are taken from to the left; those from it on come after them, to the right.
struct alignas(16) HopperTile {
    int top, edge, low, inner;        // read together
    int skip, turn, head, kv_head, batch, row0;
    int q_begin, q_len, stored;       // stored: rows of o that belong to the sequence
    int k_len, off, key0, sequence;   // off: within ±2^30; key0, sequence: where key 0 lies
    uint64_t told, done;              // barriers: this has been written; o has been
    FA_MEMBER int first() const { return turn > low ? turn - 1 : low; }
    FA_MEMBER int last_row(int first, int rows) const { return max(min(first + rows, q_len) - 1, first); }  // of some, the last that there is
    FA_MEMBER int after(int n) const { return n >= turn ? n + 1 : n > low ? n - 1 : turn; }
};

// Does each warpgroup begin at its own diagonal? Then they clear no values together, and sequences must all be alike, as pairs want them.
constexpr bool own_diagonals(Mask mask, int keys, int rows) { return mask == Mask::causal && keys == 64 && rows == 4 * keys; }

FA_DEVICE uint32_t at(const uint64_t& barrier) { return rt::shared_address(&barrier); }

template <class T, int DQ, int DV, int Keys, int Groups, bool pair, int KSlots, int QSlots>
struct Hopper {
    static constexpr bool f16 = kIsF16<T>;
    static constexpr int rows = 64 * Groups, keys = Keys, threads = 128 * (Groups + 1), blocks = pair ? 2 : 1;
    static constexpr int kQPanels = (DQ + 63) / 64, kVPanels = (DV + 63) / 64, kPanelBytes = Keys * 128;
    static constexpr int kQBytes = rows * kQPanels * 128, kKBytes = kQPanels * kPanelBytes, kVBytes = kVPanels * kPanelBytes;
    // Registers of a thread: of those that bring, and of those that compute.
    static constexpr bool kLean = Groups == 3 && Keys / 2 + DV / 2 + Keys / 4 <= 112;
    static constexpr int kBringers = Groups == 2 ? 40 : kLean ? 56 : 32, kConsumers = Groups == 4 ? 112 : kLean ? 152 : Groups == 3 ? 160 : 232;
    // Whether k and v may lie in pages: pairs bring halves of blocks, and the loaders need registers for it.
    static constexpr bool pages = !pair && kBringers >= 40;
    static constexpr int kTiles = 3;  // the one being written, the one being computed and the next
    static constexpr int kLead = 3;  // blocks of a tile yet to be brought when the next one is taken
    struct Barriers {
        uint64_t q_full[QSlots], q_free[QSlots], k_full[KSlots], k_free[KSlots], v_full[KSlots], v_free[KSlots], sent[kTiles], nearly_done;
    };
    struct Shared {
        Barriers barrier;
        HopperTile tile[kTiles];  // top < 0: there are no more
        int sent[kTiles];         // tiles that the first block of a pair has taken for both
    };
    static constexpr int kMatrices = QSlots * kQBytes + KSlots * (kKBytes + kVBytes), kSharedBytes = kMatrices + int(sizeof(Shared));
    static_assert(kSharedBytes <= 232448, "what a block may have");
    // A row of keys or values comes in boxes: in pairs a block brings half of the rows, or every second panel, to both.
    static constexpr int key_box = pair && kQPanels == 1 ? Keys / 2 : Keys, value_box = pair && kVPanels == 1 ? Keys / 2 : Keys;

    // Weights are kept 2^kLift times their value: of f16 so that few fall below its smallest number, of bf16 so that many times its largest
    // stay finite before the average. A row's reference moves when a thread's share of a block's weights exceeds kMost.
    static constexpr float kLift = f16 ? 10.f : -24.f, kUnlift = f16 ? 0x1p-10f : 0x1p+24f, kMost = f16 ? 0x1.f8p+15f : 0x1p-12f;

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kMatrices); }
    FA_MEMBER static uint32_t q_tile(int i) { return rt::shared_address(rt::shared_memory()) + i * kQBytes; }
    FA_MEMBER static uint32_t k_tile(int i) { return q_tile(QSlots) + i * kKBytes; }
    FA_MEMBER static uint32_t v_tile(int i) { return k_tile(KSlots) + i * kVBytes; }

    FA_MEMBER static void init_barriers() {
        Barriers& b = shared().barrier;
        for (int i = 0; i < QSlots; i++) rt::barrier_init(at(b.q_full[i]), 1), rt::barrier_init(at(b.q_free[i]), 4 * Groups);
        for (int i = 0; i < KSlots; i++) {
            rt::barrier_init(at(b.k_full[i]), 1), rt::barrier_init(at(b.k_free[i]), 4 * Groups * blocks);
            rt::barrier_init(at(b.v_full[i]), 1), rt::barrier_init(at(b.v_free[i]), 4 * Groups * blocks);
        }
        rt::barrier_init(at(b.nearly_done), 1);
        for (HopperTile& t : shared().tile) rt::barrier_init(at(t.told), 1), rt::barrier_init(at(t.done), 128 * Groups);
        for (uint64_t& sent : b.sent) rt::barrier_init(at(sent), 1);
        rt::barrier_init_done();
    }
};

// The keys that a row sees, within the sequence: key_band in 32 bits.
struct Ends { int begin, end; };
template <Mask mask>
FA_DEVICE Ends ends_of(const Reach& reach, int row, int off, int k_len) {
    if (mask == Mask::none) return {0, k_len};
    const int at = row + off;
    if (mask == Mask::causal) return {0, max(min(at + 1, k_len), 0)};
    Ends e{0, k_len};
    if (reach.left >= 0 && at > reach.left) e.begin = min(at - reach.left, k_len);
    if (reach.right >= 0 && reach.right < k_len - at - 1) e.end = max(at + reach.right + 1, 0);
    if (reach.chunk > 0) {
        const int first = (at / reach.chunk - (at % reach.chunk < 0)) * reach.chunk;
        e.begin = max(e.begin, min(first, k_len));
        e.end = int(clamp(int64_t(first) + reach.chunk, 0, e.end));
    }
    return e;
}

// The last block of keys that some of `rows` rows sees; one without keys is one, too, all of it masked.
template <class H, Mask mask>
FA_DEVICE int top_block(const Reach& reach, const HopperTile& t, int row0, int rows) {
    return max((ends_of<mask>(reach, t.last_row(row0, rows), t.off, t.k_len).end + H::keys - 1) / H::keys, 1) - 1;
}

template <class H, Mask mask, bool pair>
FA_DEVICE void describe_tile(const HopperParams& a, int index, int rank, HopperTile& t) {
    const ForwardParams& x = a.x;
    const bool by_heads = pair && a.by_heads, by_rows = pair && !a.by_heads;
    const int heads_q = int(x.p.d.heads_q), heads = int(x.p.d.batch) * heads_q / (by_heads ? 2 : 1);
    int tile, head;
    if (a.section) {  // longest first, in sections of heads whose k and v the cache holds
        const int first = index / (a.section * a.row_tiles) * a.section, within = index - first * a.row_tiles;
        const int width = min(a.section, heads - first);
        tile = a.row_tiles - 1 - within / width;
        head = first + within % width;
    } else {
        head = index / a.row_tiles;
        tile = index - head * a.row_tiles;
    }
    if (by_heads) head = 2 * head + rank;
    t.batch = head / heads_q;
    t.head = head - t.batch * heads_q;
    t.kv_head = t.head / int(x.p.group);
    t.row0 = (by_rows ? 2 * tile + rank : tile) * H::rows;
    const Sequence seq = x.alike ? x.alike_seq : bounded_sequence(x.p, x.a, t.batch);
    t.q_begin = int(seq.q_begin);
    t.q_len = int(seq.q_len);
    t.stored = x.p.packed_q() ? t.q_len : int(x.p.d.seqlen_q);
    t.k_len = int(seq.k_len);
    t.off = int(clamp(seq.off, -(1 << 30), 1 << 30));
    t.key0 = int(seq.k_begin);
    t.sequence = x.p.packed_k() ? 0 : x.alike ? t.batch : int(seq.kv_index);
    const auto ends = [&](int row) { return ends_of<mask>(a.reach, row, t.off, t.k_len); };
    const auto top_of = [&](int row0) { return top_block<H, mask>(a.reach, t, row0, H::rows); };
    t.top = top_of(t.row0);
    t.skip = by_rows && mask != Mask::none ? top_of((2 * tile + 1) * H::rows) - t.top : 0;
    t.edge = mask == Mask::none ? t.top + 1 : ends(t.row0).end / H::keys;
    t.low = mask == Mask::band ? min(ends(t.row0).begin / H::keys, t.top) : 0;
    if (mask == Mask::band && a.mask.spans) {  // without the blocks at either end in which the mask operand leaves no key
        const int2 span = a.mask.spans[a.mask.tile_of(t.batch, t.head, t.row0)];
        t.top = max(min(t.top, span.x - 1), t.low);
        t.low = min(max(t.low, a.mask.blocks - span.y), t.top);
    }
    t.inner = mask == Mask::band ? (ends(t.last_row(t.row0, H::rows)).begin + H::keys - 1) / H::keys : 0;
    t.turn = t.top + t.skip + 1;
    // ALiBi's scores fall to both sides of the diagonal; with the smallest first, the reference would move with each block.
    if (mask == Mask::band && x.p.has(FA_OPERAND_ALIBI))
        t.turn = min(max((max(t.row0 + H::rows - 1 + t.off, 0) + H::keys - 1) / H::keys, t.low), t.turn);
}

// Takes tiles, describes them, and brings their q. Those that blocks take as they come are taken as late as can be.
template <class H, Mask mask, bool pair, int QSlots>
FA_DEVICE void take_tiles(const HopperParams& a) {
    typename H::Shared& s = H::shared();
    const int rank = pair ? rt::cluster_rank() : 0, stride = int(gridDim.x) / H::blocks;
    Ring<QSlots> q;
    Ring<H::kTiles> slot;
    Ring<1> nearly_done;
    for (int index = int(blockIdx.x) / H::blocks; index < a.tiles;) {
        HopperTile& t = s.tile[slot.i];
        rt::barrier_wait(at(t.done), slot.parity ^ 1);
        describe_tile<H, mask, pair>(a, index, rank, t);
        const bool exists = pair || t.row0 < t.stored;
        if (exists) {
            rt::barrier_arrive(at(t.told));
            rt::barrier_wait(at(s.barrier.q_free[q.i]), q.parity ^ 1);
            rt::barrier_expect(at(s.barrier.q_full[q.i]), H::kQBytes);
            FA_UNROLL for (int panel = 0; panel < H::kQPanels; panel++)
                rt::copy_box(H::q_tile(q.i) + panel * H::rows * 128, &a.q, at(s.barrier.q_full[q.i]), 64 * panel, t.q_begin + t.row0, t.head,
                             a.x.p.packed_q() ? 0 : t.batch, rt::kEvictFirst);
            q.next();
        }
        if (!a.counter) {
            index += stride;
        } else {
            if (exists) {
                rt::barrier_wait(at(s.barrier.nearly_done), nearly_done.parity);
                nearly_done.next();
            }
            if (rank == 0) {
                index = stride + atomicAdd(a.counter, 1);
                if (pair) rt::send(rt::shared_address(s.sent + slot.i), at(s.barrier.sent[slot.i]), 1, index);
            } else {
                rt::barrier_expect(at(s.barrier.sent[slot.i]), 4);
                rt::barrier_wait(at(s.barrier.sent[slot.i]), slot.parity);
                index = *const_cast<volatile int*>(s.sent + slot.i);
            }
        }
        if (exists) slot.next();
    }
    rt::barrier_wait(at(s.tile[slot.i].done), slot.parity ^ 1);
    s.tile[slot.i].top = -1;
    rt::barrier_arrive(at(s.tile[slot.i].told));
    if (a.counter && rank == 0 && atomicAdd(a.counter + 1, 1) == stride - 1) a.counter[0] = a.counter[1] = 0;
}

// A block of k or v to one slot.
template <class H, bool pair, int panels>
FA_DEVICE void load_block(uint32_t to, const CUtensorMap* map, uint32_t barrier, int rank, int row, int head, int sequence) {
    rt::barrier_expect(barrier, panels * H::kPanelBytes);
    if constexpr (pair && panels == 1) {
        const int half = rank * H::keys / 2;
        rt::copy_box_to_pair(to + half * 128, map, barrier, 0, row + half, head, sequence, rt::kEvictLast);
    } else {
        FA_UNROLL for (int i = 0; i < panels; i++) {
            if (!pair) rt::copy_box(to + i * H::kPanelBytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
            else if (i % 2 == rank) rt::copy_box_to_pair(to + i * H::kPanelBytes, map, barrier, 64 * i, row, head, sequence, rt::kEvictLast);
        }
    }
}

enum class Side { keys, values };

// Brings the blocks of k or v of all tiles.
template <class H, bool pair, Side side, int slots>
FA_DEVICE void load_blocks(const HopperParams& a) {
    constexpr bool keys = side == Side::keys;
    typename H::Shared& s = H::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    const auto& full = keys ? s.barrier.k_full : s.barrier.v_full;
    const auto& free = keys ? s.barrier.k_free : s.barrier.v_free;
    Ring<slots> ring;
    for (Ring<H::kTiles> slot;; slot.next()) {
        const HopperTile& t = s.tile[slot.i];
        rt::barrier_wait(at(t.told), slot.parity);
        if (t.top < 0) return;
        const int head = t.kv_head, sequence = t.sequence, blocks = t.top + t.skip - t.low + 1;
        for (int left = blocks, n = t.first();; left--, n = t.after(n)) {
            if (keys && a.counter && left == min(blocks, H::kLead)) rt::barrier_arrive(at(s.barrier.nearly_done));
            rt::barrier_wait(at(free[ring.i]), ring.parity ^ 1);
            load_block<H, pair, keys ? H::kQPanels : H::kVPanels>(keys ? H::k_tile(ring.i) : H::v_tile(ring.i), keys ? &a.k : &a.v,
                                                                  at(full[ring.i]), rank, t.key0 + n * H::keys, head, sequence);
            ring.next();
            if (left == 1) break;  // the tile may be another's from here on
        }
    }
}

}  // namespace gpu
}  // namespace fa
