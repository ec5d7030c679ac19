// Hopper's backward kernel for heads of 136 to 256 dims. bwd_sm90.h has what is common to both; docs/hopper_backward.md tells why this one differs.
//
// dk and dv of 128 keys would fill all registers of a multiprocessor. So a pair of blocks shares 128 keys, 64 each: both read the same rows,
// which either brings half of to both, and they exchange dS, so that dq is added to memory once for 128 keys: each block sums half of the dims.
//
// Within a block one warpgroup makes weights and dv, the other dS and dk, both with keys by rows: Sᵀ = K Qᵀ becomes the left side of
// dv += Pᵀ dO, dPᵀ = V dOᵀ that of dk += dSᵀ Q. The weights pass from a warp to the one that has the same keys through shared memory, in f32
// and in the order of registers. Each warpgroup has 64 dims of dqᵀ = Kᵀ dSᵀ.
#pragma once
#include "cuda/bwd_sm90.h"

namespace fa {
namespace gpu {

struct WideBackward : HopperBackward<256, 64, Way::wide, 64> {
    using Base = HopperBackward<256, 64, Way::wide, 64>;
    using Base::at, Base::k_tile, Base::v_tile;
    static constexpr int dims = 256, rows = 64, kSlots = 2;  // of q; dout has one
    static constexpr int kPanelBytes = 64 * 128, kKeyBytes = Base::kKeyBytes, kRowBytes = Base::kRowBytes;
    static constexpr int kPart = 16 * rows * 4;  // of the sums of dq, or of the weights: a warp's
    struct Barriers {
        uint64_t k_full, v_full, q_full[kSlots], q_free[kSlots], o_full, o_free, p_full, p_free, ds_full, ds_free;
    };
    struct Shared {
        float lse2[kSlots][rows], delta[rows];
        int2 seen[64];
        KeyBlock block;
        Barriers barrier;
    };
    // k, v, the other block's k, q, dout, dS of this block and of the other one, weights, sums of dq
    static constexpr int kMatrices = 2 * kKeyBytes + 2 * kPanelBytes + (kSlots + 1) * kRowBytes + 2 * kPanelBytes + 8 * kPart;
    static constexpr int kSharedBytes = kMatrices + int(sizeof(Shared));
    static_assert(kSharedBytes <= kMostShared, "");

    FA_MEMBER static Shared& shared() { return *reinterpret_cast<Shared*>(rt::shared_memory() + kMatrices); }
    FA_MEMBER static uint32_t other_k_tile() { return v_tile() + kKeyBytes; }  // this block's half of the dims
    FA_MEMBER static uint32_t q_tile(int i) { return other_k_tile() + 2 * kPanelBytes + i * kRowBytes; }
    FA_MEMBER static uint32_t o_tile() { return q_tile(kSlots); }
    FA_MEMBER static uint32_t ds_tile() { return o_tile() + kRowBytes; }  // keys by rows, and behind it the other block's
    FA_MEMBER static uint32_t other_ds_tile() { return ds_tile() + kPanelBytes; }
    FA_MEMBER static uint32_t weights() { return other_ds_tile() + kPanelBytes; }
    FA_MEMBER static uint32_t sums() { return weights() + 4 * kPart; }

