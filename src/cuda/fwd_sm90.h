// The forward kernel for Hopper: f16 and bf16 through the products of warpgroups. docs/hopper.md tells how it works and what was tried.
//
// A block is persistent. Of its first warpgroup, one thread takes tiles of `rows` query rows of one head and brings q by bulk copies, one
// brings k and one v; the other warpgroups, the consumers, own 64 rows each and go through blocks of keys from right to left. In a step a
// consumer issues S' = q · k' for the next block and O += P · V for this one together, in turns with the others, then makes weights of S'.
// This runs on over the border of tiles: the last P · V of a tile is issued with the first q · k of the next. Pairs of blocks bring each
// one half of k and v to both.
//
// Weights are measured from a reference that moves only when a row's weights have outgrown it: see RowReference. The steady loop then has
// no maximum, no shuffle and no multiplication of O.
#pragma once
#include "cuda/sm90.h"
#include "gpu/finish.h"
#include "gpu/mma_sync.h"

namespace fa {
namespace gpu {

// Which keys a row sees: all; those up to an end of its own; those of a band.
enum class Mask { none, causal, band };

struct HopperParams {
    CUtensorMap q, k, v;
    ForwardParams x;
    int* counter;   // tiles taken so far, and blocks or pairs that have ended, 0 at the start and at the end. NULL: each takes its share
    int row_tiles;  // of a head, for pairs those of two
    int tiles;
    int section;    // heads whose tiles are taken longest first, before those of the next ones; 0: head after head
};

// A tile as the others are told of it. Blocks of keys: [low, top], of which those from `edge` on lie beyond some row's end and
// those before `inner` before some row's begin. `skip`: further ones at the top, which only the other block of the pair needs.
struct alignas(16) HopperTile {
    int top, edge, low, inner;        // read together
    int skip, head, kv_head, batch, row0;
    int q_begin, q_len, stored;       // stored: rows of o that belong to the sequence
    int k_len, off, key0, sequence;   // off: within ±2^30; key0, sequence: where key 0 lies
    uint64_t told, done;              // barriers: this has been written; o has been
};

template <class T, int DQ, int DV, int Keys, int Groups, Mask mask, bool pair, int KSlots, int QSlots>
struct Hopper {
    static constexpr bool f16 = kIsF16<T>;
    static constexpr int rows = 64 * Groups, keys = Keys, threads = 128 * (Groups + 1), blocks = pair ? 2 : 1;
    static constexpr int kQPanels = (DQ + 63) / 64, kVPanels = (DV + 63) / 64, kPanelBytes = Keys * 128;
    static constexpr int kQBytes = rows * kQPanels * 128, kKBytes = kQPanels * kPanelBytes, kVBytes = kVPanels * kPanelBytes;
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
    FA_MEMBER static uint32_t at(const void* p) { return rt::shared_address(p); }
    FA_MEMBER static uint32_t q_tile(int i) { return at(rt::shared_memory()) + i * kQBytes; }
    FA_MEMBER static uint32_t k_tile(int i) { return q_tile(QSlots) + i * kKBytes; }
    FA_MEMBER static uint32_t v_tile(int i) { return k_tile(KSlots) + i * kVBytes; }

