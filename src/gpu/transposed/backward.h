// The backward kernels on AMD's matrix cores: head dimensions up to 128, every option. backward/mma.h has what is done to scores,
// backward/mma_block.h what surrounds the arithmetic, transposed/mma.h the products of tiles.
//
// By keys a block owns a tile of keys and the rows of all query heads of the group are streamed past it, for dk and dv; by rows it owns a
// tile of rows and keys are streamed, for dq. A lane's scores belong to one owned row, and are, as P and dS, the left side of the products
// that follow: a warp has its owned rows' gradients in all columns, and warps share the streamed tile alone. The right sides are columns of
// that tile: a lane reads four neighbouring columns of its rows and exchanges their halves, so that no tile lies in shared memory twice.
//
// dq is not added up by the kernel over keys. So few owned keys, whose number registers limit, would add to each row so often that the
// additions in memory took as long as all products do.
#pragma once
#include "gpu/backward/mma.h"

namespace fa {
namespace gpu {

// The streamed tile that comes next: its vectors wait in registers while the present one is worked on. Rows that are not whole aligned
// vectors are copied when their turn comes.
template <class M>
struct StreamedTile {
    static constexpr int kVecs = M::stream_rows / M::kRowsAtOnce;
    static_assert(M::threads >= 2 * M::stream_rows, "LSE and delta: a thread for each");
    uint32_t vec[2][kVecs][4];
    float number = 0.f;

    // Opaque in general kernels, as in register_pipe.h.
    FA_MEMBER static int thread_anew() { return M::plain ? rt::thread() : rt::opaque(rt::thread()); }
    FA_MEMBER static bool in_vecs(const typename M::Source& from) { return M::plain || from.width == 16; }
    FA_MEMBER void fetch(const MmaBackwardParams& params, int head, int tile_index) {
        const typename M::Tile& tile = M::shared().tile;
        const int thread = thread_anew(), at = thread % M::kRowVecs * 16, row0 = tile_index * M::stream_rows,
                  first = row0 + thread / M::kRowVecs;
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const typename M::Source& from = tile.streamed[i];
            if (!in_vecs(from)) continue;
            const char* const base = from.base + head * from.head + first * from.row + at;
            FA_UNROLL_FOR (int n = 0; n < kVecs; n++) {
                FA_UNROLL_FOR (int w = 0; w < 4; w++) vec[i][n][w] = 0;
                if (at < from.bytes && first + n * M::kRowsAtOnce < tile.count)
                    rt::load_global<4>(base + n * M::kRowsAtOnce * from.row, vec[i][n]);
            }
        }
        if (kNumberWaits) number = find_number(params, head, row0, thread);
    }
    // LSE or delta of a row; wide heads leave it no register to wait in.
    static constexpr bool kNumberWaits = M::columns <= 128;
    FA_MEMBER static float find_number(const MmaBackwardParams& params, int head, int row0, int thread) {
        if (M::by_rows || thread >= 2 * M::stream_rows) return 0.f;
        const float* const numbers = thread < M::stream_rows ? params.lse_log2 : params.delta;
        return numbers[M::shared().tile.row0 + head * params.padded_rows + row0 + thread % M::stream_rows];
    }
    FA_MEMBER void store(const MmaBackwardParams& params, int head, int tile_index) const {
        typename M::Shared& shared = M::shared();
        const int thread = thread_anew(), row0 = tile_index * M::stream_rows;
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            char* const to = M::streamed(0, i);
            const typename M::Source& from = shared.tile.streamed[i];
            if (in_vecs(from)) {
                FA_UNROLL_FOR (int n = 0; n < kVecs; n++)
                    rt::store_shared<4>(to + swizzle_offset<M::kRowBytes>(thread / M::kRowVecs + n * M::kRowsAtOnce, thread % M::kRowVecs),
                                        vec[i][n]);
            } else {
                M::template load_tile<M::stream_rows>(from, head, row0, shared.tile.count - row0, to);
            }
        }
        rt::cp_async_commit();
        rt::cp_async_wait<0>();
        if (!M::by_rows && thread < 2 * M::stream_rows)
            (thread < M::stream_rows ? shared.lse : shared.delta)[0][thread % M::stream_rows] =
                kNumberWaits ? number : find_number(params, head, row0, thread);
    }
};

template <class M>
struct TransposedBackward {
    using G = MmaBackward<M>;
    using Mma = typename M::Policy;
    using Acc = typename M::Acc;
    using FragmentA = typename Mma::FragmentA;
    using FragmentB = typename Mma::FragmentB;
    using Columns = typename G::Columns;
    struct Floats {
        float x[Acc::kElements];
    };  // of which each may be referred to
    using Scores = Floats[M::kOwnTiles][M::kShareTiles];
    static constexpr int kTile = M::kTile, kOwnTiles = M::kOwnTiles, kGroups = M::kSteps / Mma::kColumnGroup;

