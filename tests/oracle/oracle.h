// What libflashattn must compute, said a second time: plain loops over doubles, one predicate per query row and key, no tiles, no
// online softmax, and not a line shared with the library. It reads the public structs exactly as a caller fills them, through host
// pointers, and assumes that they are valid.
//
//     const oracle::Reading r(desc, args);
//     const oracle::Attention want = oracle::attention(r);
//     want.o[want.row(b, h, i) * r.dim_v + c]  is what belongs at  o[r.o(b, h, i) + c]
#pragma once
#include <flashattn.h>
#include <array>
#include <vector>
#include "oracle/formats.h"

namespace oracle {

// A tensor as memory: how many (outer, row, head, element) there are and how far apart.
struct Tensor {
    std::array<int64_t, 4> count;
    std::array<int64_t, 4> stride;
    int64_t at(int64_t outer, int64_t row, int64_t head) const { return outer * stride[0] + row * stride[1] + head * stride[2]; }
    int64_t extent() const;  // elements from the first to the last, both included; 0 when there are none
};

// The descriptor with defaults filled in, and the place of every element.
class Reading {
  public:
    Reading(const fa_attention_desc_t& desc, const fa_forward_args_t& args);

    fa_attention_desc_t d;
    fa_forward_args_t a;
    int32_t q_dtype, k_dtype, v_dtype, o_dtype, bias_dtype, q_tail_dtype, k_tail_dtype;
    int64_t heads_k, heads_v, dim_v;
    int64_t own_q, own_k;  // dims that lie in q and in k; those behind them lie in the tails
    double scale;
    Tensor q_tensor, k_tensor, v_tensor{}, o_tensor;  // outer: batch, sequence of the cache, or page; 1 when packed
    Tensor lse_tensor;                                // (batch, head, row, 1)
    Tensor bias_tensor, mask_tensor, scores_tensor;   // (batch, head, row, key)
    Tensor list_tensor, list_count_tensor;            // (batch, list head, block of rows, entry; or 1); one batch when packed
    Tensor key_range_tensor;                          // (batch, head, row, interval), of pairs; one batch when packed
    Tensor q_tail_tensor{}, k_tail_tensor{};
    // Factors, and shifts: (sequence, cache sequence or page; block of rows; head; block of dims).
    struct Factors {
        Tensor tensor;
        int32_t dtype;
        int64_t rows, dims;  // that share one
        int64_t at(int64_t outer, int64_t row, int64_t head, int64_t dim = 0) const {
            return tensor.at(outer, row / rows, head) + dim / dims * tensor.stride[3];
        }
    };
    Factors q_factors, k_factors, v_factors;

    bool has(uint64_t operand) const { return (d.operands & operand) != 0; }
    bool of_slots() const { return d.list_space == FA_LIST_SLOTS; }  // each slot of the cache is then a key of every sequence
    bool v_in_k() const { return (d.flags & FA_V_IN_K) != 0; }       // v has then no tensor of its own
    int64_t rows(int64_t b) const;                                   // valid rows of sequence b
    int64_t keys(int64_t b) const;                                   // valid keys, left padding excluded
    int64_t diagonal(int64_t b) const;                               // row i stands on key i + diagonal

    // Does row i of head h see key j at all? Every mask, key by key.
    bool attends(int64_t b, int64_t h, int64_t i, int64_t j) const;
    bool kept(int64_t b, int64_t h, int64_t i, int64_t j) const;  // by dropout

    // Offsets of a row's first element (of the value itself for LSE, bias, mask, scores).
    int64_t q(int64_t b, int64_t h, int64_t i) const;
    int64_t k(int64_t b, int64_t k_head, int64_t j) const;
    int64_t v(int64_t b, int64_t v_head, int64_t j) const;
    int64_t o(int64_t b, int64_t h, int64_t i) const;
    int64_t lse(int64_t b, int64_t h, int64_t i) const;
    int64_t bias(int64_t b, int64_t h, int64_t i, int64_t j) const;
    int64_t mask(int64_t b, int64_t h, int64_t i, int64_t j) const;
    int64_t scores(int64_t b, int64_t h, int64_t i, int64_t j) const;
    int64_t key_range(int64_t b, int64_t h, int64_t i, int64_t t) const;  // of the interval's begin, the end follows
    // Of the first entry that row i of head h has, and of its list's length.
    int64_t list(int64_t b, int64_t h, int64_t i) const;
    int64_t list_count(int64_t b, int64_t h, int64_t i) const;
    int64_t list_rows() const { return d.list_rows != 0 ? d.list_rows : 1; }
    int64_t list_keys() const { return d.list_keys != 0 ? d.list_keys : 1; }
    int64_t column(int64_t b, int64_t j) const;  // of the mask, below 0 where it has none: the key is kept
    int mask_bits(int64_t b, int64_t j) const;   // those of the byte at mask() that say whether the key is kept
    int64_t q_tail(int64_t b, int64_t h, int64_t i) const;
    int64_t k_tail(int64_t b, int64_t k_head, int64_t j) const;
    // Of the factor, or the shift, of a dim.
    int64_t q_descale(int64_t b, int64_t h, int64_t i, int64_t c = 0) const;
    int64_t k_descale(int64_t b, int64_t k_head, int64_t j, int64_t c = 0) const;
    int64_t v_descale(int64_t b, int64_t v_head, int64_t j, int64_t c = 0) const;

