// The universal forward kernel: f32 arithmetic, any storage type, any head dimension, every option, on every GPU.
//
// A block of 256 threads takes 16·TR query rows (group-major: the heads that share a kv head share a tile) and 16·TV columns of v, and
// passes over the keys 64 at a time. Threads form a 16 × 16 grid: thread (tx, ty) owns rows ty·TR … and, of each tile of scores, keys
// tx·4 …; of the output, columns tx·4 + 64·n …. The 16 threads of a row lie in one wave, so its maximum and sum are shuffles.
// k and v pass through one shared buffer, in chunks of 64 dims and of 4096 / columns keys.
#pragma once
#include "gpu/finish.h"

namespace fa {
namespace gpu {

constexpr int kThreads = 256, kKeys = 64, kDims = 64;
constexpr int kStage = kDims * (kKeys + 4);  // floats of the shared k and v buffer; the 4 keep transposing stores off each other's banks
constexpr int kChain = 32;  // dims of q·k summed in one chain: longer ones lose accuracy on data of one sign
constexpr int64_t kResidentDims = 256;       // up to here q stays in shared memory; beyond, it passes through with k

template <int TR, int TV>
struct Simt {
    static constexpr int rows = 16 * TR, columns = 16 * TV, q_stride = rows + 4, value_keys = kDims * kKeys / columns;

    // Shared memory, carved in this order.
    struct Shared {
        float *q, *stage, *weights, *k_factor, *v_factor;
        int64_t *k_at, *v_at, *position, *head, *begin, *end;  // −1: a key that is not there
    };
    static constexpr int64_t q_dims(int64_t dim) { return dim <= kResidentDims ? (dim + kDims - 1) / kDims * kDims : kDims; }
    static constexpr int64_t shared_bytes(int64_t dim) {
        return 8 * (2 * kKeys + 4 * rows) + 4 * (q_dims(dim) * q_stride + kStage + kKeys * rows + 2 * kKeys);
    }
    FA_MEMBER static Shared carve(char* memory, int64_t dim) {
        Shared s;
        s.k_at = reinterpret_cast<int64_t*>(memory);
        s.v_at = s.k_at + kKeys;
        s.position = s.v_at + kKeys;
        s.head = s.position + rows;
        s.begin = s.head + rows;
        s.end = s.begin + rows;
        s.q = reinterpret_cast<float*>(s.end + rows);
        s.stage = s.q + q_dims(dim) * q_stride;
        s.weights = s.stage + kStage;
        s.k_factor = s.weights + kKeys * rows;
        s.v_factor = s.k_factor + kKeys;
        return s;
    }

    // Weights lie [key][row] in groups of four rows; the groups are permuted by key so that 16 keys' stores meet different banks.
    FA_MEMBER static int weight_at(int key, int row) {
        constexpr int groups = rows / 4, mask = (groups < 8 ? groups : 8) - 1;
        return key * rows + ((((row >> 2) ^ ((key >> 2) & mask)) << 2) | (row & 3));
    }

    // One row tile: which rows, of which sequence.
    struct Tile {
        Sequence seq;
        MaskRule rule;
        int64_t batch, kv_head, first, valid;  // first group-major row; how many exist
    };

    FA_MEMBER static void place_rows(const ForwardParams& x, const Tile& t, const Shared& s) {
        for (int r = rt::thread(); r < rows; r += kThreads) {
            const int64_t row = t.first + min_of(r, t.valid - 1);
            s.position[r] = row / x.p.group;
            s.head[r] = t.kv_head * x.p.group + row % x.p.group;
            const KeyBand band = key_band(t.rule, s.position[r], t.seq.k_len);
            s.begin[r] = band.begin;
            s.end[r] = band.end;
        }
    }

    // q transposed: [dim][row]. A warp's lanes take 8 neighbouring dims of 4 rows: whole sectors to read, separate banks to write.
    FA_MEMBER static void load_q(const ForwardParams& x, const Tile& t, const Shared& s, int64_t dim0, int dims) {
        for (int i = rt::thread(); i < dims * rows; i += kThreads) {
            const int c = (i & 7) + (i >> 5) % (dims >> 3) * 8, r = ((i >> 3) & 3) + (i >> 5) / (dims >> 3) * 4;
            float value = 0.f;
            if (dim0 + c < x.p.d.dim_qk && r < t.valid) {
                const int64_t at = query_index(x.p, x.p.d.q_stride, t.seq, t.batch, s.position[r], s.head[r]);
                value = load_element(x.a.q, at + dim0 + c, x.p.d.q_dtype) * x.q_factor *
                        query_descale(x.p, x.a, t.seq, t.batch, s.position[r], s.head[r]);
            }
            s.q[c * q_stride + r] = value;
        }
    }