    // A warp's owned rows: in registers, or where they lie in shared memory.
    struct Owned {
        FragmentA held[2][kOwnTiles][Mma::kHoldsOwned ? M::kSteps : 1];
    };
    // By rows, those without keys become 0, whatever they hold: 0 times an infinity or NaN is not 0.
    FA_MEMBER static void load_owned(const MmaBackwardParams& params, Owned& owned) {
        const typename M::Shared& shared = M::shared();
        const typename G::Warp warp;
        FA_UNROLL_FOR (int i = 0; i < 2; i++) {
            const typename M::Source from = shared.tile.owned[i];
            FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) {
                const int r = warp.own0 + kTile * m + Acc::row(0);
                const bool there =
                    r < shared.tile.valid && (!M::by_rows || params.lse_log2[shared.tile.row0 + shared.tile.first + r] != kPosInf);
                const typename Mma::QRow row{from.base + r * from.row, there ? from.bytes : 0, M::plain ? 16 : from.width};
                FA_UNROLL_FOR (int step = 0; step < M::kSteps; step++) Mma::load_q(owned.held[i][m][step], row, step);
            }
        }
    }
    // Owned rows times streamed ones, over all dims.
    FA_MEMBER static void multiply_rows(const Owned& owned, int i, Scores& score) {
        typename G::Scores products;
        const auto own = Mma::template k_ptr<M::kRowBytes>(M::owned(i), rt::opaque(typename G::Warp().own0));
        const auto streamed = Mma::template k_ptr<M::kRowBytes>(M::streamed(0, i), rt::opaque(0));
        G::clear(products);
        G::template gemm<M::kSteps>(
            products,
            [&](FragmentA& a, int m, int step) {
                if constexpr (Mma::kHoldsOwned) a = owned.held[i][m][step];
                else Mma::load_shared_q(a, own, kTile * m * M::kRowBytes, step);
            },
            [&](FragmentB& b, int step, int n) { Mma::template load_k<M::kRowBytes>(b, streamed, kTile * n * M::kRowBytes, step); });
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++)
            FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++) {
                products[m][n].finish();
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) score[m][n].x[e] = products[m][n].x[e];
            }
    }
    // Adds P or dS times the streamed rows. scaled: to sums that take a factor first, each when its turn comes, or the compiler would keep
    // them twice.
    template <bool scaled>
    FA_MEMBER static void multiply_columns(const Scores& probs, int i, float factor, Columns& acc) {
        constexpr int all = M::kShareTiles * kGroups, ahead = Mma::kHoldsOwned ? 1 : 0;
        const uint32_t ptr = Mma::template columns_ptr<M::kRowBytes>(M::streamed(0, i));
        typename Mma::RawColumns raw[ahead + 1];
        if (ahead) Mma::template load_columns<M::kRowBytes>(raw[0], ptr, 0, 0);
        FragmentA left[kOwnTiles];
        FA_UNROLL_FOR (int j = 0; j < all; j++) {
            const int n = j / kGroups, group = j % kGroups;
            if (group == 0)
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) Mma::pack_probs(left[m], probs[m][n]);
            const int next = j + ahead;
            if (next < all) Mma::template load_columns<M::kRowBytes>(raw[next % (ahead + 1)], ptr, next / kGroups, next % kGroups);
            FA_UNROLL_FOR (int c = 0; c < Mma::kColumnGroup; c++) {
                FragmentB right;
                Mma::column_of(right, raw[j % (ahead + 1)], c);
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) {
                    Acc& to = acc[m][Mma::kColumnGroup * group + c];
                    if (scaled && n == 0)
                        FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) to.x[e] *= factor;
                    Mma::mma(to, left[m], right);
                }
            }
        }
    }
    // The same as MmaBackward::rescale_ds, but that units are those of a lane's owned rows alone.
    FA_MEMBER static float rescale_ds(float& unit, bool& unit_set, Scores& grad) {
        float amax = 0.f;
        FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) amax = max_fn(amax, fabsf(grad[m][n].x[e]));
        amax = Acc::max_of_row(amax);
        const float limit = unit_set ? kMaxDs : 0x1p-100f;
        const bool changes = (amax > limit) & (amax != kPosInf);
        const float factor = changes ? float_of((uint32_t(2 * 127 + kDsTargetExponent) << 23) - (bits_of(amax) & 0x7f800000u)) : 1.f;
        unit *= factor;
        unit_set |= changes;
        FA_UNROLL_FOR (int n = 0; n < M::kShareTiles; n++)
            FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++)
                FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) grad[m][n].x[e] *= factor;
        return factor;
    }
    // A warp's sums to their gradients. first: the index of the first owned row's first element.
    FA_MEMBER static void store_columns(const MmaBackwardParams& params, const Columns& acc, float factor, void* base,
                                        const RowStrides& strides, int64_t dim, int64_t first) {
        using Element = typename M::Element;
        const bool in_vecs = !params.accumulate && dim % 4 == 0 && vec4_aligned(base, strides, params.q_dtype);
        const typename G::Warp warp;
        FA_UNROLL_FOR (int m = 0; m < kOwnTiles; m++) {
            const int r = warp.own0 + kTile * m + Acc::row(0);
            const int64_t row = first + r * strides.row;
            FA_UNROLL_FOR (int group = 0; group < kGroups; group++)
                FA_UNROLL_FOR (int e = 0; e < Acc::kElements; e++) {
                    const int column = Mma::kColumnGroup * (kTile * group + Acc::column(e)),
                              left = r < M::shared().tile.valid ? int(dim) - column : 0;
                    float value[4];
                    FA_UNROLL_FOR (int c = 0; c < 4; c++) value[c] = acc[m][Mma::kColumnGroup * group + c].x[e] * factor;
                    if (in_vecs) {
                        if (left > 0) Mma::store4(static_cast<Element*>(base) + row + column, value);
                        continue;
                    }
                    FA_UNROLL_FOR (int c = 0; c < 4; c++) {
                        if (c >= left) continue;
                        if (params.accumulate) static_cast<float*>(base)[row + column + c] += value[c];
                        else if constexpr (sizeof(Element) == 4) static_cast<float*>(base)[row + column + c] = value[c];
                        else static_cast<uint16_t*>(base)[row + column + c] = uint16_t(Mma::pack(value + c / 2 * 2) >> c % 2 * 16);
                    }
                }
        }
    }
};

