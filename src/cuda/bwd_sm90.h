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
#include "cuda/bwd_tiles_sm90.h"

namespace fa {
namespace gpu {

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

// One warp finds the rows that see each key.
template <class H>
FA_DEVICE void find_rows(const HopperBackwardParams& a) {
    typename H::Shared& s = H::shared();
    const KeyBlock& t = s.block;
    const MaskRule rule = mask_rule(a.x.p, Sequence{0, 0, 0, 0, 0, t.off});
    for (int i = int(threadIdx.x) % 32; i < H::keys; i += 32) s.seen[i] = rows_seeing(rule, t.key0 + i, i < t.keys, t.q_len);
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
    if (lane == 0) {
        if (a.turns) pass_turn();
        else rt::sums_read();
    }
}

template <class T, int Dims, int Rows, bool pair>
FA_KERNEL void FA_BOUNDS((HopperBackward<T, Dims, Rows, pair>::threads), 1) backward_sm90(FA_PARAM HopperBackwardParams a) {
    using H = HopperBackward<T, Dims, Rows, pair>;
    static_assert(H::kSharedBytes <= kMostShared, "");
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

}  // namespace gpu
}  // namespace fa