    // Where each key of the tile lies, and its de-scale factors.
    FA_MEMBER static void place_keys(const ForwardParams& x, const Tile& t, const Shared& s, int64_t key0, int keys) {
        for (int j = rt::thread(); j < kKeys; j += kThreads) {
            s.k_at[j] = s.v_at[j] = -1;
            s.k_factor[j] = s.v_factor[j] = 1.f;
            if (j >= keys) continue;
            const Slot slot = find_slot(x.p, x.a, t.seq, key0 + j);
            if (!slot.valid) continue;
            s.k_at[j] = key_index(x.p, x.p.d.k_stride, slot, t.kv_head);
            s.v_at[j] = key_index(x.p, x.p.d.v_stride, slot, t.kv_head);
            if (x.p.has(FA_OPERAND_K_DESCALE)) s.k_factor[j] = key_descale(x.a.k_descale, x.p.d.k_descale_stride, slot, t.kv_head);
            if (x.p.has(FA_OPERAND_V_DESCALE)) s.v_factor[j] = key_descale(x.a.v_descale, x.p.d.v_descale_stride, slot, t.kv_head);
        }
    }

    // 64 dims of the tile's keys, transposed: [dim][key].
    FA_MEMBER static void load_k(const ForwardParams& x, const Shared& s, int64_t dim0) {
        for (int i = rt::thread(); i < kDims * kKeys; i += kThreads) {
            const int c = (i & 7) + ((i >> 5) & 7) * 8, j = ((i >> 3) & 3) + (i >> 8) * 4;
            const bool there = s.k_at[j] >= 0 && dim0 + c < x.p.d.dim_qk;
            s.stage[c * (kKeys + 4) + j] = there ? load_element(x.a.k, s.k_at[j] + dim0 + c, x.p.d.kv_dtype) * s.k_factor[j] : 0.f;
        }
    }

    // Keys [key, key + value_keys) of the tile, `columns` columns from column0: [key][column].
    FA_MEMBER static void load_v(const ForwardParams& x, const Shared& s, int key, int64_t column0) {
        for (int i = rt::thread(); i < value_keys * columns; i += kThreads) {
            const int j = key + i / columns, c = i % columns;
            const bool there = s.v_at[j] >= 0 && column0 + c < x.p.d.dim_v;
            s.stage[i] = there ? load_element(x.a.v, s.v_at[j] + column0 + c, x.p.d.kv_dtype) * s.v_factor[j] : 0.f;
        }
    }

    // score[r][4] = Σ q · k over all dims. Leaves a barrier behind the last use of the buffer.
    FA_MEMBER static void multiply_qk(const ForwardParams& x, const Tile& t, const Shared& s, float score[TR][4]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        const bool resident = x.p.d.dim_qk <= kResidentDims;
        FA_UNROLL for (int r = 0; r < TR; r++)
            FA_UNROLL for (int j = 0; j < 4; j++) score[r][j] = 0.f;
        for (int64_t dim0 = 0; dim0 < x.p.d.dim_qk; dim0 += kDims) {
            load_k(x, s, dim0);
            if (!resident) load_q(x, t, s, dim0, kDims);
            rt::barrier();
            const float* q = s.q + (resident ? dim0 * q_stride : 0) + ty * TR;
            const float* k = s.stage + tx * 4;
            const int dims = int(min_of(kDims, x.p.d.dim_qk - dim0));
            for (int first = 0; first < dims; first += kChain) {
                float piece[TR][4];
                FA_UNROLL for (int r = 0; r < TR; r++)
                    FA_UNROLL for (int j = 0; j < 4; j++) piece[r][j] = 0.f;
                const int last = dims < first + kChain ? dims : first + kChain;
                FA_UNROLL_BY(8)
                for (int c = first; c < last; c++) {
                    float a[TR], b[4];
                    rt::load<TR>(q + c * q_stride, a);
                    rt::load<4>(k + c * (kKeys + 4), b);
                    FA_UNROLL for (int r = 0; r < TR; r++)
                        FA_UNROLL for (int j = 0; j < 4; j++) piece[r][j] = fmaf(a[r], b[j], piece[r][j]);
                }
                FA_UNROLL for (int r = 0; r < TR; r++)
                    FA_UNROLL for (int j = 0; j < 4; j++) score[r][j] += piece[r][j];
            }
            rt::barrier();
        }
    }

