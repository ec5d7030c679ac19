/* A plugin that computes: one forward on a team of threads. Returns 0, or the number of the step that failed. */
#include <flashattn.h>

enum { ROWS = 64, HEADS = 4, DIM = 4, SIZE = ROWS * HEADS * DIM };

/* code: where the library lies. */
__attribute__((visibility("default"))) int attend(void** code) {
    static float q[SIZE], k[SIZE], v[SIZE], o[SIZE];
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    *(fa_status_t(**)(fa_handle_t))code = fa_destroy;
    info.backend = FA_BACKEND_CPU;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = desc.seqlen_k = ROWS, desc.dim_qk = DIM;
    for (int i = 0; i < SIZE; i++) v[i] = 1;
    if (fa_create(&handle, &info) != FA_OK) return 1;
    if (fa_param_set(handle, FA_PARAM_THREADS, 3) != FA_OK) return 2;
    if (fa_forward(handle, &desc, q, k, v, o) != FA_OK) return 3;
    return o[SIZE - 1] == 1 && fa_destroy(handle) == FA_OK ? 0 : 4;
}
