// The backward kernel for Hopper: f16 and bf16 through the products of warpgroups. docs/hopper.md tells how it works and what was tried.
//
// A block owns 128 keys of one kv head. Two warpgroups of consumers own 64 of them each, with their dk and dv in registers, and go through the
// blocks of query rows that see any of them, head after head of the group; one thread brings q, dout and what belongs to their rows. Products
// are transposed, keys by rows: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ leave weights and dSᵀ where dV += Pᵀ dO and dK += dSᵀ Q take them from registers.
// Only dS goes through shared memory, for dQᵀ = Kᵀ dSᵀ needs all keys of the block; its sums are added to memory in f32, in the order of
// registers, by bulk copies of one warp each. finish_sm90 makes dq of them.
//
// In a step the order is dP, weights, dV, dS while dV is under way, dK and dQ, the next S, dQ to memory while that is under way.
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

template <class T, int Dims, int Rows, bool pair>
struct HopperBackward {
    static constexpr bool f16 = kIsF16<T>;
    static constexpr int keys = 128, threads = 384, blocks = pair ? 2 : 1, kSlots = 2;
    static constexpr int kPanels = Dims / 64;
    static constexpr int kKeyBytes = keys * Dims * 2, kRowBytes = Rows * Dims * 2, kScoreBytes = Rows * keys * 2, kSumBytes = Rows * Dims * 4;
    // dQᵀ of a warpgroup: 64 dims of all rows, or, where there are no more dims, half of the rows.
    static constexpr int kSumRows = kPanels == 1 ? Rows / 2 : Rows;
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
    static_assert(kSharedBytes <= 232448, "what a block may have");
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
        const auto rows_of = [&](int key, int count) {
            const RowBand band = count > 0 ? row_band(rule, key, count, t.q_len) : RowBand{0, 0};
            return RowBand{clamp(band.begin, 0, t.q_len), clamp(band.end, 0, t.q_len)};
        };
        // Pairs take the rows of both together.
        const int seen0 = pair ? block * 2 * keys : t.key0;
        const RowBand seen = rows_of(seen0, min(k_len - seen0, keys * blocks)), any = rows_of(0, k_len);
        t.first = int(seen.begin) / Rows;
        t.past = seen.begin < seen.end ? (int(seen.end) + Rows - 1) / Rows : t.first;
        t.clean = int(any.begin);
        t.clean_past = any.end == t.q_len && !p.packed_q() && !p.has(FA_OPERAND_SEQUSED_Q) ? INT32_MAX : int(any.end);  // behind it zeros are brought
        t.full = t.full_past = t.past;
        if (t.keys == keys) {
            const int begin = max(int(rows_of(t.key0 + keys - 1, 1).begin), t.clean), end = min(int(rows_of(t.key0, 1).end), t.clean_past);
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

// Sums of this thread's two keys to memory, or, as f32, on top of what is there.
template <class H, class T, int Dims>
FA_DEVICE void store_keys(const HopperBackwardParams& a, int own_key, void* out, const int64_t stride[4], int64_t dim, float factor, const float (&sum)[Dims / 2]) {
    if (!out) return;
    const BackwardParams& x = a.x;
    const KeyBlock& t = H::shared().block;
    const int c = int(threadIdx.x) % 4;
    const bool accumulated = (x.a.flags & FA_BACKWARD_ACCUMULATE) != 0;
    const int64_t base = (x.p.packed_k() ? 0 : t.batch * stride[0]) + t.kv_head * stride[2];
    FA_UNROLL for (int r = 0; r < 2; r++) {
        const int key = own_key + 8 * r;
        const bool exists = key < t.keys;
        const int64_t at = base + int64_t(t.k_row + key) * stride[1];
        if (accumulated) {
            float* const to = static_cast<float*>(out) + at;
            FA_UNROLL for (int i = 0; i < Dims / 4; i++)
                if (exists && 8 * (i / 2) + 2 * c + i % 2 < dim) to[8 * (i / 2) + 2 * c + i % 2] += sum[4 * (i / 2) + 2 * r + i % 2] * factor;
            continue;
        }
        FA_UNROLL for (int i = 0; i < Dims / 32; i++) {
            uint32_t word[4];
            FA_UNROLL for (int j = 0; j < 4; j++) {
                const float first = sum[16 * i + 4 * j + 2 * r] * factor, second = sum[16 * i + 4 * j + 2 * r + 1] * factor;
                word[j] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
            }
            rt::transpose_words(word);
            if (exists && 32 * i + 8 * c < dim) *reinterpret_cast<uint4*>(static_cast<T*>(out) + at + 32 * i + 8 * c) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// One warp finds the rows that see each key. Its registers are few: chunks, of which row_band asks a division of 64 bits, are counted in 32.
template <class H>
FA_DEVICE void find_rows(const HopperBackwardParams& a) {
    typename H::Shared& s = H::shared();
    const KeyBlock& t = s.block;
    MaskRule rule = mask_rule(a.x.p, Sequence{0, 0, 0, 0, 0, t.off});
    const int chunk = int(min_of(rule.chunk, int64_t(1) << 30));
    rule.chunk = 0;
    for (int i = int(threadIdx.x) % 32; i < H::keys; i += 32) {
        const int key = t.key0 + i;
        const RowBand band = i < t.keys ? row_band(rule, key, 1, t.q_len) : RowBand{0, 0};
        int begin = int(clamp(band.begin, 0, t.q_len)), end = int(clamp(band.end, 0, t.q_len));
        if (chunk > 0) {
            const int first = key / chunk * chunk - t.off;
            begin = max(begin, first);
            end = int(min_of(int64_t(end), int64_t(first) + chunk));
        }
        s.seen[i] = make_int2(begin, end);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) rt::barrier_arrive(H::at(&s.barrier.k_full));
}

template <class T, int Dims, int Rows, bool pair>
FA_DEVICE void accumulate(const HopperBackwardParams& a) {
    using H = HopperBackward<T, Dims, Rows, pair>;
    using Mma = rt::Products<H::f16>;
    typename H::Shared& shared = H::shared();
    typename H::Barriers& barrier = shared.barrier;
    const BackwardParams& x = a.x;
    const KeyBlock& t = shared.block;
    const int warp = rt::uniform(int(threadIdx.x) / 32) - 4, lane = int(threadIdx.x) % 32, team = warp / 4, c = lane % 4;
    const int own_key = team * 64 + warp % 4 * 16 + lane / 4;  // and the key 8 below it
    const float scale = x.p.d.scale * kLog2e;
    // Scores, then weights; delta - dP of 64 rows; the sums.
    float s[Rows / 2], dp[32], dv[Dims / 2], dk[Dims / 2];
    float (&dq)[32] = dp;  // dP has become dS by then
    uint32_t p[Rows / 4], ds[Rows / 4];
    Ring<H::kSlots> slot;
    const int first = rt::uniform(t.first), past = rt::uniform(t.past), full = rt::uniform(t.full), full_past = rt::uniform(t.full_past);
    const int clean = rt::uniform(t.clean), clean_past = rt::uniform(t.clean_past);
    int m = first, left = (past - first) * int(x.p.group);
    // Where this warp's part of the sums of dq lies, in memory and before it goes there.
    constexpr int kPart = H::kSumBytes / 8;
    const int blocks_of_head = int(x.padded_rows / Rows);
    int place = rt::uniform(t.kv_head * int(x.p.group) * blocks_of_head + int(t.row0 / Rows)) + m;  // of the block of rows among all
    const uint32_t staged = H::sums() + warp * kPart;
    // dS as rows by keys, a panel of 64 keys for each warpgroup.
    const uint32_t ds_row = team * Rows * 128 + (lane % 8 + lane / 16 * 8) * 128 + ((warp % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;

    const auto release = [&](uint64_t& free) {
        if (lane == 0) rt::barrier_arrive(H::at(&free));
    };
    const auto release_in_pair = [&](uint64_t& free) {
        if (!pair) release(free);
        else if (lane < 2) rt::barrier_arrive_at(H::at(&free), lane);
    };
    const auto among_consumers = [&] { rt::named_sync(1, 256); };
    // Rows, or keys, that are not to be read may hold anything, and 0 · NaN is NaN.
    const auto clear = [&](uint32_t tile, int tile_rows, int begin, int past) {
        for (int i = int(threadIdx.x) - 128; i < tile_rows * 8; i += 256)
            if (i / 8 < begin || i / 8 >= past)
                FA_UNROLL for (int panel = 0; panel < H::kPanels; panel++) rt::zero16(tile + panel * tile_rows * 128 + i * 16);
        rt::fence_for_products();
        among_consumers();
    };
    const auto unclean = [&](int block) { return block * Rows < clean || (block + 1) * Rows > clean_past; };
    const auto clear_rows = [&](uint32_t tile) { clear(tile, Rows, clean - m * Rows, clean_past - m * Rows); };
    const auto issue_scores = [&] {
        const uint64_t rows = rt::matrix_at(H::k_tile() + team * 8192, 16), columns = rt::matrix_at(H::q_tile(slot.i), 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::multiply(s, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto issue_dp = [&](int part) {
        const uint64_t rows = rt::matrix_at(H::v_tile() + team * 8192, 16), columns = rt::matrix_at(H::o_tile(slot.i) + part * 8192, 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::subtract(dp, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2);
        rt::products_commit();
    };
    const auto issue_sum = [&](float (&sum)[Dims / 2], const uint32_t (&weights)[Rows / 4], uint32_t tile) {
        const uint64_t right = rt::matrix_at(tile, Rows * 128);
        FA_UNROLL for (int i = 0; i < Rows / 16; i++) Mma::multiply(sum, weights + 4 * i, right + i * 128);
        rt::products_commit();
    };
    const auto issue_dq = [&] {
        const uint64_t rows = rt::matrix_at(H::k_tile() + (H::kPanels > 1 ? team * H::keys * 128 : 0), H::keys * 128);
        const uint64_t columns = rt::matrix_at(H::ds_tile(slot.i) + (H::kPanels > 1 ? 0 : team * H::kSumRows * 128), 16);
        FA_UNROLL for (int i = 0; i < H::keys / 16; i++)
            Mma::multiply_columns(dq, rows + i * 128, columns + i / 4 * (Rows * 8) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto mask_scores = [&] {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const int2 seen = shared.seen[own_key + 8 * r];
            const int begin = seen.x - m * Rows - 2 * c, end = seen.y - m * Rows - 2 * c;
            FA_UNROLL for (int i = 0; i < Rows / 2; i++)
                if (i / 2 % 2 == r && (8 * (i / 4) + i % 2 < begin || 8 * (i / 4) + i % 2 >= end)) s[i] = kNegInf;
        }
    };
    // Sums go to memory in turns where bits are to repeat. Those of the step before have then been added, which the next one waits for.
    const auto pass_turn = [&] {
        rt::sums_added();
        if (uint32_t* const turn = shared.added[warp]) rt::release_add(turn, 1);
    };
    const auto take_turn = [&](uint32_t turn) {
        uint32_t* const at = a.turns + place * 8 + warp;
        while (rt::acquire_load(at) != turn) {}
        shared.added[warp] = at;
    };
    // The sums of dq of the step before have left shared memory; those of this one go there, and on.
    const auto add_sums = [&](uint32_t turn) {
        if (lane == 0) {
            if (a.turns) pass_turn();
            else rt::sums_read();
        }
        __syncwarp();
        FA_UNROLL for (int i = 0; i < H::kSumRows / 8; i++) rt::store16(staged + i * 512 + lane * 16, dq + 4 * i);
        rt::fence_for_products();
        __syncwarp();
        if (lane == 0) {
            if (a.turns) take_turn(turn);
            rt::add_floats(x.dq_sum + (int64_t(place) * 8 + warp) * (kPart / 4), staged, kPart);
        }
    };
    // `ahead`: the scores of the next block are computed, too.
    const auto step = [&](auto ahead) {
        const float* const lse2 = shared.lse2[slot.i];
        const float* const delta = shared.delta[slot.i];
        rt::barrier_wait(H::at(&barrier.o_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::o_tile(slot.i));
        if (m < full || m >= full_past) mask_scores();
        const auto make_ds = [&](int part) {
            FA_UNROLL for (int i = 0; i < 16; i++) {
                const float* const weight = s + 32 * part + 2 * i;
                const float first = weight[0] * dp[2 * i], second = weight[1] * dp[2 * i + 1];
                ds[16 * part + i] = H::f16 ? rt::pack_f16(first, second) : rt::pack_bf16(first, second);
            }
        };
        FA_UNROLL for (int part = 0; part < Rows / 64; part++) {
            FA_UNROLL for (int i = 0; i < 8; i++) {
                const float2 d = rt::load8(H::at(delta) + 256 * part + 32 * i + 8 * c);
                dp[4 * i] = dp[4 * i + 2] = d.x;
                dp[4 * i + 1] = dp[4 * i + 3] = d.y;
            }
            rt::pin(dp);
            rt::products_begin();
            issue_dp(part);
            if (part == 0) rt::pin(s);
            FA_UNROLL for (int i = 8 * part; i < 8 * part + 8; i++) {
                const float2 l = rt::load8(H::at(lse2) + 32 * i + 8 * c);
                FA_UNROLL for (int e = 0; e < 4; e++) s[4 * i + e] = rt::exp2_fast(fmaf(s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
                FA_UNROLL for (int e = 0; e < 2; e++)
                    p[2 * i + e] = H::f16 ? rt::pack_f16(s[4 * i + 2 * e], s[4 * i + 2 * e + 1]) : rt::pack_bf16(s[4 * i + 2 * e], s[4 * i + 2 * e + 1]);
            }
            if (part == Rows / 64 - 1) break;
            rt::products_left<0>();
            rt::pin(dp);
            make_ds(part);
        }
        rt::pin(p), rt::pin(dv);
        rt::products_begin();
        issue_sum(dv, p, H::o_tile(slot.i));
        rt::products_left<1>();
        rt::pin(dp);
        make_ds(Rows / 64 - 1);
        FA_UNROLL for (int i = 0; i < Rows / 16; i++) rt::store_matrices_transposed(H::ds_tile(slot.i) + ds_row + i * 2048, ds + 4 * i);
        rt::fence_for_products();
        __syncwarp();
        release(barrier.ds_full[slot.i]);
        rt::products_left<0>();
        rt::pin(p), rt::pin(dv);
        release_in_pair(barrier.o_free[slot.i]);
        rt::pin(ds), rt::pin(dk);
        rt::products_begin();
        issue_sum(dk, ds, H::q_tile(slot.i));
        rt::barrier_wait(H::at(&barrier.ds_full[slot.i]), slot.parity);
        rt::forget(dq);
        rt::products_begin();
        issue_dq();
        rt::products_left<1>();
        rt::pin(ds), rt::pin(dk);
        const uint32_t turn = shared.turn[slot.i];
        release_in_pair(barrier.q_free[slot.i]);
        slot.next();
        if constexpr (ahead.value) {
            rt::forget(s);
            rt::barrier_wait(H::at(&barrier.q_full[slot.i]), slot.parity);
            rt::products_begin();
            issue_scores();
            rt::products_left<1>();
        } else {
            rt::products_left<0>();
        }
        rt::pin(dq);
        if (x.dq_sum) add_sums(turn);
        rt::products_left<0>();
        rt::pin(s);
        m++;
        place++;
        if (m == past) {
            m = first;
            place += blocks_of_head - (past - first);
        }
    };

    FA_UNROLL for (int i = 0; i < Dims / 2; i++) dv[i] = dk[i] = 0.f;
    if (lane == 0) shared.added[warp] = nullptr;
    if (left > 0) {
        rt::barrier_wait(H::at(&barrier.k_full), 0);
        rt::barrier_wait(H::at(&barrier.v_full), 0);
        if (t.keys < H::keys) {
            clear(H::k_tile(), H::keys, 0, t.keys);
            clear(H::v_tile(), H::keys, 0, t.keys);
        }
    }
    while (left > 0) {
        rt::barrier_wait(H::at(&barrier.q_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::q_tile(slot.i));
        rt::forget(s);
        rt::products_begin();
        issue_scores();
        rt::products_left<0>();
        rt::pin(s);
        int ahead = left - 1;  // steps whose next block can be read as it comes
        if (unclean(first) || unclean(past - 1)) {
            const int most = ahead;
            ahead = 0;
            for (int next = m; ahead < most && (next = next + 1 == past ? first : next + 1, !unclean(next)); ahead++) {}
        }
        left -= ahead + 1;
        for (; ahead > 0; ahead--) step(Yes{});
        step(No{});
    }
    store_keys<H, T, Dims>(a, own_key, x.a.dv, x.a.dv_stride, x.p.d.dim_v, 1.f, dv);
    store_keys<H, T, Dims>(a, own_key, x.a.dk, x.a.dk_stride, x.p.d.dim_qk, -x.p.d.scale, dk);
    if (lane == 0) pass_turn();
}

template <class T, int Dims, int Rows, bool pair>
FA_KERNEL void FA_BOUNDS((HopperBackward<T, Dims, Rows, pair>::threads), 1) backward_sm90(FA_PARAM HopperBackwardParams a) {
    using H = HopperBackward<T, Dims, Rows, pair>;
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) {
        H::init_barriers();
        H::describe_block(a, int(blockIdx.x) / H::blocks, pair ? rt::cluster_rank() : 0, H::shared().block);
    }
    if (threadIdx.x == 32) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v), rt::fetch_map(&a.dout);
    if (pair) rt::cluster_sync();
    else __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::uniform(int(threadIdx.x) / 128) == 0) {
        rt::give_registers<24>();
        const int warp = rt::uniform(int(threadIdx.x) / 32);
        if (warp == 1) find_rows<H>(a);
        else if (threadIdx.x == 0) load_all<H, Rows>(a, pair ? rt::cluster_rank() : 0);
        else return;
    } else {
        rt::take_registers<240>();
        accumulate<T, Dims, Rows, pair>(a);
    }
    if (pair) rt::cluster_sync();  // the other block may still write here
}

// dq from its sums, which lie in the order of accumulate's registers. A block of threads for each block of rows.
template <class T, int Dims, int Rows>
FA_KERNEL void FA_BOUNDS(256, 1) finish_sm90(FA_PARAM BackwardParams x) {
    using H = HopperBackward<T, Dims, Rows, false>;
    constexpr int kStride = Dims + 4;
    float* const tile = reinterpret_cast<float*>(rt::shared_memory());
    rt::fetch_parameters(x);
    rt::release_successor();
    rt::wait_for_predecessor();
    const fa_attention_desc_t& d = x.p.d;
    const int blocks = int(ceil_div(d.seqlen_q, Rows)), index = int(rt::block()) / blocks, m = int(rt::block()) % blocks;
    const int batch = index / int(d.heads_q), head = index % int(d.heads_q);
    const Sequence seq = bounded_sequence(x.p, x.f, batch);
    const int left = int(seq.q_len) - m * Rows;
    if (left <= 0) return;
    const int64_t row0 = head * x.padded_rows + padded_row0(x.p, seq, batch) + m * Rows;
    const int warp = rt::thread() / 32, lane = rt::thread() % 32, c = lane % 4;
    const int dim = warp % 4 * 16 + lane / 4 + (H::kPanels > 1 ? warp / 4 * 64 : 0), row = 2 * c + (H::kPanels > 1 ? 0 : warp / 4 * H::kSumRows);
    const float* const from = x.dq_sum + row0 * Dims + warp * (H::kSumBytes / 32) + lane * 4;
    FA_UNROLL for (int i = 0; i < H::kSumRows / 8; i++) {
        float sum[4];
        rt::load4(from + i * 128, sum);
        FA_UNROLL for (int e = 0; e < 4; e++) tile[(row + 8 * i + e % 2) * kStride + dim + e / 2 * 8] = sum[e];
    }
    rt::barrier();
    for (int i = rt::thread(); i < Rows * Dims / 8; i += 256) {
        const int r = i / (Dims / 8), column = i % (Dims / 8) * 8;
        if (r >= left || column >= d.dim_qk) continue;
        const float factor = x.lse2[row0 + r] == kPosInf ? 0.f : -d.scale;
        const int64_t to = query_index(x.p, x.a.dq_stride, seq, batch, m * Rows + r, head) + column;
        float sum[8];
        rt::load4(tile + r * kStride + column, sum);
        rt::load4(tile + r * kStride + column + 4, sum + 4);
        FA_UNROLL for (int e = 0; e < 8; e++) sum[e] = factor == 0.f ? 0.f : sum[e] * factor;
        if (accumulates(x)) {
            FA_UNROLL for (int e = 0; e < 8; e++) static_cast<float*>(x.a.dq)[to + e] += sum[e];
            continue;
        }
        uint32_t word[4];
        FA_UNROLL for (int e = 0; e < 4; e++)
            word[e] = kIsF16<T> ? rt::pack_f16(sum[2 * e], sum[2 * e + 1]) : rt::pack_bf16(sum[2 * e], sum[2 * e + 1]);
        *reinterpret_cast<uint4*>(static_cast<T*>(x.a.dq) + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace gpu
}  // namespace fa

