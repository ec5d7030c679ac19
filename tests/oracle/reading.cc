// Where everything is, and who sees whom.
#include <algorithm>
#include <cmath>
#include "oracle/oracle.h"

namespace oracle {
namespace {

using Quad = std::array<int64_t, 4>;

Quad literal(const int64_t (&s)[4]) { return {s[0], s[1], s[2], s[3]}; }
Quad literal(const int64_t (&s)[3]) { return {s[0], s[1], s[2], 1}; }
Quad dense(const Quad& n) { return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}; }

Tensor tensor(const Quad& count, bool strided, const Quad& strides) { return {count, strided ? strides : dense(count)}; }

}  // namespace

int64_t Tensor::extent() const {
    int64_t last = 0;
    for (const int64_t n : count)
        if (n <= 0) return 0;  // whatever the strides
    for (size_t axis = 0; axis < 4; axis++) last += (count[axis] - 1) * stride[axis];
    return last + 1;
}

Reading::Reading(const fa_attention_desc_t& desc, const fa_forward_args_t& args) : d(desc), a(args) {
    if (of_slots()) d.seqlen_k = d.list_max;
    const bool narrow_q = d.q_dtype == FA_E4M3 || d.q_dtype == FA_E5M2;
    q_dtype = d.q_dtype;
    k_dtype = d.k_dtype != 0 ? d.k_dtype : q_dtype;
    v_dtype = d.v_dtype != 0 ? d.v_dtype : k_dtype;
    o_dtype = d.o_dtype != 0 ? d.o_dtype : narrow_q ? int32_t(FA_BF16) : q_dtype;
    bias_dtype = d.bias_dtype != 0 ? d.bias_dtype : int32_t(FA_F32);
    heads_k = d.heads_k != 0 ? d.heads_k : d.heads_q;
    heads_v = d.heads_v != 0 ? d.heads_v : heads_k;
    dim_v = d.dim_v != 0 ? d.dim_v : d.dim_qk;
    scale = d.flags & FA_SCALE_EXPLICIT ? double(d.scale) : 1 / std::sqrt(double(d.dim_qk));

    q_tail_dtype = d.q_tail_dtype != 0 ? d.q_tail_dtype : q_dtype;
    k_tail_dtype = d.k_tail_dtype != 0 ? d.k_tail_dtype : q_dtype;
    own_q = d.dim_qk - (has(FA_OPERAND_Q_TAIL) ? d.dim_tail : 0);
    own_k = d.dim_qk - (has(FA_OPERAND_K_TAIL) ? d.dim_tail : 0);

    const bool packed_q = has(FA_OPERAND_CU_SEQLENS_Q), packed_k = has(FA_OPERAND_CU_SEQLENS_K),
               paged = has(FA_OPERAND_PAGE_TABLE) || of_slots();
    const int64_t q_outer = packed_q ? 1 : d.batch, q_rows = packed_q ? d.total_q : d.seqlen_q;
    const int64_t cached = has(FA_OPERAND_KV_BATCH_IDX) ? d.kv_batch : d.batch;
    const int64_t k_outer = paged ? d.num_pages : packed_k ? 1 : cached;
    const int64_t k_rows = paged ? d.page_size : packed_k ? d.total_k : d.seqlen_k;

    q_tensor = tensor({q_outer, q_rows, d.heads_q, own_q}, d.strided & FA_STRIDED_Q, literal(d.q_stride));
    o_tensor = tensor({q_outer, q_rows, d.heads_q, dim_v}, d.strided & FA_STRIDED_O, literal(d.o_stride));
    k_tensor = tensor({k_outer, k_rows, heads_k, own_k / elements_of(k_dtype)}, d.strided & FA_STRIDED_K, literal(d.k_stride));
    if (!v_in_k())
        v_tensor = tensor({k_outer, k_rows, heads_v, dim_v / elements_of(v_dtype)}, d.strided & FA_STRIDED_V, literal(d.v_stride));
    if (has(FA_OPERAND_Q_TAIL))
        q_tail_tensor = tensor({q_outer, q_rows, d.heads_q, d.dim_tail}, d.strided & FA_STRIDED_Q_TAIL, literal(d.q_tail_stride));
    if (has(FA_OPERAND_K_TAIL))
        k_tail_tensor = tensor({k_outer, k_rows, heads_k, d.dim_tail}, d.strided & FA_STRIDED_K_TAIL, literal(d.k_tail_stride));
    lse_tensor = tensor({q_outer, d.heads_q, q_rows, 1}, d.strided & FA_STRIDED_LSE, literal(d.lse_stride));
    const Quad pairs = {d.batch, d.heads_q, d.seqlen_q, d.seqlen_k};
    const auto repeating = [&](const int64_t (&period)[2]) {
        Quad n = pairs;
        for (size_t axis = 0; axis < 2; axis++)
            if (period[axis] != 0 && period[axis] < n[axis]) n[axis] = period[axis];
        return n;
    };
    bias_tensor = {repeating(d.bias_period), literal(d.bias_stride)};
    mask_tensor = {repeating(d.mask_period), literal(d.mask_stride)};
    if (d.mask_keys > 0 && d.seqlen_k > 0) mask_tensor.count[3] = d.mask_keys;
    if (d.mask_dtype == FA_BIT) mask_tensor.count[3] = (mask_tensor.count[3] + 7) / 8;
    scores_tensor = {pairs, literal(d.scores_stride)};
    const Quad lists = {q_outer, d.list_heads != 0 ? d.list_heads : d.heads_q, (q_rows + list_rows() - 1) / list_rows(), d.list_max};
    list_tensor = {lists, literal(d.list_stride)};
    list_count_tensor = {{lists[0], lists[1], lists[2], 1}, literal(d.list_count_stride)};
    key_range_tensor = {{q_outer, d.heads_q, q_rows, d.key_range_max != 0 ? d.key_range_max : 1}, literal(d.key_range_stride)};
    const int64_t factor_outer = packed_k ? d.batch : k_outer;
    const auto factors = [](int32_t dtype, const int64_t (&block)[2], const int64_t (&stride)[4], int64_t outer, int64_t rows,
                            int64_t heads, int64_t dims) {
        const int64_t all = std::max<int64_t>(dims, 1);  // a merge's descriptor need not say dim_qk
        Factors f{{}, dtype != 0 ? dtype : int32_t(FA_F32), block[0] != 0 ? block[0] : 1, block[1] != 0 ? block[1] : all};
        const int64_t row_blocks = rows / f.rows + (rows % f.rows != 0), dim_blocks = dims / f.dims + (dims % f.dims != 0);
        f.tensor = {{outer, row_blocks, heads, dim_blocks}, {stride[0], stride[1], stride[2], stride[3]}};
        return f;
    };
    q_factors = factors(d.q_descale_dtype, d.q_descale_block, d.q_descale_stride, d.batch, q_rows, d.heads_q, own_q);
    k_factors = factors(d.k_descale_dtype, d.k_descale_block, d.k_descale_stride, factor_outer, k_rows, heads_k, own_k);
    v_factors = factors(d.v_descale_dtype, d.v_descale_block, d.v_descale_stride, factor_outer, k_rows, heads_v, dim_v);

    const bool from_state = has(FA_OPERAND_RNG_STATE) && a.rng_state != nullptr;
    dropout_key_ = dropout_key(from_state ? a.rng_state[0] : a.dropout_seed, from_state ? a.rng_state[1] : a.dropout_offset);
}

