/* Causal attention, two heads over four positions. The data is in ordinary memory and the handle
 * chooses the backend, so the program runs on a GPU if one is usable.
 * Build: cc minimal.c $(pkg-config --cflags --libs flashattn) */
#include <flashattn.h>
#include <stdio.h>

enum { ROWS = 4, HEADS = 2, DIM = 8, SIZE = ROWS * HEADS * DIM };

int main(void) {
    float q[SIZE], k[SIZE], v[SIZE], o[SIZE]; /* [row][head][dim] */
    for (int i = 0; i < SIZE; i++) {
        q[i] = (float)(i % 7) / 4;
        k[i] = (float)(i % 5) / 4;
        v[i] = (float)i / 8;
    }

    fa_handle_t handle;
    if (fa_create(&handle, NULL) != FA_OK) return fputs(fa_last_error(NULL), stderr), 1;

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32;
    desc.batch = 1;
    desc.heads_q = HEADS;
    desc.seqlen_q = desc.seqlen_k = ROWS;
    desc.dim_qk = DIM;
    desc.flags = FA_CAUSAL;
    desc.alignment = FA_ALIGN_TOP_LEFT;
    if (fa_forward(handle, &desc, q, k, v, o) != FA_OK) return fputs(fa_last_error(handle), stderr), 1;

    for (int i = 0; i < ROWS * HEADS; i++) {
        const float* head = o + i * DIM;
        printf("row %d head %d: %.4f %.4f\n", i / HEADS, i % HEADS, head[0], head[1]);
    }
    return fa_destroy(handle);
}
