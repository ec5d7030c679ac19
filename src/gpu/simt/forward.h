// The SIMT forward kernel: f32 arithmetic, any storage type, any head dimension, every option, on every GPU. It takes what the mma
// kernels do not, and is what they are tested against.
//
// A block of 256 threads takes 16·TR query rows (group-major: the heads that share a kv head share a tile) and 16·TV columns of v,
// and iterates over the keys 64 at a time. Threads form a 16 × 16 grid: thread (tx, ty) owns rows ty·TR … and, of each tile of
// scores, keys tx + 16·n; of the output, columns tx·4 + 64·n …. The 16 threads of a row lie in one wave, so its maximum and sum are
// shuffles. k and v go through one shared buffer, in chunks of 64 dims and of 4096 / columns keys. Rows in shared memory are 4
// floats longer than their data, so that threads read 16 bytes at a time and 8 neighbouring threads read from all banks.
#pragma once
#include "gpu/common/epilogue.h"
#include "gpu/common/simt_params.h"
#include "gpu/simt/rows.h"

namespace fa {
namespace gpu {

constexpr int kRowStride = 64 + 4;  // floats between rows of the k buffer and of the probabilities
constexpr int kKvFloats = kKeys * kRowStride;
constexpr int kChain = 32;              // dims of q·k summed in one chain: longer ones lose accuracy on data of one sign
constexpr int64_t kResidentDims = 256;  // up to here q stays in shared memory if that has room; else it passes through with k

template <int TR, int TV>
struct Simt {
    static constexpr int rows = 16 * TR, columns = 16 * TV, value_keys = kDims * kKeys / columns;

    // One block's work: which rows, of which sequence, against which keys. It lives in shared memory, for registers are short.
    struct Tile {
        Sequence seq;
        MaskRule rule;
        int64_t batch, kv_head, first, valid;  // first group-major row; how many exist
        int64_t k_head, v_head;                // of that kv head
        int64_t split, column0;                // column0: of v
        int64_t begin, end;                    // keys of the split that any of the rows may see
        ListSource slots;                      // of the keys, where they are such
        alignas(16) bool full;                 // do all rows see all keys of the tile that is being visited?
        SequenceDropout dropout;
    };

    // Shared memory. What depends on the head dimension lies last: all other addresses are constants and take no registers.
    struct Shared {
        Tile* tile;
        int64_t *k_offset, *v_offset, *position, *head, *begin, *end;  // −1: a key that is not there; see locate_keys()
        int64_t* next;                 // of a row that sees none of the tile's keys: one behind them before which it sees none
        uint64_t *visible, *unmasked;  // the tile's keys that a row sees, and those where masks do not act, as bits
        float *kv, *probs, *k_factor, *v_factor, *q;
        int q_stride;
    };
    static constexpr int64_t shared_bytes(int64_t q_dims) {
        return int64_t(sizeof(Tile)) + 8 * (2 * kKeys + 7 * rows) + 4 * (rows * (q_dims + 4) + kKvFloats + rows * kRowStride + 2 * kKeys);
    }
    FA_MEMBER static Shared layout(char* memory, int q_dims) {
        Shared shared;
        static_assert(sizeof(Tile) % 16 == 0, "rows of floats behind it are read 16 bytes at a time");
        shared.tile = reinterpret_cast<Tile*>(memory);
        shared.k_offset = reinterpret_cast<int64_t*>(shared.tile + 1);
        shared.v_offset = shared.k_offset + kKeys;
        shared.position = shared.v_offset + kKeys;
        shared.head = shared.position + rows;
        shared.begin = shared.head + rows;
        shared.end = shared.begin + rows;
        shared.next = shared.end + rows;
        shared.visible = reinterpret_cast<uint64_t*>(shared.next + rows);
        shared.unmasked = shared.visible + rows;
        shared.kv = reinterpret_cast<float*>(shared.unmasked + rows);
        shared.probs = shared.kv + kKvFloats;
        shared.k_factor = shared.probs + rows * kRowStride;
        shared.v_factor = shared.k_factor + kKeys;
        shared.q = shared.v_factor + kKeys;
        shared.q_stride = q_dims + 4;
        return shared;
    }

