// From what the caller wrote to what a backend may trust. Each function imports a sized struct, checks every field against the
// contract, fills in defaults, and reports the first fault with the field's name, its value and what was expected.
#pragma once
#include "backend/backend.h"

namespace fa {

// Checks the descriptor for one operation (FA_OP_…) and fills in defaults.
fa_status_t resolve(const fa_attention_desc_t* user, int32_t op, Problem* problem, Message* message);

// The bytes that a checked call touches in the caller's memory, first and one past the last of each tensor.
struct Region {
    uintptr_t begin, end;
    bool output;
    char* device;  // where staging has put it
};
struct Regions {
    static constexpr int kMax = 48;  // a backward: the forward's 34, and its own
    Region region[kMax];
    int count;
    // NULL, but for fa_extent: the field whose tensor is measured. Pointers then stand for nothing.
    const char* asked = nullptr;
    uint64_t extent = 0;
};

// A backward's args, and those of the forward that it points to.
struct CheckedBackward : fa_backward_args_t {
    fa_forward_args_t inputs;
};
static_assert(sizeof(CheckedBackward) == sizeof(fa_backward_args_t) + sizeof(fa_forward_args_t), "nothing lies between them");

// args: imported; they get their defaults. host_metadata: int32 arrays are readable here, so their contents are checked as well. regions:
// what the call touches, workspace apart.
fa_status_t check_forward(const Problem& problem, fa_forward_args_t* args, bool host_metadata, Regions* regions, Message*);
fa_status_t check_backward(const Problem& problem, CheckedBackward* args, bool host_metadata, Regions* regions, Message*);
fa_status_t check_merge(const Problem& problem, fa_merge_args_t* args, bool host_metadata, Regions* regions, Message*);
fa_status_t check_append_kv(const Problem& problem, fa_append_kv_args_t* args, bool host_metadata, Regions* regions, Message*);
fa_status_t check_rotary(const Problem& problem, fa_rotary_args_t* args, bool host_metadata, Regions* regions, Message*);

// The descriptor that a call has: the caller's, but under FA_ROTARY_OF_K one in `room` with k's half in the place of q's, which is what all
// else reads.
template <class Args>
fa_status_t choose_desc(const Args&, const fa_attention_desc_t**, fa_attention_desc_t*, Message*) {
    return FA_OK;
}
fa_status_t choose_desc(const fa_rotary_args_t& args, const fa_attention_desc_t** desc, fa_attention_desc_t* room, Message*);

// Every conversion of a list, before any is begun. Needs no problem, and reads nothing but the list.
fa_status_t check_convert(const fa_conversion_t* list, int64_t count, Message*);

// What is known of a sized struct: its name, and its bytes in version 0.2, since which it only grows.
template <class T>
struct Sized;
#define FA_SIZED(type, bytes)                                           \
    template <>                                                         \
    struct Sized<type> {                                                \
        static constexpr char kName[] = #type;                          \
        static constexpr uint32_t kFirst = bytes;                       \
        static_assert(bytes <= sizeof(type), "a struct never shrinks"); \
    };
FA_SIZED(fa_create_info_t, 72)
FA_SIZED(fa_device_info_t, 216)
FA_SIZED(fa_attention_desc_t, 888)
FA_SIZED(fa_forward_args_t, 352)
FA_SIZED(fa_backward_args_t, 280)
FA_SIZED(fa_merge_args_t, 176)
FA_SIZED(fa_rotary_args_t, 152)
FA_SIZED(fa_append_kv_args_t, 288)
#undef FA_SIZED

// No struct of this interface will outgrow it, so a larger size is a field that was never set, and its tail not memory to read or write.
constexpr uint32_t kLargestStruct = 4096;

fa_status_t check_struct_size(uint32_t given, uint32_t first, const char* name, Message* message);
// The one door for a struct of the caller's: nothing of it is read before its size is known to be there. It may lie at any address.
fa_status_t read_struct_size(const void* user, uint32_t first, const char* name, uint32_t* size, Message* message);
// Copies min(user's size, size) bytes of a sized struct into `to` (zeroed first). Smaller than `first`: invalid; a tail beyond
// `size` that is not all zero: unsupported field. `to` then says `size` as its own.
fa_status_t import_bytes(void* to, const void* user, uint32_t size, uint32_t first, const char* name, Message* message);

template <class T>
fa_status_t import_struct(T* to, const T* user, Message* message) {
    return import_bytes(to, user, sizeof(T), Sized<T>::kFirst, Sized<T>::kName, message);
}

}  // namespace fa