    FA_MEMBER static void init_barriers() {
        Barriers& b = shared().barrier;
        rt::barrier_init(at(&b.k_full), 1 + 32), rt::barrier_init(at(&b.v_full), 1);
        // What threads have written, or read, for themselves, each of a team speaks for: weights, LSE and delta. Else one lane does for its warp.
        for (int i = 0; i < kSlots; i++) rt::barrier_init(at(b.q_full + i), 1), rt::barrier_init(at(b.q_free + i), 8 + 128);
        rt::barrier_init(at(&b.o_full), 1), rt::barrier_init(at(&b.o_free), 8 + 4 + 128);
        rt::barrier_init(at(&b.p_full), 128), rt::barrier_init(at(&b.p_free), 128);
        rt::barrier_init(at(&b.ds_full), 4), rt::barrier_init(at(&b.ds_free), 16);
        rt::barrier_init_done();
    }
    // Of the pair's other block: its first key, and how many it has.
    FA_MEMBER static int other_key0(const KeyBlock& t) { return t.key0 ^ 64; }
    FA_MEMBER static int other_keys(const KeyBlock& t) { return min(t.k_len - other_key0(t), 64); }
};

// One warp finds the rows that see each key.
template <class H>
FA_DEVICE void find_rows() {
    typename H::Shared& s = H::shared();
    const KeyBlock& t = s.block;
    for (int i = int(threadIdx.x) % 32; i < H::keys; i += 32) s.seen[i] = rows_seeing(t.rule, t.key0 + i, i < t.keys, t.q_len);
    rt::barrier_arrive(H::at(&s.barrier.k_full));
}

template <class H>
FA_DEVICE void load_wide(const HopperBackwardParams& a, int rank) {
    typename H::Shared& s = H::shared();
    typename H::Barriers& b = s.barrier;
    const KeyBlock& t = s.block;
    if (t.first == t.past) return;
    const int keys_of = a.x.p.packed_k() ? 0 : t.batch, rows_of = a.x.p.packed_q() ? 0 : t.batch, group = int(a.x.p.group);
    const auto load_panels = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, int first, int count, int row) {
        for (int i = 0; i < count; i++)
            rt::copy_box(to + i * H::kPanelBytes, map, H::at(&full), 64 * (first + i), row, t.kv_head, keys_of, rt::kEvictFirst);
    };
    rt::barrier_expect(H::at(&b.k_full), H::kKeyBytes + 2 * H::kPanelBytes);
    load_panels(H::k_tile(), &a.k, b.k_full, 0, 4, t.k_row);
    load_panels(H::other_k_tile(), &a.k, b.k_full, 2 * rank, 2, t.k_row + H::other_key0(t) - t.key0);
    Ring<H::kSlots> slot;
    Ring<1> of_dout;
    for (int g = 0; g < group; g++) {
        const int head = t.kv_head * group + g;
        const int64_t row0 = head * a.x.padded_rows + t.row0;
        for (int m = t.first; m < t.past; m++) {
            const auto load = [&](uint32_t to, const CUtensorMap* map, uint64_t& full, uint64_t& free, uint32_t parity, float* values,
                                  const float* from) {
                rt::barrier_wait(H::at(&free), parity ^ 1);
                rt::barrier_expect(H::at(&full), H::kRowBytes + H::rows * 4);
                load_rows<H>(to, map, H::at(&full), rank, t.q_begin + m * H::rows, head, rows_of);
                rt::copy_bytes(H::at(values), from + row0 + m * H::rows, H::rows * 4, H::at(&full));
            };
            load(H::q_tile(slot.i), &a.q, b.q_full[slot.i], b.q_free[slot.i], slot.parity, s.lse2[slot.i], a.x.lse2);
            if (g == 0 && m == t.first) {
                rt::barrier_expect(H::at(&b.v_full), H::kKeyBytes);
                load_panels(H::v_tile(), &a.v, b.v_full, 0, 4, t.k_row);
            }
            load(H::o_tile(), &a.dout, b.o_full, b.o_free, of_dout.parity, s.delta, a.x.delta);
            slot.next(), of_dout.next();
        }
    }
}

// Rows, or keys, that are not to be read may hold anything, and 0 · NaN is NaN. By one team, or by both.
template <class H>
FA_DEVICE void clear(uint32_t tile, int panels, int begin, int end, int first_thread, int threads) {
    for (int i = int(threadIdx.x) % 128 + first_thread; i < 64 * 8; i += threads)
        if (i / 8 < begin || i / 8 >= end)
            for (int panel = 0; panel < panels; panel++) rt::zero16(tile + panel * H::kPanelBytes + i * 16);
}
FA_DEVICE void cleared(bool by_both) {
    rt::fence_for_products();
    __syncwarp();
    if (by_both) rt::named_sync(1, 256);
    else rt::named_sync(2, 128);
}

// Both teams wait for the keys, before their ways part.
template <class H>
FA_DEVICE void wait_for_keys() {
    const KeyBlock& t = H::shared().block;
    const typename H::Barriers& barrier = H::shared().barrier;
    if (t.first == t.past) return;
    rt::barrier_wait(H::at(&barrier.k_full), 0);
    rt::barrier_wait(H::at(&barrier.v_full), 0);
    const int others = H::other_keys(t), team = int(threadIdx.x) / 128 - 1;
    if (t.keys == 64 && others == 64) return;
    clear<H>(H::k_tile(), 4, 0, t.keys, 128 * team, 256);
    clear<H>(H::v_tile(), 4, 0, t.keys, 128 * team, 256);
    clear<H>(H::other_k_tile(), 2, 0, others, 128 * team, 256);
    cleared(true);
}

// What the two warpgroups of consumers, the teams, have in common.
template <class H>
struct WideTeam {
    const HopperBackwardParams& a;
    const KeyBlock& t;
    typename H::Barriers& barrier;
    int rank, team, warp, lane;  // warp: of the team
    int first, past, clean, clean_past;
    uint32_t there;              // `barrier` in the block of the pair to which a lane tells what is free
    int m, left, place;          // the block of rows, how many are still to come, and where it lies among those of all heads
    Ring<H::kSlots> slot;
    Ring<1> turn;                // of what there is one place for

