// The backward kernel for Hopper: bf16 through the products of warpgroups. docs/hopper_backward.md tells how it works and what was tried.
//
// A block of keys is 128 of one kv head. Two warpgroups of consumers own 64 of them each, with their dk and dv in registers, and go through the
// blocks of query rows that see any of them, head after head of the group; one thread brings q, dout and what belongs to their rows. Products
// are transposed, keys by rows: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ leave weights and dSᵀ where dV += Pᵀ dO and dK += dSᵀ Q take them from registers.
// Only dS goes through shared memory, for dQᵀ = Kᵀ dSᵀ needs all keys of the block; its sums are added to memory in f32, in the order of
// registers, by bulk copies of one warp each. finish_sm90 makes dq of them.
//
// In a step the order is dP, weights, dV, dS while dV is under way, dQ of the step before, dK and the next S, dQ to memory while these are under way.
// Where blocks of threads are persistent all this runs on over the border of two blocks of keys, but for the next S, which waits for dK.
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
    const int warp = rt::uniform(int(threadIdx.x) / 32) - 4, lane = int(threadIdx.x) % 32, team = warp / 4, c = lane % 4;
    const int own_key = team * 64 + warp % 4 * 16 + lane / 4;  // and the key 8 below it
    const float scale = x.p.d.scale * kLog2e;
    // Scores, then weights; delta - dP; the sums.
    float s[Rows / 2], dp[Rows / 2], dv[Dims / 2], dk[Dims / 2];
    float (&dq)[32] = reinterpret_cast<float (&)[32]>(dp);  // dP has become dS by then
    uint32_t p[Rows / 4], ds[Rows / 4];
    Ring<H::kSlots> slot;
    Ring<H::kBlocks> keys;                       // the block of keys at work,
    int first, past, full, full_past, m, left;  // its blocks of rows, the one at work, and how many there are yet
    const int clean = rt::uniform(shared.block[0].clean), clean_past = rt::uniform(shared.block[0].clean_past);
    // Where this warp's part of the sums of dq lies, in memory and before it goes there.
    constexpr int kPart = H::kSumBytes / 8;
    const int blocks_of_head = int(x.padded_rows / Rows);
    // Of the block of rows whose dQ comes next, among all, or -1: none does yet; and of the one after it.
    int place = -1, next_place;
    int dq_keys = 0;  // in which slot its K lies
    const bool in_turns = H::any && a.turns;  // add_in_turns brings them to memory
    const uint32_t staged = H::sums() + warp * kPart;
    // dS as rows by keys, a panel of 64 keys for each warpgroup.
    const uint32_t ds_row = team * Rows * 128 + (lane % 8 + lane / 16 * 8) * 128 + ((warp % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;

    // One lane speaks for its warp.
    const auto release = [&](uint64_t& barrier) {
        __syncwarp();
        if (lane == 0) rt::barrier_arrive(H::at(&barrier));
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
    // `from`: the first row of the tile that is computed.
    const auto issue_scores = [&](auto from) {
        float (&part)[(Rows - from.value) / 2] = reinterpret_cast<float (&)[(Rows - from.value) / 2]>(s[from.value / 2]);
        const uint64_t rows = rt::matrix_at(rt::not_kept(H::k_tile(keys.i) + team * 8192), 16);
        const uint64_t columns = rt::matrix_at(H::q_tile(slot.i) + from.value * 128, 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::multiply(part, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto issue_dp = [&](auto from) {
        float (&part)[(Rows - from.value) / 2] = reinterpret_cast<float (&)[(Rows - from.value) / 2]>(dp[from.value / 2]);
        const uint64_t rows = rt::matrix_at(rt::not_kept(H::v_tile() + team * 8192), 16);
        const uint64_t columns = rt::matrix_at(H::o_tile(slot.i) + from.value * 128, 16);
        FA_UNROLL for (int i = 0; i < Dims / 16; i++)
            Mma::subtract(part, rows + i / 4 * (H::keys * 8) + i % 4 * 2, columns + i / 4 * (Rows * 8) + i % 4 * 2);
        rt::products_commit();
    };
    const auto issue_sum = [&](float (&sum)[Dims / 2], const uint32_t (&weights)[Rows / 4], uint32_t tile, int from = 0) {
        const uint64_t right = rt::matrix_at(tile, Rows * 128);
        FA_UNROLL for (int i = from / 16; i < Rows / 16; i++) Mma::multiply(sum, weights + 4 * i, right + i * 128);
        rt::products_commit();
    };
    const auto issue_dq = [&](int slot) {
        const uint64_t rows = rt::matrix_at(H::k_tile(dq_keys) + (H::kPanels > 1 ? team * H::keys * 128 : 0), H::keys * 128);
        const uint64_t columns = rt::matrix_at(H::ds_tile(slot) + (H::kPanels > 1 ? 0 : team * H::kSumRows * 128), 16);
        FA_UNROLL for (int i = 0; i < H::keys / 16; i++)
            Mma::multiply_columns(dq, rows + i * 128, columns + i / 4 * (Rows * 8) + i % 4 * 2, i > 0);
        rt::products_commit();
    };
    const auto mask_scores = [&](int from) {
        FA_UNROLL for (int r = 0; r < 2; r++) {
            const int2 seen = shared.seen[own_key + 8 * r];
            const int begin = seen.x - m * Rows - 2 * c, end = seen.y - m * Rows - 2 * c;
            FA_UNROLL for (int i = from / 2; i < Rows / 2; i++)
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
    const auto start_scores = [&](auto from) {
        rt::barrier_wait(H::at(&barrier.q_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::q_tile(slot.i));
        rt::forget(s);
        rt::products_begin();
        if constexpr (from.value < Rows) issue_scores(from);
    };
    // The sum of dP begins at delta.
    const auto begin_dp = [&](int from) {
        rt::barrier_wait(H::at(&barrier.o_full[slot.i]), slot.parity);
        if (unclean(m)) clear_rows(H::o_tile(slot.i));
        const uint32_t delta = H::at(shared.delta[slot.i]) + 8 * c;
        FA_UNROLL for (int i = from / 8; i < Rows / 8; i++) {
            const float2 d = rt::load8(delta + 32 * i);
            dp[4 * i] = dp[4 * i + 2] = d.x;
            dp[4 * i + 1] = dp[4 * i + 3] = d.y;
        }
        rt::pin(dp);
    };
    // Weights from S, which has arrived, and dV; dS from dP, while dV is under way.
    const auto weigh = [&](auto from) {
        rt::pin(s);
        if constexpr (from.value < Rows) {
            if (m < full || m >= full_past) mask_scores(from.value);
            rt::products_begin();
            issue_dp(from);
            rt::pin(s);
            const uint32_t lse2 = H::at(shared.lse2[slot.i]) + 8 * c;
            FA_UNROLL for (int i = from.value / 8; i < Rows / 8; i++) {
                const float2 l = rt::load8(lse2 + 32 * i);
                FA_UNROLL for (int e = 0; e < 4; e++) s[4 * i + e] = rt::exp2_fast(fmaf(s[4 * i + e], scale, e % 2 ? -l.y : -l.x));
                FA_UNROLL for (int e = 0; e < 2; e++) p[2 * i + e] = rt::pack_bf16(s[4 * i + 2 * e], s[4 * i + 2 * e + 1]);
            }
            rt::pin(p), rt::pin(dv);
            rt::products_begin();
            issue_sum(dv, p, H::o_tile(slot.i), from.value);
            rt::products_left<1>();
            rt::pin(dp);
        }
        FA_UNROLL for (int i = 0; i < from.value / 4; i++) ds[i] = 0;
        FA_UNROLL for (int i = from.value / 4; i < Rows / 4; i++) ds[i] = rt::pack_bf16(s[2 * i] * dp[2 * i], s[2 * i + 1] * dp[2 * i + 1]);
        rt::barrier_wait(H::at(&barrier.ds_free[slot.i]), slot.parity ^ 1);
        FA_UNROLL for (int i = 0; i < Rows / 16; i++) rt::store_matrices_transposed(H::ds_tile(slot.i) + ds_row + i * 2048, ds + 4 * i);
        rt::fence_for_products();
        release(barrier.ds_full[slot.i]);
        rt::products_left<0>();
        rt::pin(p), rt::pin(dv);
        rt::barrier_arrive(H::at(&barrier.o_free[slot.i]));  // LSE and delta, which come with dout, threads have read for themselves
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

    const auto open_keys = [&] {
        const KeyBlock& t = shared.block[keys.i];
        const int key = own_key - lane / 4 + lane;
        first = rt::uniform(t.first), past = rt::uniform(t.past), full = rt::uniform(t.full), full_past = rt::uniform(t.full_past);
        m = first, left = (past - first) * int(x.p.group);
        next_place = rt::uniform(t.kv_head * int(x.p.group) * blocks_of_head + t.row0 / Rows) + m;
        __syncwarp();
        if (lane < 16) shared.seen[key] = rows_seeing(t.rule, t.key0 + key, key < t.keys, t.q_len);
        __syncwarp();
        FA_UNROLL for (int i = 0; i < Dims / 2; i++) dv[i] = dk[i] = 0.f;
    };
    const auto store = [&](int which, void* out, const int64_t stride[4], int64_t dim, float factor, const float (&sum)[Dims / 2]) {
        const KeyBlock& t = shared.block[keys.i];
        if (!H::any && t.index >= a.split.from) {
            float* const sums = sums_of_split<Dims>(a, t.index - a.split.from) + which * (128 * Dims) + (rt::unknown(threadIdx.x) - 128) * 4;
            FA_UNROLL for (int i = 0; i < Dims / 8; i++) rt::store4(sums + i * 1024, sum + 4 * i);
        } else {
            store_keys<Dims>(a, t, rt::unknown(own_key), out, stride, 0, dim, factor, sum);
        }
    };
    const auto store_dv = [&] { store(0, x.g.dv, x.g.dv_stride, x.p.d.dim_v, 1.f, dv); };
    const auto store_dk = [&] { store(1, x.g.dk, x.g.dk_stride, x.p.d.dim_qk, -x.p.d.scale, dk); };
    // dQ of the step before has been computed. With the last one of a block of keys K goes back, and what describes the block.
    const auto end_dq = [&](int before) {
        if (H::persistent && dq_keys != keys.i) rt::barrier_arrive(H::at(&barrier.k_free[dq_keys]));
        dq_keys = keys.i;
        add_sums(before);
        place = next_place;
    };
    // The first step of a block of keys, another one, and what follows the last one.
    const auto enter = [&](auto from) {
        start_scores(from);
        rt::barrier_wait(H::at(&barrier.v_full), H::persistent ? keys.i : 0);
        if (H::any && shared.block[0].keys < H::keys) clear(H::v_tile(), Count<H::keys>{}, 0, shared.block[0].keys);
        if constexpr (from.value < Rows) rt::products_left<0>(), rt::pin(s);
        begin_dp(from.value);
        weigh(from);
    };
    const auto step = [&] {
        const int own = slot.i;
        start_dq_before();
        start_dk();
        slot.next();
        if (++m == past) m = first;
        start_scores(Count<0>{});
        rt::products_left<2>();
        end_dq(own ^ 1);
        next_place += m == first ? blocks_of_head - (past - first) + 1 : 1;
        rt::products_left<1>();
        rt::pin(ds), rt::pin(dk);
        release(barrier.q_free[own]);
        begin_dp(0);
        rt::products_left<0>();
        weigh(Count<0>{});
    };
    const auto leave = [&] {
        start_dq_before();
        start_dk();
        store_dv();
        rt::products_left<0>();
        rt::pin(ds), rt::pin(dk);
        end_dq(slot.i ^ 1);
        release(barrier.q_free[slot.i]);
        store_dk();
    };
    open_keys();
    if (H::persistent || left > 0) {
        rt::barrier_wait(H::at(&barrier.k_full[0]), 0);
        if (H::any && shared.block[0].keys < H::keys) clear(H::k_tile(), Count<H::keys>{}, 0, shared.block[0].keys);
        while (true) {
            // The first 64 rows may see none of the second warpgroup's keys.
            const KeyBlock& t = shared.block[keys.i];
            if (H::persistent && team == 1 && rt::uniform(t.key0 + t.rule.begin) >= m * Rows) enter(Count<64>{});
            else enter(Count<0>{});
            while (--left > 0) step();
            leave();
            if (!H::persistent) break;
            keys.next();
            rt::barrier_wait(H::at(&barrier.k_full[keys.i]), keys.parity);
            if (rt::uniform(shared.block[keys.i].index) < 0) break;
            slot.next();
            open_keys();
        }
        start_dq(slot.i, slot.parity);
        rt::products_left<0>();
        add_sums(slot.i);
    } else {
        store_dv(), store_dk();
    }
    if (lane == 0) rt::sums_read();
}

template <int Dims, int Rows, Way way>
FA_KERNEL void FA_BOUNDS((HopperBackward<Dims, Rows, way>::threads), 1) backward_sm90(FA_PARAM HopperBackwardParams a) {
    using H = HopperBackward<Dims, Rows, way>;
    static_assert(H::kSharedBytes <= kMostShared, "");
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) H::init_barriers();
    if (threadIdx.x == 32) H::describe(a, int(blockIdx.x), H::shared().block[0]);
    if (threadIdx.x == 64) rt::fetch_map(&a.q), rt::fetch_map(&a.k), rt::fetch_map(&a.v), rt::fetch_map(&a.dout);
    __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::uniform(int(threadIdx.x) / 128) == 0) {
        rt::give_registers<24>();
        if (threadIdx.x == 0) load_all<H, Rows>(a);
        else if (!H::any && threadIdx.x >= 32) return prepare_ahead<H, Dims>(a);
        else if (H::any && threadIdx.x == 32 && a.turns) add_in_turns<H, Rows>(a);
        else return;
    } else {
        rt::take_registers<240>();
        accumulate<Dims, Rows, way>(a);
    }
}

}  // namespace gpu
}  // namespace fa
