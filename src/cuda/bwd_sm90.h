// The backward kernel for Hopper: bf16 through the products of warpgroups. docs/hopper_backward.md tells how it works and what was tried.
//
// A block owns 128 keys of one kv head. Two warpgroups of consumers own 64 of them each, with their dk and dv in registers, and go through the
// blocks of query rows that see any of them, head after head of the group; one thread brings q, dout and what belongs to their rows. Products
// are transposed, keys by rows: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ leave weights and dSᵀ where dV += Pᵀ dO and dK += dSᵀ Q take them from registers.
// Only dS goes through shared memory, for dQᵀ = Kᵀ dSᵀ needs all keys of the block; its sums are added to memory in f32, in the order of
// registers, by bulk copies of one warp each. finish_sm90 makes dq of them.
//
// In a step the order is dP, weights, dV, dS while dV is under way, dQ of the step before, dK and the next S, dQ to memory while these are under way.
#pragma once
#include "cuda/bwd_rows_sm90.h"

namespace fa {
namespace gpu {

template <int Dims, int Rows, Way way>
FA_DEVICE void accumulate(const HopperBackwardParams& a) {
    using H = HopperBackward<Dims, Rows, way>;
    using Mma = rt::Products<false>;
    typename H::Shared& shared = H::shared();
    typename H::Barriers& barrier = shared.barrier;
    const BackwardParams& x = a.x;
    const KeyBlock& t = shared.block;
    const int warp = rt::uniform(int(threadIdx.x) / 32) - 4, lane = int(threadIdx.x) % 32, team = warp / 4, c = lane % 4;
    const int own_key = team * 64 + warp % 4 * 16 + lane / 4;  // and the key 8 below it
    const float scale = x.p.d.scale * kLog2e;
    // Scores, then weights; delta - dP; the sums.
    float s[Rows / 2], dp[Rows / 2], dv[Dims / 2], dk[Dims / 2];
    float (&dq)[32] = reinterpret_cast<float (&)[32]>(dp);  // dP has become dS by then
    uint32_t p[Rows / 4], ds[Rows / 4];
    Ring<H::kSlots> slot;
    const int first = rt::uniform(t.first), past = rt::uniform(t.past), full = rt::uniform(t.full), full_past = rt::uniform(t.full_past);
    const int clean = rt::uniform(t.clean), clean_past = rt::uniform(t.clean_past);
    int m = first, left = (past - first) * int(x.p.group);
    // Where this warp's part of the sums of dq lies, in memory and before it goes there.
    constexpr int kPart = H::kSumBytes / 8;
    const int blocks_of_head = int(x.padded_rows / Rows);
    // Of the block of rows whose dQ comes next, among all, or -1: none does yet; and of the one after it.
    int place = -1, next_place = rt::uniform(t.kv_head * int(x.p.group) * blocks_of_head + t.row0 / Rows) + m;
    const bool in_turns = H::any && a.turns;  // add_in_turns brings them to memory
    const uint32_t staged = H::sums() + warp * kPart;
    // dS as rows by keys, a panel of 64 keys for each warpgroup.
    const uint32_t ds_row = team * Rows * 128 + (lane % 8 + lane / 16 * 8) * 128 + ((warp % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;

    // One lane speaks for its warp.
    const auto release = [&](uint64_t& barrier) {
        __syncwarp();
        if (lane == 0) rt::barrier_arrive(H::at(&barrier));
    };
    const auto release_in_pair = [&](uint64_t& barrier) {
        __syncwarp();
        if (!H::pair && lane == 0) rt::barrier_arrive(H::at(&barrier));
        if (H::pair && lane < 2) rt::barrier_arrive_at(H::at(&barrier), lane);
    };
    // LSE and delta of a slot, which threads have read for themselves, come with dout: here each speaks for itself.
    const auto release_dout = [&](uint64_t& barrier) {
        rt::barrier_arrive(H::at(&barrier));
        if (H::pair && lane == 0) rt::barrier_arrive_at(H::at(&barrier), rt::cluster_rank() ^ 1);
    };
    const auto among_consumers = [&] { rt::named_sync(1, 256); };
    // Rows, or keys, that are not to be read may hold anything, and 0 · NaN is NaN.
    const auto clear = [&](uint32_t tile, auto tile_rows, int begin, int past) {
        FA_UNROLL for (int i = 0; i < tile_rows.value / 32; i++) {
            const int row = 32 * i + (int(threadIdx.x) - 128) / 8;
            if (row < begin || row >= past)
                FA_UNROLL for (int panel = 0; panel < H::kPanels; panel++)
                    rt::zero16(tile + (panel * tile_rows.value + row) * 128 + threadIdx.x % 8 * 16);
        }
        rt::fence_for_products();
        among_consumers();
    };
    const auto unclean = [&](int block) { return H::any && (block * Rows < clean || (block + 1) * Rows > clean_past); };
    const auto clear_rows = [&](uint32_t tile) { clear(tile, Count<Rows>{}, clean - m * Rows, clean_past - m * Rows); };
    const auto issue_scores = [&] {
        const uint64_t rows = rt::matrix_at(rt::not_kept(H::k_tile() + team * 8192), 16);
        const uint64_t columns = rt::matrix_at(H::q_tile(slot.i), 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::multiply(s, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto issue_dp = [&] {
        const uint64_t rows = rt::matrix_at(rt::not_kept(H::v_tile() + team * 8192), 16);
        const uint64_t columns = rt::matrix_at(H::o_tile(slot.i), 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::subtract(dp, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2);
        rt::products_commit();
    };
    const auto issue_sum = [&](float (&sum)[Dims / 2], const uint32_t (&weights)[Rows / 4], uint32_t tile) {
        const uint64_t right = rt::matrix_at(tile, Rows * 128);
        FA_UNROLL for (int i = 0; i < Rows / 16; i++) Mma::multiply(sum, weights + 4 * i, right + i * 128);
        rt::products_commit();
    };
    const auto issue_dq = [&](int slot) {
        const uint64_t rows = rt::matrix_at(H::k_tile() + (H::kPanels > 1 ? team * H::keys * 128 : 0), H::keys * 128);
        const uint64_t columns = rt::matrix_at(H::ds_tile(slot) + (H::kPanels > 1 ? 0 : team * H::kSumRows * 128), 16);
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
    // The sums of dq of the step before have left shared memory; those of this one go there, and on.
    const auto add_sums = [&](int before) {
        rt::pin(dq);
        if (place < 0) return;
        release(barrier.ds_free[before]);
        if (in_turns) rt::barrier_wait(H::at(&barrier.sums_free), before ^ 1);  // one place for both slots of dS
        else if (lane == 0) rt::sums_read();
        __syncwarp();
        FA_UNROLL for (int i = 0; i < H::kSumRows / 8; i++) rt::store16(staged + i * 512 + lane * 16, dq + 4 * i);
        rt::fence_for_products();
        __syncwarp();
        if (lane == 0) {
            if (in_turns) rt::barrier_arrive(H::at(&barrier.sums_full));
            else if (x.dq_sum) rt::add_floats(x.dq_sum + (int64_t(place) * 8 + warp) * (kPart / 4), staged, kPart);
        }
    };
    const auto start_scores = [&] {
        rt::barrier_wait(H::at(&barrier.q_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::q_tile(slot.i));
        rt::forget(s);
        rt::products_begin();
        issue_scores();
    };
    // The sum of dP begins at delta.
    const auto begin_dp = [&] {
        rt::barrier_wait(H::at(&barrier.o_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::o_tile(slot.i));
        const uint32_t delta = H::at(shared.delta[slot.i]) + 8 * c;
        FA_UNROLL for (int i = 0; i < Rows / 8; i++) {
            const float2 d = rt::load8(delta + 32 * i);
            dp[4 * i] = dp[4 * i + 2] = d.x;
            dp[4 * i + 1] = dp[4 * i + 3] = d.y;
        }
        rt::pin(dp);
    };
    // Weights from S, which has arrived, and dV; dS from dP, while dV is under way.
    const auto weigh = [&] {
        rt::pin(s);
        if (m < full || m >= full_past) mask_scores();
        rt::products_begin();
        issue_dp();
        rt::pin(s);
        const uint32_t lse2 = H::at(shared.lse2[slot.i]) + 8 * c;
        FA_UNROLL for (int i = 0; i < Rows / 8; i++) {
            const float2 l = rt::load8(lse2 + 32 * i);
            FA_UNROLL for (int e = 0; e < 4; e++) s[4 * i + e] = rt::exp2_fast(fmaf(s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
            FA_UNROLL for (int e = 0; e < 2; e++) p[2 * i + e] = rt::pack_bf16(s[4 * i + 2 * e], s[4 * i + 2 * e + 1]);
        }
        rt::pin(p), rt::pin(dv);
        rt::products_begin();
        issue_sum(dv, p, H::o_tile(slot.i));
        rt::products_left<1>();
        rt::pin(dp);
        FA_UNROLL for (int i = 0; i < Rows / 4; i++) ds[i] = rt::pack_bf16(s[2 * i] * dp[2 * i], s[2 * i + 1] * dp[2 * i + 1]);
        rt::barrier_wait(H::at(&barrier.ds_free[slot.i]), slot.parity ^ 1);
        FA_UNROLL for (int i = 0; i < Rows / 16; i++) rt::store_matrices_transposed(H::ds_tile(slot.i) + ds_row + i * 2048, ds + 4 * i);
        rt::fence_for_products();
        release(barrier.ds_full[slot.i]);
        rt::products_left<0>();
        rt::pin(p), rt::pin(dv);
        release_dout(barrier.o_free[slot.i]);
    };
    const auto start_dq = [&](int from, uint32_t parity) {
        rt::barrier_wait(H::at(&barrier.ds_full[from]), parity);
        rt::forget(dq);
        rt::products_begin();
        issue_dq(from);
    };
    // dQ of the step before, whose dS both warpgroups have written by now: neither waits for the other. The first step has none before it; at d 64,
    // where a branch costs registers that are not there (C7511), it makes one of anything, which add_sums drops.
    const auto start_dq_before = [&] {
        if (H::kPanels == 1 || place >= 0) start_dq(slot.i ^ 1, slot.i ? slot.parity : slot.parity ^ 1);
    };
    const auto start_dk = [&] {
        rt::pin(ds), rt::pin(dk);
        rt::products_begin();
        issue_sum(dk, ds, H::q_tile(slot.i));
    };

    FA_UNROLL for (int i = 0; i < Dims / 2; i++) dv[i] = dk[i] = 0.f;
    if (left > 0) {
        if (const int i = int(threadIdx.x) - 128; i < H::keys) shared.seen[i] = rows_seeing(t.rule, t.key0 + i, i < t.keys, t.q_len);
        among_consumers();
        rt::barrier_wait(H::at(&barrier.k_full), 0);
        rt::barrier_wait(H::at(&barrier.v_full), 0);
        if (t.keys < H::keys) {
            clear(H::k_tile(), Count<H::keys>{}, 0, t.keys);
            clear(H::v_tile(), Count<H::keys>{}, 0, t.keys);
        }
    }
    if (left > 0) {
        start_scores();
        rt::products_left<0>();
        rt::pin(s);
        begin_dp();
        weigh();
        while (--left > 0) {
            const int own = slot.i, before = own ^ 1;
            start_dq_before();
            start_dk();
            slot.next();
            if (++m == past) m = first;
            start_scores();
            rt::products_left<2>();
            add_sums(before);
            place = next_place;
            next_place += m == first ? blocks_of_head - (past - first) + 1 : 1;
            rt::products_left<1>();
            rt::pin(ds), rt::pin(dk);
            release_in_pair(barrier.q_free[own]);
            begin_dp();
            rt::products_left<0>();
            weigh();
        }
        start_dq_before();
        start_dk();
        rt::products_left<1>();
        add_sums(slot.i ^ 1);
        rt::products_left<0>();
        rt::pin(ds), rt::pin(dk);
        place = next_place;
        start_dq(slot.i, slot.parity);
        rt::products_left<0>();
        add_sums(slot.i);
    }
    if (const int index = H::any ? 0 : int(blockIdx.x) / H::blocks; !H::any && index >= a.split.from) {
        float* const sums = sums_of_split<Dims>(a, (index - a.split.from) * H::blocks + (H::pair ? rt::cluster_rank() : 0)) + (threadIdx.x - 128) * 4;
        FA_UNROLL for (int i = 0; i < Dims / 8; i++) rt::store4(sums + i * 1024, dv + 4 * i);
        FA_UNROLL for (int i = 0; i < Dims / 8; i++) rt::store4(sums + (Dims / 8 + i) * 1024, dk + 4 * i);
    } else {
        store_keys<Dims>(a, t, own_key, x.a.dv, x.a.dv_stride, 0, x.p.d.dim_v, 1.f, dv);
        store_keys<Dims>(a, t, own_key, x.a.dk, x.a.dk_stride, 0, x.p.d.dim_qk, -x.p.d.scale, dk);
    }
    if (lane == 0) rt::sums_read();
}

template <int Dims, int Rows, Way way>
FA_KERNEL void FA_BOUNDS((HopperBackward<Dims, Rows, way>::threads), 1) backward_sm90(FA_PARAM HopperBackwardParams a) {
    using H = HopperBackward<Dims, Rows, way>;
    static_assert(H::kSharedBytes <= kMostShared, "");
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) H::init_barriers();
    if (threadIdx.x == 32) {
        const Quotient work = H::work(a, int(blockIdx.x));
        H::describe_block(a, work.number, work.rest, H::pair ? rt::cluster_rank() : 0, H::shared().block);
    }
    if (threadIdx.x == 64) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v), rt::fetch_map(&a.dout);
    if (H::pair) rt::cluster_sync();
    else __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::uniform(int(threadIdx.x) / 128) == 0) {
        rt::give_registers<24>();
        if (threadIdx.x == 0) load_all<H, Rows>(a, H::pair ? rt::cluster_rank() : 0);
        else if (!H::any && threadIdx.x >= 32) return prepare_ahead<H, Dims>(a);
        else if (H::any && threadIdx.x == 32 && a.turns) add_in_turns<H, Rows>(a);
        else return;
    } else {
        rt::take_registers<240>();
        accumulate<Dims, Rows, way>(a);
    }
    if (H::pair) rt::cluster_sync();  // the other block may still write here
}

}  // namespace gpu
}  // namespace fa