    int64_t k_head(int64_t h) const { return h * heads_k / d.heads_q; }
    int64_t v_head(int64_t h) const { return h * heads_v / d.heads_q; }
    // Is there one f32 factor for each row of q, all of which lies in q; and for each head of k of a sequence?
    bool q_factor_of_rows() const;
    bool k_factor_of_heads() const;
    double alibi_slope(int64_t b, int64_t h) const;
    double bias_scale(int64_t h) const;
    // Rows beyond rows(b): a padded o and LSE has them, and they must be 0 and −inf; a packed one has none of its own.
    int64_t padded_rows(int64_t b) const { return has(FA_OPERAND_CU_SEQLENS_Q) ? rows(b) : d.seqlen_q; }

  private:
    bool in_masks(int64_t b, int64_t h, int64_t i, int64_t j) const;
    bool in_list(const int32_t* entries, const int32_t* counts, int64_t b, int64_t h, int64_t i, int64_t j) const;
    std::array<int64_t, 3> block_of(int64_t b, int64_t h, int64_t i) const;
    struct Place {  // of a key
        int64_t outer, row;
    };
    Place place(int64_t b, int64_t j) const;
    uint64_t dropout_key_;
};

struct Attention {
    int64_t heads, rows, keys, dim_v;           // of the arrays below: heads_q, seqlen_q, seqlen_k, dim_v
    std::vector<double> o;                      // [batch][heads][rows][dim_v]; 0 in rows without keys and beyond the length
    std::vector<double> spread;                 // Σ_j P |v|, the same shape: what the error of o is measured by
    std::vector<double> reach;                  // max_j |v| / (1 − p) over attended keys: what each underflowing weight is measured by
    std::vector<double> rounding;               // what P in 8 bits may cost, the same shape; when asked for
    std::vector<double> lse;                    // [batch][heads][rows]
    std::vector<double> kappa;                  // max_j (|scale| Σ|q·k| + |bias| + |ALiBi|) over attended keys, and |sink|
    std::vector<int64_t> attended;              // keys left
    std::vector<uint8_t> computed;              // 0 where row_step passed over the row
    std::array<std::vector<double>, 4> scores;  // by stage, [batch][heads][rows][keys]; when asked for
    std::vector<double> score_kappa;            // |scale| Σ|q·k| + |bias| + |ALiBi| of each pair
    int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * rows + i; }
};

struct AttentionOptions {
    bool scores = false;
    int64_t row_step = 1;  // compute rows 0, step, 2 · step, … and the last one
    bool bytes =
        false;  // blocks of q are rounded to 8 bits, and so is P times a block's factor: κ is by q's largest value of each block then
};

Attention attention(const Reading& reading, AttentionOptions options = {});

// One element that a call must write. Its exact value, and how far f32 arithmetic may be off before the final rounding. dtype FA_BIT: a
// byte of a block, which has that very value; of types of 4 bits the index counts halves of bytes.
struct Write {
    void* base;
    int64_t index;
    int32_t dtype;
    double value;
    double slack;
};

// fa_merge, computed from args as they are before the call (FA_MERGE_ACCUMULATE reads o and lse).
std::vector<Write> merge(const fa_attention_desc_t& desc, const fa_merge_args_t& args);
std::vector<Write> rotary(const fa_attention_desc_t& desc, const fa_rotary_args_t& args);
// De-scale factors under FA_APPEND_DYNAMIC_SCALE are writes too.
std::vector<Write> append_kv(const fa_attention_desc_t& desc, const fa_append_kv_args_t& args);

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter);
uint64_t dropout_key(uint64_t seed, uint64_t offset);
bool keeps(float p, uint64_t derived_key, int64_t batch_head, int64_t row, int64_t key);

}  // namespace oracle
