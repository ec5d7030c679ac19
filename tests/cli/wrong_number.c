/* Loaded before libflashattn: passes every forward on, and then makes the first element of an f32 o of 70 rows wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <flashattn.h>

fa_status_t fa_forward_ex(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_forward_args_t* args) {
    fa_status_t (*real)(fa_handle_t, const fa_attention_desc_t*, const fa_forward_args_t*);
    *(void**)&real = dlsym(RTLD_NEXT, "fa_forward_ex");
    const fa_status_t status = real(handle, desc, args);
    if (status == FA_OK && desc->q_dtype == FA_F32 && desc->seqlen_q == 70 && desc->o_dtype == 0) *(float*)args->o += 1e-2f;
    return status;
}
