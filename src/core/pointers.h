// The pointers to tensors in an args struct. The list is written from the header, so that one which is appended there cannot be forgotten
// here.
#pragma once
#include <flashattn.h>
#include <stdint.h>

namespace fa {

struct Pointer {
    uint32_t offset;
    const char* name;  // of its field, as the checks call the tensor
};
struct Pointers {
    const Pointer* list;
    int count;
    const Pointer* begin() const { return list; }
    const Pointer* end() const { return list + count; }
};

// Of fa_forward_args_t and its like.
template <class Args>
Pointers pointers_of();
template <>
Pointers pointers_of<fa_forward_args_t>();
template <>
Pointers pointers_of<fa_backward_args_t>();
template <>
Pointers pointers_of<fa_merge_args_t>();
template <>
Pointers pointers_of<fa_append_kv_args_t>();
template <>
Pointers pointers_of<fa_rotary_args_t>();

}  // namespace fa