    // Final scores in log2 units; −inf for keys that a mask, a bias, a bad page or the end of the tile removes.
    FA_MEMBER static void mask_scores(const ForwardParams& x, const Tile& t, const Shared& s, int64_t key0, bool full, float score[TR][4]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        if (full && !x.natural && !x.p.paged()) return;
        FA_UNROLL for (int r = 0; r < TR; r++) {
            const int row = ty * TR + r;
            FA_UNROLL for (int j = 0; j < 4; j++) {
                const int64_t key = key0 + tx * 4 + j;
                const bool kept = key >= s.begin[row] && key < s.end[row] && s.k_at[tx * 4 + j] >= 0;
                float value = score[r][j];
                if (kept && x.natural)
                    value = kLog2e * biased(x, t.rule.off, t.batch, s.head[row], s.position[row], key, capped(x.p, value));
                score[r][j] = kept ? value : kNegInf;
            }
        }
    }

    // Folds the scores into (m, l), stores their weights, and gives each row's factor for its sums so far.
    FA_MEMBER static void fold_scores(const ForwardParams& x, const Tile& t, const Shared& s, const Dropout& dropout, int64_t key0,
                                      float score[TR][4], float m[TR], float l[TR], float factor[TR]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        const bool drop = x.p.d.dropout_p > 0;
        FA_UNROLL for (int r = 0; r < TR; r++) {
            const int row = ty * TR + r;
            float top = m[r];
            FA_UNROLL for (int j = 0; j < 4; j++) top = max_fn(top, score[r][j]);
            FA_UNROLL for (int w = 8; w > 0; w /= 2) top = max_fn(top, rt::shuffle_xor16(top, w));
            const float reference = origin(top);
            float sum = 0.f;
            FA_UNROLL for (int j = 0; j < 4; j++) {
                const float p = exp2_fn(score[r][j] - reference) * kHeadroomUnit;
                sum += p;
                const int64_t key = key0 + tx * 4 + j;
                const bool kept = !drop || dropout_keeps(dropout, t.batch * x.p.d.heads_q + s.head[row], s.position[row], key);
                s.weights[weight_at(tx * 4 + j, row)] = kept ? p : 0.f;
            }
            FA_UNROLL for (int w = 8; w > 0; w /= 2) sum += rt::shuffle_xor16(sum, w);
            factor[r] = l[r] == 0.f ? 0.f : rescale(m[r], top);
            l[r] = l[r] * factor[r] + sum;
            m[r] = top;
        }
    }

    // o = o · factor + weights · v
    FA_MEMBER static void multiply_pv(const ForwardParams& x, const Shared& s, int keys, int64_t column0, const float factor[TR],
                                      float o[TR][TV]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        FA_UNROLL for (int r = 0; r < TR; r++)
            FA_UNROLL for (int c = 0; c < TV; c++) o[r][c] *= factor[r];
        for (int key = 0; key < keys; key += value_keys) {
            load_v(x, s, key, column0);
            rt::barrier();
            const int count = int(min_of(value_keys, keys - key));
            FA_UNROLL_BY(4)
            for (int j = 0; j < count; j++) {
                float a[TR];
                if (TR < 4) {
                    FA_UNROLL for (int r = 0; r < TR; r++) a[r] = s.weights[weight_at(key + j, ty * TR + r)];
                } else {
                    FA_UNROLL for (int r = 0; r < TR; r += 4) rt::load<4>(s.weights + weight_at(key + j, ty * TR + r), a + r);
                }
                FA_UNROLL for (int c = 0; c < TV; c += 4) {
                    float b[4];
                    rt::load<4>(s.stage + j * columns + tx * 4 + 16 * c, b);
                    FA_UNROLL for (int r = 0; r < TR; r++)
                        FA_UNROLL for (int i = 0; i < 4; i++) o[r][c + i] = fmaf(a[r], b[i], o[r][c + i]);
                }
            }
            rt::barrier();
        }
    }

