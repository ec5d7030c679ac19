// What `run` reads: tensors in the layouts of the command line, offsets of packed sequences, and operands that broadcast.
#pragma once
#include <flashattn.h>
#include "npy.h"

namespace tool {

enum class Layout { bshd, bhsd, packed };  // (batch, seq, heads, dim), (batch, heads, seq, dim), (total, heads, dim)

// q, k, v or o as the library counts it.
struct Tensor {
    Array array;
    int64_t batch = 0, length = 0, heads = 0, dim = 0;  // packed: length is the total, batch is 0
    int64_t stride[4] = {};                             // (batch, row, head, element)
};
Tensor tensor_of(Array array, Layout layout);
Tensor read_tensor(const std::string& option, const std::string& path, Layout layout);

// The library's name of a file's element type. bfloat16 has no type of its own in .npy: its bits come as uint16, and --dtype says so.
// wanted: what --dtype says, or "".
int32_t dtype_of(const std::string& option, const std::string& path, const Array& array, const std::string& wanted);

// Offsets of packed sequences: "0,10,30", or a .npy file of them. The library checks that they never decrease and stay within the
// total.
std::vector<int32_t> read_offsets(const std::string& option, const std::string& text);
int64_t longest(const std::vector<int32_t>& offsets);

// NumPy's rule: axes are aligned at the end, and one that is missing or 1 is repeated, by stride 0.
void broadcast(const std::string& option, const std::string& path, const Array& array, const fa_attention_desc_t& desc, int64_t* stride);

}  // namespace tool
