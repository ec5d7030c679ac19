/* Decoding with a causal mask and grouped heads from a cache of quantised keys and values. Shows: a descriptor of ten lines that says
 * so; fa_append_kv, which turns f32 tokens into blocks of 32 dims in 34 bytes (ggml's q8_0); and fa_extent, which says how many bytes
 * such a cache takes. The attention reads the blocks where they lie.
 * Build: cc quantised_cache.c $(pkg-config --cflags --libs flashattn) -lm */
#include <stddef.h>
#include "plain.h"

enum { BATCH = 2, HEADS = 32, KV_HEADS = 8, KEYS = 256, DIM = 128, TOKEN = KV_HEADS * DIM };

int main(void) {
    static float k_new[BATCH * KEYS * TOKEN], v_new[BATCH * KEYS * TOKEN], q[BATCH * HEADS * DIM], o[BATCH * HEADS * DIM];
    const int32_t empty[BATCH] = {0, 0}, lengths[BATCH] = {256, 100};
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    need(fa_create(&handle, &info), NULL);

    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32;
    d.k_dtype = FA_Q8_0; /* v's, too */
    d.batch = 2;
    d.heads_q = 32;
    d.heads_k = 8;
    d.seqlen_q = 1;
    d.seqlen_k = 256; /* room in the cache */
    d.dim_qk = 128;
    d.flags = FA_CAUSAL;
    d.alignment = FA_ALIGN_BOTTOM_RIGHT; /* the row stands on its sequence's last key */
    d.operands = FA_OPERAND_SEQUSED_K;

    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    uint64_t bytes;
    append.seqlen_new = KEYS;
    need(fa_extent(&d, FA_OP_APPEND_KV, &append, offsetof(fa_append_kv_args_t, k), &bytes), NULL);
    char *const k_cache = malloc(bytes), *const v_cache = malloc(bytes);
    if (!k_cache || !v_cache) return 1;
    fill(k_new, BATCH * KEYS * TOKEN, 1), fill(v_new, BATCH * KEYS * TOKEN, 2), fill(q, BATCH * HEADS * DIM, 3);
    append.k_new = k_new, append.v_new = v_new, append.k = k_cache, append.v = v_cache;
    append.seqused_k = empty, append.seqused_new = lengths;
    need(fa_append_kv(handle, &d, &append), handle);

    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    a.q = q;
    a.k = k_cache;
    a.v = v_cache;
    a.o = o;
    a.seqused_k = lengths;
    need(fa_forward_ex(handle, &d, &a), handle);

    double worst = 0;
    for (int b = 0; b < BATCH; b++) {
        for (int h = 0; h < HEADS; h++) {
            const long first = (long)b * KEYS * TOKEN + h * KV_HEADS / HEADS * DIM;
            double expected[DIM];
            plain_row(q + (b * HEADS + h) * DIM, k_new + first, v_new + first, lengths[b], DIM, TOKEN, NULL, expected);
            worst = farthest(worst, o + (b * HEADS + h) * DIM, expected, DIM);
        }
    }
    printf("%.2f bytes for each of the cache's numbers\n", (double)bytes / (BATCH * KEYS * TOKEN));
    fa_destroy(handle);
    free(k_cache), free(v_cache);
    return verdict(worst, 2e-3); /* a number is off by half a 127th of its block's largest, and many average out */
}