    FA_MEMBER static void init_barriers() {
        Barriers& b = shared().barrier;
        for (int i = 0; i < QSlots; i++) rt::barrier_init(at(b.q_full + i), 1), rt::barrier_init(at(b.q_free + i), 4 * Groups);
        for (int i = 0; i < KSlots; i++) {
            rt::barrier_init(at(b.k_full + i), 1), rt::barrier_init(at(b.k_free + i), 4 * Groups * blocks);
            rt::barrier_init(at(b.v_full + i), 1), rt::barrier_init(at(b.v_free + i), 4 * Groups * blocks);
        }
        rt::barrier_init(at(&b.nearly_done), 1);
        for (HopperTile& t : shared().tile) rt::barrier_init(at(&t.told), 1), rt::barrier_init(at(&t.done), 4 * Groups);
        for (uint64_t& sent : b.sent) rt::barrier_init(at(&sent), 1);
        rt::barrier_init_done();
    }
};

// A ring's slot in use, and the parity of its phase.
template <int slots>
struct Ring {
    int i = 0;
    uint32_t parity = 0;
    FA_MEMBER void next() {
        if (++i == slots) i = 0, parity ^= 1;
    }
};
// The keys that a row sees, within the sequence.
struct Ends { int begin, end; };
template <Mask mask>
FA_DEVICE Ends ends_of(const Problem& p, int row, int off, int k_len) {
    if (mask == Mask::none) return {0, k_len};
    if (mask == Mask::causal) return {0, max(min(row + off + 1, k_len), 0)};
    const KeyBand band = key_band(mask_rule(p, Sequence{0, 0, 0, 0, 0, off}), row, k_len);
    return {int(clamp(band.begin, 0, k_len)), int(clamp(band.end, 0, k_len))};
}

// ---- the threads that take tiles and bring what they need

template <class H, Mask mask, bool pair>
FA_DEVICE void describe_tile(const HopperParams& a, int index, int rank, HopperTile& t) {
    const ForwardParams& x = a.x;
    const int heads_q = int(x.p.d.heads_q), heads = int(x.p.d.batch) * heads_q;
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
    t.batch = head / heads_q;
    t.head = head - t.batch * heads_q;
    t.kv_head = t.head / int(x.p.group);
    t.row0 = (pair ? 2 * tile + rank : tile) * H::rows;
    const Sequence seq = x.alike ? x.alike_seq : bounded_sequence(x.p, x.a, t.batch);
    t.q_begin = int(seq.q_begin);
    t.q_len = int(seq.q_len);
    t.stored = x.p.packed_q() ? t.q_len : int(x.p.d.seqlen_q);
    t.k_len = int(seq.k_len);
    t.off = int(clamp(seq.off, -(1 << 30), 1 << 30));
    t.key0 = int(seq.k_begin);
    t.sequence = x.p.packed_k() ? 0 : x.alike ? t.batch : int(seq.kv_index);
    // A tile without keys gets a block, too, all of it masked.
    const auto ends = [&](int row) { return ends_of<mask>(x.p, row, t.off, t.k_len); };
    const auto last_row = [&](int row0) { return max(min(row0 + H::rows, t.q_len) - 1, row0); };
    const auto top_of = [&](int row0) { return max((ends(last_row(row0)).end + H::keys - 1) / H::keys, 1) - 1; };
    t.top = top_of(t.row0);
    t.skip = pair && mask != Mask::none ? top_of((2 * tile + 1) * H::rows) - t.top : 0;
    t.edge = mask == Mask::none ? t.top + 1 : ends(t.row0).end / H::keys;
    t.low = mask == Mask::band ? min(ends(t.row0).begin / H::keys, t.top) : 0;
    t.inner = mask == Mask::band ? (ends(last_row(t.row0)).begin + H::keys - 1) / H::keys : 0;
}

// A block of k or v to one slot.
template <class H, bool pair, int panels>
FA_DEVICE void load_keys(uint32_t to, const CUtensorMap* map, uint32_t barrier, int rank, int row, int head, int sequence) {
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

FA_DEVICE uint32_t at(const uint64_t& barrier) { return rt::shared_address(&barrier); }

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

template <class H, bool pair, int KSlots>
FA_DEVICE void load_keys_of_tiles(const HopperParams& a) {
    typename H::Shared& s = H::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    Ring<KSlots> k;
    for (Ring<H::kTiles> slot;; slot.next()) {
        const HopperTile& t = s.tile[slot.i];
        rt::barrier_wait(at(t.told), slot.parity);
        if (t.top < 0) return;
        const int head = t.kv_head, sequence = t.sequence, blocks = t.top + t.skip - t.low + 1;
        int row = t.key0 + (t.top + t.skip) * H::keys;
        for (int left = blocks; left > 0; left--, row -= H::keys) {
            if (left == min(blocks, H::kLead)) rt::barrier_arrive(at(s.barrier.nearly_done));
            rt::barrier_wait(at(s.barrier.k_free[k.i]), k.parity ^ 1);
            load_keys<H, pair, H::kQPanels>(H::k_tile(k.i), &a.k, at(s.barrier.k_full[k.i]), rank, row, head, sequence);
            k.next();
        }
    }
}

template <class H, bool pair, int KSlots>
FA_DEVICE void load_values_of_tiles(const HopperParams& a) {
    typename H::Shared& s = H::shared();
    const int rank = pair ? rt::cluster_rank() : 0;
    Ring<KSlots> v;
    for (Ring<H::kTiles> slot;; slot.next()) {
        const HopperTile& t = s.tile[slot.i];
        rt::barrier_wait(at(t.told), slot.parity);
        if (t.top < 0) return;
        const int head = t.kv_head, sequence = t.sequence, blocks = t.top + t.skip - t.low + 1;
        int row = t.key0 + (t.top + t.skip) * H::keys;
        for (int i = 0; i < blocks; i++, row -= H::keys) {
            rt::barrier_wait(at(s.barrier.v_free[v.i]), v.parity ^ 1);
            load_keys<H, pair, H::kVPanels>(H::v_tile(v.i), &a.v, at(s.barrier.v_full[v.i]), rank, row, head, sequence);
            v.next();
        }
    }
}

// ---- the consumers

struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

template <class T, int DQ, int DV, int Keys, int Groups, Mask mask, bool pair, int KSlots, int QSlots>
FA_DEVICE void consume(const HopperParams& a) {
    using H = Hopper<T, DQ, DV, Keys, Groups, mask, pair, KSlots, QSlots>;
    using Mma = rt::Products<H::f16>;
    typename H::Shared& shared = H::shared();
    const ForwardParams& x = a.x;
    const int warp = rt::uniform(int(threadIdx.x) / 32), lane = int(threadIdx.x) % 32, group = warp / 4 - 1, c = lane % 4;
    const int own_row = group * 64 + warp % 4 * 16 + lane / 4;  // and the row 8 below it
    const float scale = x.p.d.scale * kLog2e;  // takes products to log2 units
    constexpr bool kWide = DQ > 128;
    // Scores; sums of weights times v; and of two rows the reference in the units of products, what is taken from scores before their
    // exponential, and this thread's part of the sum of weights.
    float s[Keys / 2], o[DV / 2], reference[2] = {}, shift[2], l[2] = {};
    uint32_t p[Keys / 4];
    Ends band[2];  // of keys; with other masks found out where it is needed
    int n, low, inner, edge, q_slot;
    Ring<KSlots> k, v;
    Ring<QSlots> q;
    Ring<H::kTiles> slot;
    const HopperTile* tile = nullptr;

    const auto release = [&](const uint64_t& barrier) {
        if (lane == 0) rt::barrier_arrive(at(barrier));
    };
    const auto release_in_pair = [&](const uint64_t& barrier) {
        if (!pair) release(barrier);
        else if (lane < 2) rt::barrier_arrive_at(at(barrier), lane);
    };
    const auto free_k = [&] {
        release_in_pair(shared.barrier.k_free[k.i]);
        k.next();
    };
    const auto free_v = [&] {
        release_in_pair(shared.barrier.v_free[v.i]);
        v.next();
    };
    const auto ends_of = [&](int r) { return gpu::ends_of<mask>(x.p, tile->row0 + own_row + 8 * r, tile->off, tile->k_len); };
    const auto skipped = [&] { return pair && mask != Mask::none ? rt::uniform(tile->skip) : 0; };
    const auto open_tile = [&]() -> bool {
        const HopperTile* const next = &shared.tile[slot.i];
        rt::barrier_wait(at(next->told), slot.parity);
        const int4 blocks = *reinterpret_cast<const int4*>(next);
        n = rt::uniform(blocks.x);
        if (n < 0) return false;
        rt::barrier_wait(at(shared.barrier.q_full[q.i]), q.parity);
        tile = next;
        q_slot = q.i;
        slot.next();
        q.next();
        edge = mask == Mask::none ? 0 : rt::uniform(blocks.y);
        low = mask == Mask::band ? rt::uniform(blocks.z) : 0;
        inner = mask == Mask::band ? rt::uniform(blocks.w) : 0;
        FA_UNROLL for (int r = 0; r < 2; r++)
            if (mask == Mask::band) band[r] = ends_of(r);
        for (int i = 0; i < skipped(); i++) {
            rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
            free_k();
        }
        return true;
    };
    const auto skip_values = [&] {
        for (int i = 0; i < skipped(); i++) {
            rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
            free_v();
        }
    };
    // What lies behind the last value of a sequence within its tensor may be anything, and 0 · NaN is NaN.
    const auto clear_values = [&] {
        const int left = tile->k_len - n * Keys;
        if (x.alike || left >= Keys) return;
        rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
        const int pieces = (Keys - left) * 8;
        for (int i = int(threadIdx.x) - 128; i < pieces * H::kVPanels; i += 128 * Groups)
            rt::zero16(H::v_tile(v.i) + i / pieces * H::kPanelBytes + left * 128 + i % pieces * 16);
        rt::fence_for_products();
        rt::named_sync(1 + Groups, 128 * Groups);
    };
    const auto issue_qk = [&] {
        // Where dims are many, the compiler is not to keep all addresses over the loop.
        const uint32_t q_rows = H::q_tile(q_slot) + group * 8192;
        const uint64_t left = rt::matrix_at(kWide ? uint32_t(rt::uniform(int(q_rows))) : q_rows, 16), right = rt::matrix_at(H::k_tile(k.i), 16);
        FA_UNROLL for (int i = 0; i < DQ / 16; i++)
            Mma::multiply(s, left + i / 4 * (H::rows * 8) + i % 4 * 2, right + i / 4 * (H::kPanelBytes / 16) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto issue_pv = [&](bool pass_turn) {
        const uint64_t right = rt::matrix_at(H::v_tile(v.i), H::kPanelBytes);
        FA_UNROLL for (int i = 0; i < Keys / 16; i++) {
            Mma::multiply(o, p + 4 * i, right + i * 128);
            // Two products early: the other's first takes as long to begin.
            if (pass_turn && i == Keys / 16 - 3) rt::named_arrive(1 + (group + 1) % Groups, 256);
        }
        rt::products_commit();
    };
    const auto mask_scores = [&] {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const Ends ends = mask == Mask::band ? band[r] : ends_of(r);
            const int first = ends.begin - n * Keys - 2 * c, past = ends.end - n * Keys - 2 * c;
            FA_UNROLL for (int i = 0; i < Keys / 2; i++) {
                const int j = 8 * (i / 4) + i % 2;
                if (i / 2 % 2 == r && (j >= past || (mask == Mask::band && j < first))) s[i] = kNegInf;
            }
        }
    };
    // Weights, straight to pairs; `sum` gets their sums, and s stays as it is. exponent(i, r): of score i, in row r, in log2 units.
    const auto exponentials = [&](auto exponent, float (&sum)[4]) {
        FA_UNROLL for (int i = 0; i < Keys / 4; i++) {
            const int r = i % 2;
            const float first = rt::exp2_fast(exponent(2 * i, r)), second = rt::exp2_fast(exponent(2 * i + 1, r));
            sum[2 * r] += first;
            sum[2 * r + 1] += second;
            p[i] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
        }
    };
    // The exact way to weights: for the first block of a tile (`fresh`), where some scores are masked, and where weights have outgrown the
    // reference. Moves the reference of a row to its largest score so far, if `move`, and what has been summed with it. A row without a
    // reference comes here with the next block again, and so does one whose reference is so large that it does not go into a fused
    // multiplication, whose exact product may exceed what the reference was rounded to.
    const auto exact_weights = [&](const bool (&move)[2], bool fresh, float (&sum)[4]) {
        constexpr float kLarge = 0x1p+16f;
        float top[2], base[2], offset[2];
        FA_UNROLL for (int r = 0; r < 2; r++) {
            float other = kNegInf;
            top[r] = fresh ? kNegInf : reference[r];
            FA_UNROLL for (int i = 0; i < Keys / 2; i += 4) {
                top[r] = fmaxf(top[r], s[i + 2 * r]);
                other = fmaxf(other, s[i + 2 * r + 1]);
            }
            top[r] = fmaxf(top[r], other);
        }
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], rt::shuffle_xor16(top[r], lanes));
        FA_UNROLL for (int r = 0; r < 2; r++) {
            base[r] = origin(top[r]);
            offset[r] = H::kLift;
            if (!fresh && !move[r]) {  // its weights are to be the same, whatever other rows need
                base[r] = 0.f;
                offset[r] = -shift[r];
                continue;
            }
            const float log2 = base[r] * scale;
            if (!fresh) {
                const float factor = rt::exp2_fast(reference[r] * scale - log2);
                l[r] *= factor;
                FA_UNROLL for (int i = 0; i < DV / 2; i++)
                    if (i / 2 % 2 == r) o[i] *= factor;
            }
            reference[r] = top[r];
            shift[r] = top[r] == kNegInf || fabsf(log2) > kLarge ? kNegInf : log2 - H::kLift;
        }
        FA_UNROLL for (int i = 0; i < 4; i++) sum[i] = 0.f;
        exponentials([&](int i, int r) { return fmaf(s[i] - base[r], scale, offset[r]); }, sum);
    };
    const auto first_weights = [&] {
        float sum[4];
        if (mask != Mask::none || (n + 1) * Keys > tile->k_len) mask_scores();
        exact_weights({true, true}, true, sum);
        rt::pin(p);
        FA_UNROLL for (int r = 0; r < 2; r++) l[r] = sum[2 * r] + sum[2 * r + 1];
    };
    // A row's own weights alone decide whether its reference moves, or later keys would change an earlier row's bits.
    const auto weights = [&](auto masked) {
        float sum[4] = {};
        if constexpr (masked.value) {
            mask_scores();
            exact_weights({true, true}, false, sum);
        } else {
            exponentials([&](int i, int r) { return fmaf(s[i], scale, -shift[r]); }, sum);
            bool move[2];
            FA_UNROLL for (int r = 0; r < 2; r++) move[r] = !(sum[2 * r] + sum[2 * r + 1] <= H::kMost);
            if (rt::any_lane(move[0] || move[1])) {
                FA_UNROLL for (int r = 0; r < 2; r++) move[r] = (__ballot_sync(~0u, move[r]) >> (lane & 28) & 15) != 0;
                exact_weights(move, false, sum);
            }
        }
        FA_UNROLL for (int r = 0; r < 2; r++) l[r] += sum[2 * r] + sum[2 * r + 1];
        rt::pin(p);
    };
    // Averages to memory: transposes of 4 × 4 words among the four lanes of a row make pieces of 16 bytes. Returns the largest, as a pair.
    const auto store_averages = [&](T* out, int64_t eight_rows, const bool (&stored)[2], const bool (&empty)[2], const float (&factor)[2]) {
        uint32_t largest = 0;
        FA_UNROLL for (int g = 0; g < DV / 32; g++)
            FA_UNROLL for (int r = 0; r < 2; r++) {
                uint32_t word[4];
                FA_UNROLL for (int i = 0; i < 4; i++) {
                    const float* const two = o + 16 * g + 4 * i + 2 * r;
                    const float first = fmaf(two[0], factor[r], 0.f), second = fmaf(two[1], factor[r], 0.f);  // −0 becomes 0: removed keys'
                    word[i] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);            // signs never show
                    largest = rt::max_magnitude<H::f16>(largest, word[i]);
                    if (empty[r]) word[i] = 0;  // whatever the values are
                }
                FA_UNROLL for (int i = 0; i < 4; i += 2) {
                    const uint32_t other = __shfl_xor_sync(~0u, c & 1 ? word[i] : word[i + 1], 1);
                    if (c & 1) word[i] = other;
                    else word[i + 1] = other;
                }
                FA_UNROLL for (int i = 0; i < 2; i++) {
                    const uint32_t other = __shfl_xor_sync(~0u, c & 2 ? word[i] : word[i + 2], 2);
                    if (c & 2) word[i] = other;
                    else word[i + 2] = other;
                }
                if (stored[r] && 32 * g + 8 * c < int(x.p.d.dim_v))
                    *reinterpret_cast<uint4*>(out + r * eight_rows + 32 * g) = make_uint4(word[0], word[1], word[2], word[3]);
            }
        return largest;
    };
    // The average of finite values is finite, but weights are rounded and their sum is not.
    const auto bound_averages = [&](const float (&factor)[2]) {
        constexpr float most = H::f16 ? 65504.f : 0x1.fep+127f, less = H::f16 ? 1.f - 0x1p-10f : 1.f - 0x1p-8f;
        FA_UNROLL for (int i = 0; i < DV / 2; i++)
            if (fabsf(o[i] * factor[i / 2 % 2]) > most) o[i] *= less;
    };
    const auto store = [&](const HopperTile& t) {
        const Sequence seq{t.q_begin, t.q_len, 0, t.k_len, 0, t.off};
        const int row0 = t.row0 + own_row;
        bool stored[2], empty[2];
        float factor[2];
        FA_UNROLL for (int lanes = 1; lanes < 4; lanes *= 2)
            FA_UNROLL for (int r = 0; r < 2; r++) l[r] += rt::shuffle_xor16(l[r], lanes);
        FA_UNROLL for (int r = 0; r < 2; r++) {
            stored[r] = row0 + 8 * r < t.stored;
            empty[r] = row0 + 8 * r >= t.q_len || l[r] == 0.f;
            factor[r] = empty[r] ? 0.f : rt::reciprocal_fast(l[r]);
        }
        if (x.p.has(FA_OPERAND_SINKS | FA_OPERAND_LSE))
            FA_UNROLL for (int r = 0; r < 2; r++) {
                const int row = row0 + 8 * r;
                RowState state = empty[r] ? empty_row() : RowState{reference[r] == kNegInf ? kNegInf : reference[r] * scale, l[r] * H::kUnlift};
                if (x.p.has(FA_OPERAND_SINKS) && row < t.q_len) {
                    const Fold f = fold(state, sink_state(x.a.sinks[t.head]));
                    state = f.state;
                    factor[r] = H::kUnlift * f.scale_a * normaliser(state);
                }
                if (x.p.has(FA_OPERAND_LSE) && c == 0 && stored[r]) x.a.lse[lse_index(x.p, seq, t.batch, row, t.head)] = log_sum_exp(state);
            }
        T* const out = static_cast<T*>(x.a.o) + query_index(x.p, x.p.d.o_stride, seq, t.batch, row0, t.head) + 8 * c;
        const int64_t eight_rows = 8 * x.p.d.o_stride[1];
        for (bool again = false;; again = true) {
            const uint32_t largest = store_averages(out, eight_rows, stored, empty, factor);
            if (again || __builtin_expect(!rt::any_lane(rt::any_infinite<H::f16>(largest)), 1)) break;
            bound_averages(factor);
        }
    };
    const auto clear_output = [&] {
        FA_UNROLL for (int i = 0; i < DV / 2; i++) o[i] = 0.f;
        rt::pin(o);
    };
    // One step. A new tile's first one also ends the old tile.
    const auto step = [&](auto fresh, auto masked, const HopperTile* old) {
        rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
        rt::named_sync(1 + group, 256);
        rt::pin(s), rt::pin(o), rt::pin(p);
        rt::products_begin();
        issue_qk();
        rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
        rt::products_begin();
        issue_pv(true);
        rt::products_left<1>();
        rt::pin(s);
        free_k();
        if (n == low) release(shared.barrier.q_free[q_slot]);
        rt::products_left<0>();
        rt::pin(o), rt::pin(p);
        free_v();
        if constexpr (fresh.value) {
            store(*old);
            release(old->done);
            clear_output();
            first_weights();
            skip_values();
            clear_values();
        } else {
            weights(masked);
        }
    };