    FA_COLD_MEMBER static void init_rows(const SimtForwardParams& params) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        const Tile& tile = *shared.tile;
        for (int r = rt::thread(); r < rows; r += kThreads) {
            const int64_t row = tile.first + min_of(r, tile.valid - 1);
            shared.position[r] = row / params.group;
            shared.head[r] = tile.kv_head * params.group + row % params.group;
            const KeyBand band = key_band(tile.rule, shared.position[r], tile.seq.k_len);
            if (params.sets.any()) {  // for init_split()
                const KeyBand hull = row_hull(params.sets, tile.seq, band, tile.batch, shared.head[r], shared.position[r]);
                shared.next[r] = hull.begin, shared.visible[r] = uint64_t(hull.end);
            }
            shared.begin[r] = band.begin, shared.end[r] = band.end;
        }
    }

    // Which of the tile's keys each row sees. A barrier must come before they are read.
    FA_COLD_MEMBER static void find_visible(const SimtForwardParams& params, int64_t key0) {
        static_assert(kKeys == kWordKeys, "a bit for each key of a tile");
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        const Tile& tile = *shared.tile;
        for (int r = rt::thread(); r < rows; r += kThreads) {
            const int64_t head = shared.head[r], row = shared.position[r], behind = key0 + kKeys;
            const RowKeys keys = row_keys(params.sets, tile.seq, {shared.begin[r], shared.end[r]}, tile.batch, head, row, key0);
            shared.visible[r] = keys.visible, shared.unmasked[r] = keys.unmasked;
            shared.next[r] =
                keys.visible || !params.sets.any() ? behind : next_row_key(params.sets, tile.seq, tile.batch, head, row, behind);
        }
    }
    // The class of the tile of `keys` keys whose visible ones have been found: full only where it has all kKeys.
    FA_COLD_MEMBER static fa::TileClass class_of(const SimtForwardParams& params, int64_t key0, int keys) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        const Tile& tile = *shared.tile;
        if (!params.sets.any()) {
            const int64_t count = shared.position[tile.valid - 1] - shared.position[0] + 1;
            const fa::TileClass band = tile_class(tile.rule, shared.position[0], count, key0, keys, tile.seq.k_len);
            return band == fa::TileClass::full && keys < kKeys ? fa::TileClass::partial : band;
        }
        uint64_t some = 0, all = low_bits(keys);
        for (int r = 0; r < tile.valid; r++) some |= shared.visible[r] & low_bits(keys), all &= shared.visible[r];
        return some == 0 ? fa::TileClass::empty : ~all ? fa::TileClass::partial : fa::TileClass::full;
    }
    // Is the tile to be visited? If so, its class for mask_scores(). A barrier must come before that.
    FA_COLD_MEMBER static bool visits(const SimtForwardParams& params, int64_t key0, int keys) {
        const bool first = rt::thread() == 0;
        if (!first && !params.sets.any()) return true;
        const fa::TileClass kind = class_of(params, key0, keys);
        if (first) layout(rt::shared_memory(), params.q_dims).tile->full = kind == fa::TileClass::full;
        return !params.sets.any() || kind != fa::TileClass::empty;
    }
    // Where the next tile lies that some row may see, behind one that none sees.
    FA_COLD_MEMBER static int64_t next_tile(const SimtForwardParams& params, int64_t key0) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        int64_t nearest = shared.tile->end;
        for (int r = 0; r < shared.tile->valid; r++) nearest = min_of(nearest, shared.next[r]);
        return key0 + max_of((nearest - key0) / kKeys, 1) * kKeys;
    }

    // The keys of this block's mainloop. Tiles start at fixed distances from the split's begin, whatever the band: a row's bits
    // do not depend on its neighbours.
    FA_COLD_MEMBER static void init_split(const SimtForwardParams& params) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        Tile& tile = *shared.tile;
        const int64_t size = split_keys(tile.seq.k_len, params.num_splits, params.split_size), begin = tile.split * size;
        int64_t first = shared.begin[0], end = shared.end[tile.valid - 1];
        for (int r = 0; params.sets.any() && r < tile.valid; r++) {
            first = r == 0 ? shared.next[0] : min_of(first, shared.next[r]);
            end = r == 0 ? int64_t(shared.visible[0]) : max_of(end, int64_t(shared.visible[r]));
        }
        tile.begin = begin + max_of(first - begin, 0) / kKeys * kKeys;
        tile.end = min_of(min_of(begin + size, tile.seq.k_len), end);
        if (params.slots.any()) tile.end = min_of(tile.end, tile.slots.length());
    }

    FA_COLD_MEMBER static void load_q(const SimtForwardParams& params, int64_t dim0, int dims) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        const Tile& tile = *shared.tile;
        for (int i = rt::thread(); i < dims * rows; i += kThreads) {
            const int c = i % dims, r = i / dims;
            float value = 0.f;
            if (dim0 + c < params.dim_qk && r < tile.valid) {
                const int64_t at = query_index(params.q_strides, tile.seq, tile.batch, shared.position[r], shared.head[r]);
                value = query_value(params, tile.seq, tile.batch, shared.position[r], shared.head[r], at, dim0 + c);
            }
            shared.q[r * shared.q_stride + c] = value;
        }
    }

    // Where each key of the tile lies, and its de-scale factors: of plain rows the first unit in k and in v, of others the page or
    // sequence, and the row there.
    FA_COLD_MEMBER static void locate_keys(const SimtForwardParams& params, int64_t key0, int keys) {
        const Shared shared = layout(rt::shared_memory(), params.q_dims);
        const Tile& tile = *shared.tile;
        for (int j = rt::thread(); j < kKeys; j += kThreads) {
            shared.k_offset[j] = shared.v_offset[j] = -1;
            shared.k_factor[j] = shared.v_factor[j] = 1.f;
            if (j >= keys) continue;
            const KeyLocation location = params.slots.any() ? locate_slot(params.slots, tile.slots.entries[(key0 + j) * tile.slots.step])
                                                            : locate_key(params.pages, tile.seq, key0 + j);
            if (!location.valid) continue;
            if (!params.plain_kv) {
                shared.k_offset[j] = location.outer;
                shared.v_offset[j] = location.row;
                continue;
            }
            shared.k_offset[j] = key_index(params.k_strides, location, tile.k_head);
            shared.v_offset[j] = key_index(params.v_strides, location, tile.v_head);
            if (params.k_rows.factors.factor) shared.k_factor[j] = row_factor(params.k_rows, location.outer, location.row, tile.k_head);
            if (params.v_rows.factors.factor) shared.v_factor[j] = row_factor(params.v_rows, location.outer, location.row, tile.v_head);
        }
    }

    // Gathers rows, converts them to f32 and stores them, each times its factor, in the buffer.
    template <int width>
    FA_MEMBER static void load_rows(int32_t dtype, const void* data, const int64_t* at, const float* factor, int first, int64_t column0,
                                    int64_t dim, bool aligned, int stride, float* kv) {
        float value[kVec4s][4];
        const auto widen = [&](auto to_f32, const auto& bits) {
            FA_UNROLL_FOR (int n = 0; n < kVec4s; n++)
                FA_UNROLL_FOR (int e = 0; e < 4; e++) value[n][e] = to_f32(bits[n][e]);
        };
        if (is_block_type(dtype)) return load_blocks<width>(data, at, first, column0, dim, dtype, stride, kv);
        if (dtype == FA_F32) {
            gather<width>(data, at, first, column0, dim, aligned, value);
        } else if (type_bytes(dtype) == 2) {
            uint16_t bits[kVec4s][4];
            gather<width>(data, at, first, column0, dim, aligned, bits);
            if (dtype == FA_F16) widen([](uint16_t x) { return f16_to_f32(x); }, bits);
            else widen([](uint16_t x) { return bf16_to_f32(x); }, bits);
        } else {
            uint8_t bits[kVec4s][4];
            gather<width>(data, at, first, column0, dim, aligned, bits);
            if (dtype == FA_E4M3) widen([](uint8_t x) { return e4m3_to_f32(x); }, bits);
            else if (dtype == FA_E5M2) widen([](uint8_t x) { return e5m2_to_f32(x); }, bits);
            else widen([](uint8_t x) { return float(int8_t(x)); }, bits);
        }
        FA_UNROLL_FOR (int n = 0; n < kVec4s; n++) {
            const int i = rt::thread() + n * kThreads, j = i / (width / 4);
            const float f = factor[first + j];
            FA_UNROLL_FOR (int e = 0; e < 4; e++) value[n][e] *= f;
            rt::store4(kv + j * stride + i % (width / 4) * 4, value[n]);
        }
    }

    // score[r][n] = factor · Σ q · k over all dims. Leaves a barrier behind the last use of the buffer.
    FA_MEMBER static void compute_qk(const SimtForwardParams& params, const Shared& shared, float score[TR][4]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        const bool resident = params.dim_qk <= params.q_dims;
        FA_UNROLL_FOR (int r = 0; r < TR; r++)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) score[r][n] = 0.f;
        for (int dim0 = 0; dim0 < params.dim_qk; dim0 += kDims) {
            if (params.plain_kv)
                load_rows<kDims>(params.k_dtype, params.k, shared.k_offset, shared.k_factor, 0, dim0, params.dim_qk, params.k_aligned,
                                 kRowStride, shared.kv);
            else
                load_scaled<kDims>(params.k_rows, params.k, params.k_dtype, params.k_strides, shared.k_offset, shared.v_offset,
                                   shared.tile->k_head, 0, dim0, params.dim_qk, kRowStride, shared.kv);
            if (!resident) load_q(params, dim0, kDims);
            rt::barrier();
            const float* q = shared.q + (resident ? dim0 : 0) + ty * TR * shared.q_stride;
            const float* k = shared.kv + tx * kRowStride;
            for (int first = 0; first < kDims && dim0 + first < params.dim_qk; first += kChain) {
                float chain[TR][4];
                FA_UNROLL_FOR (int r = 0; r < TR; r++)
                    FA_UNROLL_FOR (int n = 0; n < 4; n++) chain[r][n] = 0.f;
                FA_UNROLL_BY(2)
                for (int c = first; c < first + kChain; c += 4) {
                    float b[4][4];
                    FA_UNROLL_FOR (int n = 0; n < 4; n++) rt::load4(k + n * 16 * kRowStride + c, b[n]);
                    FA_UNROLL_FOR (int r = 0; r < TR; r++) {
                        float a[4];
                        rt::load4(q + r * shared.q_stride + c, a);
                        FA_UNROLL_FOR (int n = 0; n < 4; n++)
                            FA_UNROLL_FOR (int e = 0; e < 4; e++) chain[r][n] = fmaf(a[e], b[n][e], chain[r][n]);
                    }
                }
                FA_UNROLL_FOR (int r = 0; r < TR; r++)
                    FA_UNROLL_FOR (int n = 0; n < 4; n++) score[r][n] += chain[r][n];
            }
            rt::barrier();
        }
        if (params.factor.product != 1.f)
            FA_UNROLL_FOR (int r = 0; r < TR; r++)
                FA_UNROLL_FOR (int n = 0; n < 4; n++) score[r][n] *= params.factor.product;
    }

    // change(row, j, score) for each of the thread's scores, by way of its elements of the P tile in shared memory: a loop that is
    // not unrolled compiles long code once.
    template <class Function>
    FA_MEMBER static void for_each_score(const Shared& shared, float score[TR][4], Function change) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        float* const own = shared.probs + ty * TR * kRowStride + tx;
        FA_UNROLL_FOR (int r = 0; r < TR; r++)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) own[r * kRowStride + 16 * n] = score[r][n];
        FA_UNROLL_BY(1)
        for (int i = 0; i < 4 * TR; i++) {
            float& value = own[i / 4 * kRowStride + i % 4 * 16];
            value = change(ty * TR + i / 4, tx + i % 4 * 16, value);
        }
        FA_UNROLL_FOR (int r = 0; r < TR; r++)
            FA_UNROLL_FOR (int n = 0; n < 4; n++) score[r][n] = own[r * kRowStride + 16 * n];
    }

    // Final scores in log2 units; −inf for keys that a mask, a bias, a bad page or slot, or the end of the tile removes.
    FA_MEMBER static void mask_scores(const SimtForwardParams& params, const Tile& tile, const Shared& shared, int64_t key0, bool full,
                                      float score[TR][4]) {
        if (full && !params.score_mod && !params.pages.table && !params.slots.any()) return;
        for_each_score(shared, score, [&](int row, int j, float value) {
            if (!(shared.visible[row] >> j & 1) || shared.k_offset[j] < 0) return kNegInf;
            if (!params.score_mod) return value;
            return kLog2e * apply_score_mod(params, tile.rule.off, tile.seq.k_len, tile.batch, shared.head[row], shared.position[row],
                                            key0 + j, !(shared.unmasked[row] >> j & 1), cap_score(params, value));
        });
    }

    // Online softmax: updates (m, l), turns scores into P and stores it, and returns each row's factor for o so far.
    FA_MEMBER static void online_softmax(const SimtForwardParams& params, const Shared& shared, int64_t key0, float score[TR][4],
                                         float m[TR], float l[TR], float factor[TR]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        FA_UNROLL_FOR (int r = 0; r < TR; r++) {
            float row_max = m[r];
            FA_UNROLL_FOR (int n = 0; n < 4; n++) row_max = max_fn(row_max, score[r][n]);
            FA_UNROLL_FOR (int w = 8; w > 0; w /= 2) row_max = max_fn(row_max, rt::shuffle_xor16(row_max, w));
            const float row_ref = safe_max(row_max);
            float row_sum = 0.f;
            FA_UNROLL_FOR (int n = 0; n < 4; n++) {
                score[r][n] = exp2_fn(score[r][n] - row_ref) * kHeadroomUnit;
                row_sum += score[r][n];
                shared.probs[(ty * TR + r) * kRowStride + tx + 16 * n] = score[r][n];
            }
            FA_UNROLL_FOR (int w = 8; w > 0; w /= 2) row_sum += rt::shuffle_xor16(row_sum, w);
            factor[r] = l[r] == 0.f ? 0.f : rescale(m[r], row_max);
            l[r] = l[r] * factor[r] + row_sum;
            m[r] = row_max;
        }
        if (params.dropout_p > 0)
            for_each_score(shared, score, [&](int row, int j, float p) {
                return keeps_cold(shared.tile->dropout, shared.head[row], shared.position[row], key0 + j) ? p : 0.f;
            });
    }

    // o = o · factor + probabilities · v
    FA_MEMBER static void compute_pv(const SimtForwardParams& params, const Shared& shared, int keys, int64_t column0,
                                     const float factor[TR], float o[TR][TV]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        FA_UNROLL_FOR (int r = 0; r < TR; r++)
            FA_UNROLL_FOR (int c = 0; c < TV; c++) o[r][c] *= factor[r];
        for (int key = 0; key < keys; key += value_keys) {
            if (params.plain_kv)
                load_rows<columns>(params.v_dtype, params.v, shared.v_offset, shared.v_factor, key, column0, params.dim_v, params.v_aligned,
                                   columns, shared.kv);
            else
                load_scaled<columns>(params.v_rows, params.v, params.v_dtype, params.v_strides, shared.k_offset, shared.v_offset,
                                     shared.tile->v_head, key, column0, params.dim_v, columns, shared.kv);
            rt::barrier();
            const int count = int(min_of(value_keys, keys - key));  // probabilities beyond are 0, and v is 0 there
            FA_UNROLL_FOR (int c = 0; c < TV; c += 4) {
                float chain[TR][4];  // of these keys alone: one long chain would lose accuracy on data of one sign
                FA_UNROLL_FOR (int r = 0; r < TR; r++)
                    FA_UNROLL_FOR (int i = 0; i < 4; i++) chain[r][i] = 0.f;
                FA_UNROLL_BY(2)
                for (int j = 0; j < count; j += 4) {
                    float a[TR][4];
                    FA_UNROLL_FOR (int r = 0; r < TR; r++) rt::load4(shared.probs + (ty * TR + r) * kRowStride + key + j, a[r]);
                    FA_UNROLL_FOR (int e = 0; e < 4; e++) {
                        float b[4];
                        rt::load4(shared.kv + (j + e) * columns + tx * 4 + 16 * c, b);
                        FA_UNROLL_FOR (int r = 0; r < TR; r++)
                            FA_UNROLL_FOR (int i = 0; i < 4; i++) chain[r][i] = fmaf(a[r][e], b[i], chain[r][i]);
                    }
                }
                FA_UNROLL_FOR (int r = 0; r < TR; r++)
                    FA_UNROLL_FOR (int i = 0; i < 4; i++) o[r][c + i] += chain[r][i];
            }
            rt::barrier();
        }
    }

    // The rows' share of one split, or, when there is but one, the outputs themselves.
    FA_MEMBER static void write(const SimtForwardParams& params, const Tile& tile, const Shared& shared, const float m[TR],
                                const float l[TR], const float o[TR][TV]) {
        const int tx = rt::thread() % 16, ty = rt::thread() / 16;
        FA_UNROLL_FOR (int r = 0; r < TR; r++) {
            const int row = ty * TR + r;
            if (row >= tile.valid) continue;
            const int64_t index = (tile.batch * params.kv_heads + tile.kv_head) * params.rows + tile.first + row;
            const int64_t partial = tile.split * params.batch * params.kv_heads * params.rows + index;
            const bool first = tile.column0 == 0 && tx == 0;
            float factor = 1.f;
            if (params.partial_o) {
                if (first) params.state[partial] = {m[r], l[r]};
            } else {
                const RowOutput output =
                    finalize_row_cold(params, tile.seq, tile.batch, shared.head[row], shared.position[row], {m[r], l[r]}, first);
                factor = output.factor;
                if (first && params.state) params.state[index] = output.state;
            }
            const int64_t at = params.partial_o
                                   ? partial * params.dim_v
                                   : query_index(params.o_strides, tile.seq, tile.batch, shared.position[row], shared.head[row]);
            float* const line =
                shared.kv + rt::thread() * TV;  // each thread's own: what stores an element is compiled once for all of them
            FA_UNROLL_FOR (int c = 0; c < TV; c += 4) rt::store4(line + c, o[r] + c);
            FA_UNROLL_BY(1)
            for (int c = 0; c < TV; c++) {
                const int64_t column = tile.column0 + tx * 4 + 16 * (c & ~3) + (c & 3);
                if (column >= params.dim_v) continue;
                if (params.partial_o) params.partial_o[at + column] = line[c];
                else store_output(params, at + column, line[c], factor);
            }
        }
    }
};