    // The rows' share of one split, or, when there is but one, the outputs themselves.
    FA_MEMBER static void write(const ForwardParams& x, const Tile& t, const Shared& s, int64_t split, int64_t column0, const float m[TR],
                                const float l[TR], const float o[TR][TV]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        FA_UNROLL for (int r = 0; r < TR; r++) {
            const int row = ty * TR + r;
            if (row >= t.valid) continue;
            const int64_t index = (t.batch * x.p.d.heads_kv + t.kv_head) * x.rows + t.first + row;
            const int64_t slot = split * x.p.d.batch * x.p.d.heads_kv * x.rows + index;
            const bool first = column0 == 0 && tx == 0;
            float factor = 1.f;
            if (x.partial_o) {
                if (first) x.state[slot] = {m[r], l[r]};
            } else {
                const Finish f = finish_row(x, t.seq, t.batch, s.head[row], s.position[row], {m[r], l[r]}, first);
                factor = f.factor;
                if (first && x.state) x.state[index] = f.state;
            }
            const int64_t at = x.partial_o ? slot * x.p.d.dim_v
                                           : query_index(x.p, x.p.d.o_stride, t.seq, t.batch, s.position[row], s.head[row]);
            FA_UNROLL for (int c = 0; c < TV; c++) {
                const int64_t column = column0 + tx * 4 + 16 * (c & ~3) + (c & 3);
                if (column >= x.p.d.dim_v) continue;
                if (x.partial_o) x.partial_o[at + column] = o[r][c];
                else store_output(x, at + column, o[r][c], factor);
            }
        }
    }
};

// One tile of rows, one split, one part of the columns.
template <int TR, int TV>
FA_KERNEL void FA_BOUNDS(kThreads, 1) forward_simt(FA_PARAM ForwardParams x) {
    using S = Simt<TR, TV>;
    int64_t item = rt::block();
    const int64_t part = item % x.value_parts;
    item /= x.value_parts;
    const int64_t split = item % x.splits;
    item /= x.splits;
    const int64_t block = x.p.causal() ? x.blocks - 1 - item % x.blocks : item % x.blocks;  // longest rows first
    item /= x.blocks;

    typename S::Tile t;
    t.kv_head = item % x.p.d.heads_kv;
    t.batch = item / x.p.d.heads_kv;
    t.seq = bounded_sequence(x.p, x.a, t.batch);
    t.rule = mask_rule(x.p, t.seq);
    t.first = block * S::rows;
    t.valid = min_of(t.seq.q_len * x.p.group - t.first, S::rows);
    const int64_t column0 = part * S::columns;
    if (!x.partial_o || split == 0) write_padding(x, t.seq, t.batch, t.kv_head, t.first, S::rows, column0, S::columns);
    if (t.valid <= 0) return;
    if (split >= split_count(t.seq.k_len, x.num_splits, x.split_size)) return;

    const typename S::Shared s = S::carve(rt::shared_memory(), x.p.d.dim_qk);
    S::place_rows(x, t, s);
    rt::barrier();
    if (x.p.d.dim_qk <= kResidentDims) S::load_q(x, t, s, 0, int(S::q_dims(x.p.d.dim_qk)));

    float m[TR], l[TR], o[TR][TV];
    FA_UNROLL for (int r = 0; r < TR; r++) {
        m[r] = kNegInf;
        l[r] = 0.f;
        FA_UNROLL for (int c = 0; c < TV; c++) o[r][c] = 0.f;
    }
    const Dropout dropout = dropout_of(x);
    const int64_t size = split_keys(t.seq.k_len, x.num_splits, x.split_size), split_begin = split * size;
    const int64_t top = s.position[0], rows = s.position[t.valid - 1] - top + 1;
    const int64_t end = min_of(min_of(split_begin + size, t.seq.k_len), s.end[t.valid - 1]);
    // Tiles start at fixed distances from the split's begin, whatever the band: a row's bits do not depend on its neighbours.
    int64_t key = split_begin + max_of(s.begin[0] - split_begin, 0) / kKeys * kKeys;
    for (; key < end; key += kKeys) {
        const int keys = int(min_of(kKeys, end - key));
        S::place_keys(x, t, s, key, keys);
        rt::barrier();
        float score[TR][4], factor[TR];
        S::multiply_qk(x, t, s, score);
        const bool full = keys == kKeys && tile_class(t.rule, top, rows, key, keys, t.seq.k_len) == fa::Tile::full;
        S::mask_scores(x, t, s, key, full, score);
        S::fold_scores(x, t, s, dropout, key, score, m, l, factor);
        S::multiply_pv(x, s, keys, column0, factor, o);
    }
    S::write(x, t, s, split, column0, m, l, o);
}

}  // namespace gpu
}  // namespace fa
