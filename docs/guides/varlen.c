/* Three sequences of 5, 12 and 3 rows, packed one behind the other: no row is padding, and no row sees another sequence. */
#include <flashattn.h>
#include <math.h>
#include <stdio.h>

enum { HEADS = 2, DIM = 16, ROW = HEADS * DIM, TOTAL = 20, SEQUENCES = 3 };

int main(void) {
    static float q[TOTAL * ROW], o[TOTAL * ROW], alone[TOTAL * ROW];
    for (int i = 0; i < TOTAL * ROW; i++) q[i] = sinf((float)(i * i % 97));
    fa_handle_t handle;
    if (fa_create(&handle, NULL) != FA_OK) return fprintf(stderr, "%s\n", fa_last_error(NULL)), 1;

    /* [packed] */
    const int32_t cu_seqlens[SEQUENCES + 1] = {0, 5, 17, 20}; /* sequence b has rows [cu_seqlens[b], cu_seqlens[b + 1]) */
    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = SEQUENCES, desc.heads_q = HEADS, desc.dim_qk = DIM;
    desc.total_q = desc.total_k = TOTAL;
    desc.seqlen_q = desc.seqlen_k = 12; /* the longest, or any bound of it */
    desc.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    desc.flags = FA_CAUSAL, desc.alignment = FA_ALIGN_TOP_LEFT;
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    args.q = args.k = args.v = q, args.o = o;
    args.cu_seqlens_q = args.cu_seqlens_k = cu_seqlens;
    if (fa_forward_ex(handle, &desc, &args) != FA_OK) return fprintf(stderr, "%s\n", fa_last_error(handle)), 1;
    /* [end] */

    fa_attention_desc_t one = FA_ATTENTION_DESC_INIT;
    one.q_dtype = FA_F32, one.batch = 1, one.heads_q = HEADS, one.dim_qk = DIM, one.flags = FA_CAUSAL,
    one.alignment = FA_ALIGN_TOP_LEFT;
    for (int b = 0; b < SEQUENCES; b++) {
        const float* x = q + cu_seqlens[b] * ROW;
        one.seqlen_q = one.seqlen_k = cu_seqlens[b + 1] - cu_seqlens[b];
        if (fa_forward(handle, &one, x, x, x, alone + cu_seqlens[b] * ROW) != FA_OK)
            return fprintf(stderr, "%s\n", fa_last_error(handle)), 1;
    }
    float worst = 0.0f;
    for (int i = 0; i < TOTAL * ROW; i++) worst = fmaxf(worst, fabsf(o[i] - alone[i]));
    printf("three sequences in one call, as each by itself within 1e-6: %s\n", worst <= 1e-6f ? "yes" : "no");
    return fa_destroy(handle) != FA_OK || !(worst <= 1e-6f);
}