// One tile of rows, one split, one part of the columns.
template <int TR, int TV>
FA_KERNEL void FA_BOUNDS(kThreads, TR* TV > 16 ? 1 : 2) forward_simt(FA_PARAM SimtForwardParams params) {
    rt::fetch_parameters(params);
    using S = Simt<TR, TV>;
    int64_t item = rt::block();
    const int64_t column0 = item % params.value_parts * S::columns;
    item /= params.value_parts;
    const int64_t split = item % params.splits;
    item /= params.splits;
    const int64_t block = params.causal ? params.blocks - 1 - item % params.blocks : item % params.blocks;  // longest rows first
    item /= params.blocks;

    const typename S::Shared shared = S::layout(rt::shared_memory(), params.q_dims);
    const typename S::Tile& tile = *shared.tile;
    rt::wait_for_predecessor();
    rt::release_successor();
    if (rt::thread() == 0) {
        typename S::Tile init;
        init.kv_head = item % params.kv_heads;
        init.batch = item / params.kv_heads;
        init.k_head = init.kv_head / params.kv_heads_per_k;
        init.v_head = init.kv_head / params.kv_heads_per_v;
        init.seq = bounded_sequence(params.sequences, init.batch);
        init.rule = mask_rule(params.rule, init.seq);
        init.dropout = dropout_of(params, init.batch);
        init.first = tile_begin(params.tiles, block);
        init.split = split;
        init.column0 = column0;
        init.valid = min_of(init.seq.q_len * params.group, tile_end(params.tiles, block)) - init.first;
        if (params.slots.any())
            init.slots = slots_of(params.slots, init.seq, init.batch, init.kv_head * params.group, init.first / params.group);
        *shared.tile = init;
    }
    rt::barrier();
    if (!params.partial_o || split == 0)
        write_padding(params, tile.seq, tile.batch, tile.kv_head, tile.first, tile_end(params.tiles, block) - tile.first, column0,
                      S::columns);
    if (tile.valid <= 0) return;
    if (split >= split_count(tile.seq.k_len, params.num_splits, params.split_size)) return;

    S::init_rows(params);
    rt::barrier();
    if (rt::thread() == 0) S::init_split(params);
    if (params.dim_qk <= params.q_dims) S::load_q(params, 0, params.q_dims);

    float m[TR], l[TR], o[TR][TV];
    FA_UNROLL_FOR (int r = 0; r < TR; r++) {
        m[r] = kNegInf;
        l[r] = 0.f;
        FA_UNROLL_FOR (int c = 0; c < TV; c++) o[r][c] = 0.f;
    }
    rt::barrier();
    for (int64_t key = tile.begin; key < tile.end; key += kKeys) {
        const int keys = tile.end - key < kKeys ? int(tile.end - key) : kKeys;
        S::locate_keys(params, key, keys);
        S::find_visible(params, key);
        rt::barrier();
        if (!S::visits(params, key, keys)) {
            key = S::next_tile(params, key) - kKeys;
            rt::barrier();
            continue;
        }
        float score[TR][4], factor[TR];
        S::compute_qk(params, shared, score);
        S::mask_scores(params, tile, shared, key, tile.full, score);
        S::online_softmax(params, shared, key, score, m, l, factor);
        S::compute_pv(params, shared, keys, tile.column0, factor, o);
    }
    S::write(params, tile, shared, m, l, o);
}

}  // namespace gpu
}  // namespace fa