bool Reading::q_factor_of_rows() const {
    return has(FA_OPERAND_Q_DESCALE) && !has(FA_OPERAND_Q_TAIL) && q_factors.dtype == FA_F32 && q_factors.rows == 1 &&
           q_factors.dims >= own_q;
}
bool Reading::k_factor_of_heads() const {
    return has(FA_OPERAND_K_DESCALE) && !has(FA_OPERAND_K_TAIL | FA_OPERAND_K_SHIFT) && !is_nibble(k_dtype) && k_factors.dtype == FA_F32 &&
           k_factors.rows == 1 && k_factors.dims >= own_k && k_factors.tensor.stride[1] == 0 &&
           (k_factors.tensor.stride[0] == 0 || !(has(FA_OPERAND_PAGE_TABLE) || of_slots()));
}

int64_t Reading::rows(int64_t b) const {
    if (has(FA_OPERAND_SEQUSED_Q)) return a.seqused_q[b];
    return has(FA_OPERAND_CU_SEQLENS_Q) ? a.cu_seqlens_q[b + 1] - a.cu_seqlens_q[b] : d.seqlen_q;
}

int64_t Reading::keys(int64_t b) const {
    if (of_slots()) return d.num_pages * d.page_size;
    int64_t slots = d.seqlen_k;
    if (has(FA_OPERAND_CU_SEQLENS_K)) slots = a.cu_seqlens_k[b + 1] - a.cu_seqlens_k[b];
    if (has(FA_OPERAND_SEQUSED_K)) slots = a.seqused_k[b];
    return has(FA_OPERAND_LEFTPAD_K) ? slots - a.leftpad_k[b] : slots;
}

