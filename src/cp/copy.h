// Rows between tensors with strides and messages without.
#pragma once
#include "cp/job.h"

namespace fa {
namespace cp {

// Bytes of so many rows of all sequences and of the view's heads.
inline int64_t bytes_of(const View& v, int64_t sequences, int64_t rows) { return sequences * rows * v.row_bytes(); }

// Rows [row, row + rows) of each sequence to or from [sequences][rows][heads][dim] at `dense`; returns where that ends.
char* pack(const View& from, int64_t sequences, int64_t row, int64_t rows, char* dense);
const char* unpack(const View& to, int64_t sequences, int64_t row, int64_t rows, const char* dense);

// The same of LSE: [sequences][heads][rows].
char* pack(const LseView& from, int64_t sequences, int64_t heads, int64_t row, int64_t rows, char* dense);
const char* unpack(const LseView& to, int64_t sequences, int64_t heads, int64_t row, int64_t rows, const char* dense);

}  // namespace cp
}  // namespace fa