    if (group == Groups - 1) rt::named_arrive(1, 256);  // the first warpgroup has the first turn
    if (!open_tile()) return;
    rt::barrier_wait(at(shared.barrier.k_full[k.i]), k.parity);
    rt::pin(s);
    rt::products_begin();
    issue_qk();
    rt::products_left<0>();
    rt::pin(s);
    free_k();
    if (n == low) release(shared.barrier.q_free[q_slot]);
    clear_output();
    first_weights();
    skip_values();
    clear_values();
    while (true) {
        n--;
        if constexpr (mask != Mask::none)
            for (; n >= max(edge, low); n--) step(No{}, Yes{}, nullptr);
        for (; n >= max(inner, low); n--) step(No{}, No{}, nullptr);
        if constexpr (mask == Mask::band)
            for (; n >= low; n--) step(No{}, Yes{}, nullptr);
        const HopperTile* const old = tile;
        if (!open_tile()) break;
            step(Yes{}, Yes{}, old);
    }
    rt::pin(o), rt::pin(p);
    rt::barrier_wait(at(shared.barrier.v_full[v.i]), v.parity);
    rt::products_begin();
    issue_pv(false);
    rt::products_left<0>();
    rt::pin(o);
    store(*tile);
}

template <class T, int DQ, int DV, int Keys, int Groups, Mask mask, bool pair, int KSlots, int QSlots>
FA_KERNEL void FA_BOUNDS((Hopper<T, DQ, DV, Keys, Groups, mask, pair, KSlots, QSlots>::threads), 1) forward_sm90(FA_PARAM HopperParams a) {
    using H = Hopper<T, DQ, DV, Keys, Groups, mask, pair, KSlots, QSlots>;
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) H::init_barriers();
    if (threadIdx.x == 32) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v);
    if (pair) rt::cluster_sync();
    else __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::uniform(int(threadIdx.x) / 128) == 0) {
        rt::give_registers<Groups == 3 ? 32 : 40>();
        if (threadIdx.x % 32 != 0) return;
        if (threadIdx.x == 0) take_tiles<H, mask, pair, QSlots>(a);
        else if (threadIdx.x == 32) load_keys_of_tiles<H, pair, KSlots>(a);
        else if (threadIdx.x == 64) load_values_of_tiles<H, pair, KSlots>(a);
        else return;
    } else {
        rt::take_registers<Groups == 3 ? 160 : 232>();
        consume<T, DQ, DV, Keys, Groups, mask, pair, KSlots, QSlots>(a);
    }
    if (pair) rt::cluster_sync();  // the other block may still write here
}

}  // namespace gpu
}  // namespace fa