int64_t Reading::diagonal(int64_t b) const {
    switch (d.alignment) {
        case FA_ALIGN_BOTTOM_RIGHT: return keys(b) - rows(b);
        case FA_ALIGN_EXPLICIT: return a.causal_offset[b];
        default: return 0;
    }
}

bool Reading::attends(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (i < 0 || i >= rows(b) || j < 0 || j >= keys(b)) return false;
    if (has(FA_OPERAND_BIAS) && load(a.bias, bias(b, h, i, j), bias_dtype) == -INFINITY) return false;
    if (!has(FA_OPERAND_KEY_LIST) && !has(FA_OPERAND_FULL_LIST)) return in_masks(b, h, i, j);
    const auto given = [&](uint32_t operand, const int32_t* counts) { return has(operand) ? counts : nullptr; };
    if (has(FA_OPERAND_FULL_LIST) && in_list(a.full_list, given(FA_OPERAND_FULL_LIST_COUNT, a.full_list_count), b, h, i, j)) return true;
    return has(FA_OPERAND_KEY_LIST) && in_list(a.key_list, given(FA_OPERAND_KEY_LIST_COUNT, a.key_list_count), b, h, i, j) &&
           in_masks(b, h, i, j);
}

bool Reading::in_list(const int32_t* entries, const int32_t* counts, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t length = counts ? counts[list_count(b, h, i)] : d.list_max;
    for (int64_t e = 0; e < length; e++) {
        const int64_t block = entries[list(b, h, i) + e * list_tensor.stride[3]];
        if (block >= 0 && j >= block * list_keys() && j < (block + 1) * list_keys()) return true;
    }
    return false;
}

bool Reading::in_masks(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const __int128 distance = __int128(j) - i - diagonal(b);  // how far the key lies to the right of where the row stands
    if (d.flags & FA_CAUSAL && distance > 0) return false;
    if (d.flags & FA_WINDOW) {
        if (d.window_left >= 0 && -distance > d.window_left) return false;
        if (d.window_right >= 0 && distance > d.window_right) return false;
    }
    if (d.chunk > 0) {
        const int64_t first = j - j % d.chunk;  // of the key's own chunk
        const int64_t stands = i + diagonal(b);
        if (stands < first || stands - first >= d.chunk) return false;
    }
    if (has(FA_OPERAND_KEY_RANGES)) {
        bool inside = false;
        for (int64_t t = 0; t < key_range_tensor.count[3]; t++) {
            const int64_t at = key_range(b, h, i, t);
            inside = inside || (a.key_ranges[at] <= j && j < a.key_ranges[at + 1]);
        }
        if (!inside) return false;
    }
    return !has(FA_OPERAND_MASK) || column(b, j) < 0 || (a.mask[mask(b, h, i, j)] & mask_bits(b, j)) != 0;
}

bool Reading::kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t heads = a.dropout_heads != 0 ? a.dropout_heads : d.heads_q;
    return d.dropout_p == 0 || keeps(d.dropout_p, dropout_key_, b * heads + a.dropout_head + h, a.dropout_row + i, a.dropout_key + j);
}