    FA_MEMBER WideTeam(const HopperBackwardParams& params, int own_rank, int own_team)
        : a(params), t(H::shared().block), barrier(H::shared().barrier), rank(own_rank), team(own_team), warp(rt::uniform(int(threadIdx.x) / 32) % 4),
          lane(int(threadIdx.x) % 32), first(rt::uniform(t.first)), past(rt::uniform(t.past)), clean(rt::uniform(t.clean)),
          clean_past(rt::uniform(t.clean_past)) {
        there = rt::address_at(H::at(&barrier), lane % 2);
        m = first;
        left = (past - first) * int(a.x.p.group);
        place = rt::uniform(t.kv_head * int(a.x.p.group) * blocks_of_head() + int(t.row0 / H::rows)) + m;
    }
    FA_MEMBER int blocks_of_head() const { return int(a.x.padded_rows / H::rows); }
    FA_MEMBER int following() const { return m + 1 == past ? first : m + 1; }
    FA_MEMBER void next() {
        place += m + 1 == past ? blocks_of_head() - (past - first) + 1 : 1;
        m = following();
        left--;
        slot.next(), turn.next();
    }
    FA_MEMBER int own_key() const { return 16 * warp + lane / 4; }  // and the key 8 below it
    FA_MEMBER void release_in_pair(uint64_t& free) const {
        if (lane < 2) rt::barrier_arrive_there(there + uint32_t(reinterpret_cast<char*>(&free) - reinterpret_cast<char*>(&barrier)));
    }
    FA_MEMBER bool unclean(int block) const { return block * H::rows < clean || (block + 1) * H::rows > clean_past; }
    FA_MEMBER void clear_rows(uint32_t tile, int block, bool both) const {
        clear<H>(tile, 4, clean - block * H::rows, clean_past - block * H::rows, both ? 128 * team : 0, both ? 256 : 128);
        cleared(both);
    }
    FA_MEMBER void wait_for_dout() const {
        rt::barrier_wait(H::at(&barrier.o_full), turn.parity);
        if (unclean(m)) clear_rows(H::o_tile(), m, true);
    }
    // 64 rows of k or v by the rows of q or dout.
    template <class Product>
    FA_MEMBER static void issue_scores(uint32_t left_tile, uint32_t right_tile, const Product& product) {
        const uint64_t keys = rt::matrix_at(left_tile, 16), rows = rt::matrix_at(right_tile, 16);
        FA_UNROLL for (int i = 0; i < H::dims / 16; i++) {
            const int step = i / 4 * (H::kPanelBytes / 16) + i % 4 * 2;
            product(keys + step, rows + step, i > 0);
        }
        rt::products_commit();
    }
    FA_MEMBER static void issue_sum(float (&sum)[H::dims / 2], const uint32_t (&weights)[16], uint32_t tile) {
        const uint64_t right = rt::matrix_at(tile, H::kPanelBytes);
        FA_UNROLL for (int i = 0; i < 4; i++) rt::Products<false>::multiply(sum, weights + 4 * i, right + i * 128);
        rt::products_commit();
    }
    // The sums of both blocks' keys, for 64 of this block's dims.
    FA_MEMBER void issue_dq(float (&dq)[32]) const {
        const uint64_t own = rt::matrix_at(H::k_tile() + (2 * rank + team) * H::kPanelBytes, 16);
        const uint64_t other = rt::matrix_at(H::other_k_tile() + team * H::kPanelBytes, 16);
        const uint64_t own_ds = rt::matrix_at(H::ds_tile(), 16), other_ds = rt::matrix_at(H::other_ds_tile(), 16);
        FA_UNROLL for (int i = 0; i < 4; i++) rt::Products<false>::multiply_both_columns(dq, own + i * 128, own_ds + i * 128, i > 0);
        FA_UNROLL for (int i = 0; i < 4; i++) rt::Products<false>::multiply_both_columns(dq, other + i * 128, other_ds + i * 128, 1);
        rt::products_commit();
    }
    // sum += weights · tile, which is done at the end; dq, when dS of both blocks is there, is under way.
    FA_MEMBER void add_products(float (&sum)[H::dims / 2], uint32_t (&weights)[16], uint32_t tile, float (&dq)[32]) const {
        rt::pin(weights), rt::pin(sum);
        rt::products_begin();
        issue_sum(sum, weights, tile);
        rt::barrier_wait(H::at(&barrier.ds_full), turn.parity);
        rt::forget(dq);
        rt::products_begin();
        issue_dq(dq);
        rt::products_left<1>();
        rt::pin(weights), rt::pin(sum);
    }
    // To memory, through a warp's own place.
    FA_MEMBER void add_sums(uint32_t staged, const float (&dq)[32]) const {
        FA_UNROLL for (int i = 0; i < 8; i++) rt::store16(staged + i * 512 + lane * 16, dq + 4 * i);
        rt::fence_for_products();
        __syncwarp();
        if (lane == 0) rt::add_floats(a.x.dq_sum + (int64_t(place) * 16 + rank * 8 + team * 4 + warp) * (H::kPart / 4), staged, H::kPart);
    }
    FA_MEMBER void wait_for_place() const {
        if (lane == 0) rt::sums_read();
        __syncwarp();
    }
};

// Weights, dv, and 64 dims of dq.
template <class H>
FA_DEVICE void accumulate_dv(const HopperBackwardParams& a, int rank) {
    using Mma = rt::Products<false>;
    WideTeam<H> w(a, rank, 0);
    typename H::Shared& shared = H::shared();
    const int c = w.lane % 4, full = rt::uniform(w.t.full), full_past = rt::uniform(w.t.full_past);
    const float scale = a.x.p.d.scale * kLog2e;
    const uint32_t place = H::weights() + w.warp * H::kPart;
    float s[32], dq[32], dv[H::dims / 2];
    uint32_t p[16];

    const auto issue_scores = [&](int slot) {
        w.issue_scores(H::k_tile(), H::q_tile(slot), [&](uint64_t x, uint64_t y, int more) { Mma::multiply(s, x, y, more); });
    };
    const auto mask_scores = [&] {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const int2 seen = shared.seen[w.own_key() + 8 * r];
            const int begin = seen.x - w.m * H::rows - 2 * c, end = seen.y - w.m * H::rows - 2 * c;
            FA_UNROLL for (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r && (8 * (i / 4) + i % 2 < begin || 8 * (i / 4) + i % 2 >= end)) s[i] = kNegInf;
        }
    };
    const auto make_weights = [&] {
        if (w.m < full || w.m >= full_past) mask_scores();
        const float* const lse2 = shared.lse2[w.slot.i];
        FA_UNROLL for (int i = 0; i < 8; i++) {
            const float2 l = rt::load8(H::at(lse2) + 32 * i + 8 * c);
            FA_UNROLL for (int e = 0; e < 4; e++) s[4 * i + e] = rt::exp2_fast(fmaf(s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
        }
        w.wait_for_place();
        FA_UNROLL for (int i = 0; i < 8; i++) rt::store16(place + i * 512 + w.lane * 16, s + 4 * i);
        rt::barrier_arrive(H::at(&w.barrier.p_full));
        rt::barrier_arrive(H::at(&w.barrier.q_free[w.slot.i]));
        FA_UNROLL for (int i = 0; i < 16; i++) p[i] = rt::pack_bf16(s[2 * i], s[2 * i + 1]);
    };
    const auto wait_for_q = [&](int slot, uint32_t parity, int block) {
        rt::barrier_wait(H::at(&w.barrier.q_full[slot]), parity);
        if (w.unclean(block)) w.clear_rows(H::q_tile(slot), block, false);
    };
    // `ahead`: the scores of the next block are computed, too.
    const auto step = [&](auto ahead) {
        make_weights();
        Ring<H::kSlots> next = w.slot;
        next.next();
        if (ahead.value) wait_for_q(next.i, next.parity, w.following());
        w.wait_for_dout();
        w.add_products(dv, p, H::o_tile(), dq);
        w.release_in_pair(w.barrier.o_free);
        if constexpr (ahead.value) {
            rt::forget(s);
            rt::products_begin();
            issue_scores(next.i);
            rt::products_left<1>();
        } else {
            rt::products_left<0>();
        }
        rt::pin(dq);
        w.release_in_pair(w.barrier.ds_free);
        rt::barrier_wait(H::at(&w.barrier.p_free), w.turn.parity);
        if (a.x.dq_sum) w.add_sums(place, dq);
        rt::products_left<0>();
        rt::pin(s);
        w.next();
    };

    FA_UNROLL for (int i = 0; i < H::dims / 2; i++) dv[i] = 0.f;
    if (w.left > 0) {
        wait_for_q(0, 0, w.m);
        rt::forget(s);
        rt::products_begin();
        issue_scores(0);
        rt::products_left<0>();
        rt::pin(s);
        while (w.left > 1) step(Yes{});
        step(No{});
    }
    store_keys<H::dims>(a, w.t, w.own_key(), a.x.g.dv, a.x.g.dv_stride, 0, a.x.p.d.dim_v, 1.f, dv);
    w.wait_for_place();
}

// dS, dk, and the 64 dims of dq beside them.
template <class H>
FA_DEVICE void accumulate_dk(const HopperBackwardParams& a, int rank) {
    using Mma = rt::Products<false>;
    WideTeam<H> w(a, rank, 1);
    typename H::Shared& shared = H::shared();
    const int c = w.lane % 4;
    const uint32_t weights = H::weights() + w.warp * H::kPart + w.lane * 16, place = H::sums() + w.warp * H::kPart;
    // dS of a warp's 16 keys: rows of 128 bytes, their pieces swizzled.
    const uint32_t own_ds = w.warp * 2048, ds_piece = H::ds_tile() + own_ds + (w.lane % 16) * 128 + ((w.lane / 16) ^ (w.lane % 8)) * 16;
    float dp[32], dq[32], dk[H::dims / 2];
    uint32_t ds[16];
    bool ahead = false;

    const auto make_ds = [&] {
        FA_UNROLL for (int i = 0; i < 8; i++) {
            float weight[4];
            rt::load16(weights + i * 512, weight);
            FA_UNROLL for (int e = 0; e < 2; e++) {
                const float x = weight[2 * e] * dp[4 * i + 2 * e], y = weight[2 * e + 1] * dp[4 * i + 2 * e + 1];
                ds[2 * i + e] = rt::pack_bf16(x, y);
            }
        }
        rt::barrier_arrive(H::at(&w.barrier.p_free));
    };
    const auto share_ds = [&] {
        rt::barrier_wait(H::at(&w.barrier.ds_free), w.turn.parity ^ 1);
        FA_UNROLL for (int i = 0; i < 4; i++) rt::store_matrices(ds_piece ^ (i * 32), ds + 4 * i);
        rt::fence_for_products();
        __syncwarp();
        if (w.lane == 0) {
            rt::barrier_expect(H::at(&w.barrier.ds_full), 2048);
            rt::send_bytes(H::other_ds_tile() + own_ds, H::ds_tile() + own_ds, 2048, H::at(&w.barrier.ds_full), rank ^ 1);
        }
    };
    const auto issue_dp = [&](bool there) {
        FA_UNROLL for (int i = 0; i < 8; i++) {
            const float2 d = there ? rt::load8(H::at(shared.delta) + 32 * i + 8 * c) : make_float2(0, 0);
            dp[4 * i] = dp[4 * i + 2] = d.x;
            dp[4 * i + 1] = dp[4 * i + 3] = d.y;
        }
        rt::pin(dp);
        rt::products_begin();
        w.issue_scores(H::v_tile(), H::o_tile(), [&](uint64_t x, uint64_t y, int) { Mma::subtract(dp, x, y); });
    };
    // The next block's delta - dP is computed ahead where its rows can be read as they come; else what is computed is of no use.
    const auto step = [&] {
        if (!ahead) {
            w.wait_for_dout();
            issue_dp(true);
            rt::products_left<0>();
            rt::pin(dp);
        }
        rt::barrier_arrive(H::at(&w.barrier.o_free));
        if (w.lane == 0) rt::barrier_arrive_at(H::at(&w.barrier.o_free), rank ^ 1);
        rt::barrier_wait(H::at(&w.barrier.p_full), w.turn.parity);
        make_ds();
        share_ds();
        rt::barrier_wait(H::at(&w.barrier.q_full[w.slot.i]), w.slot.parity);
        w.add_products(dk, ds, H::q_tile(w.slot.i), dq);
        w.release_in_pair(w.barrier.q_free[w.slot.i]);
        ahead = w.left > 1 && !w.unclean(w.following());
        if (ahead) rt::barrier_wait(H::at(&w.barrier.o_full), w.turn.parity ^ 1);
        issue_dp(ahead);
        rt::products_left<1>();
        rt::pin(dq);
        w.release_in_pair(w.barrier.ds_free);
        w.wait_for_place();
        if (a.x.dq_sum) w.add_sums(place, dq);
        rt::products_left<0>();
        rt::pin(dp);
        w.next();
    };

    FA_UNROLL for (int i = 0; i < H::dims / 2; i++) dk[i] = 0.f;
    while (w.left > 0) step();
    store_keys<H::dims>(a, w.t, w.own_key(), a.x.g.dk, a.x.g.dk_stride, 0, a.x.p.d.dim_qk, -a.x.p.d.scale, dk);
    w.wait_for_place();
}

FA_KERNEL void FA_BOUNDS(384, 1) backward_wide_sm90(FA_PARAM HopperBackwardParams a) {
    using H = WideBackward;
    rt::fetch_parameters(a);
    const int rank = rt::uniform(rt::cluster_rank());
    if (threadIdx.x == 0) {
        H::init_barriers();
        H::describe_block(a, int(blockIdx.x) / 2, 0, rank, H::shared().block);
    }
    if (threadIdx.x == 32) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v), rt::fetch_map(&a.dout);
    rt::cluster_sync();
    rt::release_successor();
    rt::wait_for_predecessor();
    const int team = rt::uniform(int(threadIdx.x) / 128);
    if (team == 0) {
        rt::give_registers<24>();
        const int warp = rt::uniform(int(threadIdx.x) / 32);
        if (warp == 1) find_rows<H>();
        else if (threadIdx.x == 0) load_wide<H>(a, rank);
        else return;
    } else {
        wait_for_keys<H>();
        if (team == 1) {
            rt::take_registers<248>();
            accumulate_dv<H>(a, rank);
        } else {
            rt::take_registers<232>();
            accumulate_dk<H>(a, rank);
        }
    }
    rt::cluster_sync();  // the other block may still write here
}

}  // namespace gpu
}  // namespace fa
