// The gradients of L = Σ dO∘O + Σ dLSE∘LSE, in the same manner: one row after the other, each pair of row and key by itself.
//
//     const oracle::Gradients want = oracle::backward(r, {d_o, d_lse, {}, {}});
//     want.q.value[want.row(b, h, i) * r.d.dim_qk + c]  is ∂L/∂q of that element
#pragma once
#include "oracle/oracle.h"

namespace oracle {

// What is given from outside, as dense arrays; dLSE may be empty: 0. o and lse are empty, or the state of a whole of which the
// call's keys are a part. An lse of ±inf then marks a row that takes no part.
struct Upstream {
    std::vector<double> d_o;    // [batch][heads][rows][dim_v]
    std::vector<double> d_lse;  // [batch][heads][rows]
    std::vector<double> o, lse;
};

// A sum, and what its error is measured by: rounding costs each term u of its size, and what rounding did to its row's scores;
// terms too faint for f32 may be lost.
struct Gradient {
    std::vector<double> value;
    std::vector<double> spread;  // Σ size
    std::vector<double> heat;    // Σ (1 + κ) · size
    std::vector<double> reach;   // Σ size / P
    std::vector<double> drift;   // Σ P · Σ|dO|: what follows from an o that is too small for its type
};

struct Gradients {
    int64_t heads, heads_k, rows, keys;
    Gradient q;                 // [batch][heads][rows][dim_qk]
    Gradient k, v;              // [batch][heads_k][keys][dim]: of logical keys, wherever they lie
    Gradient bias;              // [batch][heads][rows][keys]: of every pair, not yet summed over what the bias is broadcast along
    Gradient sink;              // [heads]
    std::vector<double> delta;  // [batch][heads][rows]: Σ dO∘O of a row
    int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * rows + i; }
    int64_t key(int64_t b, int64_t kv_head, int64_t j) const { return (b * heads_k + kv_head) * keys + j; }
};

Gradients backward(const Reading& reading, const Upstream& up);

// fa_backward's descriptor and args: the forward's inputs, and the place of every gradient.
class BackwardReading : public Reading {
  public:
    BackwardReading(const fa_attention_desc_t& desc, const fa_backward_args_t& args);

    fa_backward_args_t g;
    Tensor dout_tensor, dlse_tensor, dq_tensor, dk_tensor, dv_tensor, dbias_tensor;

    bool accumulates() const { return (g.flags & FA_BACKWARD_ACCUMULATE) != 0; }
    int32_t dq_dtype() const { return accumulates() ? int32_t(FA_F32) : q_dtype; }
    int32_t dkv_dtype() const { return accumulates() ? int32_t(FA_F32) : k_dtype; }
    Upstream upstream() const;  // dout and dlse as they are in memory

    int64_t dout(int64_t b, int64_t h, int64_t i) const { return of_row(dout_tensor, b, h, i); }
    int64_t dlse(int64_t b, int64_t h, int64_t i) const;
    int64_t dq(int64_t b, int64_t h, int64_t i) const { return of_row(dq_tensor, b, h, i); }
    // Of a slot, which counts left padding: key j lies in slot leftpad + j.
    int64_t dk(int64_t b, int64_t kv_head, int64_t slot) const { return of_slot(dk_tensor, b, kv_head, slot); }
    int64_t dv(int64_t b, int64_t kv_head, int64_t slot) const { return of_slot(dv_tensor, b, kv_head, slot); }
    int64_t dbias(int64_t b, int64_t h, int64_t i, int64_t j) const {
        return dbias_tensor.at(b % dbias_tensor.count[0], h % dbias_tensor.count[1], i) + j * dbias_tensor.stride[3];
    }
    int64_t leftpad(int64_t b) const { return has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k[b] : 0; }

  private:
    int64_t of_row(const Tensor& tensor, int64_t b, int64_t h, int64_t i) const;
    int64_t of_slot(const Tensor& tensor, int64_t b, int64_t kv_head, int64_t slot) const;
};

}  // namespace oracle