int64_t Reading::q(int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? q_tensor.at(0, a.cu_seqlens_q[b] + i, h) : q_tensor.at(b, i, h);
}
int64_t Reading::o(int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? o_tensor.at(0, a.cu_seqlens_q[b] + i, h) : o_tensor.at(b, i, h);
}
int64_t Reading::lse(int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? lse_tensor.at(0, h, a.cu_seqlens_q[b] + i) : lse_tensor.at(b, h, i);
}
int64_t Reading::bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return bias_tensor.at(b % bias_tensor.count[0], h % bias_tensor.count[1], i) + j * bias_tensor.stride[3];
}
int64_t Reading::mask(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return mask_tensor.at(b % mask_tensor.count[0], h % mask_tensor.count[1], i) +
           (d.mask_dtype == FA_BIT ? column(b, j) / 8 : column(b, j)) * mask_tensor.stride[3];
}
int64_t Reading::key_range(int64_t b, int64_t h, int64_t i, int64_t t) const {
    const bool packed = has(FA_OPERAND_CU_SEQLENS_Q);
    return 2 * (key_range_tensor.at(packed ? 0 : b, h, packed ? a.cu_seqlens_q[b] + i : i) + t * key_range_tensor.stride[3]);
}
std::array<int64_t, 3> Reading::block_of(int64_t b, int64_t h, int64_t i) const {
    const bool packed = has(FA_OPERAND_CU_SEQLENS_Q);
    return {packed ? 0 : b, h * list_tensor.count[1] / d.heads_q, (packed ? a.cu_seqlens_q[b] + i : i) / list_rows()};
}
int64_t Reading::list(int64_t b, int64_t h, int64_t i) const {
    const auto [outer, head, block] = block_of(b, h, i);
    return outer * list_tensor.stride[0] + head * list_tensor.stride[1] + block * list_tensor.stride[2];
}
int64_t Reading::list_count(int64_t b, int64_t h, int64_t i) const {
    const auto [outer, head, block] = block_of(b, h, i);
    return outer * list_count_tensor.stride[0] + head * list_count_tensor.stride[1] + block * list_count_tensor.stride[2];
}
int64_t Reading::column(int64_t b, int64_t j) const { return d.mask_keys > 0 ? d.mask_keys - keys(b) + j : j; }
int Reading::mask_bits(int64_t b, int64_t j) const { return d.mask_dtype == FA_BIT ? 1 << column(b, j) % 8 : 0xff; }

int64_t Reading::scores(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return scores_tensor.at(b, h, i) + j * scores_tensor.stride[3];
}

Reading::Place Reading::place(int64_t b, int64_t j) const {
    if (of_slots()) return {j / d.page_size, j % d.page_size};
    const int64_t slot = has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k[b] + j : j;
    if (has(FA_OPERAND_CU_SEQLENS_K)) return {0, a.cu_seqlens_k[b] + slot};
    const int64_t owner = has(FA_OPERAND_KV_BATCH_IDX) ? a.kv_batch_idx[b] : b;
    if (!has(FA_OPERAND_PAGE_TABLE)) return {owner, slot};
    const int64_t columns = d.page_table_stride != 0 ? d.page_table_stride : (d.seqlen_k + d.page_size - 1) / d.page_size;
    return {a.page_table[owner * columns + slot / d.page_size], slot % d.page_size};
}

int64_t Reading::k(int64_t b, int64_t head, int64_t j) const {
    const Place p = place(b, j);
    return k_tensor.at(p.outer, p.row, head);
}
int64_t Reading::v(int64_t b, int64_t head, int64_t j) const {
    const Place p = place(b, j);
    return v_tensor.at(p.outer, p.row, head);
}
int64_t Reading::q_tail(int64_t b, int64_t h, int64_t i) const {
    return has(FA_OPERAND_CU_SEQLENS_Q) ? q_tail_tensor.at(0, a.cu_seqlens_q[b] + i, h) : q_tail_tensor.at(b, i, h);
}
int64_t Reading::k_tail(int64_t b, int64_t head, int64_t j) const {
    const Place p = place(b, j);
    return k_tail_tensor.at(p.outer, p.row, head);
}
int64_t Reading::q_descale(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return q_factors.at(b, has(FA_OPERAND_CU_SEQLENS_Q) ? a.cu_seqlens_q[b] + i : i, h, c);
}
int64_t Reading::k_descale(int64_t b, int64_t head, int64_t j, int64_t c) const {
    const Place p = place(b, j);
    return k_factors.at(has(FA_OPERAND_CU_SEQLENS_K) ? b : p.outer, p.row, head, c);
}
int64_t Reading::v_descale(int64_t b, int64_t head, int64_t j, int64_t c) const {
    const Place p = place(b, j);
    return v_factors.at(has(FA_OPERAND_CU_SEQLENS_K) ? b : p.outer, p.row, head, c);
}

double Reading::alibi_slope(int64_t b, int64_t h) const {
    return has(FA_OPERAND_ALIBI) ? double(a.alibi_slopes[b * d.alibi_batch_stride + h]) : 0.0;
}

double Reading::bias_scale(int64_t h) const { return has(FA_OPERAND_BIAS_SCALE) ? double(a.bias_scale[h]) : 1.0; }

}  // namespace oracle
