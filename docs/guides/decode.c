/* Decoding on the CPU from a cache of pages that holds 8-bit keys and values: append a token, attend, next. At the end the same
 * is computed by one causal call on f32 keys and values, and compared: the difference is what 8 bits lose. */
#include <flashattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BATCH = 3,
    HEADS_Q = 8,
    HEADS_KV = 2,
    DIM = 64,
    TOKENS = 100,
    PAGE = 16,
    COLUMNS = (TOKENS + PAGE - 1) / PAGE,
    PAGES = BATCH * COLUMNS
};
enum { ROW_Q = HEADS_Q * DIM, ROW_KV = HEADS_KV * DIM };

static fa_handle_t handle;
static float q[BATCH][TOKENS][ROW_Q], k[BATCH][TOKENS][ROW_KV],
    v[BATCH][TOKENS][ROW_KV]; /* what the model's projections would give */
static float decoded[BATCH][TOKENS][ROW_Q], whole[BATCH][TOKENS][ROW_Q];
static int8_t k_cache[PAGES][PAGE][HEADS_KV][DIM], v_cache[PAGES][PAGE][HEADS_KV][DIM];
static float k_descale[PAGES][PAGE][HEADS_KV], v_descale[PAGES][PAGE][HEADS_KV];

static void check(fa_status_t status) {
    if (status != FA_OK) fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle)), exit(1);
}

static void fill(float* x, size_t count) {
    static uint32_t state = 1;
    for (size_t i = 0; i < count; i++) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
}

int main(void) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    check(fa_create(&handle, &info));
    fill(&q[0][0][0], BATCH * TOKENS * ROW_Q), fill(&k[0][0][0], BATCH * TOKENS * ROW_KV),
        fill(&v[0][0][0], BATCH * TOKENS * ROW_KV);

    /* [cache] The pages of a sequence may be in any order. A server would allocate them as needed. Here all are known. */
    int32_t page_table[BATCH][COLUMNS], used[BATCH] = {0};
    for (int b = 0; b < BATCH; b++)
        for (int c = 0; c < COLUMNS; c++) page_table[b][c] = PAGES - 1 - (c * BATCH + b);

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.k_dtype = FA_I8; /* v_dtype 0: k's */
    desc.batch = BATCH, desc.heads_q = HEADS_Q, desc.heads_k = HEADS_KV, desc.dim_qk = DIM;
    desc.seqlen_q = 1, desc.seqlen_k = COLUMNS * PAGE, desc.page_size = PAGE, desc.num_pages = PAGES;
    desc.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
    const int64_t scale_of_slot[4] = {PAGE * HEADS_KV, HEADS_KV, 1, 0}; /* (page, slot, head, block of dims) */
    for (int i = 0; i < 4; i++) desc.k_descale_stride[i] = desc.v_descale_stride[i] = scale_of_slot[i];
    /* [end] */

    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    append.flags = FA_APPEND_DYNAMIC_SCALE; /* a scale for each token and head, written into k_descale and v_descale */
    append.seqlen_new = 1, append.k = k_cache, append.v = v_cache, append.k_descale = k_descale, append.v_descale = v_descale;
    append.k_new_stride[0] = append.v_new_stride[0] = TOKENS * ROW_KV, append.k_new_stride[1] = append.v_new_stride[1] = ROW_KV;
    append.k_new_stride[2] = append.v_new_stride[2] = DIM, append.k_new_stride[3] = append.v_new_stride[3] = 1;
    append.seqused_k = used, append.page_table = &page_table[0][0];
    fa_forward_args_t attend = FA_FORWARD_ARGS_INIT;
    attend.k = k_cache, attend.v = v_cache, attend.k_descale = k_descale, attend.v_descale = v_descale;
    attend.seqused_k = used, attend.page_table = &page_table[0][0];
    desc.strided = FA_STRIDED_Q | FA_STRIDED_O; /* tokens of a sequence follow each other */
    const int64_t row_of_sequence[4] = {TOKENS * ROW_Q, ROW_Q, DIM, 1};
    for (int i = 0; i < 4; i++) desc.q_stride[i] = desc.o_stride[i] = row_of_sequence[i];

    /* [loop] used: tokens in the cache. The append takes the number before it, the attention the number after it. */
    for (int t = 0; t < TOKENS; t++) {
        append.k_new = k[0][t], append.v_new = v[0][t];
        check(fa_append_kv(handle, &desc, &append));
        for (int b = 0; b < BATCH; b++) used[b]++;
        attend.q = q[0][t], attend.o = decoded[0][t];
        check(fa_forward_ex(handle, &desc, &attend));
    }
    /* [end] */

    fa_attention_desc_t prefill = FA_ATTENTION_DESC_INIT;
    prefill.q_dtype = FA_F32, prefill.batch = BATCH, prefill.heads_q = HEADS_Q, prefill.heads_k = HEADS_KV, prefill.dim_qk = DIM;
    prefill.seqlen_q = prefill.seqlen_k = TOKENS, prefill.flags = FA_CAUSAL, prefill.alignment = FA_ALIGN_TOP_LEFT;
    check(fa_forward(handle, &prefill, q, k, v, whole));
    float worst = 0.0f;
    for (int i = 0; i < BATCH * TOKENS * ROW_Q; i++) {
        const float difference = fabsf((&decoded[0][0][0])[i] - (&whole[0][0][0])[i]);
        if (!(difference <= worst)) worst = difference;
    }
    printf("%d tokens of %d sequences: %zu KB of cache, %zu KB in f32\n", TOKENS, BATCH,
           (2 * sizeof k_cache + 2 * sizeof k_descale) / 1024, 2 * sizeof k_cache * sizeof(float) / 1024);
    printf("largest difference from one causal call in f32 below 0.01: %s\n", worst < 0.01f ? "yes" : "no");
    check(fa_destroy(handle));
    return !(worst < 0.01f);
}
