// The _init functions: what the _INIT macros do, for languages without C macros and for callers of another library version.
#include <string.h>
#include "core/check.h"
#include "core/handle.h"

namespace {

// The caller's size counts: a newer caller's struct is zeroed to its own end.
template <class T>
fa_status_t init(T* object, uint32_t struct_size) {
    using Sized = fa::Sized<T>;
    fa::Message* m = fa::thread_message();
    if (object == nullptr) return fail(m, FA_INVALID_ARGUMENT, "%s is NULL: expected a struct to fill", Sized::kName);
    const fa_status_t status = fa::check_struct_size(struct_size, Sized::kFirst, Sized::kName, m);
    if (status != FA_OK) return status;
    memset(static_cast<void*>(object), 0, struct_size);
    object->struct_size = struct_size;
    return FA_OK;
}

}  // namespace

fa_status_t fa_create_info_init(fa_create_info_t* info, uint32_t struct_size) { return init(info, struct_size); }
fa_status_t fa_attention_desc_init(fa_attention_desc_t* desc, uint32_t struct_size) { return init(desc, struct_size); }
fa_status_t fa_forward_args_init(fa_forward_args_t* args, uint32_t struct_size) { return init(args, struct_size); }
fa_status_t fa_backward_args_init(fa_backward_args_t* args, uint32_t struct_size) { return init(args, struct_size); }
fa_status_t fa_merge_args_init(fa_merge_args_t* args, uint32_t struct_size) { return init(args, struct_size); }
fa_status_t fa_rotary_args_init(fa_rotary_args_t* args, uint32_t struct_size) { return init(args, struct_size); }
fa_status_t fa_append_kv_args_init(fa_append_kv_args_t* args, uint32_t struct_size) { return init(args, struct_size); }
