// The _init functions: what the _INIT macros do, for languages without C macros and for callers of another library version.
#include <string.h>
#include "core/handle.h"

namespace {

// The caller's size counts: a newer caller's struct is zeroed to its own end, an older one's no further than that.
fa_status_t init(void* object, uint32_t struct_size, const char* name) {
    fa::Message* m = fa::thread_message();
    constexpr uint32_t kLeast = 8;  // struct_size and the field after it
    if (object == nullptr) return fail(m, FA_INVALID_ARGUMENT, "%s is NULL: expected a struct to fill", name);
    if (struct_size < kLeast) return fail(m, FA_INVALID_ARGUMENT, "struct_size is %u: expected sizeof *%s", struct_size, name);
    memset(object, 0, struct_size);
    memcpy(object, &struct_size, sizeof struct_size);
    return FA_OK;
}

}  // namespace

fa_status_t fa_create_info_init(fa_create_info_t* info, uint32_t struct_size) { return init(info, struct_size, "info"); }
fa_status_t fa_attention_desc_init(fa_attention_desc_t* desc, uint32_t struct_size) { return init(desc, struct_size, "desc"); }
fa_status_t fa_forward_args_init(fa_forward_args_t* args, uint32_t struct_size) { return init(args, struct_size, "args"); }
fa_status_t fa_backward_args_init(fa_backward_args_t* args, uint32_t struct_size) { return init(args, struct_size, "args"); }
fa_status_t fa_merge_args_init(fa_merge_args_t* args, uint32_t struct_size) { return init(args, struct_size, "args"); }
fa_status_t fa_rotary_args_init(fa_rotary_args_t* args, uint32_t struct_size) { return init(args, struct_size, "args"); }
fa_status_t fa_append_kv_args_init(fa_append_kv_args_t* args, uint32_t struct_size) { return init(args, struct_size, "args"); }
