// What the matrix kernel tables of all instruction sets have in common: the parts of a mainloop and of the backward between the
// products, in AVX-512.
#pragma once
#include "cpu/kernels/matrix_backward.h"
#include "cpu/kernels/matrix_pack.h"
#include "cpu/kernels/matrix_score_mod.h"

namespace fa {
namespace cpu {
namespace {

// The caller adds the products, and how fast they are.
constexpr MatrixKernels common_matrix_kernels() {
    MatrixKernels k{};
    k.convert = convert_bytes;
    k.pack_q = pack_q;
    k.pack_k = pack_k;
    k.pack_v = pack_v;
    k.pack_rows = pack_rows;
    k.classify_keys = classify_keys;
    k.finish_state = finish_state;
    k.write_o = write_o;
    k.pack_p_ds = pack_p_ds;
    k.softmax_backward = softmax_backward_packed;
    k.transpose_k = transpose_k;
    return k;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