template <class M>
FA_DEVICE void run_backward_transposed(const MmaBackwardParams& params) {
    using G = MmaBackward<M>;
    using T = TransposedBackward<M>;
    using Mma = typename M::Policy;
    if (!begin_backward_block<M>(params)) return;
    typename M::Shared& shared = M::shared();
    const typename M::Tile& tile = shared.tile;
    StreamedTile<M> next;
    const bool any = tile.begin < tile.end;
    if (any) next.fetch(params, 0, tile.begin);
    if constexpr (!Mma::kHoldsOwned) M::load_owned(params);
    else if constexpr (M::by_rows) M::load_rows(params, tile.row0 + tile.first, 0);
    rt::cp_async_commit();
    rt::cp_async_wait<0>();
    typename T::Owned owned{};
    if constexpr (Mma::kHoldsOwned) T::load_owned(params, owned);
    typename G::Columns acc_ds, acc_p;
    G::clear(acc_ds);
    if (!M::by_rows) G::clear(acc_p);
    float unit = 1.f;
    bool unit_set = false;
    for (int head = 0, tile_index = tile.begin; any && head < tile.heads;) {
        const typename G::Part part{tile_index * M::stream_rows, head, 0, tile_index >= tile.full_begin && tile_index < tile.full_end};
        rt::barrier();
        next.store(params, head, tile_index);
        if (M::by_rows ? tile_index == tile.begin : !part.full) M::init_bands(M::by_rows ? tile.first : part.stream0, 0);
        rt::barrier();
        const bool wraps = tile_index + 1 == tile.end;
        tile_index = wraps ? tile.begin : tile_index + 1;
        head += wraps;
        if (head < tile.heads) next.fetch(params, head, tile_index);
        const bool may_be_empty = !M::by_rows || (!Mma::kHoldsOwned && part.stream0 == tile.begin * M::stream_rows);
        char* const rows = M::by_rows ? M::owned(0) : M::streamed(0, 0);
        if (may_be_empty && M::zero_empty_rows(0, rows, M::by_rows ? M::owned(1) : M::streamed(0, 1))) rt::barrier();

        typename T::Scores score, grad;
        T::multiply_rows(owned, 0, score);
        T::multiply_rows(owned, 1, grad);
        G::softmax_backward(params, part, unit, score, grad);
        const float factor = Mma::kNarrow ? T::rescale_ds(unit, unit_set, grad) : 1.f;
        if constexpr (!M::by_rows) T::template multiply_columns<false>(score, 1, 1.f, acc_p);
        T::template multiply_columns<Mma::kNarrow>(grad, 0, factor, acc_ds);
    }
    const float factor = params.scale * Mma::kProductUnit / unit;
    if constexpr (M::by_rows) {
        T::store_columns(params, acc_ds, factor, params.dq, params.dq_strides, params.dim_qk,
                         query_index(params.dq_strides, tile.seq, tile.batch, tile.first, tile.head0));
    } else {
        const KeyLocation at{tile.batch, tile.seq.k_begin + tile.first, true};
        if (params.dk)
            T::store_columns(params, acc_ds, factor, params.dk, params.dk_strides, params.dim_qk,
                             key_index(params.dk_strides, at, tile.kv_head));
        if (params.dv)
            T::store_columns(params, acc_p, params.dropout_scale * Mma::kProductUnit / Mma::kProbUnit, params.dv, params.dv_strides,
                             params.dim_v, key_index(params.dv_strides, at, tile.kv_head));
    }
}

template <class M>
FA_KERNEL void FA_BOUNDS(M::threads, M::resident) backward_transposed(FA_PARAM MmaBackwardParams params) {
    if constexpr (M::Policy::kAvailable) run_backward_transposed<M>(params);
}

}  // namespace gpu
}  // namespace fa
